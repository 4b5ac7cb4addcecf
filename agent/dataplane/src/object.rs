//! The eBPF object, built by `build.rs` and carried inside the agent.

use thiserror::Error;

/// The object file; empty if it could not be built, see [`object`].
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("NETPOLD_BPF_OBJECT"));

/// Traced variant of [`OBJECT`], see [`netpold_ebpf::trace`]; empty if it could not be built.
pub static TRACED_OBJECT: &[u8] = aya::include_bytes_aligned!(env!("NETPOLD_BPF_TRACED_OBJECT"));

/// Reason why the build has no object; empty if it has one.
const MISSING: &str = env!("NETPOLD_BPF_MISSING");

/// Error of an agent that was built without the eBPF program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "this netpold was built without its eBPF program ({missing}): \
     run `cargo xtask setup`, then build again"
)]
pub struct ObjectMissing {
    /// Reason why the build has no object.
    pub missing: &'static str,
}

/// Returns the object file to load.
///
/// # Errors
/// The agent was built without the object; the error has the reason.
pub fn object() -> Result<&'static [u8], ObjectMissing> {
    if OBJECT.is_empty() { Err(ObjectMissing { missing: MISSING }) } else { Ok(OBJECT) }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::path::{Path, PathBuf};

    use super::OBJECT;

    /// Source paths in the object begin with fixed names on every machine.
    #[test]
    fn the_object_does_not_tell_where_it_was_built() {
        if OBJECT.is_empty() {
            let why = format!("built without the eBPF program ({})", super::MISSING);
            return netpold_testbed::skip("the_object_does_not_tell_where_it_was_built", why);
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(Path::to_owned);
        let homes = ["HOME", "CARGO_HOME", "RUSTUP_HOME"].map(env::var_os);
        let homes = homes.into_iter().flatten().map(PathBuf::from);
        let places: Vec<PathBuf> = root.into_iter().chain(homes).collect();
        for place in places.iter().filter(|place| place.components().count() > 1) {
            let bytes = [place.as_os_str().as_encoded_bytes(), b"/"].concat();
            let found = OBJECT.windows(bytes.len()).position(|window| window == bytes);
            assert_eq!(found, None, "{} is in the eBPF object", place.display());
        }
        let sources: &[u8] = b"netpold/ebpf/src/";
        assert!(OBJECT.windows(sources.len()).any(|window| window == sources), "or nothing is");
    }
}
