//! Processes of a test.

use std::process::Child;

/// A process that is killed when dropped, so also when its test fails.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
