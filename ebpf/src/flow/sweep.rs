//! Sweeping: frees entries that are expired or of deleted pods, and makes free ways unused again.

use crate::{
    flow::{
        control::Control,
        key::{FlowTableKey, first},
        memory::Memory,
        table::{stored_hash, stored_protocol},
    },
    layout::{CT_BUSY, CT_WAYS, Settings},
};

/// Counts of one bucket's flows after [`sweep`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepCounts {
    /// Flows that stay.
    pub live: u32,
    /// Expired flows that were removed.
    pub removed: u32,
    /// Removed flows of endpoints that are gone.
    pub orphaned: u32,
}

/// Frees the ways of one bucket with expired flows, or with flows of endpoints for which `lives` is false. A flow that
/// is refreshed meanwhile stays, since the whole control word is compared. A way that a writer claimed more than
/// `stale` jiffies ago is freed too.
///
/// # Safety
/// As [`crate::flow::table::Flow::find`].
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub unsafe fn sweep<K: FlowTableKey, M: Memory>(
    memory: &M,
    bucket: *mut u64,
    settings: &Settings,
    now: u32,
    stale: u32,
    lives: impl Fn(u32) -> bool,
) -> SweepCounts {
    let mut swept = SweepCounts::default();
    for index in 0..CT_WAYS {
        // SAFETY: the way lies in the bucket.
        let way = unsafe { bucket.add(index * K::STRIDE) };
        // SAFETY: the way lies in the bucket.
        let (control, protocol) =
            unsafe { (Control(memory.load(way)), stored_protocol::<K, M>(memory, way)) };
        // SAFETY: the way lies in the bucket.
        let endpoint = K::endpoint(unsafe { memory.load(way.add(1)) });
        let orphaned = control.is_valid() && !lives(endpoint);
        let gone = if control.flags() & CT_BUSY != 0 {
            control.age(now) > stale
        } else if control.is_valid() {
            orphaned || control.is_expired(memory, protocol, settings, now)
        } else {
            continue;
        };
        if !gone {
            swept.live += 1;
            continue;
        }
        // SAFETY: the way lies in the bucket.
        let removed = unsafe { memory.swap(way, control.0, control.freed().0) == control.0 };
        *match (removed, orphaned) {
            (false, _) => &mut swept.live,
            (true, false) => &mut swept.removed,
            (true, true) => &mut swept.orphaned,
        } += 1;
    }
    swept
}

/// Calls `meet` with the first bucket of each flow in `bucket` for which this bucket, `index`, is the second one.
///
/// # Safety
/// As [`crate::flow::table::Flow::find`].
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read under one promise"
)]
pub unsafe fn displaced<K: FlowTableKey, M: Memory>(
    memory: &M,
    (bucket, index): (*mut u64, u32),
    (settings, mask): (&Settings, u32),
    mut meet: impl FnMut(u32),
) {
    for place in 0..CT_WAYS {
        // SAFETY: the way lies in the bucket.
        let (control, hash) = unsafe {
            let way = bucket.add(place * K::STRIDE);
            let hash = stored_hash::<K, M>(memory, way, settings);
            (Control(memory.load(way)), hash)
        };
        let first = first(hash, mask);
        if control.is_valid() && first != index {
            meet(first);
        }
    }
}

/// Makes ways of a bucket unused that an earlier pass, at least `rest` jiffies ago, noted as free and that have no
/// flow behind them; notes the time of this pass, `now`, in other free ways. With `is_first`, a flow in its second
/// bucket has this first bucket, and no way becomes unused. The caller has searched all buckets for such flows with
/// [`displaced`], beginning at `now` or later.
///
/// A way that was free since then was available to each new flow with this first bucket, so none of them took a later
/// way or its second bucket. The only exception is a program that found the bucket full before that and has run for
/// longer than `rest`.
///
/// # Safety
/// As [`crate::flow::table::Flow::find`].
pub unsafe fn renew<K: FlowTableKey, M: Memory>(
    memory: &M,
    bucket: *mut u64,
    (now, rest): (u32, u32),
    is_first: bool,
) {
    let mut is_last = true;
    for index in (0..CT_WAYS).rev() {
        // SAFETY: the way lies in the bucket.
        let way = unsafe { bucket.add(index * K::STRIDE) };
        // SAFETY: the way lies in the bucket.
        let control = Control(unsafe { memory.load(way) });
        if !control.is_vacant() {
            is_last = false;
            continue;
        }
        if control.is_unused() {
            continue;
        }
        let noted = control.last_seen() != 0;
        let new = if noted && is_last && !is_first && control.age(now) >= rest {
            Control::new(0, control.incarnation(), 0)
        } else if noted {
            continue;
        } else {
            // 0 stands for no time.
            Control::new(now.max(1), control.incarnation(), control.flags())
        };
        // SAFETY: the way lies in the bucket.
        is_last &= unsafe { memory.swap(way, control.0, new.0) == control.0 };
    }
}
