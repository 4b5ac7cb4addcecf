//! Groups of rules with domain names that apply to a packet, by the addresses that its pod resolved.

use crate::{
    direction::PodDirection,
    endpoint::EndpointRef,
    flow::control::Control,
    judge::{lookup, opaque::Opaque},
    layout::{
        CLASS_SERVICE, CLASS_TRANSLATED, CT_EGRESS, NAME_BUSY, NAME_GROUPS, NAME_WAYS, NameEntry,
    },
    names::{
        conversation::{in_seconds, mapped},
        store::{LEAST, Way, bucket, find_buckets},
        tables::{Lookup, NameTable, NameTables},
        work::Work,
    },
    packet::{icmp, parsed::ParsedPacket, quoted::Quote, tuple::FlowTuple},
    tables::{TableFamily, Tables},
};

/// Bit besides those of the groups: the packet belongs to an open flow that the pod began, and may prolong its address.
pub const GOES_ON: u32 = 1 << 31;

/// Groups of rules that apply to a packet of an endpoint, a bit for each: those with a name that its remote address was
/// resolved from. An address past its time applies to the packets of a flow that the pod began. A packet of the pod
/// that a group's row has allowed prolongs the address for the names of that group (`allowed`: its bit, or 0 before the
/// judgement): only with [`GOES_ON`]. An address that the node may translate, such as a Service's, belongs to no group.
#[inline(always)]
pub fn groups<F: TableFamily, D: PodDirection, T: NameTables>(
    tables: &T,
    endpoint: EndpointRef,
    list: u32,
    packet: &ParsedPacket<F>,
    allowed: u32,
) -> u32 {
    let Some(flow) = flow::<F, D>(packet) else { return 0 };
    if F::class(tables, flow.remote) & (CLASS_TRANSLATED | CLASS_SERVICE) != 0 {
        return 0;
    }
    let Some(work) = tables.work() else { return 0 };
    let id = u64::from(endpoint.id());
    let address = mapped::<F>(flow.remote);
    work.set_entry(NameEntry { address, name: [0, id << 32], asked: 0, until: 0 });
    if !find_buckets(tables, work, NameTable::Learned) {
        return 0;
    }
    let goes_on = !packet.is_opening() && is_open(tables, endpoint.id(), &flow);
    let lookup = Lookup { list, goes_on, allowed };
    let of_flow = if goes_on { GOES_ON } else { 0 };
    tables.groups_in(work, lookup, 0) | tables.groups_in(work, lookup, 1) | of_flow
}

/// Groups of the names in one of the candidate buckets of the address in the working memory.
#[inline(always)]
pub fn groups_in<T: NameTables>(tables: &T, work: Work, lookup: Lookup, choice: u32) -> u32 {
    let Lookup { list, goes_on, allowed } = lookup;
    let Some(bucket) = bucket(tables, work, NameTable::Learned, choice) else { return 0 };
    let (address, id) = (*work.address(), work.entry().name[1] >> 32);
    let mut groups = 0;
    for index in 0..NAME_WAYS {
        // SAFETY: a whole bucket.
        let way = unsafe { Way::new(bucket, index) };
        let until = way.until(tables);
        let holder = way.word(tables, 3);
        let differs = (way.word(tables, 0) ^ address[0])
            | (way.word(tables, 1) ^ address[1])
            | ((holder >> 32) ^ id);
        if until == 0 || until == NAME_BUSY || differs != 0 {
            continue;
        }
        // Times are read here and not kept, since stack frames add up along a call.
        if !goes_on && until < tables.jiffies() {
            continue;
        }
        let first = way.word(tables, 2);
        if way.until(tables) != until {
            continue;
        }
        let hash = [first as u32, (first >> 32) as u32, holder as u32];
        let of_name = tables.groups(work.key(list, hash));
        groups |= of_name;
        if goes_on
            && of_name & allowed != 0
            && let Some(settings) = tables.settings()
        {
            let prolonged = in_seconds(tables, settings, LEAST.into());
            if until < prolonged {
                way.set_until(tables, until, prolonged);
            }
        }
    }
    groups
}

/// Flow of a packet; of an ICMP error, the flow that it quotes.
#[inline(always)]
fn flow<F: TableFamily, D: PodDirection>(packet: &ParsedPacket<F>) -> Option<FlowTuple<F>> {
    if icmp::is_error(&packet.transport) {
        return (packet.quoted.quote == Quote::Flow).then_some(packet.quoted.flow);
    }
    let network = &packet.network;
    let remote = if D::EGRESS { network.destination } else { network.source };
    Some(FlowTuple::new(remote, &packet.transport, D::EGRESS))
}

/// Whether the pod has begun a flow, which is not over.
#[inline(always)]
fn is_open<F: TableFamily, T: Tables>(tables: &T, endpoint: u32, flow: &FlowTuple<F>) -> bool {
    let Some(settings) = tables.settings() else { return false };
    let opaque = Opaque::new(tables, u64::from(endpoint));
    let key = lookup::key::<F>(endpoint, flow);
    let hint = lookup::LookupHint::none(&opaque);
    let hash = hint.hash::<F>(settings, &key);
    let Ok(hit) = hint.find::<F, T>(tables, settings, &key, hash) else { return false };
    let control: Control = hit.control;
    control.is_valid()
        && control.flags() & CT_EGRESS != 0
        && !tables.is_expired(control, flow.protocol, settings, tables.now())
}

const _: () = assert!(GOES_ON >> NAME_GROUPS != 0);
