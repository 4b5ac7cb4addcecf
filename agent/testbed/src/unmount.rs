//! What is mounted ends with the test.

use std::path::Path;

use nix::mount::{MntFlags, umount2};

/// Unmounts what is mounted at a path when it is dropped, also when the test fails.
#[derive(Debug)]
pub struct Unmount<P: AsRef<Path>>(
    /// Where.
    pub P,
);

impl<P: AsRef<Path>> Drop for Unmount<P> {
    fn drop(&mut self) {
        let _ = umount2(self.0.as_ref(), MntFlags::MNT_DETACH);
    }
}
