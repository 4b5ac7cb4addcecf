//! Programs from crates.io, each into a folder of our own in the user's cache: other projects of the user
//! may need another version.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::toolchain::{cache, on_path};
use crate::step;

/// A program and the crate that has it.
pub(crate) struct Program {
    /// The executable.
    pub(crate) name: &'static str,
    package: &'static str,
    version: &'static str,
}

/// Unused dependencies.
pub(crate) const SHEAR: Program =
    Program { name: "cargo-shear", package: "cargo-shear", version: "1.5.1" };
/// Spelling.
pub(crate) const TYPOS: Program =
    Program { name: "typos", package: "typos-cli", version: "1.52.0" };

impl Program {
    /// Where it is: on the path, or where [`Program::install`] put it.
    pub(crate) fn find(&self) -> Option<PathBuf> {
        let cached = self.folder().map(|folder| folder.join("bin").join(self.name));
        on_path(self.name).or(cached).filter(|program| program.is_file())
    }

    fn folder(&self) -> Option<PathBuf> {
        Some(cache()?.join(format!("netpold/{}-{}", self.package, self.version)))
    }

    /// Builds it, if it is not there.
    pub(super) fn install(&self) -> Result<()> {
        if self.find().is_some() {
            return Ok(());
        }
        let folder = self.folder().context("neither XDG_CACHE_HOME nor HOME is set")?;
        install(self.package, self.version, &folder, &["--locked"], &[])
    }
}

/// Builds a crate's programs.
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
            // At the top of the tree our lock file's folder would be taken for its workspace.
            .current_dir("/"),
    )
}
