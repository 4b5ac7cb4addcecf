//! Questions and answers over TCP at the pods' hooks, see [`netpold_ebpf::names::stream`].

use aya_ebpf::bindings::__sk_buff;
use netpold_ebpf::{
    direction::{Egress, Ingress, PodDirection},
    judge::proof,
    layout::{ANY_OVER_TCP, MAY_BE_BEHIND, SHARES_NAMES, WATCH_ONLY},
    names::{
        conversation::{self, DNS},
        doubt::doubt_port,
        segment::parse_segment,
        steps::{self, Steps, may_be_translated, read_answers, read_questions},
        stream::{self, MessageSource},
        tables::NameTables as _,
        work::Work,
    },
    packet::{
        bytes::{Bytes, Window},
        parse::is_extension,
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, TCP, UDP},
    },
    reason::Reason,
    tables::{Tables as _, find_endpoint},
};

use crate::{
    handover_flags,
    names::{
        endpoint_with_names, load_message, netpold_check_answer, netpold_learn_address,
        netpold_read_record, netpold_record_question, read_answer, read_question,
    },
    packet::{Copied, LinearBytes},
    tables::Maps,
    trace::TRACED,
};

/// Reads a packet to a pod with names; 0 if it is to be dropped.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_read_names_ingress(skb: *mut __sk_buff, reason: u32) -> u32 {
    // SAFETY: the program's context.
    let ingress_ifindex = unsafe { (*skb).ingress_ifindex };
    if TRACED && endpoint_with_names(skb).is_none() || is_read_behind() {
        return 1;
    }
    let kind = kind_by_headers::<Ingress>(skb);
    if kind.may_be_segment() && are_read() {
        if is_drop(reason) || ingress_ifindex == 0 {
            steps::end_unread::<Ingress, _>(&GlobalSteps(skb));
        } else if !read_answers(&GlobalSteps(skb)) {
            return 0;
        }
    }
    if kind.may_be_datagram() && !is_drop(reason) {
        read_answer(skb);
    }
    1
}

/// Reads a packet of a pod with names; 0 if it is to be dropped.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_read_names_egress(skb: *mut __sk_buff, reason: u32) -> u32 {
    if TRACED && endpoint_with_names(skb).is_none() || is_read_behind() {
        return 1;
    }
    let kind = kind_by_headers::<Egress>(skb);
    if let HeaderKind::Elsewhere(port) = kind {
        if may_be_translated(reason) && are_read() {
            doubt(skb, port);
        }
        return 1;
    }
    if kind.may_be_segment() && are_read() {
        if is_drop(reason) {
            steps::end_unread::<Egress, _>(&GlobalSteps(skb));
        } else if !read_questions(&GlobalSteps(skb), may_be_translated(reason)) {
            return 0;
        }
    }
    if kind.may_be_datagram() && !is_drop(reason) {
        read_question(skb);
    }
    1
}

/// Whether a packet of a pod with names is of no conversation with a resolver. One to an address that may lead to a
/// resolver casts doubt on its port. In the program's entry: nearly all packets end here, without a call.
#[inline(always)]
pub(crate) fn is_of_others<D: PodDirection>(
    skb: *mut __sk_buff,
    endpoint: u32,
    reason: u32,
) -> bool {
    match kind_by_headers::<D>(skb) {
        HeaderKind::Other => true,
        HeaderKind::Elsewhere(port) => {
            if D::EGRESS && may_be_translated(reason) {
                netpold_doubt(endpoint, port.into());
            }
            true
        }
        HeaderKind::Segment | HeaderKind::Datagram | HeaderKind::Unknown => false,
    }
}

/// Casts doubt on a port of a pod, if streams are read here.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_doubt(endpoint: u32, port: u32) -> u32 {
    if !is_read_behind() && are_read() {
        doubt_port(&Maps::new(), u64::from(endpoint) << 32 | u64::from(port as u16));
    }
    0
}

/// Whether answers over TCP count: otherwise their segments pass unread.
#[inline(always)]
fn are_read() -> bool {
    Maps::new().settings().is_some_and(|settings| {
        settings.holds_for_any(ANY_OVER_TCP) && proof::demands_proof(settings)
    })
}

/// Whether the former programs, behind these, read the packet.
#[inline(always)]
fn is_read_behind() -> bool {
    handover_flags() & !MAY_BE_BEHIND == WATCH_ONLY | SHARES_NAMES
}

/// Casts doubt on a port of the packet's pod.
#[inline(always)]
fn doubt(skb: *mut __sk_buff, port: u16) {
    if let Some(endpoint) = endpoint_with_names(skb) {
        doubt_port(&Maps::new(), u64::from(endpoint) << 32 | u64::from(port));
    }
}

#[inline(always)]
const fn is_drop(reason: u32) -> bool {
    reason >= Reason::FIRST_DROP as u32
}

/// Kind of a packet by its headers.
#[derive(Clone, Copy)]
enum HeaderKind {
    /// Neither kind, or a datagram of other ports.
    Other,
    /// A segment whose remote port is not that of DNS; the pod's port.
    Elsewhere(u16),
    /// A segment, or not known.
    Segment,
    /// A datagram.
    Datagram,
    /// Not known.
    Unknown,
}

impl HeaderKind {
    #[inline(always)]
    const fn may_be_segment(self) -> bool {
        matches!(self, Self::Segment | Self::Unknown)
    }

    #[inline(always)]
    const fn may_be_datagram(self) -> bool {
        matches!(self, Self::Datagram | Self::Unknown)
    }
}

/// Looks at a packet's headers, if they can be read in place. No pod may hide a segment to a resolver, so after tags,
/// options and extension headers, any protocol may be TCP.
#[inline(always)]
fn kind_by_headers<D: PodDirection>(skb: *mut __sk_buff) -> HeaderKind {
    const FRAGMENT: u16 = 0x3fff;
    // SAFETY: the program's context.
    let bytes = unsafe { LinearBytes::<true>::new(skb) };
    let is_v6 = crate::may_be_ipv6(skb);
    let (at, length) = if is_v6 { (6, 40) } else { (9, 20) };
    let ethertype = if is_v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
    let Some(header) = bytes.window::<34>(0).filter(|header| header.be16(12) == ethertype) else {
        return HeaderKind::Unknown;
    };
    let protocol = header.byte(14 + at);
    let kind = match protocol {
        TCP => HeaderKind::Segment,
        UDP => HeaderKind::Datagram,
        _ if is_v6 && is_extension(protocol) => return HeaderKind::Unknown,
        _ => return HeaderKind::Other,
    };
    if !is_v6 && (header.byte(14) != 0x45 || header.be16(20) & FRAGMENT != 0) {
        return kind;
    }
    let Some(ports) = bytes.window::<4>(14 + length) else { return kind };
    let (own, other) = if D::EGRESS { (0, 2) } else { (2, 0) };
    if ports.be16(other) == DNS {
        kind
    } else if protocol == TCP {
        HeaderKind::Elsewhere(ports.be16(own))
    } else {
        HeaderKind::Other
    }
}

/// The steps, each by a call of its function.
struct GlobalSteps(*mut __sk_buff);

impl Steps for GlobalSteps {
    #[inline(always)]
    fn parse_segment<D: PodDirection>(&self) -> bool {
        let result =
            if D::EGRESS { netpold_segment_out(self.0) } else { netpold_segment_in(self.0) };
        result != 0
    }

    #[inline(always)]
    fn admit_answers(&self) -> u32 {
        netpold_stream_arrive()
    }

    #[inline(always)]
    fn end_reading(&self) {
        netpold_stream_end();
    }

    #[inline(always)]
    fn is_resolver(&self) -> bool {
        netpold_stream_is_resolver() != 0
    }

    #[inline(always)]
    fn next_message(&self) -> u32 {
        netpold_stream_take(self.0)
    }

    #[inline(always)]
    fn check_answer(&self) -> bool {
        netpold_check_answer(self.0) != 0
    }

    #[inline(always)]
    fn next_record(&self) -> u32 {
        netpold_read_record()
    }

    #[inline(always)]
    fn learn_address(&self, index: u32) -> bool {
        netpold_learn_address(index) != 0
    }

    #[inline(always)]
    fn copy_some(&self, keeps: bool) -> bool {
        netpold_stream_copy(keeps.into()) != 0
    }

    #[inline(always)]
    fn is_incomplete(&self) -> bool {
        Maps::new().work().is_some_and(stream::is_incomplete)
    }

    #[inline(always)]
    fn release(&self) {
        netpold_stream_finish();
    }

    #[inline(always)]
    fn admit_questions(&self, may_be_translated: bool) -> u32 {
        netpold_stream_leave(may_be_translated.into())
    }

    #[inline(always)]
    fn next_question(&self) -> u32 {
        netpold_stream_question(self.0)
    }

    #[inline(always)]
    fn record_question(&self) {
        netpold_record_question();
    }
}

impl MessageSource for Copied {
    #[inline(always)]
    fn load(&self, _work: Work, place: u32, offset: u32, length: u32) -> bool {
        load_message(self, place, offset, length)
    }
}

/// [`parse_segment`]
#[inline(always)]
fn load_segment<D: PodDirection>(skb: *mut __sk_buff) -> bool {
    let maps = Maps::new();
    // SAFETY: the program's context.
    let (bytes, ifindex) = unsafe { (Copied::new(skb), (*skb).ifindex) };
    let Some((endpoint, work)) = find_endpoint(&maps, ifindex).zip(maps.work()) else {
        return false;
    };
    parse_segment::<D, _>(&bytes, work, endpoint)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_segment_in(skb: *mut __sk_buff) -> u32 {
    load_segment::<Ingress>(skb).into()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_segment_out(skb: *mut __sk_buff) -> u32 {
    load_segment::<Egress>(skb).into()
}

/// [`stream::admit_answers`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_arrive() -> u32 {
    let maps = Maps::new();
    maps.work().map_or(stream::PASSES, |work| stream::admit_answers(&maps, work))
}

/// [`stream::admit_questions`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_leave(may_be_translated: u32) -> u32 {
    let maps = Maps::new();
    let admit = |work| stream::admit_questions(&maps, work, may_be_translated != 0);
    maps.work().map_or(stream::PASSES, admit)
}

/// [`stream::end_reading`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_end() -> u32 {
    let maps = Maps::new();
    if let Some(work) = maps.work() {
        stream::end_reading(&maps, work);
    }
    0
}

/// [`stream::is_resolver`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_is_resolver() -> u32 {
    let maps = Maps::new();
    maps.work().is_some_and(|work| stream::is_resolver(&maps, work)).into()
}

/// [`stream::next_message`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_take(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the program's context.
    let source = unsafe { Copied::new(skb) };
    Maps::new().work().map_or(conversation::END, |work| stream::next_message(&source, work))
}

/// [`stream::next_question`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_question(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the program's context.
    let source = unsafe { Copied::new(skb) };
    Maps::new().work().map_or(conversation::END, |work| stream::next_question(&source, work))
}

/// [`stream::copy_some`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_copy(keeps: u32) -> u32 {
    let maps = Maps::new();
    maps.work().is_some_and(|work| stream::copy_some(&maps, work, keeps != 0)).into()
}

/// [`stream::release`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_finish() -> u32 {
    let maps = Maps::new();
    if let Some(work) = maps.work() {
        stream::release(&maps, work);
    }
    0
}
