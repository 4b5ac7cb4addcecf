//! Processes of a test.

use std::process::Child;

/// Number of lines of a log that a failure shows.
const SHOWN: usize = 20;

/// Returns the last lines of a log.
pub(crate) fn log_end(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}

/// A process that ends when dropped, also on failure of its test.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
