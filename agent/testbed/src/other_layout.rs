//! The agent with another layout of its tables, for upgrades and downgrades.

#![expect(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "helpers of tests fail as tests do"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::binary;

/// Builds the agent with a different table layout, once for all tests of a build.
#[must_use]
pub fn build() -> PathBuf {
    let directory = binary().parent().unwrap().to_owned();
    let mut cargo = Command::new(env!("CARGO"));
    // Cargo's variables for a test must not reach another cargo: ring's build depends on them, so that cargo would
    // compile ring, and each crate above it, again.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_")
            || text.starts_with("CARGO_BIN_")
            || text.starts_with("CARGO_MANIFEST_")
        {
            cargo.env_remove(&name);
        }
    }
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap());
    cargo.args(["build", "--quiet", "--bin", "netpold-other-layout"]);
    cargo.args(["--features", "other-layout", "--target-dir"]).arg(directory.parent().unwrap());
    let built = cargo.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    directory.join("netpold-other-layout")
}
