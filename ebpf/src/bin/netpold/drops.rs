//! Drops: counters, and rate-limited events to the agent.

use aya_ebpf::bindings::__sk_buff;
use netpold_ebpf::{
    direction::{Egress, Ingress, PodDirection},
    event,
    layout::{Counters, DropEvent, EVENT_SHARES, SHARE_SPENT, Settings},
    reason::{self, Reason},
    tables::Tables,
};

use crate::{
    maps,
    packet::{Copied, FollowedBytes},
    tables::Maps,
};

/// Counts a drop and, within this CPU's budget, emits its event.
#[inline(always)]
pub(crate) fn report<D: PodDirection>(skb: *mut __sk_buff, reason: u32) {
    if reason == Reason::Flooded as u32 {
        Maps::new().count(reason::counter_of(D::EGRESS, reason));
        return;
    }
    // SAFETY: the program's context.
    if count_one(D::EGRESS, reason, unsafe { (*skb).ifindex }) {
        if D::EGRESS {
            netpold_emit_egress(skb, reason);
        } else {
            netpold_emit_ingress(skb, reason);
        }
    }
}

/// Counts a drop; returns whether this CPU may emit its event. `ifindex`: the interface with the share to use.
#[inline(always)]
pub(crate) fn count_one(egress: bool, reason: u32, ifindex: u32) -> bool {
    let maps = Maps::new();
    let (Some(counters), Some(settings)) = (maps.counters(), maps.settings()) else {
        return false;
    };
    counters.count(reason::counter_of(egress, reason));
    may_emit(counters, settings, maps.now(), ifindex)
}

/// Counts an event as emitted or suppressed. An interface may use half of the window's events, and one even after they
/// are used up: a flood of one pod, or of many, hides no other pod's drops.
#[inline(always)]
fn may_emit(counters: &mut Counters, settings: &Settings, now: u32, ifindex: u32) -> bool {
    let share = ifindex as usize % EVENT_SHARES;
    if now.wrapping_sub(counters.window) >= settings.event_window {
        counters.window = now;
        counters.events = 0;
        counters.shares = [0; EVENT_SHARES];
    } else if counters.shares[share] == SHARE_SPENT {
        counters.suppressed = counters.suppressed.wrapping_add(1);
        return false;
    }
    let burst = settings.event_burst;
    let most = if counters.events < burst { burst.div_ceil(2) } else { burst.min(1) };
    let share = &mut counters.shares[share];
    if u32::from(*share) >= most.min(u32::from(SHARE_SPENT)) {
        // Until the window ends: an interface's limit only falls.
        *share = SHARE_SPENT;
        counters.suppressed = counters.suppressed.wrapping_add(1);
        return false;
    }
    *share += 1;
    counters.events += 1;
    true
}

/// Emits the event of a drop in pod ingress. A global function, since this is rare; it parses the packet again, so
/// that other packets need not keep their headers.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_emit_ingress(skb: *mut __sk_buff, reason: u32) -> u32 {
    emit::<Ingress>(skb, reason)
}

/// Emits the event of a drop in pod egress.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_emit_egress(skb: *mut __sk_buff, reason: u32) -> u32 {
    emit::<Egress>(skb, reason)
}

#[inline(always)]
fn emit<D: PodDirection>(skb: *mut __sk_buff, reason: u32) -> u32 {
    // SAFETY: the program's context.
    let ifindex = unsafe { (*skb).ifindex };
    let endpoint = netpold_ebpf::tables::find_endpoint(&Maps::new(), ifindex);
    let endpoint = (ifindex, endpoint.map_or(0, |endpoint| endpoint.id()));
    send(reason, endpoint, |event| {
        // SAFETY: the program's context.
        let bytes = unsafe { FollowedBytes::new(skb, Copied::new(skb)) };
        event::describe::<D, _>(&bytes, event);
    })
}

/// Emits an event about an endpoint, given by interface index and number.
#[inline(always)]
pub(crate) fn send(
    reason: u32,
    (ifindex, endpoint): (u32, u32),
    describe: impl FnOnce(&mut DropEvent),
) -> u32 {
    let maps = Maps::new();
    let Some(counters) = maps.counters() else { return 1 };
    let Some(mut entry) = maps::EVENTS.reserve::<DropEvent>(0) else {
        counters.suppressed = counters.suppressed.wrapping_add(1);
        return 1;
    };
    let event = entry.write(DropEvent::default());
    event.ifindex = ifindex;
    event.endpoint = endpoint;
    event.reason = reason as u8;
    event.suppressed = counters.suppressed;
    describe(event);
    entry.submit(0);
    counters.suppressed = 0;
    0
}
