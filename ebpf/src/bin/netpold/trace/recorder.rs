//! Recorder of the traced variant. Steps are recorded during the judgement and written at its end, since the judging
//! functions have no stack left for a log line. aya-log carries the lines.
//!
//! A line has the packet's number, the [`Step`]'s number and its two words. Packet numbers of different CPUs differ by
//! the CPU in the upper 16 bits.

use aya_ebpf::{
    bindings::__sk_buff,
    helpers::{bpf_get_smp_processor_id, bpf_jiffies64},
    macros::map,
    maps::{Array, PerCpuArray},
};
use aya_log_ebpf::info;
use netpold_ebpf::{
    direction::{Egress, Ingress, PodDirection},
    event,
    layout::DropEvent,
    packet::family::V6,
    reason::Reason,
    trace::{self, SETTLED, STEPS, Step, TraceFilter, TraceRecord},
};

use crate::{DROP, packet::Copied, watches_only};

#[map]
static TRACE: PerCpuArray<TraceRecord> = PerCpuArray::with_max_entries(1, 0);
/// Written by the agent before it attaches the programs. All zero, it admits no packet.
#[map]
static TRACE_FILTER: Array<TraceFilter> = Array::with_max_entries(1, 0);

/// Begins a record if the filter admits the packet.
#[inline(always)]
pub(crate) fn begin<D: PodDirection>(skb: *mut __sk_buff) {
    if D::EGRESS {
        netpold_trace_egress(skb);
    } else {
        netpold_trace_ingress(skb);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_trace_ingress(skb: *mut __sk_buff) -> u32 {
    start::<Ingress>(skb)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_trace_egress(skb: *mut __sk_buff) -> u32 {
    start::<Egress>(skb)
}

#[inline(always)]
fn start<D: PodDirection>(skb: *mut __sk_buff) -> u32 {
    let (Some(record), Some(filter)) = (TRACE.get_ptr_mut(0), TRACE_FILTER.get_ptr(0)) else {
        return 0;
    };
    // SAFETY: this CPU's own record, and map memory that the agent has written before.
    let (record, filter) = unsafe { (&mut *record, &*filter) };
    record.active = 0;
    // SAFETY: the helper has no preconditions.
    let now = unsafe { bpf_jiffies64() } as u32;
    if filter.is_over(now) {
        return 0;
    }
    record.event = DropEvent::default();
    // SAFETY: the program's context.
    event::describe::<D, _>(&unsafe { Copied::new(skb) }, &mut record.event);
    if !filter.admits(&record.event) {
        return 0;
    }
    record.matched += 1;
    if now.wrapping_sub(record.window) >= filter.second {
        record.window = now;
        record.told = 0;
    }
    if record.told < filter.burst {
        record.told += 1;
        record.count = 0;
        record.active = 1;
    }
    0
}

/// Records a step.
#[inline(always)]
pub(crate) fn record_step(step: Step, first: u64, second: u64) {
    netpold_trace_step(step as u32, first, second);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_trace_step(step: u32, first: u64, second: u64) -> u32 {
    let Some(record) = TRACE.get_ptr_mut(0) else { return 0 };
    // SAFETY: this CPU's own record.
    let record = unsafe { &mut *record };
    if record.active != 0
        && let Some(place) = record.steps.get_mut(record.count as usize)
    {
        *place = [step.into(), first, second];
        record.count += 1;
    }
    0
}

/// Writes the recorded steps and the verdict.
#[inline(always)]
pub(crate) fn end(reason: u32) {
    let drops = reason >= Reason::FIRST_DROP as u32 && !watches_only();
    netpold_trace_end(reason.into(), drops.into());
}

/// Writes the recorded steps of a packet with a verdict for its sender.
#[inline(always)]
pub(crate) fn end_for_sender(action: i32) {
    netpold_trace_end(SETTLED, (action == DROP).into());
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_trace_end(reason: u64, drops: u64) -> u32 {
    let Some(record) = TRACE.get_ptr_mut(0) else { return 0 };
    // SAFETY: this CPU's own record.
    let record = unsafe { &mut *record };
    if record.active == 0 {
        return 0;
    }
    record.active = 0;
    // SAFETY: the helper has no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let number = record.matched & ((1 << 48) - 1) | u64::from(cpu) << 48;
    let event = &record.event;
    let ports = u64::from(event.local_port) | u64::from(event.remote_port) << 16;
    netpold_trace_line(number, Step::Packet as u32, trace::packet(event), ports);
    let local = V6::words(&event.local);
    netpold_trace_line(number, Step::Local as u32, local[0], local[1]);
    let remote = V6::words(&event.remote);
    netpold_trace_line(number, Step::Remote as u32, remote[0], remote[1]);
    for index in 0..STEPS {
        if index as u32 >= record.count {
            break;
        }
        let [step, first, second] = record.steps[index];
        netpold_trace_line(number, step as u32, first, second);
    }
    let lines = 3 + u64::from(record.count);
    netpold_trace_line(number, Step::Verdict as u32, reason, drops | lines << 8)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_trace_line(number: u64, step: u32, first: u64, second: u64) -> u32 {
    info!((), "{} {} {} {}", number, step, first, second);
    0
}
