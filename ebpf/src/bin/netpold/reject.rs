//! Answers to denied packets: the denied packet is rewritten in place and redirected, by the rules of
//! [`netpold_ebpf::judge::reject`].

mod source;

use core::{arch::asm, ptr::null_mut};

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_INGRESS, BPF_F_RECOMPUTE_CSUM, bpf_adj_room_mode},
    helpers::{
        bpf_skb_load_bytes,
        generated::{
            bpf_clone_redirect, bpf_csum_diff, bpf_redirect, bpf_skb_adjust_room,
            bpf_skb_change_head, bpf_skb_change_tail, bpf_skb_store_bytes,
        },
    },
};
use netpold_ebpf::{
    direction::{Egress, Ingress, PodDirection},
    endpoint::EndpointRef,
    judge::{
        connection::Course,
        cut, proof,
        reject::{self, LocalFamily, NODE_WORD, OWN_TOKENS, token_word},
    },
    layout::{REJECTION, Settings, marked_slot},
    packet::{
        family::{V4, V6},
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6},
        rejection::{
            self, Denied, Ends, FRAME_OFFSET, LINK_HEADER, QUOTED, Rejection, RejectionFamily,
            RejectionFrame, Sums, quote_at,
        },
    },
    reason::{self, Reason},
    tables::{TableFamily, Tables as _, find_slot, find_slot_at},
};

use self::source::{Routed, is_source_proven};
use crate::{
    DROP, Global, NEXT, connection::netpold_course, maps, maps::Scratch, mark, packet::Copied,
    tables::Maps, watches_only,
};

/// Whether a packet is an answer of these programs. It passes without a judgement: a reset would end its flow's entry,
/// which the next packet of the other side would begin again, as the initiator.
#[inline(always)]
pub(crate) fn is_rejection(skb: *mut __sk_buff) -> bool {
    mark::read_tc_index(skb) == REJECTION && netpold_is_rejection(skb) != 0
}

/// [`reject::is_rejection`], 1 or 0. A global function, to spare the programs' stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_is_rejection(skb: *mut __sk_buff) -> u32 {
    // The judging program that runs next recognises its own answer by the words, and judges any other packet.
    if watches_only() {
        return 1;
    }
    // SAFETY: a field of the program's context, read whole.
    let cb = unsafe {
        let words = (&raw const (*skb).cb).cast::<u32>();
        [words.read_volatile(), words.add(1).read_volatile()]
    };
    let answer =
        reject::is_rejection(&Maps::new(), mark::read_mark(skb), mark::read_tc_index(skb), cb);
    if answer {
        write_seal(skb, [0; 2]);
    }
    answer.into()
}

/// Writes the words by which the other hook's program recognises an answer, or erases them.
#[inline(always)]
fn write_seal(skb: *mut __sk_buff, [first, second]: [u32; 2]) {
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
pub(crate) fn may_reject<D: PodDirection>(skb: *mut __sk_buff) -> bool {
    let maps = Maps::new();
    // SAFETY: the program's context.
    let ifindex = unsafe { (*skb).ifindex };
    match find_slot_at(&maps, ifindex, 0) {
        Some((slot, endpoint)) => {
            reject::is_requested::<D>(endpoint.flags()) && has_token::<D>(&maps, slot)
        }
        None => true,
    }
}

/// Answers a packet that policy denies in pod ingress; returns the program's action.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_reject_ingress(skb: *mut __sk_buff) -> u32 {
    netpold_find_original_ends(skb);
    send_rejection::<Ingress>(
        skb,
        [netpold_reject_ingress4, netpold_cut_ingress4],
        [netpold_reject_ingress6, netpold_cut_ingress6],
    )
}

/// Answers a packet that policy denies in pod egress; returns the program's action.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_reject_egress(skb: *mut __sk_buff) -> u32 {
    send_rejection::<Egress>(
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
fn send_rejection<D: PodDirection>(
    skb: *mut __sk_buff,
    four: [Global; 2],
    six: [Global; 2],
) -> u32 {
    // SAFETY: the program's context.
    let (protocol, tagged, ifindex) =
        unsafe { ((*skb).protocol as u16, (*skb).vlan_present, (*skb).ifindex) };
    if tagged != 0 {
        return DROP as u32;
    }
    let (length, onward) = match u16::from_be(protocol) {
        ETHERTYPE_IPV4 => compose_both(skb, four),
        ETHERTYPE_IPV6 => compose_both(skb, six),
        _ => (0, 0),
    };
    if length == 0 || onward == 0 && length == NO_ANSWER {
        return DROP as u32;
    }
    if length != NO_ANSWER {
        if netpold_replace(skb, length, 0) == 0 {
            return DROP as u32;
        }
        mark::add_proof(skb);
        mark::write_tc_index(skb, REJECTION);
        write_seal(skb, reject::seal(&Maps::new()));
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
        write_seal(skb, [0; 2]);
    }
    if netpold_replace(skb, onward, 1) == 0 {
        return DROP as u32;
    }
    mark::mark_by_verdict(skb, Reason::Policy as u32);
    NEXT as u32
}

/// Lengths of the answer in the scratch, and of the forwarded reset.
#[inline(always)]
fn compose_both(skb: *mut __sk_buff, [answer, cut]: [Global; 2]) -> (u32, u32) {
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
    let Some(denied) = read_denied::<D, F>(skb, endpoint) else { return 0 };
    if !D::EGRESS && !is_source_proven::<F>(skb, &maps, scratch, &denied) {
        return 0;
    }
    if matches!(denied.rejection, Rejection::Nothing) {
        return NO_ANSWER;
    }
    if !take_tokens::<D>(&maps, slot) {
        return 0;
    }
    // SAFETY: this CPU's own scratch.
    let frame = unsafe { &mut (*scratch).answer_frame };
    let quote = |frame: &mut RejectionFrame, quoted| copy_quote::<F>(skb, frame, quoted);
    rejection::compose::<F>(frame, &denied, quote, &KernelSums)
}

/// Answers a packet that policy denies after its translation, by its sender's interface; returns the program's action.
/// `link` as in [`mark::link_header`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_reject_backend(skb: *mut __sk_buff, link: u32) -> u32 {
    // SAFETY: the program's context.
    let protocol = u16::from_be(unsafe { (*skb).protocol } as u16);
    let ifindex = netpold_marked_requester(skb);
    if ifindex == 0
        || link != mark::ETHERNET && netpold_add_link_header(skb) == 0
        || netpold_find_original_ends(skb) == 0
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
    mark::write_tc_index(skb, REJECTION);
    write_seal(skb, reject::seal(&Maps::new()));
    Maps::new().count(reason::rejections(true));
    // SAFETY: the helper only notes the interface.
    unsafe { bpf_redirect(ifindex, 0) as u32 }
}

/// Interface of the endpoint in a packet's mark, if it requests answers and has some left; else 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_marked_requester(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::new();
    // SAFETY: the program's context.
    let tagged = unsafe { (*skb).vlan_present };
    match marked_requester(skb, &maps) {
        Some((slot, sender)) if tagged == 0 && has_token::<Egress>(&maps, slot) => sender.ifindex(),
        _ => 0,
    }
}

/// The endpoint in a packet's mark, and its slot, if it requests answers.
#[inline(always)]
fn marked_requester(skb: *mut __sk_buff, maps: &Maps) -> Option<(u32, EndpointRef)> {
    let tc_index = mark::read_tc_index(skb);
    if !proof::is_proven(maps, mark::read_mark(skb)) {
        return None;
    }
    let sender = proof::sender(maps, tc_index)?;
    reject::is_requested::<Egress>(sender.flags()).then_some((marked_slot(tc_index), sender))
}

/// Puts a link header in front of a packet without one, as all packets to an endpoint have it; 0 on failure.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_add_link_header(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the program's context, and two bytes.
    unsafe {
        let protocol = (*skb).protocol as u16;
        let begun = bpf_skb_change_head(skb, LINK_HEADER as u32, 0) == 0
            && bpf_skb_store_bytes(skb, LINK_HEADER as u32 - 2, (&raw const protocol).cast(), 2, 0)
                == 0;
        begun.into()
    }
}

/// Leaves a packet's ends before its translation in the scratch; returns whether the node's conntrack shows them, 1 or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_find_original_ends(skb: *mut __sk_buff) -> u32 {
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: the program's context.
    let protocol = u16::from_be(unsafe { (*skb).protocol } as u16);
    let known = match protocol {
        ETHERTYPE_IPV4 => write_original_ends::<V4>(skb, scratch),
        ETHERTYPE_IPV6 => write_original_ends::<V6>(skb, scratch),
        _ => None,
    };
    // SAFETY: this CPU's own scratch.
    unsafe { (*scratch).has_original_ends = known.is_some().into() };
    known.is_some().into()
}

#[inline(always)]
fn write_original_ends<F: Routed>(skb: *mut __sk_buff, scratch: *mut Scratch) -> Option<()> {
    // SAFETY: the program's context.
    let bytes = unsafe { Copied::new(skb) };
    let denied = rejection::read_denied::<F, _>(&bytes)?;
    let ends = denied.ends(&bytes)?;
    let course = Course(netpold_course(skb));
    // SAFETY: this CPU's own scratch, written just before.
    let tuples = unsafe { &(*scratch).connection };
    let original = course.original_ends::<F>(tuples, denied.network.protocol, &ends)?;
    // SAFETY: this CPU's own scratch.
    unsafe { F::original_ends(scratch).write(original) };
    Some(())
}

/// Writes the answer to a packet that policy denies after its translation; returns the length of its frame, 0: it gets
/// none.
#[inline(always)]
fn compose_backend<F: Routed>(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::new();
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    let Some((slot, sender)) = marked_requester(skb, &maps) else { return 0 };
    // SAFETY: the program's context; this CPU's own scratch.
    let (bytes, original) = unsafe { (Copied::new(skb), &*F::original_ends(scratch)) };
    let Some(denied) = rejection::read_denied::<F, _>(&bytes) else { return 0 };
    let protocol = denied.network.protocol;
    let Some(denied) = reject::as_sent::<F>(sender, denied, original) else { return 0 };
    if matches!(denied.rejection, Rejection::Nothing) || !take_tokens::<Egress>(&maps, slot) {
        return 0;
    }
    // SAFETY: this CPU's own scratch.
    let frame = unsafe { &mut (*scratch).answer_frame };
    let quote = |frame: &mut RejectionFrame, quoted| {
        let quoted = copy_quote::<F>(skb, frame, quoted);
        rejection::restore_ends::<F>(frame, original, protocol, &KernelSums);
        quoted
    };
    rejection::compose::<F>(frame, &denied, quote, &KernelSums)
}

/// Writes the reset forwarded in place of a packet whose answer was composed; returns the length of its frame, 0: none.
#[inline(always)]
fn compose_reset<D: PodDirection, F: Routed + TableFamily>(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::new();
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: the program's context.
    let ifindex = unsafe { (*skb).ifindex };
    let Some((slot, endpoint)) = find_slot(&maps, ifindex) else { return 0 };
    let Some(denied) = read_denied::<D, F>(skb, endpoint) else { return 0 };
    // SAFETY: the program's context.
    let bytes = unsafe { Copied::new(skb) };
    let take_token = || take_tokens::<D>(&maps, slot);
    let reset = cut::forwarded_reset::<D, F, _, _>(&bytes, &maps, endpoint, &denied, take_token);
    let Some(reset) = reset else { return 0 };
    // SAFETY: this CPU's own scratch.
    let frame = unsafe { &mut (*scratch).reset_frame };
    rejection::compose::<F>(frame, &reset, |_, _| 0, &KernelSums)
}

/// The denied packet, if its endpoint requests answers and it may get one.
#[inline(always)]
fn read_denied<D: PodDirection, F: LocalFamily>(
    skb: *mut __sk_buff,
    endpoint: EndpointRef,
) -> Option<Denied<F::Address>> {
    if !reject::is_requested::<D>(endpoint.flags()) {
        return None;
    }
    // SAFETY: the program's context.
    reject::read_denied::<D, F, _>(&unsafe { Copied::new(skb) }, endpoint)
}

/// Whether the endpoint has answers of a direction left in this second.
#[inline(always)]
fn has_token<D: PodDirection>(maps: &Maps, slot: u32) -> bool {
    let Some(settings) = maps.settings() else { return false };
    let Some(word) = maps.element(&maps::REJECTIONS, token_word::<D>(slot)) else { return false };
    // SAFETY: a word of the map, which all writers change atomically.
    unsafe { reject::has_token(maps, word, maps.now(), settings, settings.rejections) }
}

/// Takes one of the endpoint's answers in this direction and second, and one of the node's unless it is among the
/// endpoint's first.
#[inline(always)]
fn take_tokens<D: PodDirection>(maps: &Maps, slot: u32) -> bool {
    let Some(settings) = maps.settings() else { return false };
    let Settings { rejections, node_rejections, .. } = *settings;
    match take_token(maps, settings, token_word::<D>(slot), rejections) {
        None => false,
        Some(number) if number <= OWN_TOKENS => node_rejections != 0,
        Some(_) => take_token(maps, settings, NODE_WORD, node_rejections).is_some(),
    }
}

#[inline(always)]
fn take_token(maps: &Maps, settings: &Settings, index: u32, most: u32) -> Option<u32> {
    let word = maps.element(&maps::REJECTIONS, index)?;
    // SAFETY: a word of the map, which all writers change atomically.
    unsafe { reject::take_token(maps, word, maps.now(), settings, most) }
}

/// Copies the start of a packet after the headers of its answer; returns the number of bytes, 0 on failure.
#[inline(always)]
fn copy_quote<F: RejectionFamily>(
    skb: *mut __sk_buff,
    frame: &mut RejectionFrame,
    quoted: u32,
) -> u32 {
    let mut length = u64::from(quoted);
    // SAFETY: a register is moved to itself. The verifier needs the bounds here, which the compiler knows already.
    unsafe { asm!("{0} = {0}", inout(reg) length, options(pure, nomem, nostack)) };
    length &= u64::from(QUOTED);
    if length < F::HEADER as u64 {
        return 0;
    }
    // SAFETY: the program's context; room for `QUOTED` bytes.
    let result = unsafe {
        let to = frame.0.as_mut_ptr().add(quote_at::<F>());
        bpf_skb_load_bytes(skb.cast_const().cast(), LINK_HEADER as u32, to.cast(), length as u32)
    };
    if result == 0 { length as u32 } else { 0 }
}

/// Sums by a helper of the kernel.
struct KernelSums;

impl Sums for KernelSums {
    #[inline(always)]
    fn add(&self, frame: &RejectionFrame, at: usize, length: u32, sum: u32) -> u32 {
        let mut length = u64::from(length);
        // SAFETY: as in [`copy_quote`].
        unsafe { asm!("{0} = {0}", inout(reg) length, options(pure, nomem, nostack)) };
        length &= u64::from(QUOTED);
        // SAFETY: bytes of the frame: from the last of the offsets on there is room for `QUOTED`.
        unsafe {
            let from = frame.0.as_ptr().add(at).cast_mut();
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
    if size > (size_of::<RejectionFrame>() - FRAME_OFFSET) as u64 {
        return 0;
    }
    // SAFETY: a register is moved to itself. Older verifiers do not see both bounds in one comparison.
    unsafe { asm!("{0} = {0}", inout(reg) size, options(pure, nomem, nostack)) };
    if size == 0 {
        return 0;
    }
    let gone = (BEGINNING as i32).wrapping_neg();
    let mode = bpf_adj_room_mode::BPF_ADJ_ROOM_MAC;
    // SAFETY: the program's context, and a frame of that length.
    unsafe {
        if bpf_skb_change_tail(skb, BEGINNING, 0) != 0
            || bpf_skb_change_tail(skb, BEGINNING + length, 0) != 0
            || bpf_skb_adjust_room(skb, gone, mode, 0) != 0
        {
            return 0;
        }
        let frame = if onward == 0 {
            &raw const (*scratch).answer_frame
        } else {
            &raw const (*scratch).reset_frame
        };
        let from = frame.cast::<u8>().add(FRAME_OFFSET);
        let flags = u64::from(BPF_F_RECOMPUTE_CSUM);
        u32::from(bpf_skb_store_bytes(skb, 0, from.cast(), size as u32, flags) == 0)
    }
}

/// Defines the functions that write answers of a direction, and the forwarded resets.
macro_rules! define_composers {
    ($direction:ty, $four:ident, $six:ident, $cut4:ident, $cut6:ident) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $cut4(skb: *mut __sk_buff) -> u32 {
            compose_reset::<$direction, V4>(skb)
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $cut6(skb: *mut __sk_buff) -> u32 {
            compose_reset::<$direction, V6>(skb)
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

define_composers!(
    Ingress,
    netpold_reject_ingress4,
    netpold_reject_ingress6,
    netpold_cut_ingress4,
    netpold_cut_ingress6
);
define_composers!(
    Egress,
    netpold_reject_egress4,
    netpold_reject_egress6,
    netpold_cut_egress4,
    netpold_cut_egress6
);
