//! Tables that a verdict reads and writes: [`Tables`], and [`TableFamily`] for the tables of an IP version.

pub mod ipv6_blocks;
pub mod ipv6_hosts;
pub mod local_endpoints;
pub mod policy;

use crate::{
    endpoint::EndpointRef,
    flow::{
        control::Timeouts,
        evict,
        key::{self, FlowTableKey, words4, words6},
        relocate::{self, Shift},
        table::{self, BucketsFull, Evicted, Flow},
    },
    layout::{
        ClassId, Ct4Key, ENDPOINT_PROBES, FragmentKey, FragmentPorts, Settings, doubt_time,
        endpoint_slot,
    },
    packet::family::{Family, V4, V6},
    tables::policy::{PolicyTables, class4, class6},
};

/// Opening of a pod's connection that the pod's row denies.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// The endpoint's number.
    pub endpoint: u32,
    /// The pod's row of egress.
    pub row: u32,
    /// The remote address, as [`NameEntry::address`](crate::layout::NameEntry::address).
    pub address: [u64; 2],
    /// Class of the address.
    pub class: ClassId,
    /// IP protocol.
    pub protocol: u8,
    /// Destination port.
    pub port: u16,
}

/// The tables of one node: BPF maps in the kernel, plain memory in tests.
pub trait Tables: PolicyTables + Timeouts + Sized {
    /// The settings.
    fn settings(&self) -> Option<&Settings>;
    /// Endpoint record of a slot.
    fn endpoint(&self, slot: u32) -> Option<EndpointRef>;
    /// First word of a bucket of the IPv4 flow table.
    fn bucket4(&self, index: u32) -> Option<*mut u64>;
    /// First word of a bucket of the IPv6 flow table.
    fn bucket6(&self, index: u32) -> Option<*mut u64>;
    /// Jiffies, low 32 bits.
    fn now(&self) -> u32;
    /// [`Settings::revision`]; later reads are ordered after it.
    fn revision(&self) -> u32;
    /// Whether the node's conntrack can be queried for a packet's [`crate::judge::connection::Course`].
    #[inline(always)]
    fn knows_courses(&self) -> bool {
        true
    }
    /// Whether rules with domain names allow the first packet of a flow that the pod's row denies. False where the caller
    /// judges a denied packet again by the rows of these rules, see [`crate::names::choice`].
    #[inline(always)]
    fn opens_by_name(&self, _opening: &Opening) -> bool {
        false
    }
    /// Time of the last doubt about all connections of an endpoint to resolvers, by its number
    /// ([`crate::layout::doubt_time`]); 0: none. `None` for tables that read none.
    #[inline(always)]
    fn doubted_at(&self, _endpoint: u32) -> Option<*mut u64> {
        None
    }
    /// Ends the reading of all of an endpoint's connections to resolvers.
    #[inline(always)]
    fn doubt_endpoint(&self, endpoint: u32) {
        if let Some(at) = self.doubted_at(endpoint) {
            // SAFETY: a word of the table.
            unsafe { self.store(at, doubt_time(self.now())) };
        }
    }
    /// Ports that a datagram's first fragment recorded.
    fn fragment(&self, key: &FragmentKey) -> Option<FragmentPorts>;
    /// Class of an IPv6 address (words in memory order). A separate function in the kernel.
    #[inline(always)]
    fn class6(&self, address: [u64; 2]) -> ClassId {
        class6(self, &V6::octets(address))
    }
    /// Inserts a flow by its key and the key's hash: [`insert_vacant`], else [`insert`]. A separate function in the
    /// kernel, which the verifier checks once instead of at the end of each path to it.
    ///
    /// # Errors
    /// [`BucketsFull`] if there is no room.
    #[inline(always)]
    fn insert4(&self, key: [u64; 2], hash: u64, flags: u16) -> Result<(), BucketsFull> {
        if insert_vacant::<V4, _>(self, key, hash, flags) {
            return Ok(());
        }
        insert::<V4, _, _>(self, key, hash, flags).map(drop)
    }
    /// Inserts an IPv6 flow, see [`Tables::insert4`].
    ///
    /// # Errors
    /// [`BucketsFull`] if there is no room.
    #[inline(always)]
    fn insert6(&self, key: [u64; 4], hash: u64, flags: u16) -> Result<(), BucketsFull> {
        if insert_vacant::<V6, _>(self, key, hash, flags) {
            return Ok(());
        }
        insert::<V6, _, _>(self, key, hash, flags).map(drop)
    }
    /// Makes room for a flow of an endpoint that found none, in the family's table: [`make_place`], else
    /// [`free_stale`], else [`make_room`]. Separate functions in the kernel.
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
    /// Records the ports of a first fragment; an older record makes room.
    fn remember_fragment(&self, key: &FragmentKey, ports: &FragmentPorts);
}

/// Tables of an IP version.
pub trait TableFamily: Family {
    /// Conntrack key of the family.
    type Key: FlowTableKey;

    /// Class of an address.
    fn class<T: Tables>(tables: &T, address: Self::Address) -> ClassId;

    /// Inserts a flow, by [`Tables::insert4`] or [`Tables::insert6`].
    ///
    /// # Errors
    /// [`BucketsFull`] if there is no room.
    fn insert<T: Tables>(
        tables: &T,
        key: Self::Key,
        hash: u64,
        flags: u16,
    ) -> Result<(), BucketsFull>;

    /// Number of buckets of the flow table, less one.
    fn mask(settings: &Settings) -> u32;

    /// First word of a bucket of the flow table.
    fn bucket<T: Tables>(tables: &T, index: u32) -> Option<*mut u64>;

    /// Conntrack key of a flow.
    fn key(
        endpoint: u32,
        remote: Self::Address,
        local_port: u16,
        remote_port: u16,
        protocol: u8,
    ) -> Self::Key;
}

impl TableFamily for V4 {
    type Key = [u64; 2];

    #[inline(always)]
    fn class<T: Tables>(tables: &T, address: u32) -> ClassId {
        class4(tables, address)
    }

    #[inline(always)]
    fn insert<T: Tables>(
        tables: &T,
        key: [u64; 2],
        hash: u64,
        flags: u16,
    ) -> Result<(), BucketsFull> {
        tables.insert4(key, hash, flags)
    }

    #[inline(always)]
    fn mask(settings: &Settings) -> u32 {
        settings.ct4_mask
    }

    #[inline(always)]
    fn bucket<T: Tables>(tables: &T, index: u32) -> Option<*mut u64> {
        tables.bucket4(index)
    }

    #[inline(always)]
    fn key(
        endpoint: u32,
        remote: u32,
        local_port: u16,
        remote_port: u16,
        protocol: u8,
    ) -> [u64; 2] {
        let protocol = u32::from(protocol);
        words4(&Ct4Key { endpoint, remote, local_port, remote_port, protocol })
    }
}

impl TableFamily for V6 {
    type Key = [u64; 4];

    #[inline(always)]
    fn class<T: Tables>(tables: &T, address: [u64; 2]) -> ClassId {
        tables.class6(address)
    }

    #[inline(always)]
    fn insert<T: Tables>(
        tables: &T,
        key: [u64; 4],
        hash: u64,
        flags: u16,
    ) -> Result<(), BucketsFull> {
        tables.insert6(key, hash, flags)
    }

    #[inline(always)]
    fn mask(settings: &Settings) -> u32 {
        settings.ct6_mask
    }

    #[inline(always)]
    fn bucket<T: Tables>(tables: &T, index: u32) -> Option<*mut u64> {
        tables.bucket6(index)
    }

    #[inline(always)]
    fn key(
        endpoint: u32,
        remote: [u64; 2],
        local_port: u16,
        remote_port: u16,
        protocol: u8,
    ) -> [u64; 4] {
        words6(endpoint, local_port, remote_port, remote, protocol)
    }
}

/// Makes a place in a flow's buckets by relocating another flow, see [`relocate::make_place`].
#[inline(always)]
pub fn make_place<F: TableFamily, T: Tables>(tables: &T, hash: u64) -> bool {
    let Some(settings) = tables.settings() else { return false };
    let buckets = key::choices(hash, F::mask(settings));
    let moves = |index, place, takes| shift::<F, T>(tables, (index, place), takes);
    relocate::make_place(buckets, moves)
}

/// Moves a flow to its second bucket, by [`relocate::shift`].
#[inline(always)]
pub fn shift<F: TableFamily, T: Tables>(
    tables: &T,
    (index, place): (u32, u32),
    takes: bool,
) -> Shift {
    let Some(settings) = tables.settings() else { return Shift::STAYS };
    let from = (index, place, F::mask(settings));
    // SAFETY: whole buckets of this family's table.
    unsafe { relocate::shift::<F::Key, _>(tables, settings, from, takes, |i| F::bucket(tables, i)) }
}

/// Evicts an idle flow of the same endpoint, by [`evict::free_stale`].
#[inline(always)]
pub fn free_stale<F: TableFamily, T: Tables>(tables: &T, endpoint: u32, hash: u64) -> bool {
    let Some(settings) = tables.settings() else { return false };
    let Some(buckets) = buckets::<F, T>(tables, settings, hash) else { return false };
    // SAFETY: whole buckets of this family's table.
    unsafe {
        let wanted = (endpoint, hash);
        evict::free_stale::<F::Key, _>(tables, buckets, wanted, settings, tables.now())
    }
}

/// Evicts a flow of an endpoint with most of the ways, by [`evict::make_room`].
#[inline(always)]
pub fn make_room<F: TableFamily, T: Tables>(tables: &T, endpoint: u32, hash: u64) -> bool {
    let Some(settings) = tables.settings() else { return false };
    let Some(buckets) = buckets::<F, T>(tables, settings, hash) else { return false };
    // SAFETY: whole buckets of this family's table.
    unsafe {
        let wanted = (endpoint, hash);
        evict::make_room::<F::Key, _>(tables, buckets, wanted, settings, tables.now())
    }
}

#[inline(always)]
fn buckets<F: TableFamily, T: Tables>(
    tables: &T,
    settings: &Settings,
    hash: u64,
) -> Option<[*mut u64; 2]> {
    let [first, second] = key::choices(hash, F::mask(settings));
    Some([F::bucket(tables, first)?, F::bucket(tables, second)?])
}

/// Handle of a flow in the table of its family, by its key and the key's hash ([`key::hash`]).
#[inline(always)]
pub fn flow<F: TableFamily, K: FlowTableKey, T: Tables>(
    tables: &T,
    settings: &Settings,
    key: K,
    hash: u64,
) -> Option<Flow<K>> {
    let buckets = buckets::<F, T>(tables, settings, hash)?;
    Some(Flow { key, hash, buckets })
}

/// Inserts a flow into an empty place of its first bucket, by [`table::insert_vacant`].
#[inline(always)]
pub fn insert_vacant<F: TableFamily, T: Tables>(
    tables: &T,
    key: F::Key,
    hash: u64,
    flags: u16,
) -> bool {
    let Some(settings) = tables.settings() else { return false };
    let index = key::first(hash, F::mask(settings));
    let Some(bucket) = F::bucket(tables, index) else { return false };
    // SAFETY: a whole bucket of this family's table.
    unsafe { table::insert_vacant(tables, &key, bucket, flags, tables.now()) }
}

/// Inserts a flow into the table of its family; returns the kind of flow that made room.
///
/// # Errors
/// [`BucketsFull`] if there is no room.
#[inline(always)]
pub fn insert<F: TableFamily, K: FlowTableKey, T: Tables>(
    tables: &T,
    key: K,
    hash: u64,
    flags: u16,
) -> Result<Evicted, BucketsFull> {
    let settings = tables.settings().ok_or(BucketsFull)?;
    let flow = flow::<F, K, T>(tables, settings, key, hash).ok_or(BucketsFull)?;
    // SAFETY: `flow` names whole buckets of this family's table.
    unsafe { flow.insert(tables, flags, settings, tables.now()) }
}

/// The endpoint of an interface.
#[must_use]
#[inline(always)]
pub fn find_endpoint<T: Tables>(tables: &T, ifindex: u32) -> Option<EndpointRef> {
    find_slot(tables, ifindex).map(|(_, endpoint)| endpoint)
}

/// The endpoint of an interface, and its slot.
#[must_use]
#[inline(always)]
pub fn find_slot<T: Tables>(tables: &T, ifindex: u32) -> Option<(u32, EndpointRef)> {
    let probes = tables.settings().map_or(0, endpoint_probes);
    for probe in 0..ENDPOINT_PROBES {
        let found = find_slot_at(tables, ifindex, probe);
        if found.is_some() {
            return found;
        }
        if probe + 1 == probes {
            break;
        }
    }
    None
}

/// The endpoint of an interface in the slot of one probe; nearly all endpoints are in that of probe 0.
#[must_use]
#[inline(always)]
pub fn find_slot_at<T: Tables>(tables: &T, ifindex: u32, probe: u32) -> Option<(u32, EndpointRef)> {
    let slot = endpoint_slot(ifindex, probe);
    let endpoint = tables.endpoint(slot)?;
    // The agent writes the index last.
    let found = endpoint.ifindex();
    let endpoint = endpoint.after_load(found);
    (found == ifindex).then_some((slot, endpoint))
}

/// [`Settings::endpoint_probes`], which the agent changes while programs run.
#[inline(always)]
fn endpoint_probes(settings: &Settings) -> u32 {
    // SAFETY: a reference is readable.
    unsafe { (&raw const settings.endpoint_probes).read_volatile() }
}
