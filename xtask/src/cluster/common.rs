//! Common parts of the cluster's steps: waits, and files.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netpold_testbed::interrupted;

use crate::step;

/// Calls `look` several times per second until it succeeds, and returns its value.
///
/// # Errors
/// `look` did not succeed in time (its last error), or the process was interrupted.
pub(super) fn wait<T>(
    what: &str,
    patience: Duration,
    mut look: impl FnMut() -> Result<T>,
) -> Result<T> {
    let start = Instant::now();
    let mut told = start;
    loop {
        ensure!(!interrupted(), "interrupted");
        match look() {
            Ok(found) => return Ok(found),
            Err(error) if start.elapsed() > patience => {
                return Err(error).with_context(|| format!("{what}: not within {patience:?}"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
        if told.elapsed().as_secs() >= 20 {
            told = Instant::now();
            step::note(&format!("{what}: still waiting after {:.0?}", start.elapsed()));
        }
    }
}

/// Writes a file and creates its parent folders.
///
/// # Errors
/// The file or a folder cannot be written.
pub(super) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let writing = || format!("cannot write {}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(writing)?;
    }
    fs::write(path, content).with_context(writing)
}
