//! Questions and answers over TCP at the pods' hooks, see [`netpold_ebpf::names::stream`].

use aya_ebpf::bindings::__sk_buff;
use netpold_ebpf::{
    direction::{Direction, Egress, Ingress},
    layout::ANY_OVER_TCP,
    names::{
        conversation::{self, DNS, mapped},
        segment::segment,
        steps::{self, Steps, answers, asks},
        stream::{self, BOUNDS, Source},
        tables::NameTables as _,
        work::Work,
    },
    packet::{
        bytes::{Bytes, Window},
        family::{V4, V6},
        parse::is_extension,
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, TCP, TCP_FIN, TCP_RST, UDP},
    },
    reason::Reason,
    tables::{Tables as _, find_endpoint},
};

use crate::{
    names::{
        load_message, named, netpold_answer, netpold_ask, netpold_name_learn, netpold_name_record,
        read_answer, read_question,
    },
    packet::{Copied, Direct},
    tables::Maps,
    trace::TRACED,
};

/// Reads a packet to a pod with names; 0 if it is to be dropped. Of a packet that policy drops, whether it ends a
/// connection.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_listen_ingress(skb: *mut __sk_buff, reason: u32) -> u32 {
    if TRACED && named(skb).is_none() {
        return 1;
    }
    if is_drop(reason) {
        if are_read() && look::<Ingress>(skb, TCP_FIN | TCP_RST, |_| false).may_be_segment {
            steps::refused(&Called(skb));
        }
        return 1;
    }
    let sight = look::<Ingress>(skb, BOUNDS, |port| port == DNS);
    if sight.may_be_segment && are_read() && !answers(&Called(skb)) {
        return 0;
    }
    if sight.may_be_datagram {
        read_answer(skb);
    }
    1
}

/// Reads a packet of a pod with names; 0 if it is to be dropped.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_listen_egress(skb: *mut __sk_buff, reason: u32) -> u32 {
    if is_drop(reason) || (TRACED && named(skb).is_none()) {
        return 1;
    }
    let sight = look::<Egress>(skb, BOUNDS, |port| port == DNS || is_to_resolver(skb));
    if sight.may_be_segment && are_read() && !asks(&Called(skb)) {
        return 0;
    }
    if sight.may_be_datagram {
        read_question(skb);
    }
    1
}

/// Whether answers over TCP count: otherwise their segments pass unread.
#[inline(always)]
fn are_read() -> bool {
    Maps::new().settings().is_some_and(|settings| settings.holds_for_any(ANY_OVER_TCP))
}

#[inline(always)]
const fn is_drop(reason: u32) -> bool {
    reason >= Reason::FIRST_DROP as u32
}

/// Kinds of a packet that its headers leave open.
struct Sight {
    /// A segment that may matter to a connection to a resolver.
    may_be_segment: bool,
    /// A datagram.
    may_be_datagram: bool,
}

/// Looks at a packet's headers, if they can be read in place. A segment may matter by one of the flags, or by the other
/// side's port. No pod may hide a segment to a resolver, so behind tags, options and extension headers, any protocol counts
/// as TCP.
#[inline(always)]
fn look<D: Direction>(skb: *mut __sk_buff, flags: u8, is_of: impl FnOnce(u16) -> bool) -> Sight {
    const FRAGMENT: u16 = 0x3fff;
    let segment = |may_be_segment| Sight { may_be_segment, may_be_datagram: false };
    // SAFETY: the program's context.
    let bytes = unsafe { Direct::<true>::new(skb) };
    let is_v6 = crate::may_be_ipv6(skb);
    let (at, length) = if is_v6 { (6, 40) } else { (9, 20) };
    let ethertype = if is_v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
    let Some(header) = bytes.window::<34>(0).filter(|header| header.be16(12) == ethertype) else {
        return Sight { may_be_segment: true, may_be_datagram: true };
    };
    let protocol = header.byte(14 + at);
    if protocol == UDP {
        return Sight { may_be_segment: false, may_be_datagram: true };
    }
    if protocol != TCP {
        return segment(is_v6 && is_extension(protocol));
    }
    if !is_v6 && (header.byte(14) != 0x45 || header.be16(20) & FRAGMENT != 0) {
        return segment(true);
    }
    let Some(tcp) = bytes.window::<14>(14 + length) else { return segment(true) };
    let port = tcp.be16(if D::EGRESS { 2 } else { 0 });
    segment(tcp.byte(13) & flags != 0 || is_of(port))
}

/// Whether a plain packet of an endpoint with connections to resolvers goes to a resolver's address: a segment to any port
/// of it may be of a connection to port 53, if the node translates that.
#[inline(always)]
fn is_to_resolver(skb: *mut __sk_buff) -> bool {
    let maps = Maps::new();
    if !named(skb).is_some_and(|endpoint| stream::is_watched(&maps, endpoint)) {
        return false;
    }
    // SAFETY: the program's context.
    let bytes = unsafe { Direct::<true>::new(skb) };
    let Some(work) = maps.work() else { return true };
    let address = if crate::may_be_ipv6(skb) {
        bytes.window::<54>(0).map(|header| mapped::<V6>(header.words(38)))
    } else {
        bytes.window::<34>(0).map(|header| mapped::<V4>(header.be32(30)))
    };
    let Some(address) = address else { return true };
    work.look_up(address);
    stream::is_resolver(&maps, work)
}

/// The steps, each by a call of its function.
struct Called(*mut __sk_buff);

impl Steps for Called {
    #[inline(always)]
    fn segment<D: Direction>(&self) -> bool {
        let result =
            if D::EGRESS { netpold_segment_out(self.0) } else { netpold_segment_in(self.0) };
        result != 0
    }

    #[inline(always)]
    fn arrive(&self) -> u32 {
        netpold_stream_arrive()
    }

    #[inline(always)]
    fn end(&self) {
        netpold_stream_end();
    }

    #[inline(always)]
    fn is_refused(&self) -> bool {
        netpold_stream_is_refused() != 0
    }

    #[inline(always)]
    fn take(&self) -> u32 {
        netpold_stream_take(self.0)
    }

    #[inline(always)]
    fn question(&self) -> bool {
        netpold_answer(self.0) != 0
    }

    #[inline(always)]
    fn record(&self) -> u32 {
        netpold_name_record()
    }

    #[inline(always)]
    fn learn(&self, index: u32) {
        netpold_name_learn(index);
    }

    #[inline(always)]
    fn copy_some(&self, keeps: bool) -> bool {
        netpold_stream_copy(keeps.into()) != 0
    }

    #[inline(always)]
    fn keeps(&self) -> bool {
        Maps::new().work().is_some_and(stream::keeps)
    }

    #[inline(always)]
    fn finish(&self) {
        netpold_stream_finish();
    }

    #[inline(always)]
    fn leave(&self) -> u32 {
        netpold_stream_leave()
    }

    #[inline(always)]
    fn take_question(&self) -> u32 {
        netpold_stream_question(self.0)
    }

    #[inline(always)]
    fn ask(&self) {
        netpold_ask();
    }
}

impl Source for Copied {
    #[inline(always)]
    fn load(&self, _work: Work, place: u32, offset: u32, length: u32) -> bool {
        load_message(self, place, offset, length)
    }
}

/// [`segment`]
#[inline(always)]
fn read<D: Direction>(skb: *mut __sk_buff) -> bool {
    let maps = Maps::new();
    // SAFETY: the program's context.
    let (bytes, ifindex) = unsafe { (Copied::new(skb), (*skb).ifindex) };
    let Some((endpoint, work)) = find_endpoint(&maps, ifindex).zip(maps.work()) else {
        return false;
    };
    segment::<D, _>(&bytes, work, endpoint)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_segment_in(skb: *mut __sk_buff) -> u32 {
    read::<Ingress>(skb).into()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_segment_out(skb: *mut __sk_buff) -> u32 {
    read::<Egress>(skb).into()
}

/// [`stream::arrive`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_arrive() -> u32 {
    let maps = Maps::new();
    maps.work().map_or(stream::PASSES, |work| stream::arrive(&maps, work))
}

/// [`stream::leave`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_leave() -> u32 {
    let maps = Maps::new();
    maps.work().map_or(stream::PASSES, |work| stream::leave(&maps, work))
}

/// [`stream::end`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_end() -> u32 {
    let maps = Maps::new();
    if let Some(work) = maps.work() {
        stream::end(&maps, work);
    }
    0
}

/// [`stream::is_refused`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_is_refused() -> u32 {
    let maps = Maps::new();
    maps.work().is_some_and(|work| stream::is_refused(&maps, work)).into()
}

/// [`stream::take`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_take(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the program's context.
    let source = unsafe { Copied::new(skb) };
    Maps::new().work().map_or(conversation::END, |work| stream::take(&source, work))
}

/// [`stream::take_question`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_question(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the program's context.
    let source = unsafe { Copied::new(skb) };
    Maps::new().work().map_or(conversation::END, |work| stream::take_question(&source, work))
}

/// [`stream::copy_some`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_copy(keeps: u32) -> u32 {
    let maps = Maps::new();
    maps.work().is_some_and(|work| stream::copy_some(&maps, work, keeps != 0)).into()
}

/// [`stream::finish`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_finish() -> u32 {
    let maps = Maps::new();
    if let Some(work) = maps.work() {
        stream::finish(&maps, work);
    }
    0
}
