//! Counters of the programs.

use netpold_core::model::Direction;
use netpold_dataplane::Dataplane;
use netpold_ebpf::names::ignored::IgnoredAnswer;
use netpold_ebpf::reason::{self, Reason};

/// Returns the dropped packets, for every reason that drops.
pub(super) fn drops_by_reason(dataplane: &Dataplane) -> Vec<(Direction, Reason, u64)> {
    let drops = || Reason::ALL.into_iter().filter(|reason| reason.is_drop());
    let keys = Direction::BOTH.into_iter().flat_map(|d| drops().map(move |r| (d, r)));
    let packets = dataplane.packets();
    keys.map(|(direction, reason)| {
        let index = reason::counter(direction == Direction::Egress, reason);
        (direction, reason, packets[index as usize])
    })
    .collect()
}

/// Returns the number of flows of observed pods without a record, see [`reason::unrecorded`].
pub(super) fn unrecorded(dataplane: &Dataplane) -> u64 {
    dataplane.packets()[reason::unrecorded() as usize]
}

pub(super) fn rejected(dataplane: &Dataplane) -> Vec<(Direction, u64)> {
    let packets = dataplane.packets();
    let count = |direction| packets[reason::rejections(direction == Direction::Egress) as usize];
    Direction::BOTH.map(|direction| (direction, count(direction))).into()
}

/// Returns the ignored DNS answers, for every reason.
pub(super) fn ignored_answers(dataplane: &Dataplane) -> Vec<(IgnoredAnswer, u64)> {
    let packets = dataplane.packets();
    IgnoredAnswer::ALL.map(|reason| (reason, packets[reason.counter() as usize])).into()
}

pub(super) fn evicted(dataplane: &Dataplane) -> [[u64; 2]; 2] {
    let packets = dataplane.packets();
    let count = |is_v6, state| packets[reason::evictions(is_v6, state) as usize];
    [false, true].map(|is_v6| [false, true].map(|established| count(is_v6, established)))
}
