//! Reading and hashing of names.
//!
//! The canonical form of a name is its labels in lower case (RFC 1035 section 2.3.3, RFC 4343), each preceded by its
//! length, without the root's empty label. Its hash is computed from its end, so that the hash of every suffix at the
//! border of a label is an intermediate result. It consists of three polynomials modulo 2^31 - 1 in secret points: two
//! different names collide with a probability of (255 / 2^30)^3, even if an attacker chose them.

use crate::{
    layout::{HASH_KEYS, NAME_WILDCARD, Settings},
    names::{
        tables::NameTables,
        work::{NAME, NameCursor, NameSums, Work},
    },
};

/// The modulus 2^31 - 1.
const PRIME: u64 = (1 << 31) - 1;
/// Steps of a function that the verifier checks once.
const STEPS: u32 = 16;
/// Calls within which a name must end: its bytes, and a compression pointer after each label.
const READ_CALLS: u32 = 400 / STEPS;
/// Calls in which a whole name is hashed.
const HASH_CALLS: u32 = (NAME as u32).div_ceil(STEPS);

/// Points in which the polynomials are evaluated.
#[derive(Clone, Copy, Debug)]
pub struct Points([u64; 3]);

impl Points {
    /// The points of [`Settings::hash_keys`].
    #[must_use]
    #[inline(always)]
    pub const fn of(settings: &Settings) -> Self {
        const { assert!(HASH_KEYS >= 3) };
        let [first, second, third, _] = settings.hash_keys;
        Self([Self::point(first), Self::point(second), Self::point(third)])
    }

    #[inline(always)]
    const fn point(key: u64) -> u64 {
        (key & ((1 << 30) - 1)) + (1 << 29)
    }

    /// Hash of a name in canonical form.
    #[must_use]
    pub fn hash(self, name: &[u8]) -> [u32; 3] {
        let whole = name.iter().rev().fold(NameSums::EMPTY, |sums, byte| sums.with(self, *byte));
        whole.hash()
    }

    /// Hash of the names below a name in canonical form.
    #[must_use]
    pub fn hash_below(self, name: &[u8]) -> [u32; 3] {
        wildcard(self.hash(name))
    }
}

/// Hash of the names below the name with a hash.
#[inline(always)]
const fn wildcard(hash: [u32; 3]) -> [u32; 3] {
    [hash[0], hash[1], hash[2] | NAME_WILDCARD]
}

impl NameSums {
    pub(crate) const EMPTY: Self = Self([1; 3]);

    #[inline(always)]
    fn with(self, points: Points, byte: u8) -> Self {
        let [first, second, third] = self.0;
        let [one, two, three] = points.0;
        let next = |sum: u64, point: u64| {
            let product = sum * point + u64::from(byte);
            let folded = (product & PRIME) + (product >> 31);
            (folded & PRIME) + (folded >> 31)
        };
        Self([next(first, one), next(second, two), next(third, three)])
    }

    /// The sums in their least form: [`NameSums::with`] leaves at most the prime, which is equal to 0, and 1.
    #[inline(always)]
    fn hash(self) -> [u32; 3] {
        // Without a branch, which the verifier would follow on both sides.
        let least = |sum: u64| {
            let over = (PRIME.wrapping_sub(1).wrapping_sub(sum)) >> 63;
            sum.wrapping_sub(over * PRIME) as u32
        };
        let [first, second, third] = self.0;
        [least(first), least(second), least(third)]
    }
}

/// Reads the name at an offset of the message, following compression pointers, into [`Work`] in canonical form. Returns
/// the offset after the name; 0 if it is not a name: beyond the message's end, longer than 255 bytes, with a pointer
/// that does not lead back (RFC 1035 section 4.1.4), or with labels of another type.
#[inline(always)]
pub fn read_name<T: NameTables>(tables: &T, work: Work, at: u32) -> u32 {
    work.set_cursor(NameCursor { at, before: at, end: 0, left: 0 });
    work.set_name_length(0);
    for _ in 0..READ_CALLS {
        match tables.read_some(work) {
            GOES_ON => {}
            end => return end,
        }
    }
    0
}

/// Reads some bytes of a name. Returns [`GOES_ON`], the offset after the name, or 0.
#[must_use]
#[inline(always)]
pub fn read_some(work: Work) -> u32 {
    for _ in 0..STEPS {
        match step(work) {
            GOES_ON => {}
            end => return end,
        }
    }
    GOES_ON
}

/// Result of [`step`] within the name.
const GOES_ON: u32 = u32::MAX;

/// Reads the next byte of a name, or follows a pointer. Returns [`GOES_ON`], the offset after the name, or 0.
#[inline(always)]
fn step(work: Work) -> u32 {
    let (length, cursor, written) = (work.length(), work.cursor(), work.name_length());
    let NameCursor { at, end, left, .. } = cursor;
    if at >= length {
        return 0;
    }
    let byte = work.byte(at);
    if left == 0 && byte >= 0xc0 {
        let target = u32::from(work.be16(at)) & 0x3fff;
        if target >= cursor.before || at + 1 >= length {
            return 0;
        }
        let end = if end == 0 { at + 2 } else { end };
        work.set_cursor(NameCursor { at: target, before: target, end, left });
        return GOES_ON;
    }
    if left == 0 && byte == 0 {
        return if end == 0 { at + 1 } else { end };
    }
    if written >= NAME as u32 || left == 0 && byte >= 64 {
        return 0;
    }
    // A label's length is not a letter: it is below 64.
    let upper = byte.wrapping_sub(b'A') < 26 && left != 0;
    work.put(written, if upper { byte | 0x20 } else { byte }, left == 0);
    let left = if left == 0 { u32::from(byte) } else { left - 1 };
    work.set_cursor(NameCursor { at: at + 1, left, ..cursor });
    work.set_name_length(written + 1);
    GOES_ON
}

/// Hashes the name that was read last. If `list` is not 0, also finds the names of that list that are this name, or
/// above it with `*.`.
#[inline(always)]
pub fn hash_name<T: NameTables>(tables: &T, work: Work, list: u32) {
    work.set_sums(NameSums::EMPTY);
    if list != 0 {
        work.set_matched(0);
    }
    work.set_unhashed(work.name_length());
    for _ in 0..HASH_CALLS {
        if !tables.hash_some(work, list) {
            break;
        }
    }
}

/// Hashes some bytes of a name, from its end; false at its beginning.
#[inline(always)]
pub fn hash_some<T: NameTables>(tables: &T, work: Work, list: u32) -> bool {
    let Some(settings) = tables.settings() else { return false };
    let points = Points::of(settings);
    for _ in 0..STEPS {
        let left = work.unhashed();
        if left == 0 {
            work.set_hash(work.sums().hash());
            return false;
        }
        let at = left - 1;
        let (byte, begins) = work.get(at);
        let sums = work.sums().with(points, byte);
        work.set_sums(sums);
        work.set_unhashed(at);
        if begins && list != 0 {
            let hash = sums.hash();
            let hash = if at == 0 { hash } else { wildcard(hash) };
            if tables.groups(work.key(list, hash)) != 0 {
                work.add_match(hash);
            }
        }
    }
    true
}
