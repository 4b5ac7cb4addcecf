//! Working memory for one DNS message: it does not fit on a program's stack, and the steps are functions of their own.

use crate::layout::{NAME_MATCHES, NAME_WORDS, NameEntry, NameKey, STREAM_BYTES_WORDS};

/// Longest DNS message that is read, in bytes.
pub const MESSAGE: usize = 4096;
/// Bytes of memory for a message: the bytes that a packet adds begin below [`MESSAGE`], and are at most [`MESSAGE`].
const ROOM: usize = 2 * MESSAGE;
/// Longest name in bytes, without the root's empty label.
pub const NAME: usize = 254;

/// Working memory of this CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NameWork {
    /// The DNS message.
    pub message: [u8; ROOM],
    /// The last name that was read: labels in lower case, each preceded by its length.
    pub name: [u8; 256],
    /// 1 where a label of `name` begins.
    pub begins: [u8; 256],
    /// Key of the last lookup.
    pub key: NameKey,
    /// Entry to find or to write.
    pub entry: NameEntry,
    /// Hashes of the matching names.
    pub matches: [[u32; 3]; NAME_MATCHES],
    /// Hash of `name`.
    pub hash: [u32; 3],
    /// Hash of the name whose records count: the question's, or the target of its last alias.
    pub wanted: [u32; 3],
    /// Number of `matches`.
    pub matched: u32,
    /// Offset of the wanted name in the message.
    pub wanted_at: u32,
    /// Length of the message.
    pub length: u32,
    /// Length of `name`.
    pub name_length: u32,
    /// Candidate buckets of `entry`.
    pub(crate) buckets: [u32; 2],
    /// Ways of these buckets.
    pub(crate) ways: Ways,
    /// The way that the entry replaces.
    pub(crate) victim: Victim,
    /// Hash of the bytes of `name` so far, from its end.
    pub(crate) sums: NameSums,
    /// Bytes of `name` that are not hashed yet.
    pub(crate) unhashed: u32,
    /// Place in the name that is being read.
    pub(crate) cursor: NameCursor,
    /// Offset of the next record.
    pub at: u32,
    /// Number of records to read.
    pub records: u32,
    /// Least time to live of the aliases so far, in seconds.
    pub alias_ttl: u32,
    /// The TCP segment that is being read.
    pub(crate) stream: StreamWork,
}

impl NameWork {
    /// Empty working memory.
    pub const EMPTY: Self = Self {
        message: [0; ROOM],
        name: [0; 256],
        begins: [0; 256],
        key: NameKey { list: 0, hash: [0; 3] },
        entry: NameEntry { address: [0; 2], name: [0; 2], asked: 0, until: 0 },
        matches: [[0; 3]; NAME_MATCHES],
        hash: [0; 3],
        wanted: [0; 3],
        matched: 0,
        wanted_at: 0,
        length: 0,
        name_length: 0,
        buckets: [0; 2],
        ways: Ways { free: 0, past: 0 },
        victim: Victim { rank: 0, until: 0, index: 0 },
        sums: NameSums([0; 3]),
        unhashed: 0,
        cursor: NameCursor { at: 0, before: 0, end: 0, left: 0 },
        at: 0,
        records: 0,
        alias_ttl: 0,
        stream: StreamWork {
            own: [0; 2],
            resolver: [0; 2],
            asker: 0,
            remote_port: 0,
            sequence: 0,
            acknowledged: 0,
            flags: 0,
            is_whole: 0,
            at: 0,
            end: 0,
            slot: 0,
            ends: 0,
            stated: 0,
            stated_bytes: 0,
            taken: 0,
            copied: 0,
            unasked: 0,
        },
    };
}

/// A TCP segment that is being read, and the message in it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamWork {
    /// The pod's address.
    pub(crate) own: [u64; 2],
    /// Address of the other side: the resolver, or an unknown host.
    pub(crate) resolver: [u64; 2],
    /// [`StreamEntry::asker`](crate::layout::StreamEntry::asker).
    pub(crate) asker: u64,
    /// The other side's port.
    pub(crate) remote_port: u32,
    /// Sequence number of the first byte, or of the SYN.
    pub(crate) sequence: u32,
    /// Acknowledged sequence number.
    pub(crate) acknowledged: u32,
    /// Header flags.
    pub(crate) flags: u32,
    /// 1 unless the packet is a fragment.
    pub(crate) is_whole: u32,
    /// Offset in the frame of the next byte to read.
    pub(crate) at: u32,
    /// Offset in the frame after the segment's data.
    pub(crate) end: u32,
    /// Place of the held entry.
    pub(crate) slot: u32,
    /// Whether the stream ends with this segment.
    pub(crate) ends: u32,
    /// Length of the message.
    pub(crate) stated: u32,
    /// Bytes of this length that were read: 0 to 2.
    pub(crate) stated_bytes: u32,
    /// Bytes of the message that were read.
    pub(crate) taken: u32,
    /// Words of the message that were copied.
    pub(crate) copied: u32,
    /// 1 for a message that is not an answer to a question of the pod.
    pub(crate) unasked: u32,
}

/// Place in a name that is being read. It is kept in memory, which the verifier does not track: otherwise it would
/// follow each step once for each value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameCursor {
    /// Offset of the next byte.
    pub(crate) at: u32,
    /// Pointers must lead to places before this one, so that they end.
    pub(crate) before: u32,
    /// Offset after the name, once a pointer was followed; else 0.
    pub(crate) end: u32,
    /// Bytes left of the label.
    pub(crate) left: u32,
}

/// Ways of an entry's candidate buckets, a bit for each; those of the second bucket follow those of the first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ways {
    /// Free.
    pub(crate) free: u32,
    /// So long past their time that they may be replaced.
    pub(crate) past: u32,
}

/// The way that a new entry replaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) rank: u64,
    /// Its [`NameEntry::until`].
    pub(crate) until: u64,
    pub(crate) index: u64,
}

/// Polynomials of the bytes so far, see [`crate::names::name`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameSums(pub(crate) [u64; 3]);

/// Access to the working memory, which called functions change too: nothing is held across a call.
#[derive(Clone, Copy, Debug)]
pub struct Work(*mut NameWork);

/// Flag in [`NameEntry::asked`]: over TCP.
pub(crate) const BY_TCP: u64 = 1 << 32;

macro_rules! field {
    ($name:ident, $set:ident: $type:ty) => {
        #[inline(always)]
        pub(crate) fn $name(self) -> $type {
            // SAFETY: readable, by `new`.
            unsafe { (&raw const (*self.0).$name).read_volatile() }
        }

        #[inline(always)]
        pub(crate) fn $set(self, value: $type) {
            // SAFETY: writable, by `new`.
            unsafe { (&raw mut (*self.0).$name).write_volatile(value) };
        }
    };
    (stream $field:ident, $name:ident, $set:ident: $type:ty) => {
        #[inline(always)]
        pub(crate) fn $name(self) -> $type {
            // SAFETY: readable, by `new`.
            unsafe { (&raw const (*self.0).stream.$field).read_volatile() }
        }

        #[inline(always)]
        pub(crate) fn $set(self, value: $type) {
            // SAFETY: writable, by `new`.
            unsafe { (&raw mut (*self.0).stream.$field).write_volatile(value) };
        }
    };
}

#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "where a value is, and reading it, is one step"
)]
impl Work {
    /// # Safety
    /// The pointer is writable for as long as the value is used, and nobody else uses the memory meanwhile.
    #[must_use]
    #[inline(always)]
    pub const unsafe fn new(work: *mut NameWork) -> Self {
        Self(work)
    }

    field!(hash, set_hash: [u32; 3]);
    field!(wanted, set_wanted: [u32; 3]);
    field!(matched, set_matched: u32);
    field!(wanted_at, set_wanted_at: u32);
    field!(length, set_length: u32);
    field!(name_length, set_name_length: u32);
    field!(ways, set_ways: Ways);
    field!(victim, set_victim: Victim);
    field!(sums, set_sums: NameSums);
    field!(unhashed, set_unhashed: u32);
    field!(cursor, set_cursor: NameCursor);
    field!(at, set_at: u32);
    field!(records, set_records: u32);
    field!(alias_ttl, set_alias_ttl: u32);
    field!(entry, set_entry: NameEntry);
    field!(stream resolver, resolver, set_resolver: [u64; 2]);
    field!(stream asker, asker, set_asker: u64);
    field!(stream own, own, set_own: [u64; 2]);
    field!(stream remote_port, remote_port, set_remote_port: u32);
    field!(stream sequence, sequence, set_sequence: u32);
    field!(stream acknowledged, acknowledged, set_acknowledged: u32);
    field!(stream flags, flags, set_flags: u32);
    field!(stream is_whole, is_whole, set_is_whole: u32);
    field!(stream at, segment_at, set_segment_at: u32);
    field!(stream end, segment_end, set_segment_end: u32);
    field!(stream slot, slot, set_slot: u32);
    field!(stream ends, ends, set_ends: u32);
    field!(stream stated, stated, set_stated: u32);
    field!(stream stated_bytes, stated_bytes, set_stated_bytes: u32);
    field!(stream taken, taken, set_taken: u32);
    field!(stream copied, copied, set_copied: u32);
    field!(stream unasked, unasked, set_unasked: u32);

    /// Writes the candidate buckets of the entry.
    #[inline(always)]
    pub(crate) fn set_buckets(self, buckets: [u32; 2]) {
        // SAFETY: writable, by `new`.
        unsafe { (&raw mut (*self.0).buckets).write_volatile(buckets) };
    }

    /// A candidate bucket of the entry.
    #[inline(always)]
    pub(crate) fn bucket(self, choice: u32) -> u32 {
        // SAFETY: the index is below the array's length.
        unsafe {
            let buckets = (&raw const (*self.0).buckets).cast::<u32>();
            buckets.add(choice as usize & 1).read_volatile()
        }
    }

    /// Writes the list of the next lookups.
    #[inline(always)]
    pub(crate) fn set_list(self, list: u32) {
        // SAFETY: writable, by `new`.
        unsafe { (&raw mut (*self.0).key.list).write_volatile(list) };
    }

    /// List of the last lookup.
    #[inline(always)]
    pub(crate) fn list(self) -> u32 {
        // SAFETY: readable, by `new`.
        unsafe { (&raw const (*self.0).key.list).read_volatile() }
    }

    /// A word of the entry, by its index.
    #[inline(always)]
    pub(crate) fn entry_word(self, index: usize) -> u64 {
        // SAFETY: the index is below the number of words.
        unsafe {
            let entry = (&raw const (*self.0).entry).cast::<u64>();
            entry.add(index % NAME_WORDS).read_volatile()
        }
    }

    /// The key of a lookup, after writing it.
    #[inline(always)]
    pub(crate) fn key(&self, list: u32, hash: [u32; 3]) -> &NameKey {
        // SAFETY: writable, by `new`; no lookup writes it.
        unsafe {
            let key = &raw mut (*self.0).key;
            key.write_volatile(NameKey { list, hash });
            &*key
        }
    }

    /// Address of the entry.
    #[must_use]
    #[inline(always)]
    pub fn address(&self) -> &[u64; 2] {
        // SAFETY: readable, by `new`; no lookup writes it.
        unsafe { &(*self.0).entry.address }
    }

    /// Address of the segment's other side.
    #[must_use]
    #[inline(always)]
    pub fn remote(&self) -> &[u64; 2] {
        // SAFETY: readable, by `new`; no lookup writes it.
        unsafe { &(*self.0).stream.resolver }
    }

    /// Writes the address of the other side, for a lookup.
    #[inline(always)]
    pub fn look_up(self, address: [u64; 2]) {
        self.set_resolver(address);
    }

    /// Begins a message of a conversation with a resolver.
    #[inline(always)]
    pub fn begin(self, length: u32, address: [u64; 2], endpoint: u32, port: u16) {
        self.set_length(length);
        let name = [0, u64::from(endpoint) << 32];
        self.set_entry(NameEntry { address, name, asked: port.into(), until: 0 });
    }

    /// Replaces the entry by an address that the same endpoint resolved. Word by word, since the stack has no room.
    #[inline(always)]
    pub(crate) fn set_found(self, address: [u64; 2], until: u64) {
        // SAFETY: writable, by `new`.
        unsafe {
            let entry = &raw mut (*self.0).entry;
            let name = &raw mut (*entry).name[1];
            name.write_volatile(name.read_volatile() >> 32 << 32);
            (&raw mut (*entry).name[0]).write_volatile(0);
            (&raw mut (*entry).address[0]).write_volatile(address[0]);
            (&raw mut (*entry).address[1]).write_volatile(address[1]);
            (&raw mut (*entry).asked).write_volatile(0);
            (&raw mut (*entry).until).write_volatile(until);
        }
    }

    /// Begins a message in a TCP connection.
    #[inline(always)]
    pub(crate) fn begin_in_stream(self, length: u32) {
        let asker = self.asker();
        self.begin(length, self.resolver(), (asker >> 32) as u32, asker as u16);
        let entry = self.entry();
        self.set_entry(NameEntry { asked: entry.asked | BY_TCP, ..entry });
    }

    /// Words of the message, in memory order.
    #[inline(always)]
    pub(crate) fn message_word(self, index: u32) -> *mut u64 {
        // SAFETY: the index is below the array's length, and the message is the memory's beginning, which is aligned.
        unsafe { self.0.cast::<u64>().add(index as usize & (STREAM_BYTES_WORDS - 1)) }
    }

    /// Writes bytes to a place of the message, at most [`MESSAGE`] each.
    pub(crate) fn fill(self, place: u32, bytes: &[u8]) {
        let (place, length) = (place as usize & (MESSAGE - 1), bytes.len().min(MESSAGE));
        // SAFETY: the place and the length are within the array.
        unsafe {
            let message = (&raw mut (*self.0).message).cast::<u8>();
            message.add(place).copy_from_nonoverlapping(bytes.as_ptr(), length);
        }
    }

    /// A byte of the message; beyond its end the value has no meaning.
    #[inline(always)]
    pub(crate) fn byte(self, at: u32) -> u8 {
        // SAFETY: the offset is below the array's length.
        unsafe {
            let message = (&raw const (*self.0).message).cast::<u8>();
            message.add(at as usize & (MESSAGE - 1)).read_volatile()
        }
    }

    /// Big-endian 16 bits of the message.
    #[inline(always)]
    pub(crate) fn be16(self, at: u32) -> u16 {
        u16::from(self.byte(at)) << 8 | u16::from(self.byte(at.wrapping_add(1)))
    }

    /// Big-endian 32 bits of the message.
    #[inline(always)]
    pub(crate) fn be32(self, at: u32) -> u32 {
        u32::from(self.be16(at)) << 16 | u32::from(self.be16(at.wrapping_add(2)))
    }

    /// Eight bytes of the message, as a word in memory order.
    #[inline(always)]
    pub(crate) fn word(self, at: u32) -> u64 {
        let (first, second) = (self.be32(at), self.be32(at.wrapping_add(4)));
        u64::from(first.swap_bytes()) | u64::from(second.swap_bytes()) << 32
    }

    /// Sets a byte of the name, and whether a label begins there.
    #[inline(always)]
    pub(crate) fn put(self, at: u32, byte: u8, begins: bool) {
        let at = at as usize & 255;
        // SAFETY: the offset is below the arrays' length.
        unsafe {
            (&raw mut (*self.0).name).cast::<u8>().add(at).write_volatile(byte);
            (&raw mut (*self.0).begins).cast::<u8>().add(at).write_volatile(begins.into());
        }
    }

    /// A byte of the name, and whether a label begins there.
    #[inline(always)]
    pub(crate) fn get(self, at: u32) -> (u8, bool) {
        let at = at as usize & 255;
        // SAFETY: the offset is below the arrays' length.
        unsafe {
            let byte = (&raw const (*self.0).name).cast::<u8>().add(at).read_volatile();
            let begins = (&raw const (*self.0).begins).cast::<u8>().add(at).read_volatile();
            (byte, begins != 0)
        }
    }

    /// Adds a matching name, if there is room.
    #[inline(always)]
    pub(crate) fn add_match(self, hash: [u32; 3]) {
        let count = self.matched();
        if count >= NAME_MATCHES as u32 {
            return;
        }
        // SAFETY: the index is below the array's length.
        unsafe {
            let place = (&raw mut (*self.0).matches).cast::<[u32; 3]>();
            place.add(count as usize & (NAME_MATCHES - 1)).write_volatile(hash);
        }
        self.set_matched(count + 1);
    }

    /// A matching name.
    #[inline(always)]
    pub(crate) fn matching(self, index: u32) -> [u32; 3] {
        // SAFETY: the index is below the array's length.
        unsafe {
            let place = (&raw const (*self.0).matches).cast::<[u32; 3]>();
            place.add(index as usize & (NAME_MATCHES - 1)).read_volatile()
        }
    }
}

const _: () = assert!(core::mem::offset_of!(NameWork, message) == 0);
