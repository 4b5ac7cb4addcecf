//! Rust programs from `cargo install`, each in a separate folder of the user's cache, because other projects of the
//! user may need other versions.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::toolchain::{cache, on_path};
use crate::step;

/// A program and its crate.
pub(crate) struct CrateProgram {
    /// Name of the executable.
    pub(crate) name: &'static str,
    package: &'static str,
    version: &'static str,
}

/// Check for unused dependencies.
pub(crate) const SHEAR: CrateProgram =
    CrateProgram { name: "cargo-shear", package: "cargo-shear", version: "1.5.1" };
/// Check of spelling.
pub(crate) const TYPOS: CrateProgram =
    CrateProgram { name: "typos", package: "typos-cli", version: "1.52.0" };

impl CrateProgram {
    /// Path of the program: on the `PATH`, or in the folder of [`CrateProgram::install`].
    pub(crate) fn find(&self) -> Option<PathBuf> {
        let cached = self.folder().map(|folder| folder.join("bin").join(self.name));
        on_path(self.name).or(cached).filter(|program| program.is_file())
    }

    fn folder(&self) -> Option<PathBuf> {
        Some(cache()?.join(format!("netpold/{}-{}", self.package, self.version)))
    }

    /// Builds the program unless it is installed.
    pub(super) fn install(&self) -> Result<()> {
        if self.find().is_some() {
            return Ok(());
        }
        let folder = self.folder().context("neither XDG_CACHE_HOME nor HOME is set")?;
        install(self.package, self.version, &folder, &["--locked"], &[])
    }
}

/// Builds and installs a crate's programs.
pub(super) fn install(
    package: &str,
    version: &str,
    folder: &std::path::Path,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Result<()> {
    step::quiet(
        crate::cargo(&["install", package, "--version", version])
            .args(arguments)
            .arg("--root")
            .arg(folder)
            .envs(variables.iter().copied())
            .env_remove("CARGO_BUILD_TARGET")
            // In the folder of this project, cargo would use this project's workspace for the crate.
            .current_dir("/"),
    )
}
