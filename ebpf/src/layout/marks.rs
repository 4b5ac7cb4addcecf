//! Marks in `skb->tc_index`, and counters of packets that lost them.

use crate::layout::endpoint::ENDPOINT_SLOTS;

/// Bits of a mark that hold the endpoint slot.
const MARK_SLOT_BITS: u32 = 13;
/// Modulus of the endpoint's number; the remainder plus 1 is the upper part of a mark. So a mark ends with its
/// endpoint, not with the endpoint's slot: the agent gives an endpoint that takes over a record a number with another
/// remainder. [`reply_mark`] adds this modulus once more.
pub const MARK_NUMBERS: u32 = 3;
const _: () = assert!(1 << MARK_SLOT_BITS == ENDPOINT_SLOTS);

/// Mark of an endpoint: its slot and its number ([`Endpoint::id`](crate::layout::Endpoint::id)), in the 16 bits of
/// `skb->tc_index`. It names the sending pod and survives routing, bridging and NAT. A pod can write this field itself,
/// so a mark counts only together with [`Settings::proof`](crate::layout::Settings::proof).
#[must_use]
#[inline(always)]
pub const fn mark(slot: u32, id: u32) -> u32 {
    (id % MARK_NUMBERS + 1) << MARK_SLOT_BITS | slot & (ENDPOINT_SLOTS - 1)
}

/// The [`mark`] of an answer: the packet goes back to the initiator of its flow, at an address that the node may
/// translate. [`crate::judge::connection`] checks whether the node sends it back there.
#[must_use]
#[inline(always)]
pub const fn reply_mark(mark: u32) -> u32 {
    mark + (MARK_NUMBERS << MARK_SLOT_BITS)
}

/// Splits a mark into its [`mark`] and whether it was a [`reply_mark`].
#[must_use]
#[inline(always)]
pub const fn split_mark(mark: u32) -> (u32, bool) {
    let answer = mark >> MARK_SLOT_BITS > MARK_NUMBERS;
    (if answer { mark - (MARK_NUMBERS << MARK_SLOT_BITS) } else { mark }, answer)
}

/// Value in place of a [`mark`] on packets from devices that are not an endpoint's: of another namespace, other ports
/// of bridges with pods, and tunnels.
pub const STRANGER: u32 = 1;

/// Value in place of a [`mark`] on answers to denied packets, until the program of the pod's interface has seen them.
pub const REJECTION: u32 = 2;

/// Range of [`Settings::witness`](crate::layout::Settings::witness): below every mark, above [`STRANGER`] and [`REJECTION`], and
/// shifted past the lowest bits, which choose a queue where a device has the qdisc `gred`.
pub const WITNESSES: core::ops::RangeInclusive<u32> =
    1..=(1 << (MARK_SLOT_BITS - WITNESS_SHIFT)) - 1;
/// Shift of a witness in `skb->tc_index`, see [`WITNESSES`].
pub const WITNESS_SHIFT: u32 = 4;

/// Counters of an endpoint's packets with an incomplete proof at an exit, see [`crate::judge::proof`]. Indexed by
/// [`endpoint_slot`](crate::layout::endpoint_slot) of the interface that they arrived by, probe 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unproven {
    /// Packets without the proof, with the witness: the endpoint's program has seen them.
    pub erased: u64,
    /// Packets without the proof and without the witness.
    pub skipped: u64,
    /// Packets with the proof, without the program's value in `skb->tc_index`.
    pub unmarked: u64,
}

/// Whether `skb->tc_index` holds a [`mark`] or a [`reply_mark`].
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
