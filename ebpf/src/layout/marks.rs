//! What packets carry along in `skb->tc_index`, and counts of those that lost it.

use crate::layout::endpoint::ENDPOINT_SLOTS;

/// How many bits of a mark number its slot.
const MARK_SLOT_BITS: u32 = 13;
/// The other bits of a mark are the endpoint's number modulo this, plus 1: a mark ends with its
/// endpoint, not with the endpoint's slot. In [`answer_mark`] this is added once more.
const MARK_NUMBERS: u32 = 3;
const _: () = assert!(1 << MARK_SLOT_BITS == ENDPOINT_SLOTS);

/// A mark: the 16 bits of `skb->tc_index` that a packet takes along through routing, bridging and NAT, and that name
/// the endpoint whose pod sent it: its slot and its number ([`Endpoint::id`](crate::layout::Endpoint::id)). A pod can
/// write this field itself, so it counts only beside [`Settings::proof`](crate::layout::Settings::proof).
#[must_use]
#[inline(always)]
pub const fn mark(slot: u32, id: u32) -> u32 {
    (id % MARK_NUMBERS + 1) << MARK_SLOT_BITS | slot & (ENDPOINT_SLOTS - 1)
}

/// The [`mark`] of a packet that is an answer: what it goes to once began the flow, at an address that the
/// node may translate now. [`crate::judge::connection`] says whether it goes back there.
#[must_use]
#[inline(always)]
pub const fn answer_mark(mark: u32) -> u32 {
    mark + (MARK_NUMBERS << MARK_SLOT_BITS)
}

/// A mark in its two parts: the [`mark`], and whether it is the [`answer_mark`] of that.
#[must_use]
#[inline(always)]
pub const fn parts_of(mark: u32) -> (u32, bool) {
    let answer = mark >> MARK_SLOT_BITS > MARK_NUMBERS;
    (if answer { mark - (MARK_NUMBERS << MARK_SLOT_BITS) } else { mark }, answer)
}

/// What a packet carries in place of a [`mark`] that came by a device which leads to another namespace
/// and is no endpoint's.
pub const STRANGER: u32 = 1;

/// What [`Settings::witness`](crate::layout::Settings::witness) is one of: below every mark, above [`STRANGER`], and
/// with the lowest bits zero, which choose a queue where a device has the qdisc `gred`.
pub const WITNESSES: core::ops::RangeInclusive<u32> =
    1..=(1 << (MARK_SLOT_BITS - WITNESS_SHIFT)) - 1;
/// See [`WITNESSES`].
pub const WITNESS_SHIFT: u32 = 4;

/// Packets of an endpoint that an exit misses something at, see [`crate::judge::proof`]: at
/// [`endpoint_slot`](crate::layout::endpoint_slot) of the interface that they came by, probe 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unproven {
    /// The proof is missing, and the witness shows that the endpoint's program has seen the packet.
    pub erased: u64,
    /// The proof is missing, and nothing shows that.
    pub skipped: u64,
    /// The proof is there, and what the program left in `skb->tc_index` is not.
    pub unmarked: u64,
}

/// Whether `skb->tc_index` holds a [`mark`], or the [`answer_mark`] of one.
#[must_use]
#[inline(always)]
pub const fn is_mark(tc_index: u32) -> bool {
    tc_index >> MARK_SLOT_BITS != 0
}

/// The endpoint slot that a [`mark`] names.
#[must_use]
#[inline(always)]
pub const fn marked_slot(mark: u32) -> u32 {
    mark & (ENDPOINT_SLOTS - 1)
}

const _: () = assert!(size_of::<Unproven>() == 24);
