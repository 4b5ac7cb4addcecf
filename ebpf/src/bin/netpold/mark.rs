//! Proofs and marks, which packets carry from their sender's veth to an exit of the node or to a pod, by the rules of
//! [`netpold_ebpf::judge::proof`].
//!
//! `netpold_egress` gives a pod's packets the proof in `skb->mark`, and a mark or the witness in `skb->tc_index`.
//! `netpold_unmark` gives packets the proof and [`STRANGER`] if they come from other veths, where the far side is a
//! namespace with unknown programs, or from other ports of bridges with pods.

use aya_ebpf::{
    EbpfContext as _,
    bindings::{__sk_buff, BPF_F_CURRENT_NETNS},
    helpers::generated::{bpf_sk_lookup_udp, bpf_sk_release},
    macros::classifier,
    programs::TcContext,
};
use netpold_ebpf::{
    direction::{Egress, Ingress},
    event,
    judge::{
        connection::Course,
        post_nat,
        proof::{self, Exit, Origin, Rebuilt},
        station,
    },
    layout::{EP_CHECK_SOURCE, STRANGER, endpoint_slot, mark, reply_mark, split_mark},
    packet::{bytes::Bytes, parse},
    reason::Reason,
    tables::{Tables as _, find_slot, find_slot_at},
    trace::Step,
};

use crate::{
    DROP, NEXT, checksum, connection, drops, has_foreign_socket, maps, may_be_behind,
    packet::{Copied, FollowedBytes, LinearBytes as Headers},
    reject::netpold_reject_backend,
    tables::{Maps, add_one},
    trace,
};

/// TC egress of the node's other devices with an Ethernet header: uplinks, VXLAN, bonds.
#[classifier]
#[inline(always)]
fn netpold_node(context: TcContext) -> i32 {
    judge_at_device(context.as_ptr().cast(), ETHERNET)
}

/// TC egress of devices without a link header: tunnels, WireGuard.
#[classifier]
#[inline(always)]
fn netpold_node_ip(context: TcContext) -> i32 {
    judge_at_device(context.as_ptr().cast(), NO_LINK_HEADER)
}

/// TC ingress of devices that lead to other namespaces and are not endpoints, and of other ports of bridges with pods.
#[classifier]
#[inline(always)]
fn netpold_unmark(context: TcContext) -> i32 {
    pass_as_stranger(context.as_ptr().cast())
}

/// TC ingress of the node's tunnel devices. Drops packets that a pod encapsulated for its own node, with an inner
/// source of its choice. All others count as not from an endpoint, and a bridge may forward them.
#[classifier]
#[inline(always)]
fn netpold_tunnel(context: TcContext) -> i32 {
    let skb: *mut __sk_buff = context.as_ptr().cast();
    if !proof::is_unpacked(&Maps::new(), read_mark(skb), read_tc_index(skb)) {
        return pass_as_stranger(skb);
    }
    // SAFETY: the program's context.
    let ifindex = unsafe { (*skb).ifindex };
    let _ = drops::count_one(true, Reason::SpoofedSource as u32, ifindex);
    DROP
}

/// Lets a packet pass as one that is not an endpoint's.
#[inline(always)]
fn pass_as_stranger(skb: *mut __sk_buff) -> i32 {
    write_tc_index(skb, STRANGER);
    add_proof(skb);
    NEXT
}

/// Values of `link`: the header with which a packet begins, as the global functions take it.
pub(crate) const ETHERNET: u32 = 0;
const NO_LINK_HEADER: u32 = 1;

/// Flag added to the number of a reason: the drop's event is to be emitted.
const EMITS_EVENT: u32 = 1 << 8;

#[inline(always)]
fn judge_at_device(skb: *mut __sk_buff, link: u32) -> i32 {
    let exit = read_exit(skb, link);
    if proof::is_unknown(&Maps::new(), &exit) {
        let _ = drops::count_one(true, Reason::UnknownDevice as u32, exit.ifindex);
        return DROP;
    }
    if is_final(skb, &exit) {
        return NEXT;
    }
    match judge_for_sender(skb, link) {
        Ok(_) => NEXT,
        Err(action) => action,
    }
}

#[inline(always)]
fn read_exit(skb: *mut __sk_buff, link: u32) -> Exit {
    // SAFETY: the program's context.
    let (ifindex, ingress_ifindex) = unsafe { ((*skb).ifindex, (*skb).ingress_ifindex) };
    // Both fields are read first: after a branch the compiler computes the field's address, which the verifier rejects.
    let (mark, tc_index) = (read_mark(skb), read_tc_index(skb));
    let asked = ingress_ifindex == 0 && !is_proven(mark);
    let rebuilt = Rebuilt::from_number(if asked { netpold_rebuilt(skb, link) } else { 0 });
    Exit { ifindex, ingress_ifindex, mark, tc_index, foreign: false, rebuilt }
}

/// Kind of a packet without interface and proof, if the kernel may have rebuilt it, as a number.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_rebuilt(skb: *mut __sk_buff, link: u32) -> u32 {
    // SAFETY: the program's context.
    let bytes = unsafe { Headers::<true>::new(skb) };
    match Rebuilt::kind(&bytes, link_header(skb, &bytes, link)) {
        Rebuilt::No => 0,
        // Inlined: there is no stack left for another frame.
        _ if crate::has_own_socket(skb) => 0,
        kind => kind as u32,
    }
}

#[inline(always)]
fn read_origin(skb: *mut __sk_buff, link: u32) -> Origin {
    Origin::at_exit(&Maps::new(), &read_exit(skb, link))
}

/// Whether no judgement for the sender is needed. Counts packets that lack the sender's proof or its `skb->tc_index`.
#[inline(always)]
fn is_final(skb: *mut __sk_buff, exit: &Exit) -> bool {
    match Origin::at_exit(&Maps::new(), exit) {
        Origin::Marked(_) | Origin::Rebuilt(_) | Origin::BridgePort { .. } => false,
        Origin::Unjudged(_) => {
            netpold_count_unproven(skb);
            false
        }
        Origin::Final => {
            if exit.tc_index == 0 && is_proven(exit.mark) {
                netpold_count_unproven(skb);
            }
            true
        }
    }
}

/// Judges a packet for its sender. A passing packet loses its mark, since a packet that encapsulates it is no longer
/// the pod's. Returns the number of the reason.
///
/// # Errors
/// The action on any other packet: it drops, or its answer is redirected.
#[inline(always)]
fn judge_for_sender(skb: *mut __sk_buff, link: u32) -> Result<u32, i32> {
    let course = if is_marked_reply(skb) { connection::netpold_course(skb) } else { 0 };
    let refusal = if is_proven(read_mark(skb)) { 0 } else { netpold_reason_to_refuse(skb, link) };
    let mut reason = if refusal == 0 {
        netpold_judge_marked_in_place(skb, link, course)
    } else {
        netpold_count_refusal(skb, link, refusal)
    };
    if reason == Reason::Deferred as u32 {
        reason = netpold_judge_marked(skb, link, course);
    }
    if trace::TRACED {
        trace::record_step(Step::Sender, u64::from(reason & !EMITS_EVENT), 0);
    }
    if reason < Reason::FIRST_DROP as u32 {
        write_tc_index(skb, witness());
        return Ok(reason);
    }
    // Called here and not in the judging function: stack frames add up along a call.
    if reason & EMITS_EVENT != 0 {
        netpold_emit_translated(skb, link, reason & !EMITS_EVENT);
    }
    let is_denied = reason & !EMITS_EVENT == Reason::ServiceBackend as u32;
    Err(if is_denied { netpold_reject_backend(skb, link) as i32 } else { DROP })
}

/// Judges a packet to a pod for its sender, unless that verdict is final. `None`: the pod's own judgement is next.
#[inline(always)]
pub(crate) fn judge_arrival(skb: *mut __sk_buff) -> Option<i32> {
    let mut exit = read_exit(skb, ETHERNET);
    // Other devices do not check this: packets of secondary networks leave by them too.
    exit.foreign = !is_proven(exit.mark) && has_foreign_socket(skb);
    let is_unknown = proof::is_unknown(&Maps::new(), &exit);
    let settled = !is_unknown && is_final(skb, &exit);
    let is_astray = !is_unknown
        && (!settled || is_proven(exit.mark))
        && station::may_go_astray(&Maps::new(), exit.ifindex, exit.ingress_ifindex)
        && netpold_is_astray(skb) != 0;
    if is_unknown || is_astray {
        let reason = if is_unknown { Reason::UnknownDevice } else { Reason::Flooded };
        drops::report::<Ingress>(skb, reason as u32);
        return Some(DROP);
    }
    if settled {
        return None;
    }
    match judge_for_sender(skb, ETHERNET) {
        Ok(reason) => (reason == Reason::Loopback as u32).then_some(NEXT),
        Err(action) => Some(action),
    }
}

/// Marks a packet from a pod: with the proof, and by its reason with the pod's mark or with the witness. On a bridge a
/// packet to the pod's own address may have any station's address, so it is marked too.
#[inline(always)]
pub(crate) fn mark_by_verdict(skb: *mut __sk_buff, reason: u32) {
    let reply = reason == Reason::TranslatedReply as u32;
    if reply || reason == Reason::Translated as u32 || reason == Reason::Loopback as u32 {
        mark_sender(skb, reply);
    } else {
        write_tc_index(skb, witness());
    }
    add_proof(skb);
}

/// Whether a packet is in a frame to another station than its own destination's, 1 or 0; see [`station`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_is_astray(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::new();
    // SAFETY: the program's context.
    let (direct, ifindex) = unsafe { (Headers::<true>::new(skb), (*skb).ifindex) };
    let astray = station::is_astray(&direct, &maps, ifindex).or_else(|_| {
        // SAFETY: the program's context.
        station::is_astray(&unsafe { Copied::new(skb) }, &maps, ifindex)
    });
    astray.unwrap_or(false).into()
}

/// Whether a packet has the proof.
#[inline(always)]
pub(crate) fn is_judged(skb: *mut __sk_buff) -> bool {
    is_proven(read_mark(skb))
}

/// Whether `skb->mark` contains the proof.
#[inline(always)]
fn is_proven(mark: u32) -> bool {
    proof::is_proven(&Maps::new(), mark)
}

/// Adds the proof to a packet.
#[inline(always)]
pub(crate) fn add_proof(skb: *mut __sk_buff) {
    let proof = Maps::new().settings().map_or(0, |settings| settings.proof);
    write_mark(skb, read_mark(skb) | proof);
}

/// Whether a packet is marked as a reply.
#[inline(always)]
fn is_marked_reply(skb: *mut __sk_buff) -> bool {
    split_mark(read_tc_index(skb)).1
}

/// [`netpold_ebpf::layout::Settings::witness`]
#[inline(always)]
fn witness() -> u32 {
    Maps::new().settings().map_or(0, |settings| settings.witness)
}

/// Counts a packet of an endpoint that lacks its proof, or the witness. A global function, since this is rare.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_count_unproven(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::new();
    // SAFETY: the program's context.
    let ifindex = unsafe { (*skb).ingress_ifindex };
    let witness = witness();
    if witness == 0 || find_slot(&maps, ifindex).is_none() {
        return 0;
    }
    let Some(counts) = maps.element(&maps::UNPROVEN, endpoint_slot(ifindex, 0)) else { return 0 };
    // SAFETY: an element of that map.
    unsafe {
        add_one(if is_proven(read_mark(skb)) {
            &raw mut (*counts).unmarked
        } else if read_tc_index(skb) == witness {
            &raw mut (*counts).erased
        } else {
            &raw mut (*counts).skipped
        });
    }
    0
}

/// Writes the mark of the interface's endpoint, as a reply's or not.
#[inline(always)]
fn mark_sender(skb: *mut __sk_buff, reply: bool) {
    // SAFETY: the program's context.
    let ifindex = unsafe { (*skb).ifindex };
    let Some((slot, endpoint)) = find_slot_at(&Maps::new(), ifindex, 0) else {
        netpold_mark_sender(skb, reply.into());
        return;
    };
    let found = mark(slot, endpoint.id());
    write_tc_index(skb, if reply { reply_mark(found) } else { found });
}

/// Writes the mark of the interface's endpoint in any of its slots, see [`mark_sender`]. A global function, like those
/// in the crate's root.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_mark_sender(skb: *mut __sk_buff, reply: u32) -> u32 {
    // SAFETY: the program's context.
    let ifindex = unsafe { (*skb).ifindex };
    // The endpoint may have disappeared since the judgement: then no mark is better than that of another slot.
    let found = find_slot(&Maps::new(), ifindex);
    let found = found.map_or(0, |(slot, endpoint)| mark(slot, endpoint.id()));
    write_tc_index(skb, if found != 0 && reply != 0 { reply_mark(found) } else { found });
    0
}

/// Judges a marked packet, a reply by its [`Course`], and counts a drop; returns the number of the reason, with
/// [`EMITS_EVENT`] if the drop's event is to be emitted. Reads plain TCP and UDP packets in place; [`netpold_judge_marked`]
/// judges all others.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_judge_marked_in_place(skb: *mut __sk_buff, link: u32, course: u32) -> u32 {
    // SAFETY: the program's context.
    judge_marked(skb, &unsafe { Headers::<true>::new(skb) }, link, course)
}

/// Judges a marked packet of any kind by copied headers, see [`netpold_judge_marked_in_place`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_judge_marked(skb: *mut __sk_buff, link: u32, course: u32) -> u32 {
    // SAFETY: the program's context.
    judge_marked(skb, &unsafe { Copied::new(skb) }, link, course)
}

#[inline(always)]
fn judge_marked<B: Bytes>(skb: *mut __sk_buff, bytes: &B, link: u32, course: u32) -> u32 {
    // SAFETY: the program's context.
    let ifindex = unsafe { (*skb).ifindex };
    let header = link_header(skb, bytes, link);
    let reply = is_marked_reply(skb).then_some(Course(course));
    let agent_lives = || netpold_agent_lives(skb) != 0;
    let maps = Maps::new();
    let origin = read_origin(skb, link);
    let verdict = post_nat::judge(bytes, header, &maps, origin, ifindex, reply, agent_lives);
    let reason = verdict.number();
    let drops = reason >= Reason::FIRST_DROP as u32 && reason != Reason::Deferred as u32;
    if drops { count_drop(skb, link, reason) } else { reason }
}

/// Counts a drop at an exit; returns its reason, with [`EMITS_EVENT`] if its event is to be emitted.
#[inline(always)]
fn count_drop(skb: *mut __sk_buff, link: u32, reason: u32) -> u32 {
    // SAFETY: the program's context.
    let ifindex = unsafe { (*skb).ifindex };
    let whose = read_origin(skb, link).endpoint().map_or(ifindex, |sender| sender.ifindex());
    if drops::count_one(true, reason, whose) { reason | EMITS_EVENT } else { reason }
}

/// Counts the drop of a packet that comes to a pod's hook with the proof; 1: it drops, 0: programs in front may have
/// judged it.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_refuse_proven(skb: *mut __sk_buff) -> u32 {
    if may_be_behind() {
        return 0;
    }
    // SAFETY: the program's context.
    let ifindex = unsafe { (*skb).ifindex };
    let _ = drops::count_one(true, Reason::SpoofedSource as u32, ifindex);
    1
}

/// Counts the drop of a packet that [`netpold_reason_to_refuse`] refuses.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_count_refusal(skb: *mut __sk_buff, link: u32, reason: u32) -> u32 {
    count_drop(skb, link, reason)
}

/// Reason to drop a packet that was not judged at its sender's veth, without judging it here: it is forwarded from its
/// destination, has a checksum still to be written into judged bytes, or may claim an address. 0: none.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_reason_to_refuse(skb: *mut __sk_buff, link: u32) -> u32 {
    let Origin::Unjudged(sender) = read_origin(skb, link) else { return 0 };
    if !checksum::keeps_judged_bytes(skb, link) {
        return Reason::Malformed as u32;
    }
    if sender.flags() & EP_CHECK_SOURCE != 0 && netpold_may_claim(skb, link) != 0 {
        return Reason::SpoofedSource as u32;
    }
    // SAFETY: the program's context.
    let bytes = unsafe { Copied::new(skb) };
    match post_nat::options(&bytes, link_header(skb, &bytes, link)) {
        Some((at, end)) if netpold_has_route(skb, at, end) != 0 => Reason::Malformed as u32,
        _ => 0,
    }
}

/// [`post_nat::may_claim`], 1 or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_may_claim(skb: *mut __sk_buff, link: u32) -> u32 {
    // SAFETY: the program's context.
    let bytes = unsafe { FollowedBytes::new(skb, Copied::new(skb)) };
    post_nat::may_claim(&bytes, link_header(skb, &bytes, link)).into()
}

/// Whether IPv4 options between two offsets name a route, 1 or 0. The offsets are unknown to the verifier.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_has_route(skb: *mut __sk_buff, at: u32, end: u32) -> u32 {
    parse::has_route_by(at, end, |at| netpold_ipv4_option(skb, at)).into()
}

/// [`parse::ipv4_option`] as a function of its own, which the verifier checks once and not for each option.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_ipv4_option(skb: *mut __sk_buff, at: u32) -> u32 {
    // SAFETY: the program's context.
    parse::ipv4_option(&unsafe { Copied::new(skb) }, at)
}

/// TC ingress of bridges with pods: packets that they hand to the node, which pass no exit if they are for the node
/// itself. A packet without the proof bypassed a port's program.
#[classifier]
#[inline(always)]
fn netpold_bridge(context: TcContext) -> i32 {
    let skb: *mut __sk_buff = context.as_ptr().cast();
    if is_proven(read_mark(skb)) || netpold_judge_at_bridge(skb) == 0 { NEXT } else { DROP }
}

/// Judges a packet without the proof that a bridge hands to the node; 1: it drops, and was counted.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_judge_at_bridge(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::new();
    // SAFETY: the program's context.
    let (bytes, ifindex) = unsafe { (Copied::new(skb), (*skb).ifindex) };
    let origin = Origin::at_bridge(&maps, ifindex, read_mark(skb));
    let lives = || netpold_agent_lives(skb) != 0;
    let reason =
        post_nat::judge_at_bridge(&bytes, parse::link(&bytes), &maps, origin, lives).number();
    if reason < Reason::FIRST_DROP as u32 {
        return 0;
    }
    let _ = drops::count_one(true, reason, ifindex);
    1
}

/// Whether the agent's socket exists ([`Settings::agent_port`](netpold_ebpf::layout::Settings)), 1 or 0. The kernel
/// closes it when the agent ends, for any reason.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_agent_lives(skb: *mut __sk_buff) -> u32 {
    let port = Maps::new().settings().map_or(0, |settings| settings.agent_port);
    let address = u32::from_ne_bytes([127, 0, 0, 1]);
    // struct bpf_sock_tuple of IPv4: source and destination address, then both ports.
    let mut ends = [address, address, port | port << 16];
    let (size, own) = (size_of_val(&ends) as u32, BPF_F_CURRENT_NETNS as u64);
    // SAFETY: the program's context, and the ends of a socket.
    let socket = unsafe { bpf_sk_lookup_udp(skb.cast(), (&raw mut ends).cast(), size, own, 0) };
    if socket.is_null() {
        return 0;
    }
    // SAFETY: a found socket is released once.
    unsafe { bpf_sk_release(socket.cast()) };
    1
}

/// Emits the event of a marked packet's drop, for its sender.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_emit_translated(skb: *mut __sk_buff, link: u32, reason: u32) -> u32 {
    let sender = read_origin(skb, link).endpoint();
    let endpoint = sender.map_or((0, 0), |sender| (sender.ifindex(), sender.id()));
    drops::send(reason, endpoint, |event| {
        // SAFETY: the program's context.
        let bytes = unsafe { FollowedBytes::new(skb, Copied::new(skb)) };
        event::describe_at::<Egress, _>(&bytes, link_header(skb, &bytes, link), event);
    })
}

/// Type and end of the link header.
#[inline(always)]
pub(crate) fn link_header<B: Bytes>(
    skb: *mut __sk_buff,
    bytes: &B,
    link: u32,
) -> Result<(u16, u32), Reason> {
    if link == NO_LINK_HEADER {
        // SAFETY: the program's context.
        return Ok((u16::from_be(unsafe { (*skb).protocol } as u16), 0));
    }
    parse::link(bytes)
}

#[inline(always)]
pub(crate) fn read_tc_index(skb: *mut __sk_buff) -> u32 {
    // SAFETY: a field of the program's context, read whole.
    unsafe { (&raw const (*skb).tc_index).read_volatile() }
}

#[inline(always)]
pub(crate) fn write_tc_index(skb: *mut __sk_buff, value: u32) {
    // SAFETY: a field that classifiers may write.
    unsafe { (&raw mut (*skb).tc_index).write_volatile(value) };
}

#[inline(always)]
pub(crate) fn read_mark(skb: *mut __sk_buff) -> u32 {
    // SAFETY: as `read`.
    unsafe { (&raw const (*skb).mark).read_volatile() }
}

#[inline(always)]
fn write_mark(skb: *mut __sk_buff, value: u32) {
    // SAFETY: as `write`.
    unsafe { (&raw mut (*skb).mark).write_volatile(value) };
}
