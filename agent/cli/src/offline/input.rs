//! Standard input in place of a file, for one option of a command.

use std::io::{self, Read};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

/// Name of standard input in problems and answers.
pub const STANDARD_INPUT: &str = "standard input";
/// Most bytes read from standard input; equal to the limit of a file in a directory.
const BYTES: u64 = 64 << 20;

/// The option that reads standard input.
struct Claim {
    option: &'static str,
    /// Content; absent until it is read, or if the command reads standard input itself.
    bytes: Option<Vec<u8>>,
}

static INPUT: Mutex<Option<Claim>> = Mutex::new(None);

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
        Some(Claim { option: other, .. }) if *other != option => {
            bail!("{option} -: standard input is read once, and {other} - reads it; give a file")
        }
        Some(_) => Ok(()),
        None => {
            *input = Some(Claim { option, bytes: None });
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
    if let Some(Claim { bytes: Some(bytes), .. }) = &*input {
        return Ok(bytes.clone());
    }
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(BYTES + 1).read_to_end(&mut bytes);
    if read.with_context(|| format!("cannot read {STANDARD_INPUT}"))? as u64 > BYTES {
        bail!("{STANDARD_INPUT} is larger than {} MiB; give a directory of files", BYTES >> 20);
    }
    *input = Some(Claim { option, bytes: Some(bytes.clone()) });
    Ok(bytes)
}
