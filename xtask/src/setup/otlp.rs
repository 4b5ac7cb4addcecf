//! The Python package with OpenTelemetry's messages, by which tests decode the export, in the user's cache.

use anyhow::Result;
use netpold_testbed::otlp::{CACHED, Receiver};

use super::python;

const PACKAGE: &str = "opentelemetry-proto==1.*";

/// Fetches the package if it is not there.
///
/// # Errors
/// When it cannot be fetched.
pub(super) fn install() -> Result<()> {
    if Receiver::packages().is_some() {
        return Ok(());
    }
    python::install(&[PACKAGE], CACHED, |_| Ok(()))
}
