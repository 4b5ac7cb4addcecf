//! Tidying flows away that are over: expired, or of a pod that is gone.

use crate::{
    flow::{control::Control, key::Key, memory::Memory, table::stored_protocol},
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
