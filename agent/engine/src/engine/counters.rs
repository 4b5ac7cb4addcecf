//! Counters of the programs.

use netpold_core::model::Direction;
use netpold_dataplane::Dataplane;
use netpold_dataplane::generation::Generation;
use netpold_ebpf::reason::{self, Reason};

/// Returns the dropped packets, for every reason that drops.
pub(super) fn drops_by_reason(dataplane: &Dataplane) -> Vec<(Direction, Reason, u64)> {
    let drops = || Reason::ALL.into_iter().filter(|reason| reason.is_drop());
    let keys = Direction::BOTH.into_iter().flat_map(|d| drops().map(move |r| (d, r)));
    let count = counts(dataplane);
    keys.map(|(direction, reason)| {
        let index = reason::counter(direction == Direction::Egress, reason);
        (direction, reason, count(index))
    })
    .collect()
}

/// Returns the programs' packet counters by index, without packets of probes; 0 before the first generation.
fn counts(dataplane: &Dataplane) -> impl Fn(u32) -> u64 {
    let counted = dataplane.active().generation().map(Generation::counters);
    move |index| {
        let counted = counted.map_or(0, |counted| counted[index as usize]);
        counted.saturating_sub(dataplane.active().probed(index))
    }
}

/// Returns the number of flows of observed pods without a record, see [`reason::unrecorded`].
pub(super) fn unrecorded(dataplane: &Dataplane) -> u64 {
    counts(dataplane)(reason::unrecorded())
}

pub(super) fn rejected(dataplane: &Dataplane) -> Vec<(Direction, u64)> {
    let count = counts(dataplane);
    let count = |direction| count(reason::rejections(direction == Direction::Egress));
    Direction::BOTH.map(|direction| (direction, count(direction))).into()
}

pub(super) fn evicted(dataplane: &Dataplane) -> [[u64; 2]; 2] {
    let count = counts(dataplane);
    let count = |is_v6, state| count(reason::evictions(is_v6, state));
    [false, true].map(|is_v6| [false, true].map(|established| count(is_v6, established)))
}
