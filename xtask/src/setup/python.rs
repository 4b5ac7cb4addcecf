//! Packages of Python, each in a separate folder in the user's cache.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{packages, toolchain};
use crate::step;

/// Installs by these arguments of pip into a folder of the user's cache, if `check` accepts the content.
///
/// # Errors
/// When pip is missing and cannot be installed, or fails, or `check` fails.
pub(super) fn install(
    arguments: &[&str],
    folder: &str,
    check: impl Fn(&Path) -> Result<()>,
) -> Result<()> {
    let pip = Command::new("python3").args(["-m", "pip", "--version"]).output();
    if !pip.is_ok_and(|output| output.status.success()) {
        packages::install(&["python3-pip"])
            .with_context(|| format!("{} needs Python's pip", arguments.join(" ")))?;
    }
    let cache = toolchain::cache().context("neither XDG_CACHE_HOME nor HOME is set")?;
    let (target, new) = (cache.join(folder), cache.join(folder).with_extension("new"));
    let install = ["-m", "pip", "install", "--quiet", "--target"];
    step::quiet(Command::new("python3").args(install).arg(&new).args(arguments))?;
    check(&new)?;
    fs::rename(&new, &target).with_context(|| format!("cannot make {}", target.display()))
}
