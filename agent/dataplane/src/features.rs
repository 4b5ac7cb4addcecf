//! Features of the kernel, probed with programs and maps of a few words: distributions backport features, so versions
//! are not reliable.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use crate::bpf::sys::{self, instruction};

const BPF_PROG_TYPE_XDP: u32 = 6;
/// Flag of programs that take frames in several buffers (Linux 5.18).
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
/// Error of a kernel without interpreter, if its compiler lacks an instruction.
const ENOTSUPP: i32 = 524;

/// `*(u64 *)(r10 - 8) = 0; r0 = 0; r1 = 1; lock cmpxchg(r10 - 8, r0, r1); r0 = 0; exit`
const COMPARE_AND_SWAP: [u64; 6] = [
    instruction(0x7a, 10, 0, -8, 0),
    instruction(0xb7, 0, 0, 0, 0),
    instruction(0xb7, 1, 0, 0, 1),
    instruction(0xdb, 10, 1, -8, 0xf1),
    instruction(0xb7, 0, 0, 0, 0),
    instruction(0x95, 0, 0, 0, 0),
];
/// `r0 = XDP_PASS; exit`
const PASS: [u64; 2] = [instruction(0xb7, 0, 0, 0, 2), instruction(0x95, 0, 0, 0, 0)];

/// Results of the probes; `None`: unknown, for lack of privileges for instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Atomic operations that return a value: Linux 5.12.
    pub atomics: Option<bool>,
    /// Whether these are compiled for this processor, not interpreted: Linux 5.18 on arm64.
    pub atomics_compiled: Option<bool>,
    /// Arrays that can be mapped into memory: Linux 5.5.
    pub mappable_arrays: Option<bool>,
    /// The kernel's own types (`CONFIG_DEBUG_INFO_BTF`) and support for a program's. Without the former the verifier
    /// rejects functions that take a packet; without the latter it verifies functions again at each call.
    pub types: Option<bool>,
    /// XDP programs for frames in several buffers: Linux 5.18.
    pub xdp_fragments: Option<bool>,
}

impl Features {
    /// Probes the kernel. Needs `CAP_BPF` and `CAP_NET_ADMIN`; changes no state.
    #[must_use]
    pub fn probe() -> Self {
        let swap = sys::classifier(&COMPARE_AND_SWAP);
        let compiled = swap.as_ref().ok().and_then(|it| sys::is_compiled(it.as_fd()).ok());
        let sysfs = Path::new("/sys/kernel");
        Self {
            atomics: is_accepted(&swap),
            atomics_compiled: compiled,
            mappable_arrays: is_accepted(&sys::array(8, 1, sys::BPF_F_MMAPABLE)),
            types: match is_accepted(&sys::btf_load()) {
                Some(false) => Some(false),
                _ => sysfs.is_dir().then(|| sysfs.join("btf/vmlinux").exists()),
            },
            xdp_fragments: xdp_fragments(),
        }
    }
}

/// Probes [`Features::xdp_fragments`].
pub(super) fn xdp_fragments() -> Option<bool> {
    is_accepted(&sys::prog_load(BPF_PROG_TYPE_XDP, BPF_F_XDP_HAS_FRAGS, &PASS))
}

fn is_accepted<T>(made: &io::Result<T>) -> Option<bool> {
    match made {
        Ok(_) => Some(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINVAL | ENOTSUPP) => Some(false),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tests' kernels (6.1 and later) have everything.
    #[test]
    fn this_kernel_has_everything() {
        netpold_testbed::require_root!();
        let enabled = std::fs::read_to_string("/proc/sys/net/core/bpf_jit_enable");
        let compiles = enabled.map_or(true, |enabled| enabled.trim() != "0");
        let all = Features {
            atomics: Some(true),
            atomics_compiled: Some(compiles),
            mappable_arrays: Some(true),
            types: Some(true),
            xdp_fragments: Some(true),
        };
        assert_eq!(Features::probe(), all);
    }

    #[test]
    fn what_the_kernel_refuses_is_not_there() {
        let error = |errno| is_accepted::<()>(&Err(io::Error::from_raw_os_error(errno)));
        assert_eq!((error(libc::EINVAL), error(ENOTSUPP)), (Some(false), Some(false)));
        assert_eq!(
            (error(libc::EPERM), error(libc::ENOSYS), error(libc::ENOMEM)),
            (None, None, None)
        );
        if nix::unistd::geteuid().is_root() {
            // An instruction that exists in no kernel.
            let unknown = [instruction(0xdb, 10, 1, -8, 0x7f), instruction(0x95, 0, 0, 0, 0)];
            assert_eq!(is_accepted(&sys::classifier(&unknown)), Some(false));
            assert_eq!(
                is_accepted(&sys::prog_load(BPF_PROG_TYPE_XDP, 1 << 30, &PASS)),
                Some(false)
            );
        }
    }
}
