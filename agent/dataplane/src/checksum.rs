//! Access of programs to the fields of a packet's partial checksum in the kernel's `struct sk_buff` (see
//! [`netpold_ebpf::judge::checksum`]), and to the mark of a list of packets in its `struct skb_shared_info`.

use std::borrow::Cow;

use super::connection::may_read;
use super::kernel_types::KernelTypes;
use crate::bpf::sys;

/// `BPF_PSEUDO_KFUNC_CALL` of linux/bpf.h: the source register of a call of a kernel function.
const KERNEL_FUNCTION: u8 = 2;
/// Kernel functions (Linux 6.2): one casts a program's context to the kernel's structure, the other casts an address to a
/// pointer to a structure.
const CASTS: [&str; 2] = ["bpf_cast_to_kern_ctx", "bpf_rdonly_cast"];
/// Numbers of helpers that do not exist, which the object calls in place of the kernel functions.
const PLACEHOLDERS: [i32; 2] = [1_852_797_697, 1_852_797_698];

/// The struct after a packet's linear part.
const SHARED: &str = "skb_shared_info";

/// Method of reading `struct sk_buff`, and the offsets of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChecksumFields {
    /// BTF numbers of [`CASTS`]; 0: the kernel lacks one of the functions.
    functions: [u32; 2],
    /// The object's constant: the method; byte and bit offset of `ip_summed`; byte offsets of `csum_start`, `head`,
    /// `data`.
    pub(super) words: [u32; 6],
    /// The object's constant for lists: byte offset of `end`; number of `struct skb_shared_info`, and the byte offset of
    /// `gso_type` in it.
    pub(super) lists: [u32; 3],
}

impl ChecksumFields {
    /// Method in place, for programs with a pointer to the packet itself.
    const IN_PLACE: u32 = 1;
    /// Method by a copying helper.
    const COPIED: u32 = 2;

    /// Fields of this kernel. All zero if the kernel has no types (BTF) or does not let programs read its memory; then
    /// programs cannot check checksums.
    pub(super) fn from_btf(types: Option<&[u8]>) -> Self {
        let fields = types.and_then(find);
        let cast = fields.filter(|fields| fields.functions != [0; 2] && fields.is_loadable());
        let copied = || {
            let mut fields = fields.filter(|_| may_read())?;
            fields.words[0] = Self::COPIED;
            Some(Self { functions: [0; 2], ..fields })
        };
        let found = cast.or_else(copied).unwrap_or_default();
        if found == Self::default() {
            tracing::warn!(
                "eBPF programs cannot read the checksum offset of packets on this kernel, or whether they are lists (no \
                 BTF, or locked down for confidentiality): changes after the verdict through a checksum offset that a \
                 pod's raw socket has set, and packets in lists that a pod has joined, are not detected"
            );
        }
        found
    }

    /// Whether the kernel accepts a program that reads its packet in place.
    fn is_loadable(&self) -> bool {
        let ([_, summed, ..], [_, shared, kind]) = (self.words, self.lists);
        let (Ok(summed), Ok(kind)) = (i16::try_from(summed), i16::try_from(kind)) else {
            return false;
        };
        let [packet, pointer] = self.calls();
        let code = [
            packet,
            sys::instruction(0x71, 1, 0, summed, 0),
            sys::instruction(0xb7, 2, 0, 0, shared.cast_signed()),
            pointer,
            sys::instruction(0x61, 1, 0, kind, 0),
            sys::instruction(0xb7, 0, 0, 0, 0),
            sys::instruction(0x95, 0, 0, 0, 0),
        ];
        sys::classifier(&code).is_ok()
    }

    fn calls(&self) -> [u64; 2] {
        let call =
            |number: u32| sys::instruction(0x85, 0, KERNEL_FUNCTION, 0, number.cast_signed());
        self.functions.map(call)
    }

    /// Returns the object with calls of this kernel's functions in place of the placeholders.
    pub(super) fn prepare<'o>(&self, object: &'o [u8]) -> Cow<'o, [u8]> {
        if self.functions == [0; 2] {
            return Cow::Borrowed(object);
        }
        let mut object = object.to_vec();
        for (placeholder, call) in PLACEHOLDERS.into_iter().zip(self.calls()) {
            let placeholder = sys::instruction(0x85, 0, 0, 0, placeholder).to_le_bytes();
            for word in object.chunks_exact_mut(8).filter(|word| **word == placeholder) {
                word.copy_from_slice(&call.to_le_bytes());
            }
        }
        Cow::Owned(object)
    }
}

fn find(types: &[u8]) -> Option<ChecksumFields> {
    let types = KernelTypes::new(types)?;
    let packet = types.structure("sk_buff")?;
    let summed = types.bits(packet, "ip_summed")?;
    let offset = |name| types.offset(packet, name);
    let [place, head, data, end] = ["csum_start", "head", "data", "end"].map(offset);
    let kind = types.offset(types.structure(SHARED)?, "gso_type")?;
    let functions = CASTS.map(|name| types.function(name));
    let functions = if let [Some(cast), Some(view)] = functions { [cast, view] } else { [0; 2] };
    let words = [ChecksumFields::IN_PLACE, summed / 8, summed % 8, place?, head?, data?];
    Some(ChecksumFields { functions, words, lists: [end?, types.structure_number(SHARED)?, kind] })
}

#[cfg(test)]
mod tests {
    use super::super::kernel_types::{self, tests::types};
    use super::*;

    #[test]
    fn fields_are_found_in_the_types() {
        let headers = ("", 64, &[("ip_summed", 45, 1), ("csum_start", 96, 1)][..]);
        let buffer = &[("", 128, 2), ("end", 288, 1), ("head", 320, 1), ("data", 384, 1)][..];
        let buffer = ("sk_buff", 232, buffer);
        let shared = (SHARED, 320, &[("gso_size", 32, 1), ("gso_type", 192, 1)][..]);
        let words = [1, (128 + 45) / 8, 5, 28, 40, 48];
        let found = |functions| Some(ChecksumFields { functions, words, lists: [36, 4, 24] });
        let with = types(&[headers, buffer, shared], &["other", CASTS[1], CASTS[0]]);
        assert_eq!(find(&with), found([7, 6]));
        for functions in [["other", CASTS[0]], ["other", CASTS[1]]] {
            let without = types(&[headers, buffer, shared], &functions);
            assert_eq!(find(&without), found([0; 2]));
        }
        assert_eq!(find(&types(&[headers, shared], &CASTS)), None);
        assert_eq!(find(&types(&[headers, buffer], &CASTS)), None);
    }

    #[test]
    fn placeholders_become_calls() {
        let fields = ChecksumFields { functions: [77, 78], words: [1; 6], lists: [1; 3] };
        let (other, [cast, view]) = (sys::instruction(0x85, 0, 0, 0, 5), fields.calls());
        assert_ne!(cast, view);
        let [first, second] = PLACEHOLDERS.map(|number| sys::instruction(0x85, 0, 0, 0, number));
        let object = [other, first, second, other, first].map(u64::to_le_bytes).concat();
        let wanted = [other, cast, view, other, cast].map(u64::to_le_bytes).concat();
        assert_eq!(*fields.prepare(&object), *wanted);
        assert_eq!(*ChecksumFields::default().prepare(&object), *object);
    }

    /// Holds on every kernel from 6.2 on that the tests run on. Every object contains the placeholders.
    #[test]
    fn this_kernel_shows_its_packets() {
        netpold_testbed::require_root!();
        let types = kernel_types::read().expect("a kernel with types");
        let fields = ChecksumFields::from_btf(Some(&types));
        println!("{fields:?}");
        assert_ne!(fields, ChecksumFields::default());
        if let Ok(object) = crate::object::object() {
            let changed = fields.prepare(object);
            let same = object.chunks_exact(8).zip(changed.chunks_exact(8));
            let calls = same.filter(|(before, after)| before != after).count();
            assert_eq!(calls > 1, fields.functions != [0; 2], "{calls} calls");
        }
    }
}
