//! netpold's eBPF programs.
//!
//! `netpold_ingress` and `netpold_egress` are attached to the host side of every pod's veth, `netpold_node`,
//! `netpold_unmark`, `netpold_tunnel` and `netpold_bridge` to the node's other devices, see [`mark`]. Optional XDP
//! programs in front of these drop packets that are certain to be dropped: [`pod_xdp`] and [`uplink`].
//!
//! The fast path judges a packet in place. Fragments, extension headers, tags, ICMP errors and headers outside the
//! linear part take the slow path: the same code over copied bytes, in separate functions.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch, core_intrinsics)]
#![expect(internal_features, reason = "atomic_cxchg is the only way to BPF_CMPXCHG")]

mod checksum;
mod connection;
mod drops;
mod maps;
mod mark;
mod names;
mod observe;
mod packet;
mod pod_xdp;
mod reject;
mod streams;
mod tables;
mod trace;
mod uplink;
mod xdp;

use aya_ebpf::{
    EbpfContext as _,
    bindings::__sk_buff,
    helpers::{bpf_jiffies64, generated::bpf_get_netns_cookie},
    macros::classifier,
    programs::TcContext,
};
use netpold_ebpf::{
    direction::{Egress, Ingress, PodDirection},
    endpoint::Rows,
    judge::{
        decide::decide,
        evaluator::{JudgingRows, PacketEvaluator, Visitor},
        hook::PacketHook,
        proof::UNKNOWN_INTERFACE,
    },
    layout::{MAY_BE_BEHIND, STANDS_ASIDE, WATCH_ONLY},
    packet::{
        family::{V4, V6},
        parsed::ParsedPacket,
        protocol::ETHERTYPE_IPV6,
    },
    reason::Reason,
    tables::{TableFamily, Tables, find_endpoint},
    trace::Step,
    verdict::PacketVerdict,
};

use crate::{
    maps::Scratch,
    packet::{Copied, CopiedTo, LinearBytes},
    tables::{
        Maps,
        flows::{PENDING, netpold_insert_pending},
    },
    trace::TRACED,
};

/// TCX_NEXT, and TC_ACT_UNSPEC of a clsact filter: other programs on the hook still run.
const NEXT: i32 = -1;
/// TCX_DROP, TC_ACT_SHOT.
const DROP: i32 = 2;

/// Pod ingress: TC egress of the host side.
#[classifier]
#[inline(always)]
fn netpold_ingress(context: TcContext) -> i32 {
    let slow_path = SlowPathFunctions {
        quick6: netpold_ingress_quick6,
        read: netpold_ingress_read,
        link: netpold_ingress_link,
        judge4: netpold_ingress4,
        judge6: netpold_ingress6,
        query4: names::netpold_ingress_query4,
        query6: names::netpold_ingress_query6,
    };
    let skb = context.as_ptr().cast();
    if stands_aside() || reject::is_rejection(skb) {
        return NEXT;
    }
    trace::begin::<Ingress>(skb);
    if let Some(settled) = mark::judge_arrival(skb) {
        trace::end_for_sender(settled);
        return settled;
    }
    let mut reason = judge_packet::<Ingress>(skb, &slow_path);
    if reason == Reason::TranslatedReply as u32 && !connection::is_from_allowed_host(skb) {
        reason = Reason::ServiceBackend as u32;
    }
    trace::end(reason);
    observe::record::<Ingress>(skb, reason);
    if !names::read_names::<Ingress>(skb, reason) {
        return DROP;
    }
    act_on_verdict::<Ingress>(skb, reason, reject::netpold_reject_ingress)
}

/// Pod egress: TC ingress of the host side.
#[classifier]
#[inline(always)]
fn netpold_egress(context: TcContext) -> i32 {
    let slow_path = SlowPathFunctions {
        quick6: netpold_egress_quick6,
        read: netpold_egress_read,
        link: netpold_egress_link,
        judge4: netpold_egress4,
        judge6: netpold_egress6,
        query4: names::netpold_egress_query4,
        query6: names::netpold_egress_query6,
    };
    let skb = context.as_ptr().cast();
    if stands_aside() {
        return NEXT;
    }
    if reject::is_rejection(skb) {
        // While programs of another layout run after these and judge, the answer may be theirs.
        if !watches_only() {
            mark::mark_by_verdict(skb, Reason::Related as u32);
        }
        return NEXT;
    }
    // The pod's own packets arrive without the proof: this one comes from the node, with a verdict that is not its own.
    if mark::is_judged(skb) && mark::netpold_refuse_proven(skb) != 0 {
        return DROP;
    }
    trace::begin::<Egress>(skb);
    let reason = if checksum::keeps_judged_bytes(skb, mark::ETHERNET) {
        judge_packet::<Egress>(skb, &slow_path)
    } else {
        Reason::Malformed as u32
    };
    trace::end(reason);
    mark::mark_by_verdict(skb, reason);
    observe::record::<Egress>(skb, reason);
    if !names::read_names::<Egress>(skb, reason) {
        return DROP;
    }
    act_on_verdict::<Egress>(skb, reason, reject::netpold_reject_egress)
}

/// Returns the kernel's jiffies, low 32 bits, to the agent (by BPF_PROG_TEST_RUN), for conntrack stamps.
#[classifier]
#[inline(always)]
fn netpold_clock(_context: TcContext) -> i32 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_jiffies64() as i32 }
}

/// Empty program, as the baseline of the benchmarks.
#[classifier]
#[inline(always)]
fn netpold_empty(_context: TcContext) -> i32 {
    NEXT
}

/// A function that is global to the kernel (5.6): verified on its own, for any packet.
type Global = extern "C" fn(*mut __sk_buff) -> u32;

/// The slow path in functions, none of which needs a whole stack: one parses the packet into [`maps::SCRATCH`], one
/// judges messages of the link, and one for each family judges the parsed packet.
struct SlowPathFunctions {
    quick6: Global,
    read: Global,
    link: Global,
    judge4: Global,
    judge6: Global,
    query4: Global,
    query6: Global,
}

/// Results of [`SlowPathFunctions::read`], besides the numbers of [`Reason`].
const READ_IPV4: u32 = 0x104;
const READ_IPV6: u32 = 0x106;
/// IPv4 with options.
const READ_OPTIONS: u32 = 0x204;
/// IPv6 that may be a message of the link.
const READ_LINK: u32 = 0x206;

/// Runs the fast path, then the slow path if needed; returns the number of the reason.
#[inline(always)]
fn judge_packet<D: PodDirection>(skb: *mut __sk_buff, slow_path: &SlowPathFunctions) -> u32 {
    // SAFETY: the program's context.
    let bytes = unsafe { LinearBytes::<true>::new(skb) };
    // The traced entry has no stack left for the names.
    let verdict = if TRACED {
        decide::<D, _, _>(&bytes, &Maps::new(), hook(skb))
    } else {
        decide::<D, _, _>(&bytes, &Maps::opening(), hook(skb))
    };
    let mut reason = verdict.number();
    if reason == Reason::Deferred as u32 && may_be_ipv6(skb) {
        reason = judge_and_insert(skb, slow_path.quick6);
    }
    if reason == Reason::Deferred as u32 {
        trace::record_step(Step::SlowPath, 0, 0);
        netpold_store_hook(skb);
        reason = match (slow_path.read)(skb) {
            READ_IPV4 => judge_and_insert(skb, slow_path.judge4),
            READ_OPTIONS => {
                netpold_options(skb);
                judge_and_insert(skb, slow_path.judge4)
            }
            READ_IPV6 => judge_and_insert(skb, slow_path.judge6),
            READ_LINK => match (slow_path.link)(skb) {
                READ_IPV6 => judge_and_insert(skb, slow_path.judge6),
                settled => settled,
            },
            settled => settled,
        };
    }
    if reason == Reason::Policy as u32 && names::endpoint_with_names(skb).is_some() {
        reason = names::judge_by_names::<D>(skb, slow_path);
    }
    reason
}

/// Whether the kernel treats a packet as IPv6. A tag in the frame counts as the packet's protocol there.
#[inline(always)]
fn may_be_ipv6(skb: *mut __sk_buff) -> bool {
    // SAFETY: the program's context.
    unsafe { (*skb).protocol == u32::from(ETHERTYPE_IPV6.to_be()) }
}

/// Verdict of a function that may leave a flow to insert.
#[inline(always)]
fn judge_and_insert(skb: *mut __sk_buff, judge: Global) -> u32 {
    let reason = judge(skb);
    if reason & PENDING == 0 {
        return reason;
    }
    match netpold_insert_pending(skb) {
        0 => reason & !PENDING,
        full => full,
    }
}

/// Turns the verdict of a pod's hook into an action, for both directions. `reject` answers a denied packet.
#[inline(always)]
fn act_on_verdict<D: PodDirection>(skb: *mut __sk_buff, reason: u32, reject: Global) -> i32 {
    if reason < Reason::FIRST_DROP as u32 {
        return NEXT;
    }
    if watches_only() {
        return NEXT;
    }
    drops::report::<D>(skb, reason);
    if reason == Reason::Policy as u32 && reject::may_reject::<D>(skb) {
        return reject(skb) as i32;
    }
    DROP
}

/// Whether the former programs, which run behind these, still judge.
#[inline(always)]
fn watches_only() -> bool {
    handover_flags() & WATCH_ONLY != 0
}

/// Whether the programs in front of these judge alone.
#[inline(always)]
fn stands_aside() -> bool {
    handover_flags() & STANDS_ASIDE != 0
}

/// Whether programs in front of these may have judged a packet.
#[inline(always)]
fn may_be_behind() -> bool {
    handover_flags() & MAY_BE_BEHIND != 0
}

/// [`Settings::handover`](netpold_ebpf::layout::Settings)
#[inline(always)]
fn handover_flags() -> u32 {
    // SAFETY: map memory; the agent changes this field while the program runs.
    unsafe { (&raw const (*maps::SETTINGS.get()).handover).read_volatile() }
}

/// Not zero where classifiers may query the namespace of a packet's socket (kernel 6.15). Set at load time: the
/// verifier skips code that this constant excludes.
#[unsafe(no_mangle)]
static ASKS_FOR_NAMESPACE: u8 = 0;

/// Hook of a packet. Only a socket of the node proves that the node generated it, see [`netpold_ebpf::judge::proof`].
#[inline(always)]
fn hook(skb: *mut __sk_buff) -> PacketHook {
    // SAFETY: the program's context.
    let (ifindex, mut ingress_ifindex) = unsafe { ((*skb).ifindex, (*skb).ingress_ifindex) };
    if ingress_ifindex == 0 && netpold_has_own_socket(skb) == 0 {
        ingress_ifindex = UNKNOWN_INTERFACE;
    }
    PacketHook { ifindex, ingress_ifindex }
}

/// Leaves the ingress interface of a packet's hook in the scratch, for functions without stack for a call.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_store_hook(skb: *mut __sk_buff) -> u32 {
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    store_hook(skb, scratch);
    0
}

/// Leaves the packet's ingress interface in this CPU's scratch, and no rows to judge by.
#[inline(always)]
fn store_hook(skb: *mut __sk_buff, scratch: *mut Scratch) {
    // SAFETY: this CPU's own scratch.
    unsafe {
        (&raw mut (*scratch).ingress_ifindex).write(hook(skb).ingress_ifindex.into());
        (&raw mut (*scratch).rows).write(0);
        (&raw mut (*scratch).names_group).write(0);
    }
}

/// Hook with the ingress interface that [`netpold_store_hook`] left.
///
/// # Safety
/// The program's context, and this CPU's scratch.
#[inline(always)]
unsafe fn stored_hook(skb: *mut __sk_buff, scratch: *const Scratch) -> PacketHook {
    // SAFETY: as the caller promises.
    unsafe {
        PacketHook { ifindex: (*skb).ifindex, ingress_ifindex: (*scratch).ingress_ifindex as u32 }
    }
}

/// Whether a packet has a socket of another namespace than the node's, on kernels that reveal it.
#[inline(always)]
fn has_foreign_socket(skb: *mut __sk_buff) -> bool {
    // SAFETY: a pointer in the program's context, only compared; a constant of the loaded program.
    let (socket, asks) =
        unsafe { ((*skb).__bindgen_anon_2.sk, (&raw const ASKS_FOR_NAMESPACE).read_volatile()) };
    !socket.is_null() && asks != 0 && netpold_has_own_socket(skb) == 0
}

/// Whether a packet has a socket of the node's namespace, 1 or 0. A separate function, since its helper call would
/// cost stack where it is inlined.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_has_own_socket(skb: *mut __sk_buff) -> u32 {
    has_own_socket(skb).into()
}

/// Whether a packet has a socket of the node's namespace.
#[inline(always)]
fn has_own_socket(skb: *mut __sk_buff) -> bool {
    // SAFETY: the program's context; the pointer is only compared.
    if unsafe { (*skb).__bindgen_anon_2.sk }.is_null() {
        return false;
    }
    // SAFETY: a constant of the loaded program.
    if unsafe { (&raw const ASKS_FOR_NAMESPACE).read_volatile() } == 0 {
        return true;
    }
    // SAFETY: the helper takes the context, and reads its socket, which exists.
    let cookie = unsafe { bpf_get_netns_cookie(skb.cast()) };
    Maps::new().settings().is_some_and(|settings| settings.netns_cookie == cookie)
}

/// Parses a packet of any form.
#[inline(always)]
fn parse_to_scratch<D: PodDirection>(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::new();
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return Reason::NoTable as u32 };
    // SAFETY: the program's context. Parsing needs the endpoint, but no ingress interface.
    let hook =
        unsafe { PacketHook { ifindex: (*skb).ifindex, ingress_ifindex: UNKNOWN_INTERFACE } };
    let judge = match PacketEvaluator::<D, _>::for_parsing(&maps, hook) {
        Ok(judge) => judge,
        Err(verdict) => return verdict.number(),
    };
    // SAFETY: the program's context.
    let bytes = unsafe { CopiedTo::new(skb, scratch) };
    judge.parse(&bytes, &ToScratch(scratch)).0
}

/// Leaves the parsed packet in the scratch.
struct ToScratch(*mut Scratch);

/// Result of [`parse_to_scratch`].
struct ParseResult(u32);

impl From<PacketVerdict> for ParseResult {
    #[inline(always)]
    fn from(verdict: PacketVerdict) -> Self {
        Self(verdict.number())
    }
}

impl Visitor for ToScratch {
    type Output = ParseResult;
    const CHECKS_LATER: bool = true;

    #[inline(always)]
    fn visit<F: TableFamily, D: PodDirection, T: Tables>(
        &self,
        _judge: &PacketEvaluator<'_, D, T>,
        parsed: &ParsedPacket<F>,
    ) -> ParseResult {
        // SAFETY: this CPU's own scratch, with a field for a parsed packet of each family.
        unsafe {
            if F::IS_V6 {
                (&raw mut (*self.0).parsed6).cast::<ParsedPacket<F>>().write(*parsed);
                ParseResult(if parsed.is_of_link() { READ_LINK } else { READ_IPV6 })
            } else {
                (&raw mut (*self.0).parsed4).cast::<ParsedPacket<F>>().write(*parsed);
                ParseResult(if parsed.has_options() { READ_OPTIONS } else { READ_IPV4 })
            }
        }
    }
}

/// Verdict on the IPv6 packet that [`parse_to_scratch`] left, if it is a message of the link.
#[inline(always)]
fn judge_link_message<D: PodDirection>(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::new();
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return Reason::NoTable as u32 };
    match PacketEvaluator::<D, _>::new(&maps, hook(skb)) {
        Ok(judge) => {
            // SAFETY: the program's context; this CPU's own scratch, written just before.
            let (bytes, parsed) = unsafe { (Copied::new(skb), &(*scratch).parsed6) };
            judge.judge_link_message(&bytes, parsed).map_or(READ_IPV6, PacketVerdict::number)
        }
        Err(verdict) => verdict.number(),
    }
}

/// Judges the packet that [`parse_to_scratch`] left.
#[inline(always)]
fn judge_parsed<D: PodDirection, F: TableFamily>(
    skb: *mut __sk_buff,
    parsed: impl FnOnce(*mut Scratch) -> *mut ParsedPacket<F>,
) -> u32 {
    let maps = Maps::<true, false>::deferring();
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return Reason::NoTable as u32 };
    // SAFETY: the program's context; this CPU's own scratch.
    let hook = unsafe { stored_hook(skb, scratch) };
    let Some(endpoint) = find_endpoint(&maps, hook.ifindex) else {
        return Reason::NotEndpoint as u32;
    };
    let mut judging = JudgingRows::in_force(&maps, endpoint);
    // SAFETY: this CPU's own scratch.
    let (rows, revision) = unsafe { ((*scratch).rows, (*scratch).revision) };
    if rows != 0 {
        judging = JudgingRows { revision: revision as u32, rows: Rows(rows) };
    }
    match PacketEvaluator::<D, _>::by_rows(&maps, endpoint, hook, judging) {
        // SAFETY: this CPU's own scratch, written just before.
        Ok(judge) => maps.number_of(judge.judge(unsafe { &*parsed(scratch) })),
        Err(verdict) => verdict.number(),
    }
}

/// Checks the options of the IPv4 packet that [`parse_to_scratch`] left.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_options(skb: *mut __sk_buff) -> u32 {
    if let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) {
        // SAFETY: this CPU's own scratch, written just before.
        let parsed = unsafe { &mut (*scratch).parsed4 };
        parsed.look_for_route_by(|at, end| mark::netpold_has_route(skb, at, end) != 0);
    }
    0
}

/// Defines the functions of the slow path for a direction.
macro_rules! define_slow_path {
    ($direction:ty, $quick6:ident, $read:ident, $link:ident, $judge4:ident, $judge6:ident) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $quick6(skb: *mut __sk_buff) -> u32 {
            // SAFETY: the program's context.
            let bytes = unsafe { LinearBytes::<false>::new(skb) };
            let maps = Maps::<true>::deferring();
            maps.number_of(decide::<$direction, _, _>(&bytes, &maps, hook(skb)))
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $read(skb: *mut __sk_buff) -> u32 {
            parse_to_scratch::<$direction>(skb)
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $link(skb: *mut __sk_buff) -> u32 {
            judge_link_message::<$direction>(skb)
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $judge4(skb: *mut __sk_buff) -> u32 {
            // SAFETY: a field of the scratch.
            judge_parsed::<$direction, V4>(skb, |it| unsafe { &raw mut (*it).parsed4 })
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $judge6(skb: *mut __sk_buff) -> u32 {
            // SAFETY: a field of the scratch.
            judge_parsed::<$direction, V6>(skb, |it| unsafe { &raw mut (*it).parsed6 })
        }
    };
}

define_slow_path!(
    Ingress,
    netpold_ingress_quick6,
    netpold_ingress_read,
    netpold_ingress_link,
    netpold_ingress4,
    netpold_ingress6
);
define_slow_path!(
    Egress,
    netpold_egress_quick6,
    netpold_egress_read,
    netpold_egress_link,
    netpold_egress4,
    netpold_egress6
);

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The GPL of the crate's two licences: the kernel requires it for GPL-only helpers.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
