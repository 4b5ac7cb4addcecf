//! Standard input in the place of a file: one option has it.

use std::io::{self, Read};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

/// What problems and answers call it.
pub const STANDARD_INPUT: &str = "standard input";
/// Most bytes that are read of it, as of a file of a directory.
const BYTES: u64 = 64 << 20;

/// The option that reads standard input.
struct Claim {
    option: &'static str,
    /// Absent until it is read, or where the command reads it itself.
    bytes: Option<Vec<u8>>,
}

static INPUT: Mutex<Option<Claim>> = Mutex::new(None);

/// Whether a path means standard input.
#[must_use]
pub fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Says that an option reads standard input itself.
///
/// # Errors
/// Another option has it.
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

/// All of standard input. Asked again by the same option, it is the same.
///
/// # Errors
/// Another option has it, it cannot be read, or it is too large.
pub fn standard_input(option: &'static str) -> Result<Vec<u8>> {
    claim_standard_input(option)?;
    let mut input = INPUT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(Claim { bytes: Some(bytes), .. }) = &*input {
        return Ok(bytes.clone());
    }
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(BYTES + 1).read_to_end(&mut bytes);
    if read.with_context(|| format!("{STANDARD_INPUT} cannot be read"))? as u64 > BYTES {
        bail!("{STANDARD_INPUT} is larger than {} MiB; give a directory of files", BYTES >> 20);
    }
    *input = Some(Claim { option, bytes: Some(bytes.clone()) });
    Ok(bytes)
}
