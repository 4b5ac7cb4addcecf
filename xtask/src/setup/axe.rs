//! axe-core, for tests of the page, in the user's cache.

use std::fs;

use anyhow::{Result, ensure};
use netpold_testbed::axe::{CACHED, HASH, SCRIPT, script};
use sha2::{Digest as _, Sha256};

use super::python;

/// A Python package with the script and little else.
const PACKAGE: &str = "axe-playwright-python==0.1.8";

/// Fetches the script if it is not there.
///
/// # Errors
/// When it cannot be fetched, or is another one than expected.
pub(super) fn install() -> Result<()> {
    if script().is_some() {
        return Ok(());
    }
    python::install(&["--no-deps", PACKAGE], CACHED, |folder| {
        let script = fs::read(folder.join(SCRIPT))?;
        let hash: String =
            Sha256::digest(&script).iter().map(|byte| format!("{byte:02x}")).collect();
        ensure!(hash == HASH, "{PACKAGE}: axe-core has the SHA-256 {hash} instead of {HASH}");
        Ok(())
    })
}
