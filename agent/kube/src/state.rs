//! The last good state: one small file with the objects behind the enforced policy, for a boot before the source is in
//! sync.
//!
//! The file holds no other objects; the agent compiles them as usual, against the current interfaces. gzip carries a
//! checksum. A new file replaces the old one by rename, so the path has the old file, the new file, or none. A file
//! that cannot be read or belongs to another node counts as missing: half a state is never enforced.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use netpold_core::compile::StateSnapshot;
use netpold_core::model::Change;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use tokio::task::JoinHandle;

/// Version of the file's format.
const FORMAT: u32 = 1;
/// Largest state, unpacked: a damaged file must not fill the memory.
const MAX_BYTES: u64 = 1 << 30;
/// Shortest time between two writes.
const PAUSE: Duration = Duration::from_secs(5);
/// Writes take at most 1/`SHARE` of the time.
const SHARE: u32 = 100;

/// Failure to read or write the state.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file cannot be read or written.
    #[error("--state {}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// The file is damaged or not a state file.
    #[error("--state {}: not a state file of netpold, or damaged: {cause}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: serde_json::Error,
    },
    /// The file has another format.
    #[error("--state {}: format {found}, but this agent reads format {FORMAT}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Format of the file.
        found: u32,
    },
    /// The file belongs to another node.
    #[error("--state {}: of node {found:?}, not of this one", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Name of the file's node.
        found: String,
    },
}

/// The file's content.
#[derive(Serialize, Deserialize)]
struct StateFile<T> {
    format: u32,
    node: String,
    objects: T,
}

/// Fields of every format.
#[derive(Deserialize)]
struct StateHeader {
    format: u32,
    node: String,
}

/// Reads the objects of the last good state; `None` if there is no file.
///
/// # Errors
/// See [`StateError`]: there is a file, but no usable state.
pub fn read(path: &Path, node: &str) -> Result<Option<Vec<Change>>, StateError> {
    let failed = |cause| StateError::Io { path: path.to_owned(), cause };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    decode(BufReader::new(file), path, node).map(Some)
}

/// Reads a file's content; `path` is for errors.
///
/// # Errors
/// See [`StateError`].
pub fn decode(file: impl BufRead, path: &Path, node: &str) -> Result<Vec<Change>, StateError> {
    let failed = |cause| StateError::Io { path: path.to_owned(), cause };
    let mut bytes = Vec::new();
    let mut unpacked = GzDecoder::new(file).take(MAX_BYTES);
    // Read to the end, where the checksum is.
    unpacked.read_to_end(&mut bytes).map_err(failed)?;
    let damaged = |cause| StateError::Damaged { path: path.to_owned(), cause };
    let head: StateHeader = serde_json::from_slice(&bytes).map_err(damaged)?;
    if head.format != FORMAT {
        return Err(StateError::Format { path: path.to_owned(), found: head.format });
    }
    if head.node != node {
        return Err(StateError::Foreign { path: path.to_owned(), found: head.node });
    }
    let document: StateFile<Vec<Change>> = serde_json::from_slice(&bytes).map_err(damaged)?;
    // Interfaces come from the kernel.
    let objects = document.objects.into_iter();
    Ok(objects.filter(Change::is_object).collect())
}

/// Replaces the last state.
///
/// # Errors
/// [`StateError::Io`]; the last state stays.
pub fn write(path: &Path, node: &str, objects: &StateSnapshot) -> Result<(), StateError> {
    let failed = |cause| StateError::Io { path: path.to_owned(), cause };
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory).map_err(failed)?;
    let mut file = NamedTempFile::new_in(directory).map_err(failed)?;
    let document = StateFile { format: FORMAT, node: node.to_owned(), objects };
    let packed = GzEncoder::new(BufWriter::new(&mut file), Compression::fast());
    write_document(packed, &document).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
}

fn write_document<W: Write>(
    mut packed: GzEncoder<W>,
    document: &StateFile<&StateSnapshot>,
) -> io::Result<()> {
    serde_json::to_writer(&mut packed, document)?;
    packed.finish()?.flush()
}

/// Writes the state from time to time, in the background.
#[derive(Debug)]
pub struct SnapshotWriter {
    path: PathBuf,
    node: String,
    /// Revision in the file, or on its way there.
    kept: u64,
    not_before: Instant,
    writing: Option<JoinHandle<(Duration, Result<(), StateError>)>>,
    /// Error of the last attempt.
    problem: Option<String>,
}

impl SnapshotWriter {
    /// Creates a writer that has written nothing.
    #[must_use]
    pub fn new(path: PathBuf, node: String) -> Self {
        let not_before = Instant::now();
        Self { path, node, kept: 0, not_before, writing: None, problem: None }
    }

    /// Returns whether a write of this revision is due.
    #[must_use]
    pub fn is_due(&self, revision: u64) -> bool {
        self.kept != revision && self.writing.is_none() && Instant::now() >= self.not_before
    }

    /// Starts writing a revision.
    pub fn write(&mut self, revision: u64, objects: StateSnapshot) {
        let (path, node) = (self.path.clone(), self.node.clone());
        self.kept = revision;
        self.writing = Some(tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            let written = write(&path, &node, &objects);
            (began.elapsed(), written)
        }));
    }

    /// Collects the result of a finished write. Returns the current problem.
    pub async fn collect_result(&mut self) -> Option<String> {
        if self.writing.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(writing) = self.writing.take()
            && let Ok((took, result)) = writing.await
        {
            self.not_before = Instant::now() + PAUSE.max(took * SHARE);
            let problem = result.err().map(|error| {
                self.kept = 0;
                format!("{error}; a boot without the source would start without policy")
            });
            if let Some(problem) = problem.as_ref().filter(|p| self.problem.as_ref() != Some(p)) {
                tracing::warn!("{problem}");
            }
            self.problem = problem;
        }
        self.problem.clone()
    }
}

#[cfg(test)]
mod tests;
