//! The kernel's own types (BTF): offsets of struct members, and numbers of functions.

/// File of the kernel's types.
const TYPES: &str = "/sys/kernel/btf/vmlinux";
/// `BTF_MAGIC` of linux/btf.h.
const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FUNCTION: u32 = 12;
/// Length of a member's description in bytes.
const MEMBER: usize = 12;
/// Depth of nested structs and unions without a name that are searched.
const DEPTH: usize = 4;

/// Parsed BTF: descriptions of types, and their names.
pub(super) struct KernelTypes<'a> {
    types: &'a [u8],
    names: &'a [u8],
    /// Offset of each type's description, at its number less one.
    places: Vec<u32>,
}

/// A struct or union: size in bytes, and descriptions of its members.
#[derive(Clone, Copy)]
pub(super) struct Struct<'a> {
    size: u32,
    members: &'a [u8],
}

impl Struct<'_> {
    /// Size in bytes.
    pub(super) fn size(self) -> u32 {
        self.size
    }
}

/// Contents of [`TYPES`]; `None` if the kernel has none.
pub(super) fn read() -> Option<Vec<u8>> {
    std::fs::read(TYPES).ok()
}

impl<'a> KernelTypes<'a> {
    /// Parses BTF; `None` for other data, or for a kind of type added after 2026.
    pub(super) fn new(all: &'a [u8]) -> Option<Self> {
        if u16::from_ne_bytes(all.get(..2)?.try_into().ok()?) != MAGIC {
            return None;
        }
        let body = all.get(word(all, 4)? as usize..)?;
        let part = |at| body.get(word(all, at)? as usize..)?.get(..word(all, at + 4)? as usize);
        let (types, names) = (part(8)?, part(16)?);
        let (mut places, mut at) = (Vec::new(), 0);
        while at < types.len() {
            let info = word(types, at + 4)?;
            let count = info as usize & 0xffff;
            let behind = match kind(info) {
                // 4 bytes: integers, variables, declaration tags. 12 bytes: arrays.
                1 | 14 | 17 => 4,
                3 => 12,
                // 12 bytes per member: structs, unions, sections, 64-bit enumerations. 8: 32-bit ones, prototypes.
                STRUCT | UNION | 15 | 19 => count * MEMBER,
                6 | 13 => count * 8,
                2 | 7..=11 | FUNCTION | 16 | 18 => 0,
                _ => return None,
            };
            types.get(at + 12..at + 12 + behind)?;
            places.push(at as u32);
            at += 12 + behind;
        }
        Some(Self { types, names, places })
    }

    /// The struct with a name.
    pub(super) fn structure(&self, name: &str) -> Option<Struct<'a>> {
        let number = self.structure_number(name)?;
        self.members(self.places[number as usize - 1] as usize)
    }

    /// Number of the struct with a name.
    pub(super) fn structure_number(&self, name: &str) -> Option<u32> {
        self.number(STRUCT, name)
    }

    /// Number of the function with a name.
    pub(super) fn function(&self, name: &str) -> Option<u32> {
        self.number(FUNCTION, name)
    }

    fn number(&self, kind: u32, name: &str) -> Option<u32> {
        let mut places = self.places.iter().map(|place| *place as usize);
        places.position(|at| self.is_of(at, kind, name)).map(|place| place as u32 + 1)
    }

    /// Offset of a member in bytes.
    pub(super) fn offset(&self, of: Struct<'_>, name: &str) -> Option<u32> {
        self.bits(of, name).map(|bits| bits / 8)
    }

    /// Offset of a member in bits, also within structs and unions without a name.
    pub(super) fn bits(&self, of: Struct<'_>, name: &str) -> Option<u32> {
        self.bits_within(of, name, DEPTH)
    }

    fn bits_within(&self, of: Struct<'_>, name: &str, depth: usize) -> Option<u32> {
        of.members.chunks_exact(MEMBER).find_map(|member| {
            let begin = word(member, 8)? & 0x00ff_ffff;
            let own = word(member, 0)?;
            if own != 0 {
                return self.is(own, name).then_some(begin);
            }
            let place = self.places.get((word(member, 4)? as usize).checked_sub(1)?)?;
            let inner = self.members(*place as usize)?;
            Some(begin + self.bits_within(inner, name, depth.checked_sub(1)?)?)
        })
    }

    /// Size and members of the type at an offset, if it is a struct or union.
    fn members(&self, at: usize) -> Option<Struct<'a>> {
        let (info, size) = (word(self.types, at + 4)?, word(self.types, at + 8)?);
        let length = (info as usize & 0xffff) * MEMBER;
        let members = self.types.get(at + 12..at + 12 + length)?;
        matches!(kind(info), STRUCT | UNION).then_some(Struct { size, members })
    }

    fn is_of(&self, at: usize, wanted: u32, name: &str) -> bool {
        word(self.types, at + 4).is_some_and(|info| kind(info) == wanted)
            && word(self.types, at).is_some_and(|own| self.is(own, name))
    }

    fn is(&self, name: u32, wanted: &str) -> bool {
        let name = self.names.get(name as usize..).and_then(|names| names.get(..=wanted.len()));
        name.is_some_and(|name| name.strip_suffix(&[0]) == Some(wanted.as_bytes()))
    }
}

/// `BTF_INFO_KIND`
const fn kind(info: u32) -> u32 {
    info >> 24 & 31
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A struct's name, size and members; a member has a name, an offset in bits and the number of its type.
    pub(crate) type StructDescription<'a> = (&'a str, u32, &'a [(&'a str, u32, u32)]);

    /// BTF of an integer, type 1; then structs; then functions.
    pub(crate) fn types(structs: &[StructDescription<'_>], functions: &[&str]) -> Vec<u8> {
        let (mut types, mut names) = (Vec::new(), vec![0]);
        let mut name = |text: &str| {
            let at = if text.is_empty() { 0 } else { names.len() as u32 };
            names.extend(text.as_bytes());
            names.push(0);
            at
        };
        types.extend([name("int"), 1 << 24, 4, 32]);
        for (own, size, members) in structs {
            types.extend([name(own), STRUCT << 24 | members.len() as u32, *size]);
            for (member, bits, kind) in *members {
                types.extend([name(member), *kind, *bits]);
            }
        }
        for function in functions {
            types.extend([name(function), FUNCTION << 24, 1]);
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
    fn members_are_found_in_structs_without_a_name() {
        let all = types(
            &[
                ("", 8, &[("inner", 32, 1)]),
                ("", 16, &[("", 64, 2), ("first", 0, 1)]),
                ("outer", 40, &[("own", 3, 1), ("", 128, 3), ("named", 0, 3)]),
            ],
            &["other", "wanted"],
        );
        let types = KernelTypes::new(&all).unwrap();
        let outer = types.structure("outer").unwrap();
        assert_eq!(outer.size(), 40);
        let bits = |name| types.bits(outer, name);
        assert_eq!((bits("own"), bits("first"), bits("inner")), (Some(3), Some(128), Some(224)));
        assert_eq!((bits("named"), bits("nothing")), (Some(0), None));
        assert_eq!(types.offset(outer, "inner"), Some(28));
        assert_eq!((types.function("wanted"), types.function("outer")), (Some(6), None));
        (0..all.len()).for_each(|length| {
            let cut = KernelTypes::new(&all[..length]);
            assert!(cut.is_none_or(|types| types.structure("outer").is_none()), "{length}");
        });
    }
}
