//! axe-core (MPL-2.0) in the user's cache: tests check the accessibility of pages by its rules. Not part of a release.

use std::path::PathBuf;

use crate::cached;

/// SHA-256 of the script, of axe-core 4.12.1.
pub const HASH: &str = "84494fec757e4710dc751c8d7a636e457f4532f08f85c86dc9070133fbff53bc";
/// Folder of the Python package that has the script, in the user's cache; `cargo xtask setup` installs it there.
pub const CACHED: &str = "netpold/axe-4.12.1";
/// Path of the script in that folder.
pub const SCRIPT: &str = "axe_playwright_python/axe.min.js";

/// Returns the script's file, if it exists.
#[must_use]
pub fn script() -> Option<PathBuf> {
    Some(cached(CACHED)?.join(SCRIPT)).filter(|file| file.is_file())
}
