//! The Python package with OpenTelemetry's messages, by which tests decode the export, in the user's cache.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use netpold_testbed::otlp::{CACHED, Receiver};

use super::{packages, toolchain};
use crate::step;

const PACKAGE: &str = "opentelemetry-proto==1.*";

/// Fetches the package if it is not there.
///
/// # Errors
/// When it cannot be fetched.
pub(super) fn install() -> Result<()> {
    if Receiver::packages().is_some() {
        return Ok(());
    }
    let pip = Command::new("python3").args(["-m", "pip", "--version"]).output();
    if !pip.is_ok_and(|output| output.status.success()) {
        packages::install(&["python3-pip"]).context("tests of the export need Python's pip")?;
    }
    let cache = toolchain::cache().context("neither XDG_CACHE_HOME nor HOME is set")?;
    let (target, new) = (cache.join(CACHED), cache.join(CACHED).with_extension("new"));
    let install = ["-m", "pip", "install", "--quiet", "--target"];
    step::quiet(Command::new("python3").args(install).arg(&new).arg(PACKAGE))?;
    fs::rename(&new, &target).context("cannot put opentelemetry-proto into the cache")
}
