//! Domain names: rows of rules with names, names that the agent writes, and addresses that pods resolved.

/// Maximum number of [`RowNames::rows`].
pub const NAME_GROUPS: usize = 15;

/// Domain names of an egress row. Rules with domain names form groups; an address that a name of a group resolved to is
/// judged by the group's row instead.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowNames {
    /// Number of the list of names, see [`NameKey::list`]; 0: no rule has names.
    pub list: u32,
    /// Row of each group; 0: no such group.
    pub rows: [u32; NAME_GROUPS],
}

/// Key of a name that the agent wrote: its value is a bit for each group of [`RowNames`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameKey {
    /// Number of the list.
    pub list: u32,
    /// Keyed hash of the name ([`crate::names::name`]), with [`NAME_WILDCARD`] in the last word for `*.` and the name.
    pub hash: [u32; 3],
}

/// Flag in the last word of [`NameKey::hash`]: names below this one, not the name itself.
pub const NAME_WILDCARD: u32 = 1 << 31;

/// Maximum number of names for which one answer is recorded: names of a list that match the question or its suffixes.
pub const NAME_MATCHES: usize = 4;

/// An address that a pod resolved, or a question that a pod asked.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameEntry {
    /// The address, or the address of the resolver; IPv4 as `::ffff:0:0/96`. Words in memory order.
    pub address: [u64; 2],
    /// [`NameKey::hash`] of the matching name, or the hash of the name that was asked for; in the upper half of the last
    /// word the endpoint's number.
    pub name: [u64; 2],
    /// 0, or the question's port and identifier.
    pub asked: u64,
    /// Jiffies until which the entry is valid. 0: free; [`NAME_BUSY`]: a writer is changing it.
    pub until: u64,
}

/// Value of [`NameEntry::until`] while a writer changes the entry.
pub const NAME_BUSY: u64 = u64::MAX;
/// Words of a [`NameEntry`].
pub const NAME_WORDS: usize = size_of::<NameEntry>() / 8;
/// Entries of a [`NameBucket`].
pub const NAME_WAYS: usize = 8;
/// A bucket of entries.
pub type NameBucket = [NameEntry; NAME_WAYS];
/// Value of a trusted resolver: its answers count.
pub const RESOLVES: u32 = 1;
/// Besides [`RESOLVES`]: its answers over TCP count, too.
pub const RESOLVES_OVER_TCP: u32 = 2;

/// Value of a trusted resolver.
#[must_use]
pub const fn resolves(over_tcp: bool) -> u32 {
    if over_tcp { RESOLVES | RESOLVES_OVER_TCP } else { RESOLVES }
}

/// Maximum number of trusted resolvers.
pub const RESOLVER_SLOTS: u32 = 1_024;
/// Buckets of resolved addresses.
pub const LEARNED_BUCKETS: u32 = 16_384;
/// Buckets of questions.
pub const QUESTION_BUCKETS: u32 = 1_024;

/// A TCP connection of a pod to a resolver: the position up to which its answers were read. Words in memory order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamEntry {
    /// The pod's address, as [`NameEntry::address`].
    pub own: [u64; 2],
    /// The pod's port; in the upper half the endpoint's number.
    pub asker: u64,
    /// The resolver's address, as [`NameEntry::address`].
    pub resolver: [u64; 2],
    /// Sequence number of the pod's SYN, and [`STREAM_OPEN`].
    pub opened: u64,
    /// Sequence number of the pod's next byte.
    pub sent: u64,
    /// Sequence numbers of the resolver's first byte (lower half) and of the next byte to read.
    pub places: u64,
    /// The incomplete message: its length, as far as it is known (bits 0 to 15), how many bytes of it are in
    /// [`StreamBytes`] (16 to 31), and how many of the two bytes of its length were read (32 and 33).
    pub message: u64,
    /// Jiffies until which the entry is valid. 0: free; [`NAME_BUSY`]: held by the reader of a packet.
    pub until: u64,
}

/// Flag in [`StreamEntry::opened`]: the resolver's SYN-ACK was read.
pub const STREAM_OPEN: u64 = 1 << 32;
/// Words of a [`StreamEntry`].
pub const STREAM_WORDS: usize = size_of::<StreamEntry>() / 8;
/// Entries of a [`StreamBucket`].
pub const STREAM_WAYS: usize = 8;
/// A bucket of connections.
pub type StreamBucket = [StreamEntry; STREAM_WAYS];
/// Words of the longest message.
pub const STREAM_BYTES_WORDS: usize = 512;
/// Start of a connection's incomplete message.
pub type StreamBytes = [u64; STREAM_BYTES_WORDS];
/// Buckets of connections to resolvers.
pub const STREAM_BUCKETS: u32 = 64;
/// Doubts about the ports of an endpoint: of each [`DOUBT_PORTS`] neighbouring ports a word, which has the number of an
/// epoch in its lowest 16 bits, then a bit for each port that was doubted in this epoch, in the one before, and in the one
/// before that. A word without bits is of no epoch.
pub type DoubtBlock = [u64; DOUBT_WORDS];
/// Ports of a word.
pub const DOUBT_PORTS: usize = 16;
/// Words of a [`DoubtBlock`].
pub const DOUBT_WORDS: usize = (1 << 16) / DOUBT_PORTS;
/// Blocks of doubts. Endpoints with the same number modulo this one share a block: each port is doubted for both.
pub const DOUBT_BLOCKS: u32 = 128;

/// Place of a word of doubts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoubtPlace {
    /// Index of the block.
    pub block: u32,
    /// Index of the word in the block.
    pub word: u32,
}

/// Place of the word of a pod's port; `asker` as [`StreamEntry::asker`].
#[must_use]
#[inline(always)]
pub const fn doubt_place(asker: u64) -> DoubtPlace {
    let block = (asker >> 32) as u32 & (DOUBT_BLOCKS - 1);
    DoubtPlace { block, word: (asker as u32 & 0xffff) / DOUBT_PORTS as u32 }
}

/// Time of a doubt about all ports of an endpoint, from jiffies. Never 0, which is the time of no doubt.
#[must_use]
#[inline(always)]
pub const fn doubt_time(now: u32) -> u64 {
    1 << 32 | now as u64
}

const _: () = {
    assert!(
        size_of::<StreamEntry>() == 80
            && DOUBT_BLOCKS.is_power_of_two()
            && DOUBT_WORDS.is_power_of_two()
            && STREAM_BUCKETS.is_power_of_two()
    );
    assert!(size_of::<RowNames>() == 64 && size_of::<NameKey>() == 16);
    assert!(size_of::<NameEntry>() == 48);
    assert!(LEARNED_BUCKETS.is_power_of_two() && QUESTION_BUCKETS.is_power_of_two());
};
