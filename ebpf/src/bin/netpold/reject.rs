//! Answers to denied packets: the denied packet is rewritten in place and redirected, by the rules of
//! [`netpold_ebpf::judge::reject`].

use core::{arch::asm, ptr::null_mut};

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_INGRESS, BPF_F_RECOMPUTE_CSUM, bpf_adj_room_mode},
    helpers::{
        bpf_skb_load_bytes,
        generated::{
            bpf_clone_redirect, bpf_csum_diff, bpf_fib_lookup, bpf_redirect, bpf_skb_adjust_room,
            bpf_skb_change_head, bpf_skb_change_tail, bpf_skb_store_bytes,
        },
    },
};
use netpold_ebpf::{
    direction::{Egress, Ingress, PodDirection},
    endpoint::EndpointRef,
    judge::{
        connection::{Course, Tracked},
        cut, proof,
        reject::{self, NODE, OWN, Sender, Source, word_of},
    },
    layout::{REJECTION, Settings, marked_slot},
    packet::{
        family::{V4, V6},
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6},
        rejection::{
            self, Denied, Ends, FRAME, LINK, Letter, QUOTED, Rejection, Sums, Written, quote_at,
        },
    },
    reason::{self, Reason},
    tables::{TableFamily, Tables as _, find_slot, find_slot_at},
};

use crate::{
    DROP, Global, NEXT, connection::netpold_course, maps, maps::Scratch, mark, packet::Copied,
    tables::Maps, watches_only,
};

/// Address families of `struct bpf_fib_lookup`.
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// Whether a packet is an answer of these programs. It passes without a judgement: a reset would end its flow's entry,
/// which the next packet of the other side would begin again, as the initiator.
#[inline(always)]
pub(crate) fn is_answer(skb: *mut __sk_buff) -> bool {
    mark::read(skb) == REJECTION && netpold_is_answer(skb) != 0
}

/// [`reject::is_answer`], 1 or 0. A global function, to spare the programs' stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_is_answer(skb: *mut __sk_buff) -> u32 {
    // The judging program that runs next recognises its own answer by the words, and judges any other packet.
    if watches_only() {
        return 1;
    }
    // SAFETY: a field of the program's context, read whole.
    let cb = unsafe {
        let words = (&raw const (*skb).cb).cast::<u32>();
        [words.read_volatile(), words.add(1).read_volatile()]
    };
    let answer = reject::is_answer(&Maps::new(), mark::read_mark(skb), mark::read(skb), cb);
    if answer {
        seal(skb, [0; 2]);
    }
    answer.into()
}

/// Writes the words by which the other hook's program recognises an answer, or erases them.
#[inline(always)]
fn seal(skb: *mut __sk_buff, [first, second]: [u32; 2]) {
    // SAFETY: a field that classifiers may write.
    unsafe {
        let words = (&raw mut (*skb).cb).cast::<u32>();
        words.write_volatile(first);
        words.add(1).write_volatile(second);
    }
}

/// Whether the interface's endpoint requests answers and has some left in this second, or is in another slot than
/// nearly all endpoints are: a flood ends here, before another function is called.
#[inline(always)]
pub(crate) fn may_be_due<D: PodDirection>(skb: *mut __sk_buff) -> bool {
    let maps = Maps::new();
    // SAFETY: the program's context.
    let ifindex = unsafe { (*skb).ifindex };
    match find_slot_at(&maps, ifindex, 0) {
        Some((slot, endpoint)) => {
            reject::is_wanted::<D>(endpoint.flags()) && has_left::<D>(&maps, slot)
        }
        None => true,
    }
}

/// Answers a packet that policy denies in pod ingress; returns the program's action.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_reject_ingress(skb: *mut __sk_buff) -> u32 {
    netpold_before(skb);
    answer::<Ingress>(
        skb,
        [netpold_reject_ingress4, netpold_cut_ingress4],
        [netpold_reject_ingress6, netpold_cut_ingress6],
    )
}

/// Answers a packet that policy denies in pod egress; returns the program's action.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_reject_egress(skb: *mut __sk_buff) -> u32 {
    answer::<Egress>(
        skb,
        [netpold_reject_egress4, netpold_cut_egress4],
        [netpold_reject_egress6, netpold_cut_egress6],
    )
}

/// Length of the answer to a TCP reset, which gets none: no frame is that short.
const NO_ANSWER: u32 = 1;

/// Rewrites the packet, and sends it back: in egress out of the pod's interface, in ingress into it. If a reset is
/// forwarded in its place, a clone is sent back.
#[inline(always)]
fn answer<D: PodDirection>(skb: *mut __sk_buff, four: [Global; 2], six: [Global; 2]) -> u32 {
    // SAFETY: the program's context.
    let (protocol, tagged, ifindex) =
        unsafe { ((*skb).protocol as u16, (*skb).vlan_present, (*skb).ifindex) };
    if tagged != 0 {
        return DROP as u32;
    }
    let (length, onward) = match u16::from_be(protocol) {
        ETHERTYPE_IPV4 => written(skb, four),
        ETHERTYPE_IPV6 => written(skb, six),
        _ => (0, 0),
    };
    if length == 0 || onward == 0 && length == NO_ANSWER {
        return DROP as u32;
    }
    if length != NO_ANSWER {
        if netpold_replace(skb, length, 0) == 0 {
            return DROP as u32;
        }
        mark::prove(skb);
        mark::write(skb, REJECTION);
        seal(skb, reject::seal(&Maps::new()));
    }
    Maps::new().count(reason::rejections(D::EGRESS));
    let into = if D::EGRESS { 0 } else { u64::from(BPF_F_INGRESS) };
    if onward == 0 {
        // SAFETY: the helper only notes the interface.
        return unsafe { bpf_redirect(ifindex, into) as u32 };
    }
    if length != NO_ANSWER {
        // In egress the clone runs `netpold_ingress` at once, with this CPU's scratch: it passes as a related error or
        // reset, and leaves `onward` as it is.
        // SAFETY: the program's context. Without the clone the sender has no answer.
        unsafe { bpf_clone_redirect(skb, ifindex, into) };
        seal(skb, [0; 2]);
    }
    if netpold_replace(skb, onward, 1) == 0 {
        return DROP as u32;
    }
    mark::leave(skb, Reason::Policy as u32);
    NEXT as u32
}

/// Lengths of the answer in the scratch, and of the forwarded reset.
#[inline(always)]
fn written(skb: *mut __sk_buff, [answer, cut]: [Global; 2]) -> (u32, u32) {
    match answer(skb) {
        0 => (0, 0),
        length => (length, cut(skb)),
    }
}

/// Writes the answer to a packet into the scratch; returns the length of its frame, 0: it gets none.
#[inline(always)]
fn compose<D: PodDirection, F: Routed>(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::new();
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: the program's context.
    let ifindex = unsafe { (*skb).ifindex };
    let Some((slot, endpoint)) = find_slot(&maps, ifindex) else { return 0 };
    let Some(denied) = due::<D, F>(skb, endpoint) else { return 0 };
    if !D::EGRESS && !is_proved::<F>(skb, &maps, scratch, &denied) {
        return 0;
    }
    if matches!(denied.rejection, Rejection::Nothing) {
        return NO_ANSWER;
    }
    if !may_go::<D>(&maps, slot) {
        return 0;
    }
    // SAFETY: this CPU's own scratch.
    let letter = unsafe { &mut (*scratch).letter };
    let quote = |letter: &mut Letter, quoted| quote::<F>(skb, letter, quoted);
    rejection::compose::<F>(letter, &denied, quote, &Kernel)
}

/// Answers a packet that policy denies after its translation, by its sender's interface; returns the program's action.
/// `link` as in [`mark::link_header`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_reject_backend(skb: *mut __sk_buff, link: u32) -> u32 {
    // SAFETY: the program's context.
    let protocol = u16::from_be(unsafe { (*skb).protocol } as u16);
    let ifindex = netpold_asking(skb);
    if ifindex == 0 || link != mark::ETHERNET && netpold_begin(skb) == 0 || netpold_before(skb) == 0
    {
        return DROP as u32;
    }
    let length = match protocol {
        ETHERTYPE_IPV4 => netpold_reject_backend4(skb),
        ETHERTYPE_IPV6 => netpold_reject_backend6(skb),
        _ => 0,
    };
    if length == 0 || netpold_replace(skb, length, 0) == 0 {
        return DROP as u32;
    }
    mark::write(skb, REJECTION);
    seal(skb, reject::seal(&Maps::new()));
    Maps::new().count(reason::rejections(true));
    // SAFETY: the helper only notes the interface.
    unsafe { bpf_redirect(ifindex, 0) as u32 }
}

/// Interface of the endpoint in a packet's mark, if it requests answers and has some left; else 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_asking(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::new();
    // SAFETY: the program's context.
    let tagged = unsafe { (*skb).vlan_present };
    match asking(skb, &maps) {
        Some((slot, sender)) if tagged == 0 && has_left::<Egress>(&maps, slot) => sender.ifindex(),
        _ => 0,
    }
}

/// The endpoint in a packet's mark, and its slot, if it requests answers.
#[inline(always)]
fn asking(skb: *mut __sk_buff, maps: &Maps) -> Option<(u32, EndpointRef)> {
    let tc_index = mark::read(skb);
    if !proof::is_proven(maps, mark::read_mark(skb)) {
        return None;
    }
    let sender = proof::sender(maps, tc_index)?;
    reject::is_wanted::<Egress>(sender.flags()).then_some((marked_slot(tc_index), sender))
}

/// Puts a link header in front of a packet without one, as all packets to an endpoint have it; 0 on failure.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_begin(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the program's context, and two bytes.
    unsafe {
        let protocol = (*skb).protocol as u16;
        let begun = bpf_skb_change_head(skb, LINK as u32, 0) == 0
            && bpf_skb_store_bytes(skb, LINK as u32 - 2, (&raw const protocol).cast(), 2, 0) == 0;
        begun.into()
    }
}

/// Leaves a packet's ends before its translation in the scratch; returns whether the node's conntrack shows them, 1 or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_before(skb: *mut __sk_buff) -> u32 {
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: the program's context.
    let protocol = u16::from_be(unsafe { (*skb).protocol } as u16);
    let known = match protocol {
        ETHERTYPE_IPV4 => leave_before::<V4>(skb, scratch),
        ETHERTYPE_IPV6 => leave_before::<V6>(skb, scratch),
        _ => None,
    };
    // SAFETY: this CPU's own scratch.
    unsafe { (*scratch).translated = known.is_some().into() };
    known.is_some().into()
}

#[inline(always)]
fn leave_before<F: Routed>(skb: *mut __sk_buff, scratch: *mut Scratch) -> Option<()> {
    // SAFETY: the program's context.
    let bytes = unsafe { Copied::new(skb) };
    let denied = rejection::read::<F, _>(&bytes)?;
    let ends = denied.ends(&bytes)?;
    let course = Course(netpold_course(skb));
    // SAFETY: this CPU's own scratch, written just before.
    let tuples = unsafe { &(*scratch).connection };
    let before = course.before::<F>(tuples, denied.network.protocol, &ends)?;
    // SAFETY: this CPU's own scratch.
    unsafe { F::before(scratch).write(before) };
    Some(())
}

/// Writes the answer to a packet that policy denies after its translation; returns the length of its frame, 0: it gets
/// none.
#[inline(always)]
fn compose_backend<F: Routed>(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::new();
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    let Some((slot, sender)) = asking(skb, &maps) else { return 0 };
    // SAFETY: the program's context; this CPU's own scratch.
    let (bytes, before) = unsafe { (Copied::new(skb), &*F::before(scratch)) };
    let Some(denied) = rejection::read::<F, _>(&bytes) else { return 0 };
    let protocol = denied.network.protocol;
    let Some(denied) = reject::as_sent::<F>(sender, denied, before) else { return 0 };
    if matches!(denied.rejection, Rejection::Nothing) || !may_go::<Egress>(&maps, slot) {
        return 0;
    }
    // SAFETY: this CPU's own scratch.
    let letter = unsafe { &mut (*scratch).letter };
    let quote = |letter: &mut Letter, quoted| {
        let quoted = quote::<F>(skb, letter, quoted);
        rejection::restore::<F>(letter, before, protocol, &Kernel);
        quoted
    };
    rejection::compose::<F>(letter, &denied, quote, &Kernel)
}

/// Writes the reset forwarded in place of a packet whose answer was composed; returns the length of its frame, 0: none.
#[inline(always)]
fn go_on<D: PodDirection, F: Routed + TableFamily>(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::new();
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: the program's context.
    let ifindex = unsafe { (*skb).ifindex };
    let Some((slot, endpoint)) = find_slot(&maps, ifindex) else { return 0 };
    let Some(denied) = due::<D, F>(skb, endpoint) else { return 0 };
    // SAFETY: the program's context.
    let bytes = unsafe { Copied::new(skb) };
    let take_answer = || may_go::<D>(&maps, slot);
    let reset = cut::reset::<D, F, _, _>(&bytes, &maps, endpoint, &denied, take_answer);
    let Some(reset) = reset else { return 0 };
    // SAFETY: this CPU's own scratch.
    let letter = unsafe { &mut (*scratch).onward };
    rejection::compose::<F>(letter, &reset, |_, _| 0, &Kernel)
}

/// The denied packet, if its endpoint requests answers and it may get one.
#[inline(always)]
fn due<D: PodDirection, F: Sender>(
    skb: *mut __sk_buff,
    endpoint: EndpointRef,
) -> Option<Denied<F::Address>> {
    if !reject::is_wanted::<D>(endpoint.flags()) {
        return None;
    }
    // SAFETY: the program's context.
    reject::read::<D, F, _>(&unsafe { Copied::new(skb) }, endpoint)
}

/// Whether the source of a packet in pod ingress is proved.
#[inline(always)]
fn is_proved<F: Routed>(
    skb: *mut __sk_buff,
    maps: &Maps,
    scratch: *mut Scratch,
    denied: &Denied<F::Address>,
) -> bool {
    // SAFETY: the program's context.
    let by = unsafe { (*skb).ingress_ifindex };
    let marks = (mark::read_mark(skb), mark::read(skb));
    let destination = denied.network.destination;
    if by == 0 {
        return false;
    }
    // SAFETY: this CPU's own scratch.
    let (before, known) = unsafe { (&*F::before(scratch), (*scratch).translated != 0) };
    let source = if known { before.addresses[0] } else { denied.network.source };
    match reject::source::<F, _>(maps, by, marks, source) {
        Source::Proved => true,
        Source::Unproved => false,
        Source::Routed => {
            // SAFETY: this CPU's own scratch.
            let route = unsafe { &mut (*scratch).route };
            F::write_route(route, by, destination, source);
            goes_by(skb, route, by)
        }
    }
}

/// An IP version, for the search of routes.
trait Routed: Sender + Tracked {
    /// Place of a packet's ends before its translation.
    fn before(scratch: *mut Scratch) -> *mut Ends<Self::Address>;
    /// Writes `struct bpf_fib_lookup` for a packet from one address to another, received by an interface.
    fn write_route(route: &mut [u32; 16], by: u32, from: Self::Address, to: Self::Address);
}

impl Routed for V4 {
    #[inline(always)]
    fn before(scratch: *mut Scratch) -> *mut Ends<u32> {
        // SAFETY: a field of the scratch.
        unsafe { &raw mut (*scratch).before4 }
    }

    #[inline(always)]
    fn write_route(route: &mut [u32; 16], by: u32, from: u32, to: u32) {
        *route = [0; 16];
        route[0] = u32::from_ne_bytes([AF_INET, 0, 0, 0]);
        route[2] = by;
        route[4] = from.to_be();
        route[8] = to.to_be();
    }
}

impl Routed for V6 {
    #[inline(always)]
    fn before(scratch: *mut Scratch) -> *mut Ends<[u64; 2]> {
        // SAFETY: a field of the scratch.
        unsafe { &raw mut (*scratch).before6 }
    }

    #[inline(always)]
    fn write_route(route: &mut [u32; 16], by: u32, from: [u64; 2], to: [u64; 2]) {
        *route = [0; 16];
        route[0] = u32::from_ne_bytes([AF_INET6, 0, 0, 0]);
        route[2] = by;
        for (at, words) in [(4, from), (8, to)] {
            for (place, word) in words.into_iter().enumerate() {
                let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
                route[at + 2 * place] = u32::from_ne_bytes([a, b, c, d]);
                route[at + 2 * place + 1] = u32::from_ne_bytes([e, f, g, h]);
            }
        }
    }
}

/// Whether the node routes packets to the destination in `route` out of an interface.
#[inline(always)]
fn goes_by(skb: *mut __sk_buff, route: &mut [u32; 16], by: u32) -> bool {
    /// `BPF_FIB_LKUP_RET_NO_NEIGH`, and of a packet that is too long: a route was found.
    const FOUND: [i64; 2] = [7, 8];
    let size = size_of::<[u32; 16]>() as i32;
    // SAFETY: the program's context, and a structure of that size.
    let result = unsafe { bpf_fib_lookup(skb.cast(), route.as_mut_ptr().cast(), size, 0) };
    (result == 0 || FOUND.contains(&result)) && route[2] == by
}

/// Whether the endpoint has answers of a direction left in this second.
#[inline(always)]
fn has_left<D: PodDirection>(maps: &Maps, slot: u32) -> bool {
    let Some(settings) = maps.settings() else { return false };
    let Some(word) = maps.element(&maps::REJECTIONS, word_of::<D>(slot)) else { return false };
    // SAFETY: a word of the map, which all writers change atomically.
    unsafe { reject::has_left(maps, word, maps.now(), settings, settings.rejections) }
}

/// Takes one of the endpoint's answers in this direction and second, and one of the node's unless it is among the
/// endpoint's first.
#[inline(always)]
fn may_go<D: PodDirection>(maps: &Maps, slot: u32) -> bool {
    let Some(settings) = maps.settings() else { return false };
    let Settings { rejections, node_rejections, .. } = *settings;
    match take(maps, settings, word_of::<D>(slot), rejections) {
        None => false,
        Some(number) if number <= OWN => node_rejections != 0,
        Some(_) => take(maps, settings, NODE, node_rejections).is_some(),
    }
}

#[inline(always)]
fn take(maps: &Maps, settings: &Settings, index: u32, most: u32) -> Option<u32> {
    let word = maps.element(&maps::REJECTIONS, index)?;
    // SAFETY: a word of the map, which all writers change atomically.
    unsafe { reject::take(maps, word, maps.now(), settings, most) }
}

/// Copies the start of a packet after the headers of its answer; returns the number of bytes, 0 on failure.
#[inline(always)]
fn quote<F: Written>(skb: *mut __sk_buff, letter: &mut Letter, quoted: u32) -> u32 {
    let mut length = u64::from(quoted);
    // SAFETY: a register is moved to itself. The verifier needs the bounds here, which the compiler knows already.
    unsafe { asm!("{0} = {0}", inout(reg) length, options(pure, nomem, nostack)) };
    length &= u64::from(QUOTED);
    if length < F::HEADER as u64 {
        return 0;
    }
    // SAFETY: the program's context; room for `QUOTED` bytes.
    let result = unsafe {
        let to = letter.0.as_mut_ptr().add(quote_at::<F>());
        bpf_skb_load_bytes(skb.cast_const().cast(), LINK as u32, to.cast(), length as u32)
    };
    if result == 0 { length as u32 } else { 0 }
}

/// Sums by a helper of the kernel.
struct Kernel;

impl Sums for Kernel {
    #[inline(always)]
    fn add(&self, letter: &Letter, at: usize, length: u32, sum: u32) -> u32 {
        let mut length = u64::from(length);
        // SAFETY: as in `quote`.
        unsafe { asm!("{0} = {0}", inout(reg) length, options(pure, nomem, nostack)) };
        length &= u64::from(QUOTED);
        // SAFETY: bytes of the letter: from the last of the offsets on there is room for `QUOTED`.
        unsafe {
            let from = letter.0.as_ptr().add(at).cast_mut();
            bpf_csum_diff(null_mut(), 0, from.cast(), length as u32, sum) as u32
        }
    }
}

/// Number of bytes at the start of a denied packet that are removed with any pending checksum, see [`netpold_replace`].
const BEGINNING: u32 = 96;

/// Replaces a packet by the answer in the scratch, or with `onward` by the forwarded reset, with a frame of `length`
/// bytes; 0 on failure.
///
/// The packet may leave its checksum to the card (`CHECKSUM_PARTIAL`), which would write it into the answer. The kernel
/// discards the pending checksum if the start of the summed bytes is removed (`skb_postpull_rcsum`). So the beginning
/// of the packet, which contains that start or else cannot be cut to this length (`__bpf_skb_min_len`), is removed, and
/// the answer is written after it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_replace(skb: *mut __sk_buff, length: u32, onward: u32) -> u32 {
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    let mut size = u64::from(length);
    if size > (size_of::<Letter>() - FRAME) as u64 {
        return 0;
    }
    // SAFETY: a register is moved to itself. Older verifiers do not see both bounds in one comparison.
    unsafe { asm!("{0} = {0}", inout(reg) size, options(pure, nomem, nostack)) };
    if size == 0 {
        return 0;
    }
    let gone = (BEGINNING as i32).wrapping_neg();
    let mode = bpf_adj_room_mode::BPF_ADJ_ROOM_MAC;
    // SAFETY: the program's context, and a letter of that length.
    unsafe {
        if bpf_skb_change_tail(skb, BEGINNING, 0) != 0
            || bpf_skb_change_tail(skb, BEGINNING + length, 0) != 0
            || bpf_skb_adjust_room(skb, gone, mode, 0) != 0
        {
            return 0;
        }
        let letter =
            if onward == 0 { &raw const (*scratch).letter } else { &raw const (*scratch).onward };
        let from = letter.cast::<u8>().add(FRAME);
        let flags = u64::from(BPF_F_RECOMPUTE_CSUM);
        u32::from(bpf_skb_store_bytes(skb, 0, from.cast(), size as u32, flags) == 0)
    }
}

/// Defines the functions that write answers of a direction, and the forwarded resets.
macro_rules! composing {
    ($direction:ty, $four:ident, $six:ident, $cut4:ident, $cut6:ident) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $cut4(skb: *mut __sk_buff) -> u32 {
            go_on::<$direction, V4>(skb)
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $cut6(skb: *mut __sk_buff) -> u32 {
            go_on::<$direction, V6>(skb)
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $four(skb: *mut __sk_buff) -> u32 {
            compose::<$direction, V4>(skb)
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $six(skb: *mut __sk_buff) -> u32 {
            compose::<$direction, V6>(skb)
        }
    };
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_reject_backend4(skb: *mut __sk_buff) -> u32 {
    compose_backend::<V4>(skb)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_reject_backend6(skb: *mut __sk_buff) -> u32 {
    compose_backend::<V6>(skb)
}

composing!(
    Ingress,
    netpold_reject_ingress4,
    netpold_reject_ingress6,
    netpold_cut_ingress4,
    netpold_cut_ingress6
);
composing!(
    Egress,
    netpold_reject_egress4,
    netpold_reject_egress6,
    netpold_cut_egress4,
    netpold_cut_egress6
);
