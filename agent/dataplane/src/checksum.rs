//! Access of programs to the fields of a packet's partial checksum in the kernel's `struct sk_buff`; see
//! [`netpold_ebpf::judge::checksum`].

use std::borrow::Cow;

use super::connection::may_read;
use super::kernel_types::KernelTypes;
use crate::bpf::sys;

/// `BPF_PSEUDO_KFUNC_CALL` of linux/bpf.h: the source register of a call of a kernel function.
const KERNEL_FUNCTION: u8 = 2;
/// Number of a helper that does not exist, which the object calls in place of the kernel function.
const PLACEHOLDER: i32 = 1_852_797_697;
/// Kernel function that casts a program's context to the kernel's structure (Linux 6.2).
const CAST: &str = "bpf_cast_to_kern_ctx";

/// Method of reading `struct sk_buff`, and the offsets of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChecksumFields {
    /// BTF number of [`CAST`]; 0: the kernel lacks the function.
    function: u32,
    /// The object's constant: the method; byte and bit offset of `ip_summed`; byte offsets of `csum_start`, `head`,
    /// `data`.
    pub(super) words: [u32; 6],
}

impl ChecksumFields {
    /// Method in place, for programs with a pointer to the packet itself.
    const IN_PLACE: u32 = 1;
    /// Method by a copying helper.
    const COPIED: u32 = 2;

    /// Fields of this kernel. All zero if the kernel has no types (BTF) or does not let programs read its memory; then
    /// programs cannot check checksums.
    pub(super) fn of(types: Option<&[u8]>) -> Self {
        let fields = types.and_then(find);
        let cast = fields.filter(|fields| fields.function != 0 && fields.is_loadable());
        let copied = || {
            let mut words = fields.filter(|_| may_read())?.words;
            words[0] = Self::COPIED;
            Some(Self { function: 0, words })
        };
        let found = cast.or_else(copied).unwrap_or_default();
        if found == Self::default() {
            tracing::warn!(
                "eBPF programs cannot read the checksum offset of packets on this kernel (no BTF, or locked down for \
                 confidentiality): changes after the verdict through a checksum offset that a pod's raw socket has \
                 set are not detected"
            );
        }
        found
    }

    /// Whether the kernel accepts a program that reads its packet in place.
    fn is_loadable(&self) -> bool {
        let [_, summed, ..] = self.words;
        let Ok(summed) = i16::try_from(summed) else { return false };
        let code = [
            self.call(),
            sys::instruction(0x71, 1, 0, summed, 0),
            sys::instruction(0xb7, 0, 0, 0, 0),
            sys::instruction(0x95, 0, 0, 0, 0),
        ];
        sys::classifier(&code).is_ok()
    }

    fn call(&self) -> u64 {
        sys::instruction(0x85, 0, KERNEL_FUNCTION, 0, self.function.cast_signed())
    }

    /// Returns the object with calls of this kernel's function in place of the placeholder.
    pub(super) fn prepare<'o>(&self, object: &'o [u8]) -> Cow<'o, [u8]> {
        if self.function == 0 {
            return Cow::Borrowed(object);
        }
        let placeholder = sys::instruction(0x85, 0, 0, 0, PLACEHOLDER).to_le_bytes();
        let call = self.call().to_le_bytes();
        let mut object = object.to_vec();
        for word in object.chunks_exact_mut(8).filter(|word| **word == placeholder) {
            word.copy_from_slice(&call);
        }
        Cow::Owned(object)
    }
}

fn find(types: &[u8]) -> Option<ChecksumFields> {
    let types = KernelTypes::new(types)?;
    let packet = types.structure("sk_buff")?;
    let summed = types.bits(packet, "ip_summed")?;
    let [place, head, data] = ["csum_start", "head", "data"].map(|name| types.offset(packet, name));
    let function = types.function(CAST).unwrap_or(0);
    let words = [ChecksumFields::IN_PLACE, summed / 8, summed % 8, place?, head?, data?];
    Some(ChecksumFields { function, words })
}

#[cfg(test)]
mod tests {
    use super::super::kernel_types::{self, tests::types};
    use super::*;

    #[test]
    fn fields_are_found_in_the_types() {
        let headers = ("", 64, &[("ip_summed", 45, 1), ("csum_start", 96, 1)][..]);
        let buffer = ("sk_buff", 232, &[("", 128, 2), ("head", 320, 1), ("data", 384, 1)][..]);
        let words = [1, (128 + 45) / 8, 5, 28, 40, 48];
        let with = types(&[headers, buffer], &["other", CAST]);
        assert_eq!(find(&with), Some(ChecksumFields { function: 5, words }));
        let without = types(&[headers, buffer], &["other"]);
        assert_eq!(find(&without), Some(ChecksumFields { function: 0, words }));
        assert_eq!(find(&types(&[headers], &[CAST])), None);
    }

    #[test]
    fn placeholders_become_calls() {
        let fields = ChecksumFields { function: 77, words: [1; 6] };
        let (other, call) = (sys::instruction(0x85, 0, 0, 0, 5), fields.call());
        let placeholder = sys::instruction(0x85, 0, 0, 0, PLACEHOLDER);
        let object = [other, placeholder, other, placeholder].map(u64::to_le_bytes).concat();
        let wanted = [other, call, other, call].map(u64::to_le_bytes).concat();
        assert_eq!(*fields.prepare(&object), *wanted);
        assert_eq!(*ChecksumFields::default().prepare(&object), *object);
    }

    /// Holds on every kernel from 6.2 on that the tests run on. Every object contains the placeholder.
    #[test]
    fn this_kernel_shows_its_packets() {
        netpold_testbed::require_root!();
        let types = kernel_types::read().expect("a kernel with types");
        let fields = ChecksumFields::of(Some(&types));
        println!("{fields:?}");
        assert_ne!(fields, ChecksumFields::default());
        if let Ok(object) = crate::object::object() {
            let changed = fields.prepare(object);
            let same = object.chunks_exact(8).zip(changed.chunks_exact(8));
            let calls = same.filter(|(before, after)| before != after).count();
            assert_eq!(calls > 0, fields.function != 0, "{calls} calls");
        }
    }
}
