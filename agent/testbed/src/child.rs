//! Processes of a test.

use std::process::Child;

/// A process that ends when dropped, also on failure of its test.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
