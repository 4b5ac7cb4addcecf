//! axe-core (MPL-2.0), by whose rules tests judge the accessibility of pages, in the user's cache. No part of a release.

use std::path::{Path, PathBuf};

/// Name and version of the package.
pub const PACKAGE: &str = "axe-core@4.10.3";
/// SHA-256 of [`CACHED`].
pub const HASH: &str = "880970c081707360e64f34cea25ff91892f5bc95675b0776925b9709dd8a68bb";
/// The script in the user's cache, where `cargo xtask setup` puts it.
pub const CACHED: &str = "netpold/axe-core-4.10.3/axe.min.js";

/// Returns the script's file, if it is there.
#[must_use]
pub fn script() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home)?;
    Some(cache.join(CACHED)).filter(|file| file.is_file())
}
