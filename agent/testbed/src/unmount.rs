//! Unmounting at the end of a test.

use std::path::Path;

use nix::mount::{MntFlags, umount2};

/// Unmounts a path when dropped, also when the test fails.
#[derive(Debug)]
pub struct Unmount<P: AsRef<Path>>(
    /// The mount point.
    pub P,
);

impl<P: AsRef<Path>> Drop for Unmount<P> {
    fn drop(&mut self) {
        let _ = umount2(self.0.as_ref(), MntFlags::MNT_DETACH);
    }
}
