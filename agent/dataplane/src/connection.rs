//! Offsets of a packet's conntrack entry, which no field of a program's context contains: found in the kernel's own
//! types (BTF), and read by programs with `bpf_probe_read_kernel`.

use super::kernel_types::KernelTypes;
use crate::bpf::sys;

/// `BPF_FUNC_probe_read_kernel` of linux/bpf.h.
const PROBE_READ_KERNEL: i32 = 113;

/// Offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offsets {
    /// Offset of `_nfct` in `struct sk_buff`.
    pub(super) connection: u32,
    /// Offset of `tuplehash` in `struct nf_conn`.
    pub(super) tuples: u32,
}

/// Offsets by which programs read a packet's connection; `None` if the kernel has no conntrack, shows no types, or
/// lets no program read its memory (lockdown for confidentiality).
pub(super) fn offsets(types: Option<&[u8]>) -> Option<Offsets> {
    if !may_read() {
        tracing::warn!(
            "eBPF programs cannot read kernel memory (is the kernel locked down for confidentiality?): differences \
             between its conntrack and netpold's flow tables are not detected"
        );
        return None;
    }
    find(types?)
}

/// Whether a program may read kernel memory. Tested by a classifier that reads at its context's address:
/// `bpf_probe_read_kernel(r10 - 8, 8, r1)`.
pub(super) fn may_read() -> bool {
    let code = [
        sys::instruction(0xbf, 3, 1, 0, 0),
        sys::instruction(0xbf, 1, 10, 0, 0),
        sys::instruction(0x07, 1, 0, 0, -8),
        sys::instruction(0xb7, 2, 0, 0, 8),
        sys::instruction(0x85, 0, 0, 0, PROBE_READ_KERNEL),
        sys::instruction(0xb7, 0, 0, 0, 0),
        sys::instruction(0x95, 0, 0, 0, 0),
    ];
    sys::classifier(&code).is_ok()
}

fn find(types: &[u8]) -> Option<Offsets> {
    let types = KernelTypes::new(types)?;
    let [buffer, known, lock] =
        ["sk_buff", "nf_conn", "spinlock"].map(|name| types.structure(name));
    let connection = types.offset(buffer?, "_nfct")?;
    let tuples = match known {
        Some(known) => types.offset(known, "tuplehash")?,
        // Conntrack is a module, and its types are not among these. Before the tuples are a counter, the lock, a time
        // and, depending on the configuration, a zone, of four bytes each except for the lock.
        None => (4_u32.next_multiple_of(if lock?.size() > 4 { 8 } else { 4 }) + lock?.size() + 8)
            .next_multiple_of(8),
    };
    Some(Offsets { connection, tuples })
}

#[cfg(test)]
mod tests {
    use super::super::kernel_types::{self, tests::types};
    use super::*;

    #[test]
    fn offsets_are_those_of_the_kernels_types() {
        let buffer = ("sk_buff", 232, &[("next", 0, 1), ("_nfct", 104 * 8, 1)][..]);
        let connection = ("nf_conn", 248, &[("ct_general", 0, 1), ("tuplehash", 24 * 8, 1)][..]);
        let types = |structs: &[_]| types(structs, &[]);
        let lock = |size| ("spinlock", size, &[][..]);
        let offsets = |tuples| Some(Offsets { connection: 104, tuples });
        assert_eq!(find(&types(&[lock(4), connection, buffer])), offsets(24));
        // A kernel with conntrack as a module: with an ordinary lock, a debugged one, a sleeping one.
        for (size, tuples) in [(4, 16), (24, 40), (32, 48)] {
            assert_eq!(find(&types(&[buffer, lock(size)])), offsets(tuples));
        }
        assert_eq!(find(&types(&[("sk_buff", 200, &[("next", 0, 1)][..]), lock(4)])), None);
        let whole = types(&[buffer, lock(4)]);
        (0..whole.len()).for_each(|length| assert_eq!(find(&whole[..length]), None));
    }

    #[test]
    fn this_kernel_can_be_asked() {
        netpold_testbed::require_root!();
        let begun = std::time::Instant::now();
        let Offsets { connection, tuples } =
            offsets(kernel_types::read().as_deref()).expect("a kernel with conntrack and types");
        println!("_nfct at {connection}, tuplehash at {tuples}, in {:?}", begun.elapsed());
        assert!(connection.is_multiple_of(8) && tuples.is_multiple_of(8) && tuples >= 16);
    }
}
