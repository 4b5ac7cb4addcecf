//! Where the kernel keeps what its conntrack knows of a packet, which no field of a program's context
//! shows: read from the kernel's own types (BTF), and by programs with `bpf_probe_read_kernel`.

use crate::bpf::sys;

/// `BPF_FUNC_probe_read_kernel` of linux/bpf.h.
const PROBE_READ_KERNEL: i32 = 113;
/// The kernel's own types.
const TYPES: &str = "/sys/kernel/btf/vmlinux";
/// `BTF_MAGIC` of linux/btf.h.
const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;

/// Offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offsets {
    /// Of `_nfct` in `struct sk_buff`.
    pub(super) connection: u32,
    /// Of `tuplehash` in `struct nf_conn`.
    pub(super) tuples: u32,
}

/// What programs need to ask the node's conntrack about a packet; `None` where the kernel has none, does
/// not say what its types look like, or lets no program read its memory (lockdown for confidentiality).
pub(super) fn offsets() -> Option<Offsets> {
    if !may_read() {
        tracing::warn!(
            "no program may read this kernel's memory (is it locked down for confidentiality?): what its \
             conntrack forgets or remembers otherwise than netpold is not noticed"
        );
        return None;
    }
    find(&std::fs::read(TYPES).ok()?)
}

/// Loads a classifier that reads what follows its packet's address:
/// `bpf_probe_read_kernel(r10 - 8, 8, r1)`.
fn may_read() -> bool {
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
    let types = Types::new(types)?;
    let [buffer, known, lock] = types.structs(["sk_buff", "nf_conn", "spinlock"])?;
    let connection = types.offset(buffer?, "_nfct")?;
    let tuples = match known {
        Some(known) => types.offset(known, "tuplehash")?,
        // Conntrack is a module, whose types are not among these. Before the tuples are a counter, the
        // lock, a time and, if so configured, a zone, of four bytes each but for the lock.
        None => (4_u32.next_multiple_of(if lock?.size > 4 { 8 } else { 4 }) + lock?.size + 8)
            .next_multiple_of(8),
    };
    Some(Offsets { connection, tuples })
}

/// BTF: a header, descriptions of types, their names.
struct Types<'a> {
    types: &'a [u8],
    names: &'a [u8],
}

/// A struct: its size in bytes, and its members' descriptions.
#[derive(Clone, Copy)]
struct Struct<'a> {
    size: u32,
    members: &'a [u8],
}

/// Bytes of a member's description.
const MEMBER: usize = 12;

impl<'a> Types<'a> {
    fn new(all: &'a [u8]) -> Option<Self> {
        if u16::from_ne_bytes(all.get(..2)?.try_into().ok()?) != MAGIC {
            return None;
        }
        let body = all.get(word(all, 4)? as usize..)?;
        let part = |at| body.get(word(all, at)? as usize..)?.get(..word(all, at + 4)? as usize);
        Some(Self { types: part(8)?, names: part(16)? })
    }

    /// The structs of these names. `None` if there is a kind of types that nobody knew in 2026.
    fn structs<const N: usize>(&self, names: [&str; N]) -> Option<[Option<Struct<'a>>; N]> {
        let (mut found, mut rest) = ([None; N], self.types);
        while !rest.is_empty() {
            let (name, info, size) = (word(rest, 0)?, word(rest, 4)?, word(rest, 8)?);
            let (kind, count) = (info >> 24 & 31, info as usize & 0xffff);
            let behind = match kind {
                // Integers, variables, tags of declarations; arrays.
                1 | 14 | 17 => 4,
                3 => 12,
                // Structs, unions, sections, enumerations of 64 bits; of 32, parameters.
                STRUCT | 5 | 15 | 19 => count * MEMBER,
                6 | 13 => count * 8,
                2 | 7..=12 | 16 | 18 => 0,
                _ => return None,
            };
            let members = rest.get(12..12 + behind)?;
            if kind == STRUCT
                && let Some(at) = names.iter().position(|wanted| self.is(name, wanted))
            {
                found[at] = Some(Struct { size, members });
            }
            rest = rest.get(12 + behind..)?;
        }
        Some(found)
    }

    /// Where a member of its own begins, in bytes. Of bit fields there is none here.
    fn offset(&self, of: Struct<'_>, name: &str) -> Option<u32> {
        let mut members = of.members.chunks_exact(MEMBER);
        let member = members.find(|it| word(it, 0).is_some_and(|own| self.is(own, name)))?;
        Some((word(member, 8)? & 0x00ff_ffff) / 8)
    }

    fn is(&self, name: u32, wanted: &str) -> bool {
        let name = self.names.get(name as usize..).and_then(|names| names.get(..=wanted.len()));
        name.is_some_and(|name| name.strip_suffix(&[0]) == Some(wanted.as_bytes()))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A struct's name, size and members with their offsets in bytes.
    type Described<'a> = (&'a str, u32, &'a [(&'a str, u32)]);

    /// BTF of structs.
    fn types(structs: &[Described<'_>]) -> Vec<u8> {
        let (mut types, mut names) = (Vec::new(), vec![0]);
        let mut name = |text: &str| {
            let at = names.len() as u32;
            names.extend(text.as_bytes());
            names.push(0);
            at
        };
        // An integer first.
        types.extend([name("int"), 1 << 24, 4, 32]);
        for (own, size, members) in structs {
            types.extend([name(own), STRUCT << 24 | members.len() as u32, *size]);
            for (member, offset) in *members {
                types.extend([name(member), 1, offset * 8]);
            }
        }
        let length = 4 * types.len() as u32;
        let mut all = MAGIC.to_ne_bytes().to_vec();
        all.extend([1, 0]);
        let words = [24, 0, length, length, names.len() as u32];
        all.extend(words.into_iter().chain(types).flat_map(u32::to_ne_bytes));
        all.extend(names);
        all
    }

    #[test]
    fn offsets_are_those_of_the_kernels_types() {
        let buffer = ("sk_buff", 232, &[("next", 0), ("_nfct", 104)][..]);
        let connection = ("nf_conn", 248, &[("ct_general", 0), ("tuplehash", 24)][..]);
        let lock = |size| ("spinlock", size, &[][..]);
        let offsets = |tuples| Some(Offsets { connection: 104, tuples });
        assert_eq!(find(&types(&[lock(4), connection, buffer])), offsets(24));
        // A module's: an ordinary lock, one that is debugged, one that sleeps.
        for (size, tuples) in [(4, 16), (24, 40), (32, 48)] {
            assert_eq!(find(&types(&[buffer, lock(size)])), offsets(tuples));
        }
        assert_eq!(find(&types(&[("sk_buff", 200, &[("next", 0)][..]), lock(4)])), None);
        let whole = types(&[buffer, lock(4)]);
        (0..whole.len()).for_each(|length| assert_eq!(find(&whole[..length]), None));
    }

    #[test]
    fn this_kernel_can_be_asked() {
        netpold_testbed::require_root!();
        let begun = std::time::Instant::now();
        let Offsets { connection, tuples } = offsets().expect("a kernel with conntrack and types");
        println!("_nfct at {connection}, tuplehash at {tuples}, in {:?}", begun.elapsed());
        assert!(connection.is_multiple_of(8) && tuples.is_multiple_of(8) && tuples >= 16);
    }
}
