//! Groups of rules with domain names that apply to a packet, by the addresses that its pod resolved.

use crate::{
    direction::PodDirection,
    endpoint::EndpointRef,
    flow::control::Control,
    judge::{lookup, opaque::Opaque},
    layout::{
        CLASS_SERVICE, CLASS_TRANSLATED, CT_EGRESS, ClassId, NAME_BUSY, NAME_GROUPS, NAME_WAYS,
        NameEntry,
    },
    names::{
        conversation::in_seconds,
        store::{LEAST, Way, bucket, choices_of, find_buckets},
        tables::{NameTable, NameTables},
        work::Work,
    },
    packet::{
        bytes::Bytes,
        family::{Family, mapped},
        icmp, parse,
        parsed::ParsedPacket,
        quoted::{Quote, Quoted},
        tuple::FlowTuple,
    },
    tables::{Opening, TableFamily, Tables},
};

/// Bit of a [`query`]: the packet belongs to an open flow that the pod began, and may prolong its address.
pub const GOES_ON: u32 = 1 << 31;
/// Bit of each [`query`]. It alone is the query for the opening of a connection.
pub const ASKS: u32 = 1 << 30;

/// Query for the groups of rules that apply to a packet of an endpoint, for [`groups`]; 0 if no group can. The names are
/// those of `list`. An address that the node may translate, such as a Service's, belongs to no group.
///
/// A packet of the pod that a group's row has allowed prolongs the address for the names of that group (`allowed`: its
/// bit, or 0 before the judgement): only with [`GOES_ON`].
#[inline(always)]
pub fn query<F: TableFamily, D: PodDirection, T: NameTables>(
    tables: &T,
    endpoint: EndpointRef,
    list: u32,
    packet: &ParsedPacket<F>,
    allowed: u32,
) -> u32 {
    let Some(flow) = flow::<F, D>(packet) else { return 0 };
    let (address, class) = (mapped::<F>(flow.remote), F::class(tables, flow.remote));
    if !look_up(tables, endpoint.id(), list, address, class) {
        return 0;
    }
    let goes_on = !packet.is_opening() && is_open(tables, endpoint.id(), &flow);
    ASKS | allowed | if goes_on { GOES_ON } else { 0 }
}

/// Prepares [`groups`] for an address; false if no group can apply to it.
#[inline(always)]
fn look_up<T: NameTables>(
    tables: &T,
    endpoint: u32,
    list: u32,
    address: [u64; 2],
    class: ClassId,
) -> bool {
    if class & (CLASS_TRANSLATED | CLASS_SERVICE) != 0 {
        return false;
    }
    let Some(work) = tables.work() else { return false };
    let name = [0, u64::from(endpoint) << 32];
    work.set_entry(NameEntry { address, name, asked: 0, until: 0 });
    work.set_list(list);
    find_buckets(tables, work, NameTable::Learned)
}

impl Opening {
    /// Prepares [`groups`]; false if no group can apply.
    #[inline(always)]
    pub fn look_up<T: NameTables>(&self, tables: &T) -> bool {
        let list = tables.names_of(self.row);
        list != 0 && look_up(tables, self.endpoint, list, self.address, self.class)
    }

    /// Whether the row of a group allows it.
    #[inline(always)]
    pub fn is_allowed<T: Tables>(&self, tables: &T, row: u32) -> bool {
        tables.row_allows(row, self.class, self.protocol, self.port)
    }
}

/// Reads a packet at an offset in the frame, after the base row has denied it; `None` if its bytes must be copied.
#[inline(always)]
pub fn read_plain<F: Family, B: Bytes>(bytes: &B, offset: u32) -> Option<ParsedPacket<F>> {
    let mut network = F::network(bytes, offset, false).ok()?;
    F::extensions(bytes, &mut network).ok()?;
    let transport = parse::transport(bytes, &network, false).ok()?;
    let quoted = Quoted::none(Quote::Nothing);
    Some(ParsedPacket { network, transport, parse_error: None, quoted })
}

/// Groups of rules that apply to the packet of a [`query`], a bit for each: those with a name that its remote address was
/// resolved from. An address past its time applies to the packets of a flow that the pod began.
#[inline(always)]
pub fn groups<T: NameTables>(tables: &T, work: Work, query: u32) -> u32 {
    let buckets = 0..choices_of(NameTable::Learned);
    buckets.fold(0, |groups, choice| groups | groups_in(tables, work, query, choice))
}

/// Groups of the names in one of the candidate buckets of the address in the working memory.
#[inline(always)]
fn groups_in<T: NameTables>(tables: &T, work: Work, query: u32, choice: u32) -> u32 {
    let goes_on = query & GOES_ON != 0;
    let Some(bucket) = bucket(tables, work, NameTable::Learned, choice) else { return 0 };
    let (address, id) = (*work.address(), work.entry().name[1] >> 32);
    let mut groups = 0;
    for index in 0..NAME_WAYS {
        // SAFETY: a whole bucket.
        let way = unsafe { Way::new(bucket, index) };
        // Nearly all other entries differ in this word. It is read again below, after the time.
        if way.word(tables, 1) != address[1] {
            continue;
        }
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
        let of_name = tables.groups(work.key(work.list(), hash));
        groups |= of_name;
        if goes_on
            && of_name & query != 0
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

const _: () = assert!(ASKS >> NAME_GROUPS != 0);
