//! How commands answer.

use std::io::{self, ErrorKind, Write as _};

use clap::ValueEnum;
use serde::Serialize;

/// Format of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
pub enum Output {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

/// Prints to standard output; that its reader went away is no failure.
///
/// # Errors
/// It cannot be written to.
pub fn print(text: &str) -> io::Result<()> {
    match anstream::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}
