//! Records of an agent, saved for the next agent in files next to the last good state.
//!
//! The files are gzip files, which have a checksum; a new file replaces the old one by rename. A file that cannot be
//! read counts as missing: the records start empty, and nothing else depends on them.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use tokio::task::JoinHandle;

/// Version of the file format.
const FORMAT: u32 = 1;
/// Largest unpacked content of a file, in bytes, so that a damaged file does not fill the memory.
const MAX_BYTES: u64 = 1 << 26;
/// Shortest time between two writes.
const PAUSE: Duration = Duration::from_mins(1);

/// A kind of saved records.
#[derive(Clone, Copy, Debug)]
pub struct RecordKind {
    /// Suffix of the file name, after the name of the last good state.
    pub suffix: &'static str,
    /// Subject of the records, for the log.
    pub subject: &'static str,
}

#[derive(Serialize, Deserialize)]
struct RecordFile<T> {
    format: u32,
    node: String,
    #[serde(flatten)]
    saved: T,
}

/// Path of the records, from the path of the last good state (`--state`).
fn path(state: &Path, records: RecordKind) -> PathBuf {
    let mut name = state.as_os_str().to_owned();
    name.push(records.suffix);
    name.into()
}

/// Reads the records of an earlier agent of this node. A damaged file is logged and counts as missing.
#[must_use]
pub fn read<T: DeserializeOwned>(state: &Path, records: RecordKind, node: &str) -> Option<T> {
    let (path, subject) = (path(state, records), records.subject);
    match read_file(&path) {
        Ok(document) if document.format == FORMAT && document.node == node => Some(document.saved),
        Ok(_) => {
            let path = path.display();
            tracing::warn!("{path}: written by another node or version; {subject} start empty");
            None
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            let path = path.display();
            tracing::warn!(%error, "cannot read {path}; {subject} start empty");
            None
        }
    }
}

fn read_file<T: DeserializeOwned>(path: &Path) -> io::Result<RecordFile<T>> {
    let mut bytes = Vec::new();
    let file = BufReader::new(File::open(path)?);
    GzDecoder::new(file).take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

fn write<T: Serialize>(path: &Path, node: &str, saved: &T) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    let mut file = NamedTempFile::new_in(directory)?;
    let document = RecordFile { format: FORMAT, node: node.to_owned(), saved };
    let mut packed = GzEncoder::new(BufWriter::new(&mut file), Compression::fast());
    serde_json::to_writer(&mut packed, &document)?;
    packed.finish()?.flush()?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Writes records from time to time, in the background.
#[derive(Debug)]
pub struct RecordKeeper {
    path: PathBuf,
    records: RecordKind,
    node: String,
    not_before: Instant,
    writing: Option<JoinHandle<()>>,
}

impl RecordKeeper {
    /// Creates a keeper; `state` is the path of the last good state.
    #[must_use]
    pub fn new(state: &Path, records: RecordKind, node: String) -> Self {
        let not_before = Instant::now() + PAUSE;
        Self { path: path(state, records), records, node, not_before, writing: None }
    }

    /// Returns whether the next write is due.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let busy = self.writing.as_ref().is_some_and(|writing| !writing.is_finished());
        !busy && Instant::now() >= self.not_before
    }

    /// Starts writing records.
    pub fn write<T: Serialize + Send + 'static>(&mut self, saved: T) {
        let (path, node, records) = (self.path.clone(), self.node.clone(), self.records);
        self.not_before = Instant::now() + PAUSE;
        self.writing =
            Some(tokio::task::spawn_blocking(move || save(&path, records, &node, &saved)));
    }

    /// Writes records at the agent's end, after any write in progress.
    pub async fn finish<T: Serialize>(self, saved: T) {
        if let Some(writing) = self.writing {
            let _ = writing.await;
        }
        save(&self.path, self.records, &self.node, &saved);
    }
}

fn save<T: Serialize>(path: &Path, records: RecordKind, node: &str, saved: &T) {
    if let Err(error) = write(path, node, saved) {
        let (path, subject) = (path.display(), records.subject);
        tracing::warn!(%error, "cannot write {path}; {subject} of the next agent start empty");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDS: RecordKind = RecordKind { suffix: ".test", subject: "tests" };

    #[test]
    fn records_are_read_back_and_damaged_files_are_not() {
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        struct SavedRecords {
            as_of: u64,
        }
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let read = |node: &str| read::<SavedRecords>(&state, RECORDS, node);
        assert_eq!(read("n"), None);
        let saved = SavedRecords { as_of: 7 };
        let path = path(&state, RECORDS);
        write(&path, "n", &saved).unwrap();
        assert_eq!(read("n"), Some(saved));
        assert_eq!(read("other"), None);
        let mut bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            fs::write(&path, &bytes[..at]).unwrap();
            assert_eq!(read("n"), None, "cut to {at} bytes");
        }
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(read("n"), None);
    }
}
