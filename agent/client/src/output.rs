//! Output of commands.

use std::io::{self, ErrorKind, Write as _};

use clap::ValueEnum;
use serde::Serialize;

/// Format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
pub enum Output {
    /// Human-readable text
    #[default]
    Text,
    /// JSON
    Json,
}

/// Prints to standard output. A closed pipe counts as success.
///
/// # Errors
/// Standard output cannot be written to.
pub fn print(text: &str) -> io::Result<()> {
    is_reader_open(anstream::stdout().write_all(text.as_bytes())).map(drop)
}

/// Returns whether the reader of standard output is still there, from the result of a write.
///
/// # Errors
/// The write failed for another reason.
pub fn is_reader_open(written: io::Result<()>) -> io::Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}
