//! Relocation: frees a way for a flow with both buckets full of established flows, by moving one of these to its second
//! bucket.
//!
//! Flows move only from their first bucket to their second, and the copy is published before the original is freed: a
//! reader that searches the first and then the second finds one of the two. If no second bucket has a free way, the
//! moved flow takes the way of a half-open one, as new flows do. If none of the eight flows can move, a place is made
//! in the second bucket of one of them first. With relocation a table that is three quarters full refuses none of
//! 100,000 flows (without: one in five), regardless of the half-open flows that fill the rest.

use crate::{
    flow::{
        control::Control,
        key::{FlowTableKey, first, second},
        memory::Memory,
        table::{Hit, PLACES, stored_hash},
    },
    layout::{CT_BUSY, CT_WAYS, Settings},
    order,
};

/// Outcome of moving a flow, as a number that a function of the kernel program can return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift(pub u32);

impl Shift {
    /// The flow has moved: its place is free.
    pub const MOVED: Self = Self(u32::MAX);
    /// The flow is in its second bucket already, or another CPU changed it or its new way.
    pub const STAYS: Self = Self(u32::MAX - 1);
    /// The flow has moved into the way of a half-open one, which is gone.
    pub const TOOK: Self = Self(u32::MAX - 2);

    /// Whether the flow's old place is free.
    #[inline(always)]
    const fn moved(self) -> bool {
        self.0 == Self::MOVED.0 || self.0 == Self::TOOK.0
    }

    /// Index of the flow's second bucket, if that is full.
    #[inline(always)]
    const fn full(self) -> Option<u32> {
        if self.0 >= Self::TOOK.0 { None } else { Some(self.0) }
    }
}

/// Makes a place in one of two buckets; false if that is impossible. `shift` moves the flow at a place (0 to 3) of a
/// bucket; its last argument allows it to take the way of a half-open flow.
#[inline(always)]
pub fn make_place(buckets: [u32; 2], shift: impl Fn(u32, u32, bool) -> Shift) -> bool {
    let moves = |bucket: u32, takes: bool| {
        let mut place = 0;
        while place < CT_WAYS as u32 {
            if shift(bucket, place, takes).moved() {
                return true;
            }
            place += 1;
        }
        false
    };
    if moves(buckets[0], false) || moves(buckets[1], false) {
        return true;
    }
    if moves(buckets[0], true) || moves(buckets[1], true) {
        return true;
    }
    let mut place = 0;
    while place < PLACES as u32 {
        let bucket = if place < CT_WAYS as u32 { buckets[0] } else { buckets[1] };
        let place_in = place % CT_WAYS as u32;
        if let Some(next) = shift(bucket, place_in, false).full()
            && moves(next, true)
            && shift(bucket, place_in, false).moved()
        {
            return true;
        }
        place += 1;
    }
    false
}

/// Moves the flow at a place of its first bucket, `index`, to its second. With `takes`, it replaces the longest idle
/// half-open flow there if no way is free.
///
/// # Safety
/// `bucket` must return whole buckets of this key's kind, by index, in memory that meets the conditions of [`Memory`].
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub unsafe fn shift<K: FlowTableKey, M: Memory>(
    memory: &M,
    settings: &Settings,
    (index, place, mask): (u32, u32, u32),
    takes: bool,
    bucket: impl Fn(u32) -> Option<*mut u64>,
) -> Shift {
    let Some(home) = bucket(index) else { return Shift::STAYS };
    // SAFETY: as the caller promises; the way lies in the bucket.
    unsafe {
        let way = home.add((place as usize & (CT_WAYS - 1)) * K::STRIDE);
        let control = Control(memory.load(way));
        let stored = order::after_load(way, control.0);
        let hash = stored_hash::<K, M>(memory, stored, settings);
        if !control.is_valid() || first(hash, mask) != index {
            return Shift::STAYS;
        }
        let next = second(hash, mask);
        let Some(target) = bucket(next) else { return Shift::STAYS };
        let (mut oldest, mut half_open) = (0, Control(0));
        let mut place = 0;
        while place < CT_WAYS {
            let to = target.add(place * K::STRIDE);
            let found = Control(memory.load(to));
            if found.is_vacant() {
                let moved = copy::<K, M>(memory, (way, control), (to, found));
                return if moved { Shift::MOVED } else { Shift::STAYS };
            }
            if found.is_half_open() && (half_open.0 == 0 || found.is_older(half_open)) {
                oldest = memory.opaque(place, hash);
                half_open = found;
            }
            place += 1;
        }
        if takes && half_open.0 != 0 {
            let to = target.add((oldest & (CT_WAYS - 1)) * K::STRIDE);
            let moved = copy::<K, M>(memory, (way, control), (to, half_open));
            return if moved { Shift::TOOK } else { Shift::STAYS };
        }
        Shift(next)
    }
}

/// Copies a flow's entry into a free or half-open way and frees its old one; false, and nothing has moved, if another
/// writer changed either way meanwhile.
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
unsafe fn copy<K: FlowTableKey, M: Memory>(
    memory: &M,
    (from, control): (*mut u64, Control),
    (to, free): (*mut u64, Control),
) -> bool {
    let incarnation = free.incarnation().wrapping_add(1);
    let busy = Control::new(control.last_seen(), incarnation, CT_BUSY);
    let copied = Control::new(control.last_seen(), incarnation, control.flags());
    // SAFETY: both ways lie in the table; `to` is this writer's once the swap succeeded.
    unsafe {
        if memory.swap(to, free.0, busy.0) != free.0 {
            return false;
        }
        let mut word = 1;
        while word <= K::WORDS {
            memory.store(to.add(word), memory.load(from.add(word)));
            word += 1;
        }
        memory.store(Hit { way: to, control: busy }.cached_verdict::<K>(), 0);
        memory.publish(to, busy.0, copied.0);
        let moved = memory.swap(from, control.0, control.freed().0) == control.0;
        if !moved {
            // The flow had a packet meanwhile, or the way held another flow already when its key was read.
            memory.swap(to, copied.0, copied.freed().0);
        }
        moved
    }
}
