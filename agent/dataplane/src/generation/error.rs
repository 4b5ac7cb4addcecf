//! Failures to create a generation.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use aya::EbpfError;
use aya::programs::ProgramError;
use netpold_core::error_chain::{self, with_causes};

use crate::maps::TableError;
use crate::object::ObjectMissing;

/// Failure to create a generation.
#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    /// This binary contains no eBPF object.
    #[error(transparent)]
    Object(#[from] ObjectMissing),
    /// The kernel refused a map, or the object cannot be parsed.
    #[error("cannot create the eBPF maps: {}{}", with_causes(cause), remedy(&**cause))]
    Load {
        /// Cause.
        cause: Box<EbpfError>,
    },
    /// The kernel refused one of the tables that are created for the loader.
    #[error("cannot create the eBPF maps: {name}: {cause}{}", remedy(cause))]
    Offer {
        /// Name of the table.
        name: &'static str,
        /// Error of the kernel.
        cause: io::Error,
    },
    /// The descriptors of the maps cannot be copied.
    #[error("cannot read the descriptors of the eBPF maps: {0}")]
    Maps(io::Error),
    /// The kernel rejected a program.
    #[error("cannot load the eBPF program {name}: {}", with_causes(cause))]
    Program {
        /// Name of the program.
        name: &'static str,
        /// Cause, with the verifier's message.
        cause: Box<ProgramError>,
    },
    /// The kernel does not support XDP programs for frames in several buffers.
    #[error("this kernel's XDP does not support frames in several buffers (Linux 5.18 does)")]
    XdpFragments,
    /// The object has no such program.
    #[error("the eBPF object has no program {0}; agent and object are of different versions")]
    NoProgram(&'static str),
    /// The kernel's clock could not be read.
    #[error("cannot read the kernel's clock: {0}")]
    Clock(io::Error),
    /// The traced programs do not match the ordinary ones.
    #[error("cannot load the traced eBPF programs: {0}")]
    Traced(String),
    /// A table could not be written.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A map could not be pinned or read back.
    #[error("map {name} at {path}: {reason}")]
    Pin {
        /// Name of the map.
        name: &'static str,
        /// Path of the pin.
        path: String,
        /// Cause.
        reason: String,
    },
}

pub(crate) fn pin_error(pin: PathBuf, name: &'static str, reason: String) -> GenerationError {
    GenerationError::Pin { name, path: pin.display().to_string(), reason }
}

/// Returns the remedy for a refusal to create a map; none where the error has another reason.
fn remedy(error: &(dyn Error + 'static)) -> &'static str {
    let refused = error_chain::chain(error).find_map(|error| error.downcast_ref::<io::Error>());
    match refused.and_then(io::Error::raw_os_error) {
        Some(libc::EPERM) => " (needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON)",
        Some(libc::EINVAL | libc::ENOSYS) => " (needs kernel 5.12 or later)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use aya::maps::MapError;

    use super::*;

    #[test]
    fn only_refusals_have_a_remedy() {
        let offer = |errno| {
            let cause = io::Error::from_raw_os_error(errno);
            GenerationError::Offer { name: "ROWS", cause }.to_string()
        };
        assert!(
            offer(libc::EPERM)
                .ends_with(" (needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON)")
        );
        assert!(offer(libc::EINVAL).ends_with(" (needs kernel 5.12 or later)"));
        assert_eq!(
            offer(libc::ENOMEM),
            "cannot create the eBPF maps: ROWS: Cannot allocate memory (os error 12)"
        );
    }

    #[test]
    fn the_loaders_refusal_is_found_behind_its_layers() {
        let load = |error: EbpfError| GenerationError::Load { cause: Box::new(error) }.to_string();
        let io_error = io::Error::from_raw_os_error(libc::EPERM);
        let text =
            load(EbpfError::MapError(MapError::CreateError { name: "ROWS".into(), io_error }));
        assert!(text.starts_with("cannot create the eBPF maps: map error: "), "{text}");
        assert!(
            text.ends_with("(os error 1) (needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON)")
        );
        assert_eq!(load(EbpfError::NoBTF), "cannot create the eBPF maps: no BTF parsed for object");
    }
}
