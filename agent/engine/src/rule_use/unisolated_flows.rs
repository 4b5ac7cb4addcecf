//! New flows of pods that no policy selects, from the records of the programs ([`netpold_ebpf::observe`]).
//!
//! A record occupies a way of a table, and each new record in a way has the next incarnation. So a sweep finds new
//! records, and the number of records that were added and removed since the last sweep.

use netpold_dataplane::conntrack::Sighting;
use netpold_ebpf::reason::Reason;

use super::opened::OpenedFlows;
use crate::events::unix_millis;

/// Records of the last sweep.
#[derive(Debug, Default)]
pub(super) struct SweepRecords {
    /// Incarnation of each way at its last sighting; `None`: no sighting yet.
    ways: Vec<Option<u16>>,
    /// Time of the last sweep, in jiffies.
    last: Option<u32>,
    /// Flows without a record so far, by the programs' counter.
    unrecorded: Option<u64>,
    /// Number of flows not reported one by one since the last call of [`SweepRecords::take_missed`].
    missed: u64,
}

impl SweepRecords {
    /// Begins a sweep.
    pub(super) fn begin<'o>(
        &'o mut self,
        opened: &'o mut OpenedFlows,
        counted_until: Option<u64>,
        unrecorded: u64,
    ) -> ObservedSweep<'o> {
        // The first sweep does not count flows before this agent.
        let before = self.unrecorded.replace(unrecorded).unwrap_or(unrecorded);
        self.missed += unrecorded.saturating_sub(before);
        let last = self.last;
        ObservedSweep { of: self, opened, counted_until, last }
    }

    /// Returns the number of flows not reported one by one since the last call: replaced before a sweep, or without a
    /// record.
    pub(super) fn take_missed(&mut self) -> u64 {
        std::mem::take(&mut self.missed)
    }
}

/// One sweep.
pub struct ObservedSweep<'o> {
    of: &'o mut SweepRecords,
    opened: &'o mut OpenedFlows,
    /// Time until which an earlier agent has reported flows, in milliseconds since the epoch.
    counted_until: Option<u64>,
    /// Time of the former sweep, in jiffies.
    last: Option<u32>,
}

impl ObservedSweep<'_> {
    /// Processes a record.
    pub fn visit_record(&mut self, at: &Sighting<'_>) {
        let (way, incarnation) = (at.way as usize, at.control.incarnation());
        self.of.last = Some(at.now);
        if self.of.ways.len() <= way {
            self.of.ways.resize(way + 1, None);
        }
        match self.of.ways[way].replace(incarnation) {
            Some(known) if known == incarnation => return,
            Some(known) => {
                let between = incarnation.wrapping_sub(known).saturating_sub(1);
                self.of.missed += u64::from(between);
            }
            None if self.was_there(at) => return,
            None => {}
        }
        if let Some(tuple) = at.tuple() {
            self.opened.add_flow(&tuple, at.control.flags(), Reason::NotIsolated);
        }
    }

    /// Whether an earlier agent has reported the record of a way without a sighting: the flow has had no packet since.
    fn was_there(&self, at: &Sighting<'_>) -> bool {
        let (None, Some(until)) = (self.last, self.counted_until) else { return false };
        let idle = u64::try_from(at.idle().as_millis()).unwrap_or(u64::MAX);
        idle > unix_millis().saturating_sub(until)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use netpold_ebpf::flow::control::Control;
    use netpold_ebpf::layout::{CT_EGRESS, CT_VALID};

    use super::*;

    /// Sweeps records by way and incarnation; returns the numbers of reported and of missed flows.
    fn sweep(observed: &mut SweepRecords, unrecorded: u64, records: &[(u32, u16)]) -> (usize, u64) {
        let mut opened = OpenedFlows::default();
        let mut round = observed.begin(&mut opened, None, unrecorded);
        for (way, incarnation) in records {
            let control = Control::new(1_000, *incarnation, CT_VALID | CT_EGRESS);
            let words =
                [control.0, 7 | 9 << 32, 0x50 | 0xfa0 << 16 | 6 << 32, 0].map(AtomicU64::new);
            round.visit_record(&Sighting::new(*way, control, (2_000, 1_000), &words));
        }
        let (reported, unreported) = opened.take_flows();
        assert_eq!(unreported, 0);
        assert!(reported.iter().all(|seen| seen.packet.reason == "not_isolated"), "{reported:?}");
        (reported.len(), observed.take_missed())
    }

    #[test]
    fn each_record_is_reported_once_and_replaced_ones_are_counted() {
        let mut observed = SweepRecords::default();
        assert_eq!(sweep(&mut observed, 50, &[(0, 1), (9, 4)]), (2, 0), "both are new");
        assert_eq!(sweep(&mut observed, 50, &[(0, 1), (9, 4)]), (0, 0));
        assert_eq!(sweep(&mut observed, 50, &[(0, 2), (9, 7)]), (2, 2), "two came and went");
        assert_eq!(sweep(&mut observed, 53, &[(9, 7)]), (0, 3), "three had no record");
        assert_eq!(sweep(&mut observed, 53, &[(0, 3)]), (1, 0), "the way was free meanwhile");
    }
}
