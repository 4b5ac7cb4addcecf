//! Domain names at the pods' hooks, see [`netpold_ebpf::names`].
//!
//! Each step is a function of its own, which the verifier checks once, for any state of this CPU's [`maps::NAME_WORK`].

use aya_ebpf::{
    bindings::__sk_buff,
    helpers::{bpf_jiffies64, generated::bpf_skb_load_bytes},
};
use netpold_ebpf::{
    direction::{Egress, Ingress, PodDirection},
    endpoint::Rows,
    judge::evaluator::JudgingRows,
    layout::{
        DOUBT_BLOCKS, DOUBT_WORDS, DoubtPlace, NAME_GROUPS, NAME_MATCHES, NameKey, Row, RowNames,
        SHARES_NAMES,
    },
    names::{
        choice::{self, read_plain},
        conversation::{self, Datagram, RECORDS},
        doubt,
        ignored::IgnoredAnswer,
        name,
        store::{self, lowest},
        tables::{NameTable, NameTables},
        work::{MESSAGE, Work},
    },
    packet::{
        family::{V4, V6},
        parse,
        parsed::ParsedPacket,
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6},
    },
    reason::Reason,
    tables::{Opening, TableFamily, find_endpoint},
};

use crate::{
    Global, READ_IPV4, READ_IPV6, READ_LINK, READ_OPTIONS, SlowPathFunctions, handover_flags,
    judge_and_insert,
    maps::{self, Scratch},
    netpold_options,
    packet::{Copied, LinearBytes},
    store_hook, streams,
    tables::Maps,
    trace::TRACED,
    watches_only,
};

/// Number of the packet's endpoint, if its rules have domain names.
#[inline(always)]
pub(crate) fn endpoint_with_names(skb: *mut __sk_buff) -> Option<u32> {
    // SAFETY: the program's context.
    let endpoint = find_endpoint(&Maps::new(), unsafe { (*skb).ifindex })?;
    endpoint.rows().has_names().then(|| endpoint.id())
}

/// Judges a packet that the endpoint's row denies by the rows of the groups of rules whose names matter to it; returns
/// the number of the reason.
#[inline(always)]
pub(crate) fn judge_by_names<D: PodDirection>(
    skb: *mut __sk_buff,
    slow_path: &SlowPathFunctions,
) -> u32 {
    let mut kind = netpold_read_plain(skb);
    if kind == 0 {
        kind = (slow_path.read)(skb);
        if kind == READ_OPTIONS {
            netpold_options(skb);
        }
    }
    match kind {
        READ_IPV4 | READ_OPTIONS => by_groups::<D>(skb, slow_path.query4, slow_path.judge4),
        READ_IPV6 | READ_LINK => by_groups::<D>(skb, slow_path.query6, slow_path.judge6),
        _ => Reason::Policy as u32,
    }
}

/// Leaves the hook of the packet in the scratch and, if it can be read in place, the parsed packet; then the result is
/// that of [`SlowPathFunctions::read`], else 0. The packet's source was checked by the judgement before.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_read_plain(skb: *mut __sk_buff) -> u32 {
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    store_hook(skb, scratch);
    // SAFETY: the program's context.
    let bytes = unsafe { LinearBytes::<true>::new(skb) };
    match parse::link(&bytes) {
        Ok((ETHERTYPE_IPV4, offset)) => read_plain::<V4, _>(&bytes, offset).map_or(0, |parsed| {
            // SAFETY: this CPU's own scratch.
            unsafe { (&raw mut (*scratch).parsed4).write(parsed) };
            READ_IPV4
        }),
        Ok((ETHERTYPE_IPV6, offset)) => read_plain::<V6, _>(&bytes, offset).map_or(0, |parsed| {
            // SAFETY: likewise.
            unsafe { (&raw mut (*scratch).parsed6).write(parsed) };
            READ_IPV6
        }),
        _ => 0,
    }
}

/// Whether the row of a group allows the first packet of a flow over IPv4. So most flows to resolved addresses begin
/// with one judgement.
#[inline(always)]
pub(crate) fn opens4(opening: &Opening) -> bool {
    let Opening { endpoint, row, address, class, protocol, port } = *opening;
    let transport = u32::from(port) | u32::from(protocol) << 16;
    netpold_opens4((address[1] >> 32) as u32, endpoint, row, class.into(), transport) != 0
}

/// [`opens4`], 1 or 0; `transport`: the port, above it the protocol.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_opens4(
    address: u32,
    endpoint: u32,
    row: u32,
    class: u32,
    transport: u32,
) -> u32 {
    let maps = Maps::new();
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    let address = [0, 0xffff_0000 | u64::from(address) << 32];
    let (protocol, port) = ((transport >> 16) as u8, transport as u16);
    let opening = Opening { endpoint, row, address, class, protocol, port };
    if !opening.look_up(&maps) {
        return 0;
    }
    // SAFETY: this CPU's own scratch.
    unsafe { (&raw mut (*scratch).names_row).write(row.into()) };
    let mut row = netpold_name_groups(choice::ASKS);
    let mut left = NAME_GROUPS as u32;
    while row != 0 && left != 0 {
        if opening.is_allowed(&maps, row) {
            return 1;
        }
        left = unknown(left - 1);
        row = netpold_next_row();
    }
    0
}

/// Judges the parsed packet in the scratch by the row of each group, until one allows it.
#[inline(always)]
fn by_groups<D: PodDirection>(skb: *mut __sk_buff, query_of: Global, judge: Global) -> u32 {
    let query = query_of(skb);
    let mut is_chosen = if query == 0 { 0 } else { netpold_name_groups(query) };
    let mut left = NAME_GROUPS as u32;
    while is_chosen != 0 && left != 0 {
        // The compiler would unroll the loop, at the cost of stack.
        left = unknown(left - 1);
        let reason = judge_and_insert(skb, judge);
        if reason == Reason::Policy as u32 {
            is_chosen = netpold_next_row();
            continue;
        }
        if !D::EGRESS || reason >= Reason::FIRST_DROP as u32 {
            return reason;
        }
        if query & choice::GOES_ON != 0 {
            // Prolongs the address.
            netpold_name_groups(query_of(skb));
        }
        // No exit judges a translation: the node translates no packets to this address.
        return if reason == Reason::Translated as u32 { Reason::Allowed as u32 } else { reason };
    }
    Reason::Policy as u32
}

/// [`choice::query`] for the parsed packet in the scratch. Leaves the rows in force there.
#[inline(always)]
fn query<D: PodDirection, F: TableFamily>(
    skb: *mut __sk_buff,
    parsed: impl FnOnce(*mut Scratch) -> *const ParsedPacket<F>,
) -> u32 {
    let maps = Maps::new();
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: the program's context.
    let Some(endpoint) = find_endpoint(&maps, unsafe { (*skb).ifindex }) else { return 0 };
    let JudgingRows { revision, rows } = JudgingRows::in_force(&maps, endpoint);
    // SAFETY: this CPU's own scratch.
    unsafe {
        (&raw mut (*scratch).rows).write(rows.0);
        (&raw mut (*scratch).names_row).write(rows.egress().into());
        (&raw mut (*scratch).revision).write(revision.into());
    }
    let list = if rows.has_names() { maps.names_of(rows.egress()) } else { 0 };
    if list == 0 {
        return 0;
    }
    // SAFETY: this CPU's own scratch, written before.
    let (packet, allowed) = unsafe { (&*parsed(scratch), (*scratch).names_group as u32) };
    choice::query::<F, D, _>(&maps, endpoint, list, packet, allowed)
}

macro_rules! query {
    ($name:ident, $direction:ty, $family:ty, $parsed:ident) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub(crate) extern "C" fn $name(skb: *mut __sk_buff) -> u32 {
            // SAFETY: a field of the scratch.
            query::<$direction, $family>(skb, |it| unsafe { &raw const (*it).$parsed })
        }
    };
}

query!(netpold_ingress_query4, Ingress, V4, parsed4);
query!(netpold_ingress_query6, Ingress, V6, parsed6);
query!(netpold_egress_query4, Egress, V4, parsed4);
query!(netpold_egress_query6, Egress, V6, parsed6);

/// Chooses the row of the next group for the next judgement; 0 if there is none.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_next_row() -> u32 {
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: this CPU's own scratch.
    let groups = unsafe { (*scratch).names_left as u32 };
    choose_row(&Maps::new(), scratch, groups)
}

/// Chooses the row of the first of some groups for the next judgement, in place of the egress row in this CPU's scratch,
/// and leaves the other groups there; 0 if there is none.
#[inline(always)]
fn choose_row(maps: &Maps, scratch: *mut Scratch, groups: u32) -> u32 {
    // SAFETY: this CPU's own scratch.
    let (rows, base) = unsafe { (Rows((*scratch).rows), (*scratch).names_row as u32) };
    let row = maps.row_of(base, lowest(groups));
    let others = groups & groups.wrapping_sub(1);
    // SAFETY: this CPU's own scratch.
    unsafe {
        (&raw mut (*scratch).rows).write(rows.with_egress(row).0);
        (&raw mut (*scratch).names_group).write((groups ^ others).into());
        (&raw mut (*scratch).names_left).write(others.into());
    }
    row
}

/// Records the questions or the answers in a packet that is allowed to pass, if it is one of a pod whose rules have
/// names. False if the packet must be dropped; TCP sends it again.
#[inline(always)]
pub(crate) fn read_names<D: PodDirection>(skb: *mut __sk_buff, reason: u32) -> bool {
    // The traced entry has no stack left for this check; its functions make it.
    if !TRACED
        && endpoint_with_names(skb).is_none_or(|id| streams::is_of_others::<D>(skb, id, reason))
    {
        return true;
    }
    let passes = if D::EGRESS {
        streams::netpold_read_names_egress(skb, reason)
    } else {
        streams::netpold_read_names_ingress(skb, reason)
    };
    passes != 0 || watches_only()
}

/// Reads the question in a datagram of a pod, if it has one.
#[inline(always)]
pub(crate) fn read_question(skb: *mut __sk_buff) {
    if netpold_load_question(skb) != 0 {
        netpold_record_question();
    }
}

/// Reads the answer in a datagram to a pod, if it has one.
#[inline(always)]
pub(crate) fn read_answer(skb: *mut __sk_buff) {
    if netpold_load_answer(skb) == 0 || netpold_check_answer(skb) == 0 {
        return;
    }
    for _ in 0..RECORDS {
        let result = netpold_read_record();
        if result == conversation::END {
            break;
        }
        if result == conversation::ADDRESS {
            for index in 0..NAME_MATCHES as u32 {
                if netpold_learn_address(index) == 0 {
                    break;
                }
            }
        }
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_load_question(skb: *mut __sk_buff) -> u32 {
    load_datagram::<Egress>(skb).into()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_load_answer(skb: *mut __sk_buff) -> u32 {
    load_datagram::<Ingress>(skb).into()
}

/// Copies the DNS message of a packet to the working memory; false if it has none. The message may lie in pages of its
/// sender. It is read from the copy alone, and a trusted resolver may give any answer.
#[inline(always)]
fn load_datagram<D: PodDirection>(skb: *mut __sk_buff) -> bool {
    let maps = Maps::new();
    // SAFETY: the program's context.
    let (bytes, ifindex) = unsafe { (Copied::new(skb), (*skb).ifindex) };
    let Some(Datagram { offset, length, resolver, port, flaw }) =
        conversation::parse_datagram::<D, _>(&bytes)
    else {
        return false;
    };
    let Some(endpoint) = find_endpoint(&maps, ifindex) else { return false };
    let Some(memory) = maps::NAME_WORK.get_ptr_mut(0) else { return false };
    // SAFETY: this CPU's own memory.
    let work = unsafe { Work::new(memory) };
    work.begin(length, resolver, endpoint.id(), port);
    if let Some(flaw) = flaw {
        if !D::EGRESS {
            conversation::count_flaw(&maps, work, flaw);
        }
        return false;
    }
    load_message(&bytes, 0, offset, length)
}

/// Copies bytes of a packet to a place below [`MESSAGE`] of the message in the working memory, 1 to [`MESSAGE`]; false
/// if the packet does not have them.
#[inline(always)]
pub(crate) fn load_message(bytes: &Copied, place: u32, offset: u32, length: u32) -> bool {
    let Some(memory) = maps::NAME_WORK.get_ptr_mut(0) else { return false };
    // Both are in their bounds. Computed so that verifiers before 6.8 see the bounds too.
    let place = unknown(place) & (MESSAGE as u32 - 1);
    let size = (unknown(length.wrapping_sub(1)) & (MESSAGE as u32 - 1)) + 1;
    // SAFETY: the program's context, and a buffer of twice `MESSAGE`.
    unsafe {
        let message = (&raw mut (*memory).message).cast::<u8>().add(place as usize);
        bpf_skb_load_bytes(bytes.context().cast(), offset, message.cast(), size) == 0
    }
}

/// The same number, opaque to the compiler.
#[inline(always)]
fn unknown(number: u32) -> u32 {
    let mut hidden = number;
    // SAFETY: a register is moved to itself.
    unsafe {
        core::arch::asm!("{0} = {0}", inout(reg) hidden, options(pure, nomem, nostack));
    };
    hidden
}

/// [`conversation::record_question`]
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_record_question() -> u32 {
    let maps = Maps::new();
    if let Some(work) = maps.work() {
        conversation::record_question(&maps, work);
    }
    0
}

/// [`conversation::check_answer`]
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_check_answer(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::new();
    // SAFETY: the program's context.
    let endpoint = find_endpoint(&maps, unsafe { (*skb).ifindex });
    let Some((endpoint, work)) = endpoint.zip(maps.work()) else { return 0 };
    conversation::check_answer(&maps, work, maps.names_of(endpoint.rows().egress())).into()
}

/// [`conversation::next_record`]
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_read_record() -> u32 {
    let maps = Maps::new();
    maps.work().map_or(conversation::END, |work| conversation::next_record(&maps, work))
}

/// [`name::read_name`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_name_read(at: u32) -> u32 {
    let maps = Maps::new();
    maps.work().map_or(0, |work| name::read_name(&maps, work, at))
}

/// [`name::read_some`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_name_read_some() -> u32 {
    Maps::new().work().map_or(0, name::read_some)
}

/// [`name::hash_some`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_name_hash_some(list: u32) -> u32 {
    let maps = Maps::new();
    maps.work().is_some_and(|work| name::hash_some(&maps, work, list)).into()
}

/// [`conversation::learn_address`]
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_learn_address(index: u32) -> u32 {
    let maps = Maps::new();
    maps.work().is_some_and(|work| conversation::learn_address(&maps, work, index)).into()
}

/// [`store::find`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_name_find(learned: u32) -> u32 {
    let maps = Maps::new();
    maps.work().map_or(u32::MAX, |work| store::find(&maps, work, store_of(learned)))
}

/// [`store::survey`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_name_survey(learned: u32) -> u32 {
    let maps = Maps::new();
    if let Some(work) = maps.work() {
        store::survey(&maps, work, store_of(learned));
    }
    0
}

/// [`store::rank_way`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_name_rank(learned: u32, index: u32) -> u32 {
    let maps = Maps::new();
    if let Some(work) = maps.work() {
        store::rank_way(&maps, work, store_of(learned), index);
    }
    0
}

/// [`doubt::record_doubt`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_record_doubt(endpoint: u32, port: u32) -> u32 {
    doubt::record_doubt(&Maps::new(), u64::from(endpoint) << 32 | u64::from(port));
    0
}

/// [`choice::groups`] of the last query; chooses the row of the first group, see [`choose_row`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_name_groups(query: u32) -> u32 {
    let maps = Maps::new();
    let (Some(work), Some(scratch)) = (maps.work(), maps::SCRATCH.get_ptr_mut(0)) else { return 0 };
    choose_row(&maps, scratch, choice::groups(&maps, work, query))
}

#[inline(always)]
const fn store_of(learned: u32) -> NameTable {
    if learned != 0 { NameTable::Learned } else { NameTable::Asked }
}

impl NameTables for Maps {
    #[inline(always)]
    fn work(&self) -> Option<Work> {
        // SAFETY: this CPU's own memory.
        maps::NAME_WORK.get_ptr_mut(0).map(|work| unsafe { Work::new(work) })
    }

    #[inline(always)]
    fn jiffies(&self) -> u64 {
        // SAFETY: the helper has no preconditions.
        unsafe { bpf_jiffies64() }
    }

    #[inline(always)]
    fn resolver(&self, address: &[u64; 2]) -> u32 {
        // SAFETY: the value is a word, read once.
        maps::RESOLVERS.get_ptr(address).map_or(0, |counts| unsafe { counts.read_volatile() })
    }

    #[inline(always)]
    fn groups(&self, key: &NameKey) -> u32 {
        // SAFETY: the value is a word, read once.
        maps::NAMES.get_ptr(key).map_or(0, |groups| unsafe { groups.read_volatile() })
    }

    #[inline(always)]
    fn name_bucket(&self, store: NameTable, index: u32) -> Option<*mut u64> {
        let map = match store {
            NameTable::Learned => &maps::LEARNED,
            NameTable::Asked => &maps::ASKED,
        };
        self.element(map, index).map(|bucket| bucket.cast())
    }

    #[inline(always)]
    fn stream_bucket(&self, index: u32) -> Option<*mut u64> {
        self.element(&maps::STREAMS, index).map(|bucket| bucket.cast())
    }

    #[inline(always)]
    fn stream_bytes(&self, slot: u32) -> Option<*mut u64> {
        self.element(&maps::STREAM_BYTES, slot).map(|bytes| bytes.cast())
    }

    #[inline(always)]
    fn doubts(&self, place: DoubtPlace) -> Option<*mut u64> {
        let words = self.element(&maps::DOUBTS, place.block & (DOUBT_BLOCKS - 1))?.cast::<u64>();
        // SAFETY: the index is below the number of words.
        Some(unsafe { words.add(place.word as usize & (DOUBT_WORDS - 1)) })
    }

    #[inline(always)]
    fn names_of(&self, row: u32) -> u32 {
        const LIST: usize =
            core::mem::offset_of!(Row, names) + core::mem::offset_of!(RowNames, list);
        // SAFETY: a word of the element, read once.
        self.element(&maps::ROWS, row)
            .map_or(0, |row| unsafe { row.cast::<u32>().add(LIST / 4).read_volatile() })
    }

    #[inline(always)]
    fn row_of(&self, row: u32, group: u32) -> u32 {
        const ROWS: usize =
            core::mem::offset_of!(Row, names) + core::mem::offset_of!(RowNames, rows);
        if group >= NAME_GROUPS as u32 {
            return 0;
        }
        // SAFETY: the group was compared with the number of words.
        self.element(&maps::ROWS, row).map_or(0, |row| unsafe {
            row.cast::<u32>().add(ROWS / 4 + group as usize).read_volatile()
        })
    }

    #[inline(always)]
    fn count_ignored(&self, reason: IgnoredAnswer) {
        // Those in front have counted the answer, and taken its question.
        if handover_flags() & SHARES_NAMES == 0 {
            self.count(reason.counter());
        }
    }

    #[inline(always)]
    fn read_name(&self, _work: Work, at: u32) -> u32 {
        netpold_name_read(at)
    }

    #[inline(always)]
    fn read_some(&self, _work: Work) -> u32 {
        netpold_name_read_some()
    }

    #[inline(always)]
    fn hash_some(&self, _work: Work, list: u32) -> bool {
        netpold_name_hash_some(list) != 0
    }

    #[inline(always)]
    fn find(&self, _work: Work, store: NameTable) -> u32 {
        // Opaque: the compiler knows the function's results, the verifier does not, and needs their bounds checked.
        unknown(netpold_name_find((store == NameTable::Learned).into()))
    }

    #[inline(always)]
    fn survey(&self, _work: Work, store: NameTable) {
        netpold_name_survey((store == NameTable::Learned).into());
    }

    #[inline(always)]
    fn rank_way(&self, _work: Work, store: NameTable, index: u32) {
        netpold_name_rank((store == NameTable::Learned).into(), index);
    }

    #[inline(always)]
    fn record_doubt(&self, asker: u64) {
        netpold_record_doubt((asker >> 32) as u32, asker as u32);
    }
}
