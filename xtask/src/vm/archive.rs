//! An initramfs: a cpio archive in the "new ASCII" format (Documentation/driver-api/early-userspace/
//! buffer-format.rst in the kernel's sources).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

enum ArchiveEntry {
    Folder,
    Link(PathBuf),
    Content(u32, Vec<u8>),
}

/// Contents of the archive, by absolute path.
#[derive(Default)]
pub(super) struct CpioArchive {
    entries: BTreeMap<PathBuf, ArchiveEntry>,
}

const FILE: u32 = 0o100_000;
const FOLDER: u32 = 0o040_755;
const LINK: u32 = 0o120_777;

impl CpioArchive {
    /// Adds a file with this content.
    pub(super) fn file(&mut self, path: &str, mode: u32, content: impl Into<Vec<u8>>) {
        self.add(Path::new(path), ArchiveEntry::Content(FILE | mode, content.into()));
    }

    /// Adds an empty folder.
    pub(super) fn folder(&mut self, path: &str) {
        self.add(Path::new(path), ArchiveEntry::Folder);
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.add(Path::new(path), ArchiveEntry::Link(target.into()));
    }

    /// Adds a file of this machine.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn copy(&mut self, from: &Path, to: &Path) -> Result<()> {
        let read = || -> std::io::Result<_> {
            let mode = fs::metadata(from)?.permissions().mode() & 0o777;
            Ok(ArchiveEntry::Content(FILE | mode, fs::read(from)?))
        };
        let entry = read().with_context(|| format!("cannot read {}", from.display()))?;
        self.add(to, entry);
        Ok(())
    }

    /// Adds an entry and its parent folders.
    fn add(&mut self, path: &Path, entry: ArchiveEntry) {
        let path: PathBuf = path.components().filter(|c| *c != Component::RootDir).collect();
        let parents = path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
        for parent in parents {
            self.entries.entry(parent.to_owned()).or_insert(ArchiveEntry::Folder);
        }
        self.entries.insert(path, entry);
    }

    /// Writes the archive.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn write(&self, to: &Path) -> Result<()> {
        let file = File::create(to).with_context(|| format!("cannot make {}", to.display()))?;
        let mut out = BufWriter::new(file);
        for (inode, (path, entry)) in self.entries.iter().enumerate() {
            let name = path.to_string_lossy();
            match entry {
                ArchiveEntry::Folder => member(&mut out, inode, FOLDER, &name, &[])?,
                ArchiveEntry::Link(target) => {
                    member(&mut out, inode, LINK, &name, target.to_string_lossy().as_bytes())?;
                }
                ArchiveEntry::Content(mode, content) => {
                    member(&mut out, inode, *mode, &name, content)?;
                }
            }
        }
        member(&mut out, 0, 0, "TRAILER!!!", &[])?;
        out.flush().context("cannot write the initramfs")
    }
}

/// Writes one member: header and name padded to four bytes, then content likewise.
fn member(out: &mut impl Write, inode: usize, mode: u32, name: &str, data: &[u8]) -> Result<()> {
    let (links, size, length) = (1, data.len(), name.len() + 1);
    let header = format!(
        "070701{inode:08x}{mode:08x}{:08x}{:08x}{links:08x}{:08x}{size:08x}{:032x}{length:08x}{:08x}",
        0, 0, 0, 0, 0
    );
    out.write_all(header.as_bytes())?;
    out.write_all(name.as_bytes())?;
    pad(out, header.len() + name.len(), 1)?;
    out.write_all(data)?;
    pad(out, size, 0)
}

/// Writes zeros up to a multiple of four, at least `least` of them.
fn pad(out: &mut impl Write, length: usize, least: usize) -> Result<()> {
    let zeros = least + (length + least).wrapping_neg() % 4;
    Ok(out.write_all(&[0; 8][..zeros])?)
}

#[cfg(test)]
mod tests {
    use super::CpioArchive;
    use std::process::{Command, Stdio};

    /// Compares with the listing of cpio, if installed.
    #[test]
    fn an_archive_is_what_cpio_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("initramfs");
        let mut archive = CpioArchive::default();
        archive.file("/a/b/odd", 0o755, "three");
        archive.file("/c", 0o644, "");
        archive.link("/d", "a/b");
        archive.write(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.starts_with(b"070701") && bytes.len().is_multiple_of(4));
        let listed = Command::new("cpio")
            .args(["--list", "--quiet"])
            .stdin(Stdio::from(std::fs::File::open(&path).unwrap()))
            .output();
        let Ok(listed) = listed else {
            println!("SKIPPED: cpio is not installed");
            return;
        };
        assert!(listed.status.success());
        assert_eq!(String::from_utf8(listed.stdout).unwrap(), "a\na/b\na/b/odd\nc\nd\n");
    }
}
