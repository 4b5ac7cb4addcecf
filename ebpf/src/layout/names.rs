//! Domain names: rows of rules with names, names that the agent writes, and addresses that pods resolved.

/// Highest number of [`RowNames::rows`].
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

/// Highest number of names of a list and a question's suffixes that one answer is recorded for.
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
/// Highest number of trusted resolvers.
pub const RESOLVER_SLOTS: u32 = 1_024;
/// Buckets of resolved addresses.
pub const LEARNED_BUCKETS: u32 = 16_384;
/// Buckets of questions.
pub const QUESTION_BUCKETS: u32 = 1_024;

const _: () = {
    assert!(size_of::<RowNames>() == 64 && size_of::<NameKey>() == 16);
    assert!(size_of::<NameEntry>() == 48);
    assert!(LEARNED_BUCKETS.is_power_of_two() && QUESTION_BUCKETS.is_power_of_two());
};
