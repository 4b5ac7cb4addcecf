//! New flows, as the sweep meets them: for whoever watches.

use netpold_core::model::Direction;
use netpold_ebpf::layout::{CT_EGRESS, CT_INGRESS, CT_NODE};

use crate::conntrack::FlowTuple;
use crate::events::Seen;

/// Flows of one sweep that are told one by one; the rest is counted only.
const TOLD: usize = 4096;

/// The flows that a sweep met first.
#[derive(Debug, Default)]
pub(super) struct Opened {
    told: Vec<Seen>,
    untold: u64,
}

impl Opened {
    /// A flow, as its flags in the table say who began it.
    pub(super) fn met(&mut self, tuple: &FlowTuple, flags: u16) {
        let began = [(Direction::Ingress, CT_INGRESS), (Direction::Egress, CT_EGRESS)];
        for (direction, _) in began.into_iter().filter(|(_, flag)| flags & flag != 0) {
            if self.told.len() < TOLD {
                let by_node = direction == Direction::Ingress && flags & CT_NODE != 0;
                self.told.push(Seen::flow(tuple, direction, by_node));
            } else {
                self.untold += 1;
            }
        }
    }

    /// They are taken once; with how many more there were.
    pub(super) fn take(&mut self) -> (Vec<Seen>, u64) {
        (std::mem::take(&mut self.told), std::mem::take(&mut self.untold))
    }
}
