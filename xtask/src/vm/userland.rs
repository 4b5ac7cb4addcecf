//! Programs of a guest other than netpold: busybox and `ip`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::apt::{self, COMPLETE, DebianSuite};
use crate::arch::Arch;
use crate::step::output;

/// Paths of files on this machine by their paths in the guest.
pub(super) type GuestFiles = BTreeMap<PathBuf, PathBuf>;

/// Sources of the guest's programs.
pub(super) struct Userland {
    pub(super) busybox: PathBuf,
    /// Folder of unpacked packages for another processor; `None`: the guest uses `ip` of this machine.
    root: Option<PathBuf>,
}

/// Suite of the packages for another processor.
const SUITE: &str = "trixie";

impl Userland {
    /// Fetches busybox for this machine's processor, or all packages for another one.
    ///
    /// # Errors
    /// When a package cannot be fetched.
    pub(super) fn fetch(cache: &Path, arch: Arch) -> Result<Self> {
        let root = if arch.is_own() {
            apt::unpacked(cache, "busybox-static")?
        } else {
            foreign(cache, arch)?
        };
        let busybox = ["bin/busybox", "usr/bin/busybox"].map(|path| root.join(path));
        let busybox = busybox.into_iter().find(|path| path.is_file());
        let busybox = busybox.context("the package busybox-static has no busybox")?;
        Ok(Self { busybox, root: (!arch.is_own()).then_some(root) })
    }

    /// Returns `ip` and the given binaries, each at its path on this machine, with the libraries that they need.
    ///
    /// # Errors
    /// When a file is missing, or its libraries are unknown.
    pub(super) fn files(&self, binaries: &[&Path]) -> Result<GuestFiles> {
        if let Some(root) = &self.root {
            let mut files = unpacked(root)?;
            // Binaries for another processor are static.
            files.extend(binaries.iter().map(|path| (path.to_path_buf(), path.to_path_buf())));
            return Ok(files);
        }
        let ip = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"].map(Path::new);
        let ip = ip.into_iter().find(|path| path.exists()).context("this machine has no ip")?;
        let mut files = GuestFiles::new();
        for program in [&[ip], binaries].concat() {
            linked(program, &mut files)?;
        }
        Ok(files)
    }
}

/// Unpacks packages for another processor, with all their dependencies.
fn foreign(cache: &Path, arch: Arch) -> Result<PathBuf> {
    let root = cache.join("userland");
    if !root.join(COMPLETE).exists() {
        let suite = DebianSuite::update(cache, SUITE, arch)?;
        suite.unpack_whole(&["busybox-static", "iproute2"], &root)?;
    }
    Ok(root)
}

/// Returns `ip` and all libraries of unpacked packages: `ldd` lists libraries only for programs of this machine's
/// processor.
fn unpacked(root: &Path) -> Result<GuestFiles> {
    let mut files = GuestFiles::from([("/usr/bin/ip".into(), root.join("usr/bin/ip"))]);
    let libraries = root.join("usr/lib");
    let mut folders = vec![libraries.clone()];
    for entry in fs::read_dir(&libraries).with_context(|| libraries.display().to_string())? {
        let path = entry?.path();
        folders.extend(path.to_string_lossy().ends_with("-linux-gnu").then_some(path));
    }
    for folder in folders {
        for entry in fs::read_dir(folder)? {
            let from = entry?.path();
            if from.is_file() && from.to_string_lossy().contains(".so") {
                files.insert(Path::new("/").join(from.strip_prefix(root)?), from);
            }
        }
    }
    ensure!(files.len() > 1, "no libraries below {}", libraries.display());
    Ok(files)
}

/// Adds a program of this machine with its libraries.
fn linked(program: &Path, files: &mut GuestFiles) -> Result<()> {
    let listed = output(Command::new("ldd").arg(program))?;
    // `name => path (address)`, or `path (address)` for the loader.
    let paths = listed.split_whitespace().filter(|word| word.starts_with('/')).map(Path::new);
    for file in std::iter::once(program).chain(paths) {
        // The guest has the same links from /bin, /sbin, /lib and /lib64 to /usr.
        let parent = fs::canonicalize(file.parent().context("a file without a folder")?)?;
        let parent = match parent.strip_prefix("/") {
            Ok(below) if ["bin", "sbin", "lib", "lib64"].iter().any(|d| below.starts_with(d)) => {
                Path::new("/usr").join(below)
            }
            _ => parent,
        };
        files.insert(parent.join(file.file_name().unwrap_or_default()), file.to_owned());
    }
    Ok(())
}
