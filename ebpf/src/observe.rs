//! Records of the flows of pods that no policy selects, for observers.
//!
//! The endpoint's flag [`EP_OBSERVE`] asks for them. They lie in tables of their own, which only this module reads and
//! writes: [`Tables`] gives a judgement no access to them, and a packet is recorded after its verdict. No judgement
//! reads the flag either. So no verdict depends on them.
//!
//! A record has the format of a conntrack entry, and the same timeouts. Its flags name the direction of the flow's
//! first packet. Nothing protects a record: a new one takes a free way, otherwise one of the endpoint that holds most of
//! the flow's eight ways ([`evict::take_share`]). So an endpoint with many flows replaces its own. Each endpoint may add
//! [`OBSERVED_PER_SECOND`] records in a second; flows beyond are counted ([`crate::reason::unrecorded`]).

use crate::{
    direction::PodDirection,
    endpoint::EndpointRef,
    flow::{
        evict,
        key::{self, FlowTableKey, choices},
        table::{self, Flow, Hit},
    },
    judge::{
        hook::{Arrival, PacketHook},
        lookup,
        opaque::Opaque,
        reject::take_token,
        transition::{closing_changes, confirmation_flags, may_begin, reply_flags},
    },
    layout::{
        CT_INGRESS, CT_NODE, CT_REPLIED, CT_STREAM, CT_SYN, EP_CHECK_SOURCE, EP_OBSERVE,
        OBSERVED_PER_SECOND, OBSERVED4_BUCKETS, OBSERVED6_BUCKETS, Settings,
    },
    packet::{
        bytes::Bytes,
        family::{V4, V6},
        icmp::{self, Echo},
        parse::{self, Fragment, Network, Transport, is_opening},
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, UDP},
        tuple::FlowTuple,
    },
    reason::Reason,
    tables::{TableFamily, Tables},
};

/// Tables of records.
pub trait Records: Tables {
    /// First word of a bucket of the IPv4 table.
    fn record_bucket4(&self, index: u32) -> Option<*mut u64>;
    /// First word of a bucket of the IPv6 table.
    fn record_bucket6(&self, index: u32) -> Option<*mut u64>;
    /// Records that an endpoint slot has added in this second, for [`take_token`].
    fn added(&self, slot: u32) -> Option<*mut u64>;
}

/// The records of an IP version.
pub trait RecordFamily: TableFamily {
    /// Number of buckets, less one.
    const MASK: u32;

    /// First word of a bucket.
    fn record_bucket<T: Records>(tables: &T, index: u32) -> Option<*mut u64>;
}

impl RecordFamily for V4 {
    const MASK: u32 = OBSERVED4_BUCKETS - 1;

    #[inline(always)]
    fn record_bucket<T: Records>(tables: &T, index: u32) -> Option<*mut u64> {
        tables.record_bucket4(index)
    }
}

impl RecordFamily for V6 {
    const MASK: u32 = OBSERVED6_BUCKETS - 1;

    #[inline(always)]
    fn record_bucket<T: Records>(tables: &T, index: u32) -> Option<*mut u64> {
        tables.record_bucket6(index)
    }
}

/// A flow without a live record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unrecorded<K> {
    /// Key of the flow.
    pub key: K,
    /// Hash of the key.
    pub hash: u64,
    /// Flags of the record.
    pub flags: u16,
}

/// Result of reading a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordResult {
    /// Nothing is to be added: the flow has a record, or the packet begins none.
    Done,
    /// A new IPv4 flow.
    New4(Unrecorded<[u64; 2]>),
    /// A new IPv6 flow.
    New6(Unrecorded<[u64; 4]>),
    /// The packet is not plain.
    Deferred,
}

/// Whether flows of an endpoint are recorded: no policy selects it, and it has the flag.
#[must_use]
#[inline(always)]
pub fn is_due(endpoint: EndpointRef) -> bool {
    endpoint.rows().isolates_none() && endpoint.flags() & EP_OBSERVE != 0
}

/// Reads a packet that passed, and updates the record of its flow.
#[inline(always)]
pub fn find_record<D: PodDirection, B: Bytes, T: Records>(
    bytes: &B,
    tables: &T,
    endpoint: EndpointRef,
) -> RecordResult {
    match parse::link(bytes) {
        Ok((ETHERTYPE_IPV4, offset)) if B::IPV4 => {
            match find_record_at::<V4, D, B, T>(bytes, offset, tables, endpoint) {
                Ok(new) => new.map_or(RecordResult::Done, RecordResult::New4),
                Err(reason) => result_of_error(reason),
            }
        }
        Ok((ETHERTYPE_IPV6, offset)) if B::IPV6 => {
            match find_record_at::<V6, D, B, T>(bytes, offset, tables, endpoint) {
                Ok(new) => new.map_or(RecordResult::Done, RecordResult::New6),
                Err(reason) => result_of_error(reason),
            }
        }
        Ok(_) => RecordResult::Done,
        Err(reason) => result_of_error(reason),
    }
}

/// Unreadable packets have no record.
#[inline(always)]
const fn result_of_error(reason: Reason) -> RecordResult {
    if reason as u8 == Reason::Deferred as u8 { RecordResult::Deferred } else { RecordResult::Done }
}

#[inline(always)]
fn find_record_at<F: RecordFamily, D: PodDirection, B: Bytes, T: Records>(
    bytes: &B,
    offset: u32,
    tables: &T,
    endpoint: EndpointRef,
) -> Result<Option<Unrecorded<F::Key>>, Reason> {
    let mut network = F::network(bytes, offset, false)?;
    F::extensions(bytes, &mut network)?;
    let transport = parse::transport(bytes, &network, false)?;
    let counts = !network.fragment.is_later()
        && !is_flooded::<F, D>(&network, endpoint)
        && (!icmp::is_icmp(transport.protocol) || icmp::echo(&transport) != Echo::None);
    // The verifier follows the search once, and not for each protocol.
    let transport = Opaque::new(tables, endpoint.id().into()).transport(transport, B::PLAIN);
    Ok(if counts { record::<F, D, T>(tables, endpoint, &network, &transport) } else { None })
}

/// Whether a packet in pod ingress is for another station's address: a bridge floods packets for unknown stations.
#[inline(always)]
fn is_flooded<F: RecordFamily, D: PodDirection>(
    network: &Network<F::Address>,
    endpoint: EndpointRef,
) -> bool {
    let to = network.destination;
    !D::EGRESS
        && endpoint.flags() & EP_CHECK_SOURCE != 0
        && !F::owns(endpoint, to)
        && !F::is_shared(to)
}

/// Updates the record of a packet's flow. Returns the flow if it has no live record and the packet begins one.
#[inline(always)]
fn record<F: RecordFamily, D: PodDirection, T: Records>(
    tables: &T,
    endpoint: EndpointRef,
    network: &Network<F::Address>,
    transport: &Transport,
) -> Option<Unrecorded<F::Key>> {
    let settings = tables.settings()?;
    let remote = if D::EGRESS { network.destination } else { network.source };
    let flow = FlowTuple::new(remote, transport, D::EGRESS);
    let flow = Opaque::new(tables, endpoint.id().into()).flow(&flow);
    let key = lookup::key::<F>(endpoint.id(), &flow);
    let hash = key::hash(settings, &key);
    let hit = find::<F, F::Key, T>(tables, &key, hash)?;
    let (control, now) = (hit.control, tables.now());
    let flags = control.flags();
    let opening = is_opening(transport);
    let syn = if opening { CT_SYN } else { 0 };
    let new = Unrecorded { key, hash, flags: D::SEEN | syn };
    if !control.is_valid() || tables.is_expired(control, transport.protocol, settings, now) {
        return may_begin(transport, false).then_some(new);
    }
    let begun = flags & D::SEEN != 0;
    if opening && (!begun || control.is_closing()) {
        return Some(new);
    }
    let add = match icmp::echo(transport) {
        Echo::Request => D::SEEN,
        Echo::None if begun => confirmation_flags(flags, transport),
        Echo::Reply | Echo::None => reply_flags(transport),
    };
    let mut changes = closing_changes::<D>(transport).and(add);
    if transport.protocol == UDP && flags & (CT_REPLIED | CT_STREAM) == CT_REPLIED {
        // As in conntrack, the stamp stays until the flow counts as a stream.
        if control.age(now) <= 2 * settings.refresh_after {
            return None;
        }
        changes = changes.and(CT_STREAM);
    }
    // SAFETY: found in a table just now, by this family's key.
    unsafe { Flow::<F::Key>::touch(tables, hit, changes, now, settings.refresh_after) };
    None
}

/// The record of a flow, expired or not; its control word is not valid if there is none.
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
fn find<F: RecordFamily, K: FlowTableKey, T: Records>(
    tables: &T,
    key: &K,
    hash: u64,
) -> Option<Hit> {
    let bucket = F::record_bucket(tables, key::first(hash, F::MASK))?;
    // SAFETY: a whole bucket of this family's table.
    let hit = unsafe { Hit::at::<K>(bucket, table::search(tables, key, hash, bucket)) };
    if hit.control.is_valid() || hit.control.is_unused() {
        return Some(hit);
    }
    let bucket = F::record_bucket(tables, key::second(hash, F::MASK))?;
    // SAFETY: a whole bucket of this family's table.
    Some(unsafe { Hit::at::<K>(bucket, table::search(tables, key, hash, bucket)) })
}

/// Adds the record of a new flow of the endpoint in a slot; false if the endpoint has added too many in this second.
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub fn add<F: RecordFamily, K: FlowTableKey, T: Records>(
    tables: &T,
    (slot, endpoint): (u32, EndpointRef),
    new: Unrecorded<K>,
) -> bool {
    let (Some(settings), Some(added)) = (tables.settings(), tables.added(slot)) else {
        return false;
    };
    let now = tables.now();
    // SAFETY: a word of the table, which all writers change atomically.
    if unsafe { take_token(tables, added, now, settings, OBSERVED_PER_SECOND) }.is_none() {
        return false;
    }
    let Unrecorded { key, hash, flags } = new;
    let Some(hit) = find::<F, K, T>(tables, &key, hash) else { return false };
    if hit.control.is_valid() {
        // SAFETY: found in the table just now. If another writer is faster, its record stays.
        unsafe { Flow::<K>::restart(tables, hit, flags, now) };
        return true;
    }
    let [first, second] = choices(hash, F::MASK);
    let buckets = (F::record_bucket(tables, first), F::record_bucket(tables, second));
    let (Some(first), Some(second)) = buckets else { return false };
    let buckets = [first, second];
    // SAFETY: whole buckets of this family's table. If another writer is faster, its record stays.
    unsafe {
        if !table::insert_vacant(tables, &key, first, flags, now) {
            let taken = (endpoint.id(), hash);
            let victim = evict::take_share::<K, T>(tables, buckets, taken, settings, now);
            if let Some((way, old)) = victim {
                (Flow { key, hash, buckets }).claim(tables, way, old, flags, now);
            }
        }
    }
    true
}

/// Flags of a new record, with that of the node's own packets.
#[must_use]
#[inline(always)]
pub fn with_origin(flags: u16, hook: PacketHook, settings: Option<&Settings>) -> u16 {
    let of_node = Arrival::of(hook).is_from_node(&Fragment::default(), settings);
    if of_node && flags & CT_INGRESS != 0 { flags | CT_NODE } else { flags }
}
