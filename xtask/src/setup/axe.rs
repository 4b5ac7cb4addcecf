//! axe-core, for tests of the page, in the user's cache.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use netpold_testbed::axe::{CACHED, HASH, PACKAGE, script};
use sha2::{Digest as _, Sha256};

use super::{on_path, toolchain};
use crate::step;

/// Path of the script in the package.
const SCRIPT: &str = "package/axe.min.js";

/// Fetches the script if it is not there. npm is not installed for it: it needs hundreds of packages.
///
/// # Errors
/// When there is no npm, or the script is another one than expected.
pub(super) fn install() -> Result<()> {
    if script().is_some() {
        return Ok(());
    }
    ensure!(on_path("npm").is_some(), "tests of accessibility need npm, which fetches {PACKAGE}");
    let cache = toolchain::cache().context("neither XDG_CACHE_HOME nor HOME is set")?;
    let work = tempfile::tempdir().context("no temporary directory")?;
    step::quiet(Command::new("npm").args(["pack", "--silent", PACKAGE]).current_dir(&work))?;
    let package = fs::read_dir(&work)?.filter_map(Result::ok).map(|entry| entry.path()).next();
    let package = package.context("npm left no package")?;
    step::quiet(Command::new("tar").arg("-xzf").arg(package).arg(SCRIPT).current_dir(&work))?;
    let content = fs::read(work.path().join(SCRIPT)).context("the script is not there")?;
    let hash: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(hash == HASH, "{PACKAGE}: SHA-256 {hash} instead of {HASH}");
    let target = cache.join(CACHED);
    fs::create_dir_all(target.parent().unwrap_or(&cache))?;
    let new = target.with_extension("new");
    fs::write(&new, content).and_then(|()| fs::rename(&new, &target))?;
    Ok(())
}
