//! Tidying flows away that are over: expired, or of a pod that is gone. What they leave becomes unused again.

use crate::{
    flow::{
        control::Control,
        key::{Key, first},
        memory::Memory,
        table::{stored_hash, stored_protocol},
    },
    layout::{CT_BUSY, CT_WAYS, Settings},
};

/// What [`sweep`] found in a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Flows that live on.
    pub live: u32,
    /// Expired flows that were removed.
    pub removed: u32,
    /// Flows of endpoints that are gone, which were removed.
    pub orphaned: u32,
}

/// Frees the expired ways of one bucket, and those of endpoints that do not live. A flow that is
/// refreshed meanwhile stays, since the whole control word is compared. A way that has been claimed
/// for `stale` jiffies is freed too.
///
/// # Safety
/// As [`crate::flow::table::Flow::find`].
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub unsafe fn sweep<K: Key, M: Memory>(
    memory: &M,
    bucket: *mut u64,
    settings: &Settings,
    now: u32,
    stale: u32,
    lives: impl Fn(u32) -> bool,
) -> Swept {
    let mut swept = Swept::default();
    for index in 0..CT_WAYS {
        // SAFETY: the way lies in the bucket.
        let way = unsafe { bucket.add(index * K::STRIDE) };
        // SAFETY: as above.
        let (control, protocol) =
            unsafe { (Control(memory.load(way)), stored_protocol::<K, M>(memory, way)) };
        // SAFETY: as above.
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
        // SAFETY: as above.
        let removed = unsafe { memory.swap(way, control.0, control.freed().0) == control.0 };
        *match (removed, orphaned) {
            (false, _) => &mut swept.live,
            (true, false) => &mut swept.removed,
            (true, true) => &mut swept.orphaned,
        } += 1;
    }
    swept
}

/// The first buckets of flows that are in their second one, `bucket`, which has this index.
///
/// # Safety
/// As [`crate::flow::table::Flow::find`].
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read under one promise"
)]
pub unsafe fn displaced<K: Key, M: Memory>(
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

/// Makes the ways of a bucket unused that have been free since a pass of at least `rest` jiffies ago and have nothing
/// behind them; notes the time of this pass, `now`, in other free ones. In a bucket that is the first of a flow in
/// its second bucket (`is_first`) none becomes unused; who calls has looked for these, see [`displaced`], in all
/// buckets, and begun with that at `now` or later.
///
/// A way that was free all that time was there for each new flow whose first bucket this is. So none has gone to its
/// second bucket meanwhile, nor to a way behind it, but for one whose program found the bucket full before, and has
/// been on its way for longer than `rest`.
///
/// # Safety
/// As [`crate::flow::table::Flow::find`].
pub unsafe fn renew<K: Key, M: Memory>(
    memory: &M,
    bucket: *mut u64,
    (now, rest): (u32, u32),
    is_first: bool,
) {
    let mut is_last = true;
    for index in (0..CT_WAYS).rev() {
        // SAFETY: the way lies in the bucket.
        let way = unsafe { bucket.add(index * K::STRIDE) };
        // SAFETY: as above.
        let control = Control(unsafe { memory.load(way) });
        if !control.is_vacant() {
            is_last = false;
            continue;
        }
        if control.is_unused() {
            continue;
        }
        let noted = control.seen() != 0;
        let new = if noted && is_last && !is_first && control.age(now) >= rest {
            Control::new(0, control.incarnation(), 0)
        } else if noted {
            continue;
        } else {
            // 0 is of no time.
            Control::new(now.max(1), control.incarnation(), control.flags())
        };
        // SAFETY: as above.
        is_last &= unsafe { memory.swap(way, control.0, new.0) == control.0 };
    }
}
