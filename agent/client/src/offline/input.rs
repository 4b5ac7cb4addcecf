//! Files; standard input in place of a file, for one option of a command; pipes, as of a shell's `<(command)`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};

/// Name of standard input in problems and answers.
pub const STANDARD_INPUT: &str = "standard input";
/// Most bytes read from standard input or a pipe; equal to the limit of a file in a directory.
const BYTES: u64 = 64 << 20;

/// The option that reads standard input.
struct InputClaim {
    option: &'static str,
    /// Content; absent until it is read, or if the command reads standard input itself.
    bytes: Option<Vec<u8>>,
}

static INPUT: Mutex<Option<InputClaim>> = Mutex::new(None);
/// Contents of pipes, which can be read once.
static PIPES: Mutex<BTreeMap<PathBuf, Arc<[u8]>>> = Mutex::new(BTreeMap::new());

/// Returns whether a path stands for standard input.
#[must_use]
pub fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Reserves standard input for an option that reads it itself.
///
/// # Errors
/// Standard input is reserved for another option.
pub fn claim_standard_input(option: &'static str) -> Result<()> {
    let mut input = INPUT.lock().unwrap_or_else(PoisonError::into_inner);
    match &*input {
        Some(InputClaim { option: other, .. }) if *other != option => {
            bail!("{option} -: standard input is read once, and {other} - reads it; give a file")
        }
        Some(_) => Ok(()),
        None => {
            *input = Some(InputClaim { option, bytes: None });
            Ok(())
        }
    }
}

/// Reads all of standard input; a second call for the same option returns the same bytes.
///
/// # Errors
/// Standard input is reserved for another option, cannot be read, or is too large.
pub fn standard_input(option: &'static str) -> Result<Vec<u8>> {
    claim_standard_input(option)?;
    let mut input = INPUT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(InputClaim { bytes: Some(bytes), .. }) = &*input {
        return Ok(bytes.clone());
    }
    let bytes = read_bounded(STANDARD_INPUT, io::stdin().lock())?;
    *input = Some(InputClaim { option, bytes: Some(bytes.clone()) });
    Ok(bytes)
}

/// Reads a file. A pipe is read to its end by the first call, and later calls return the same bytes.
///
/// # Errors
/// The file cannot be read, or a pipe has too many bytes.
pub fn content(path: &Path) -> Result<Arc<[u8]>> {
    let name = || path.display().to_string();
    let cannot_read = || format!("cannot read {}", name());
    if fs::metadata(path).with_context(cannot_read)?.is_file() {
        return Ok(fs::read(path).with_context(cannot_read)?.into());
    }
    let mut pipes = PIPES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(bytes) = pipes.get(path) {
        return Ok(Arc::clone(bytes));
    }
    let pipe = File::open(path).with_context(cannot_read)?;
    let bytes: Arc<[u8]> = read_bounded(&name(), pipe)?.into();
    pipes.insert(path.to_owned(), Arc::clone(&bytes));
    Ok(bytes)
}

/// Returns whether a path leads to a regular file of a size that the reader of directories accepts. Another one, as a pipe,
/// may never end.
pub(super) fn is_bounded_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= BYTES)
}

fn read_bounded(name: &str, input: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = input.take(BYTES + 1).read_to_end(&mut bytes);
    if read.with_context(|| format!("cannot read {name}"))? as u64 > BYTES {
        bail!("{name} is larger than {} MiB; give a directory of files", BYTES >> 20);
    }
    Ok(bytes)
}
