//! The eBPF object, built by `build.rs` and carried inside the agent.

use thiserror::Error;

/// The object file; empty if it could not be built, see [`object`].
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("NETPOLD_BPF_OBJECT"));

/// What was missing when the agent was built; empty if nothing.
const MISSING: &str = env!("NETPOLD_BPF_MISSING");

/// This agent was built without the eBPF program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "this netpold was built without its eBPF program ({missing}): \
     run `cargo xtask setup`, then build again"
)]
pub struct ObjectMissing {
    /// What the build did not find.
    pub missing: &'static str,
}

/// The object file to load.
///
/// # Errors
/// If the agent was built without it; the error says what was missing then.
pub fn object() -> Result<&'static [u8], ObjectMissing> {
    if OBJECT.is_empty() { Err(ObjectMissing { missing: MISSING }) } else { Ok(OBJECT) }
}
