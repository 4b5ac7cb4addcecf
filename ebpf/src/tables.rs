//! What the verdict reads and writes besides the packet.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "where a word is, and reading it, is one step"
)]

use crate::{
    conntrack::{self, Flow, Full, Gave, Key, Memory, Shift},
    family::{Family, V4, V6},
    layout::{ClassId, ENDPOINT_ADDRS, Endpoint, FragmentKey, FragmentPorts, Settings},
    order,
    policy::{PolicyTables, class6},
};

/// The tables of one node: BPF maps in the kernel, plain memory in tests.
pub trait Tables: PolicyTables + Memory + Sized {
    /// The settings.
    fn settings(&self) -> Option<&Settings>;
    /// An endpoint slot.
    fn endpoint(&self, slot: u32) -> Option<EndpointRef>;
    /// First word of a bucket of the IPv4 flow table.
    fn bucket4(&self, index: u32) -> Option<*mut u64>;
    /// First word of a bucket of the IPv6 flow table.
    fn bucket6(&self, index: u32) -> Option<*mut u64>;
    /// Jiffies, low 32 bits.
    fn now(&self) -> u32;
    /// [`Settings::revision`]; later reads are not made before it.
    fn revision(&self) -> u32;
    /// Whether the node's conntrack can be asked for a packet's [`crate::connection::Course`].
    #[inline(always)]
    fn knows_courses(&self) -> bool {
        true
    }
    /// What a datagram's first fragment left.
    fn fragment(&self, key: &FragmentKey) -> Option<FragmentPorts>;
    /// Class of an IPv6 address, as words in memory order; in the kernel a function of its own.
    #[inline(always)]
    fn class6(&self, address: [u64; 2]) -> ClassId {
        class6(self, &V6::octets(address))
    }
    /// Inserts a flow whose key has that hash: [`insert`]. In the kernel that is a function of its own,
    /// which the verifier looks at once, not at the end of each path that leads there.
    ///
    /// # Errors
    /// [`Full`] if there is no room.
    #[inline(always)]
    fn insert4(&self, key: [u64; 2], hash: u64, flags: u16) -> Result<(), Full> {
        insert::<V4, _, _>(self, key, hash, flags).map(drop)
    }
    /// As [`Tables::insert4`], IPv6.
    ///
    /// # Errors
    /// [`Full`] if there is no room.
    #[inline(always)]
    fn insert6(&self, key: [u64; 4], hash: u64, flags: u16) -> Result<(), Full> {
        insert::<V6, _, _>(self, key, hash, flags).map(drop)
    }
    /// Makes room for a flow of an endpoint that found none: [`make_place`], else [`free_stale`], else
    /// [`make_room`], of the family that has `is_v6`. In the kernel functions of their own too.
    #[inline(always)]
    fn make_room(&self, is_v6: bool, endpoint: u32, hash: u64) -> bool {
        if is_v6 {
            make_place::<V6, _>(self, hash)
                || free_stale::<V6, _>(self, endpoint, hash)
                || make_room::<V6, _>(self, endpoint, hash)
        } else {
            make_place::<V4, _>(self, hash)
                || free_stale::<V4, _>(self, endpoint, hash)
                || make_room::<V4, _>(self, endpoint, hash)
        }
    }
    /// Leaves it; an older one makes room.
    fn remember_fragment(&self, key: &FragmentKey, ports: &FragmentPorts);
}

/// Has another flow move on, by [`conntrack::make_place`].
#[inline(always)]
pub fn make_place<F: Family, T: Tables>(tables: &T, hash: u64) -> bool {
    let Some(settings) = tables.settings() else { return false };
    let buckets = conntrack::choices(hash, F::mask(settings));
    conntrack::make_place(buckets, |index, place| shift::<F, T>(tables, index, place))
}

/// Moves a flow on, by [`conntrack::shift`].
#[inline(always)]
pub fn shift<F: Family, T: Tables>(tables: &T, index: u32, place: u32) -> Shift {
    let Some(settings) = tables.settings() else { return Shift::STAYS };
    let from = (index, place, F::mask(settings));
    // SAFETY: whole buckets of this family's table.
    unsafe { conntrack::shift::<F::Key, _>(tables, settings, from, |i| F::bucket(tables, i)) }
}

/// Frees a place of an endpoint's own, by [`conntrack::free_stale`].
#[inline(always)]
pub fn free_stale<F: Family, T: Tables>(tables: &T, endpoint: u32, hash: u64) -> bool {
    let Some(settings) = tables.settings() else { return false };
    let Some(buckets) = buckets::<F, T>(tables, settings, hash) else { return false };
    // SAFETY: whole buckets of this family's table.
    unsafe {
        let wanted = (endpoint, hash);
        conntrack::free_stale::<F::Key, _>(tables, buckets, wanted, settings, tables.now())
    }
}

/// Makes room for a flow of an endpoint, by [`conntrack::make_room`].
#[inline(always)]
pub fn make_room<F: Family, T: Tables>(tables: &T, endpoint: u32, hash: u64) -> bool {
    let Some(settings) = tables.settings() else { return false };
    let Some(buckets) = buckets::<F, T>(tables, settings, hash) else { return false };
    // SAFETY: whole buckets of this family's table.
    unsafe {
        let wanted = (endpoint, hash);
        conntrack::make_room::<F::Key, _>(tables, buckets, wanted, settings, tables.now())
    }
}

#[inline(always)]
fn buckets<F: Family, T: Tables>(
    tables: &T,
    settings: &Settings,
    hash: u64,
) -> Option<[*mut u64; 2]> {
    let [first, second] = conntrack::choices(hash, F::mask(settings));
    Some([F::bucket(tables, first)?, F::bucket(tables, second)?])
}

/// The place in the table of its family of a flow whose key has that hash ([`conntrack::hash`]).
#[inline(always)]
pub fn flow<F: Family, K: Key, T: Tables>(
    tables: &T,
    settings: &Settings,
    key: K,
    hash: u64,
) -> Option<Flow<K>> {
    let buckets = buckets::<F, T>(tables, settings, hash)?;
    Some(Flow { key, hash, buckets })
}

/// Inserts a flow into the table of its family; what had to go for it.
///
/// # Errors
/// [`Full`] if there is no room.
#[inline(always)]
pub fn insert<F: Family, K: Key, T: Tables>(
    tables: &T,
    key: K,
    hash: u64,
    flags: u16,
) -> Result<Gave, Full> {
    let settings = tables.settings().ok_or(Full)?;
    let flow = flow::<F, K, T>(tables, settings, key, hash).ok_or(Full)?;
    // SAFETY: `flow` names whole buckets of this family's table.
    unsafe { flow.insert(tables, flags, settings, tables.now()) }
}

/// An endpoint's record in memory that the agent writes meanwhile: every field is read on its own,
/// once, and `rows` as the one word that it is.
#[derive(Clone, Copy, Debug)]
pub struct EndpointRef(*const Endpoint);

impl EndpointRef {
    /// A record in a table.
    ///
    /// # Safety
    /// The pointer must stay readable for as long as the value is used.
    #[must_use]
    #[inline(always)]
    pub const unsafe fn new(record: *const Endpoint) -> Self {
        Self(record)
    }

    /// The same record, whose fields are read only once `read` is known, see [`order`].
    #[must_use]
    #[inline(always)]
    pub(crate) fn after_load(self, read: u32) -> Self {
        Self(order::after_load(self.0.cast_mut(), u64::from(read)))
    }

    /// [`Endpoint::ifindex`].
    #[must_use]
    #[inline(always)]
    pub fn ifindex(self) -> u32 {
        // SAFETY: readable, by `new`.
        unsafe { (&raw const (*self.0).ifindex).read_volatile() }
    }

    /// [`Endpoint::id`].
    #[must_use]
    #[inline(always)]
    pub fn id(self) -> u32 {
        // SAFETY: readable, by `new`.
        unsafe { (&raw const (*self.0).id).read_volatile() }
    }

    /// [`Endpoint::rows`].
    #[must_use]
    #[inline(always)]
    pub fn rows(self) -> u64 {
        // SAFETY: readable, by `new`.
        unsafe { (&raw const (*self.0).rows).read_volatile() }
    }

    /// [`Endpoint::flags`].
    #[must_use]
    #[inline(always)]
    pub fn flags(self) -> u32 {
        // SAFETY: readable, by `new`.
        unsafe { (&raw const (*self.0).flags).read_volatile() }
    }

    /// A slot of [`Endpoint::addr4`].
    #[must_use]
    #[inline(always)]
    pub(crate) fn addr4(self, slot: usize) -> u32 {
        debug_assert!(slot < ENDPOINT_ADDRS);
        // SAFETY: readable, by `new`; callers count to ENDPOINT_ADDRS.
        unsafe { (&raw const (*self.0).addr4).cast::<u32>().add(slot).read_volatile() }
    }

    /// A slot of [`Endpoint::addr6`], as words in memory order.
    #[must_use]
    #[inline(always)]
    #[expect(clippy::cast_ptr_alignment, reason = "asserted below")]
    pub(crate) fn addr6(self, slot: usize) -> [u64; 2] {
        const { assert!(core::mem::offset_of!(Endpoint, addr6) % 8 == 0) };
        debug_assert!(slot < ENDPOINT_ADDRS);
        // SAFETY: readable, by `new`; aligned, by the assertion above.
        unsafe {
            let words = (&raw const (*self.0).addr6).cast::<u64>().add(slot * 2);
            [words.read_volatile(), words.add(1).read_volatile()]
        }
    }
}
