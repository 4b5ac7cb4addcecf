//! The records in a file beside the last good state, for the next agent.
//!
//! gzip carries a checksum; the file is written beside and renamed. What cannot be read counts as none: the
//! records begin anew, and nothing else depends on them.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use tokio::task::JoinHandle;

use super::records::PolicyRecord;

/// Version of the file's form.
const FORMAT: u32 = 1;
/// No file is larger: a damaged one does not fill the memory.
const MAX_BYTES: u64 = 1 << 26;
/// Shortest time between two files.
const PAUSE: Duration = Duration::from_mins(1);
/// What the file's name has behind that of the last good state.
const SUFFIX: &str = ".rules";

/// What is kept of the use of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Until when it counts, in milliseconds since the epoch.
    pub(super) as_of: u64,
    pub(super) missed: u64,
    pub(super) policies: Vec<PolicyRecord>,
}

#[derive(Serialize, Deserialize)]
struct Document<T> {
    format: u32,
    node: String,
    #[serde(flatten)]
    saved: T,
}

/// Where the records are, by where the last good state (`--state`) is.
fn path(state: &Path) -> PathBuf {
    let mut name = state.as_os_str().to_owned();
    name.push(SUFFIX);
    name.into()
}

/// What an earlier agent of this node has kept; a damaged file is told of and counts as none.
#[must_use]
pub fn read(state: &Path, node: &str) -> Option<Saved> {
    let path = path(state);
    match read_file(&path) {
        Ok(document) if document.format == FORMAT && document.node == node => Some(document.saved),
        Ok(_) => {
            let path = path.display();
            tracing::warn!("{path}: of another node or version; the use of rules is counted anew");
            None
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            let path = path.display();
            tracing::warn!(%error, "{path}: cannot be read; the use of rules is counted anew");
            None
        }
    }
}

fn read_file(path: &Path) -> io::Result<Document<Saved>> {
    let mut bytes = Vec::new();
    let file = BufReader::new(File::open(path)?);
    GzDecoder::new(file).take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

fn write(path: &Path, node: &str, saved: &Saved) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    let mut file = NamedTempFile::new_in(directory)?;
    let document = Document { format: FORMAT, node: node.to_owned(), saved };
    let mut packed = GzEncoder::new(BufWriter::new(&mut file), Compression::fast());
    serde_json::to_writer(&mut packed, &document)?;
    packed.finish()?.flush()?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Writes the records now and then, in the background.
#[derive(Debug)]
pub struct Keeper {
    path: PathBuf,
    node: String,
    not_before: Instant,
    writing: Option<JoinHandle<()>>,
}

impl Keeper {
    /// One that has written nothing; `state` is where the last good state is.
    #[must_use]
    pub fn new(state: &Path, node: String) -> Self {
        let not_before = Instant::now() + PAUSE;
        Self { path: path(state), node, not_before, writing: None }
    }

    /// Whether the records are to be written now.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let busy = self.writing.as_ref().is_some_and(|writing| !writing.is_finished());
        !busy && Instant::now() >= self.not_before
    }

    /// Begins to write them.
    pub fn write(&mut self, saved: Saved) {
        let (path, node) = (self.path.clone(), self.node.clone());
        self.not_before = Instant::now() + PAUSE;
        self.writing = Some(tokio::task::spawn_blocking(move || keep(&path, &node, &saved)));
    }

    /// Writes them at once, after what is being written: the agent ends.
    pub async fn finish(self, saved: Saved) {
        if let Some(writing) = self.writing {
            let _ = writing.await;
        }
        keep(&self.path, &self.node, &saved);
    }
}

fn keep(path: &Path, node: &str, saved: &Saved) {
    if let Err(error) = write(path, node, saved) {
        let path = path.display();
        tracing::warn!(%error, "{path}: the use of rules cannot be kept; the next agent counts anew");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_damaged_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        assert_eq!(read(&state, "n"), None);
        let saved = Saved { as_of: 7, missed: 1, policies: Vec::new() };
        write(&path(&state), "n", &saved).unwrap();
        assert_eq!(read(&state, "n"), Some(saved));
        assert_eq!(read(&state, "other"), None);
        let mut bytes = fs::read(path(&state)).unwrap();
        for at in 0..bytes.len() {
            fs::write(path(&state), &bytes[..at]).unwrap();
            assert_eq!(read(&state, "n"), None, "cut to {at} bytes");
        }
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path(&state), &bytes).unwrap();
        assert_eq!(read(&state, "n"), None);
    }
}
