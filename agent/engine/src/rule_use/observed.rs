//! New flows of pods that no policy selects, by the records of the programs ([`netpold_ebpf::observe`]).
//!
//! Each record has a way of its table, and each new one there the next incarnation. So a sweep finds new records, and the
//! number of those that came and went since the last sweep.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use netpold_dataplane::conntrack::{FlowTuple, Sighting};
use netpold_ebpf::reason::Reason;
use serde::{Deserialize, Serialize};

use super::opened::Opened;

/// Records that an agent has reported, for the next one: ways with their fingerprints. A record that stays is no new flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reported(Vec<(u32, u32)>);

/// Record of a way at its last sighting.
#[derive(Clone, Copy, Debug)]
struct Record {
    incarnation: u16,
    fingerprint: u32,
    /// Number of the sweep.
    sweep: u32,
}

/// Records of the last sweep.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// Record of each way; `None`: no sighting yet.
    ways: Vec<Option<Record>>,
    /// Number of the last sweep.
    sweep: u32,
    /// Fingerprints of the records that an earlier agent has reported, by way; none after the first sweep with records.
    former: HashMap<u32, u32>,
    /// Flows without a record so far, by the programs' counter.
    unrecorded: Option<u64>,
    /// Flows not reported one by one, since the last call of [`Observed::take_missed`].
    missed: u64,
}

impl Observed {
    /// Takes over from an earlier agent: its records that are still there are not reported again.
    pub(super) fn resume(&mut self, reported: Reported) {
        self.former = reported.0.into_iter().collect();
    }

    /// Returns the records of the last sweep; of an agent that has not swept yet, those of its predecessor.
    pub(super) fn reported(&self) -> Reported {
        let last = |(way, record): (u32, &Option<Record>)| {
            let record = record.filter(|record| record.sweep == self.sweep)?;
            Some((way, record.fingerprint))
        };
        let mut reported: Vec<(u32, u32)> = (0..).zip(&self.ways).filter_map(last).collect();
        if self.ways.is_empty() {
            reported.extend(self.former.iter().map(|(way, fingerprint)| (*way, *fingerprint)));
            reported.sort_unstable();
        }
        Reported(reported)
    }

    /// Begins a sweep.
    pub(super) fn begin<'o>(
        &'o mut self,
        opened: &'o mut Opened,
        unrecorded: u64,
    ) -> ObservedRound<'o> {
        // Earlier flows are another agent's.
        let before = self.unrecorded.replace(unrecorded).unwrap_or(unrecorded);
        self.missed += unrecorded.saturating_sub(before);
        self.sweep = self.sweep.wrapping_add(1);
        if !self.ways.is_empty() {
            self.former = HashMap::new();
        }
        ObservedRound { of: self, opened }
    }

    /// Takes the number of flows not reported one by one: replaced before the sweep, or without a record.
    pub(super) fn take_missed(&mut self) -> u64 {
        std::mem::take(&mut self.missed)
    }
}

/// One sweep.
pub struct ObservedRound<'o> {
    of: &'o mut Observed,
    opened: &'o mut Opened,
}

impl ObservedRound<'_> {
    /// Processes a record.
    pub fn meet(&mut self, at: &Sighting<'_>) {
        let (way, incarnation) = (at.way as usize, at.control.incarnation());
        let sweep = self.of.sweep;
        if self.of.ways.len() <= way {
            self.of.ways.resize(way + 1, None);
        }
        let known = self.of.ways[way];
        if let Some(known) = known.filter(|known| known.incarnation == incarnation) {
            self.of.ways[way] = Some(Record { sweep, ..known });
            return;
        }
        if let Some(known) = known {
            let between = incarnation.wrapping_sub(known.incarnation).saturating_sub(1);
            self.of.missed += u64::from(between);
        }
        let Some(tuple) = at.tuple() else { return };
        let fingerprint = fingerprint(&tuple, incarnation);
        self.of.ways[way] = Some(Record { incarnation, fingerprint, sweep });
        if known.is_some() || self.of.former.get(&at.way) != Some(&fingerprint) {
            self.opened.met(&tuple, at.control.flags(), Reason::NotIsolated);
        }
    }
}

/// Fingerprint of a record. Another version of the standard library may have other fingerprints: its agent reports open
/// flows once more.
fn fingerprint(tuple: &FlowTuple, incarnation: u16) -> u32 {
    let FlowTuple { endpoint, remote, local_port, remote_port, protocol } = *tuple;
    let mut hasher = DefaultHasher::new();
    (endpoint, remote, local_port, remote_port, protocol, incarnation).hash(&mut hasher);
    hasher.finish() as u32
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use netpold_ebpf::flow::control::Control;
    use netpold_ebpf::layout::{CT_EGRESS, CT_VALID};

    use super::*;

    /// Sweeps records by way and incarnation; returns the number of reported flows, and that of missed ones.
    fn sweep(observed: &mut Observed, unrecorded: u64, records: &[(u32, u16)]) -> (usize, u64) {
        let mut opened = Opened::default();
        let mut round = observed.begin(&mut opened, unrecorded);
        for (way, incarnation) in records {
            let control = Control::new(1_000, *incarnation, CT_VALID | CT_EGRESS);
            let words =
                [control.0, 7 | 9 << 32, 0x50 | 0xfa0 << 16 | 6 << 32, 0].map(AtomicU64::new);
            round.meet(&Sighting::new(*way, control, (2_000, 1_000), &words));
        }
        let (told, untold) = opened.take();
        assert_eq!(untold, 0);
        assert!(told.iter().all(|seen| seen.packet.reason == "not_isolated"), "{told:?}");
        (told.len(), observed.take_missed())
    }

    #[test]
    fn each_record_is_reported_once_and_replaced_ones_are_counted() {
        let mut observed = Observed::default();
        assert_eq!(sweep(&mut observed, 50, &[(0, 1), (9, 4)]), (2, 0), "both are new");
        assert_eq!(sweep(&mut observed, 50, &[(0, 1), (9, 4)]), (0, 0));
        assert_eq!(sweep(&mut observed, 50, &[(0, 2), (9, 7)]), (2, 2), "two came and went");
        assert_eq!(sweep(&mut observed, 53, &[(9, 7)]), (0, 3), "three had no record");
        assert_eq!(sweep(&mut observed, 53, &[(0, 3)]), (1, 0), "the way was free meanwhile");
    }

    #[test]
    fn the_next_agent_reports_flows_that_began_since() {
        let mut first = Observed::default();
        assert_eq!(sweep(&mut first, 0, &[(0, 1), (3, 1), (9, 4)]), (3, 0));
        assert_eq!(sweep(&mut first, 0, &[(0, 1), (9, 4)]), (0, 0));
        let text = serde_json::to_string(&first.reported()).unwrap();
        let next = || {
            let mut next = Observed::default();
            next.resume(serde_json::from_str(&text).unwrap());
            next
        };
        let mut idle = next();
        assert_eq!(idle.reported(), first.reported(), "an agent that ends before its first sweep");
        // The flow of way 3 is gone; its place has a new one. Way 9 is used again, way 12 for the first time.
        let mut second = next();
        assert_eq!(sweep(&mut second, 7, &[(0, 1), (3, 1), (9, 5), (12, 1)]), (3, 0));
        assert_eq!(sweep(&mut second, 7, &[(0, 1), (3, 1), (9, 5), (12, 1)]), (0, 0));
        assert_eq!(
            sweep(&mut second, 7, &[(0, 2)]),
            (1, 0),
            "a way of the earlier agent is used again"
        );
        // A boot in between: nothing is there, then others' records.
        assert_eq!(sweep(&mut idle, 0, &[]), (0, 0));
        assert_eq!(sweep(&mut idle, 0, &[(0, 2), (9, 1)]), (2, 0));
    }
}
