//! New flows of a sweep, for observers.
//!
//! Above a limit only a random sample of the flows is reported; the others are counted. In the sample, flows of one pod
//! never displace the first ones of another pod.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use netpold_core::model::Direction;
use netpold_dataplane::conntrack::EndpointFlow;
use netpold_ebpf::layout::{CT_EGRESS, CT_INGRESS, CT_NODE};
use netpold_ebpf::reason::Reason;

use crate::events::JournalEvent;

/// Flows of one sweep that are reported one by one; the rest is only counted.
const SAMPLE: usize = 4096;
/// Number of a pod's reported flows that other pods' flows do not displace.
const ASSURED_PER_POD: usize = 32;
/// Attempts to find a place for such a flow: most places of a full sample belong to pods with more flows.
const TRIES: usize = 16;

/// New flows of a sweep.
#[derive(Debug)]
pub(super) struct OpenedFlows {
    told: Vec<JournalEvent>,
    /// Number of reported flows by endpoint.
    shares: HashMap<u32, usize>,
    untold: u64,
    random: u64,
}

impl Default for OpenedFlows {
    fn default() -> Self {
        let random = RandomState::new().build_hasher().finish() | 1;
        Self { told: Vec::new(), shares: HashMap::new(), untold: 0, random }
    }
}

impl OpenedFlows {
    /// Adds a flow; its flags in the table show the initiator. `reason`: why it passed, unless the node began it, which
    /// no policy can deny.
    pub(super) fn add_flow(&mut self, tuple: &EndpointFlow, flags: u16, reason: Reason) {
        let began = [(Direction::Ingress, CT_INGRESS), (Direction::Egress, CT_EGRESS)];
        for (direction, _) in began.into_iter().filter(|(_, flag)| flags & flag != 0) {
            let by_node = direction == Direction::Ingress && flags & CT_NODE != 0;
            let reason = if by_node { Reason::Node } else { reason };
            self.take_in(tuple.endpoint, || JournalEvent::flow(tuple, direction, reason));
        }
    }

    fn take_in(&mut self, endpoint: u32, seen: impl FnOnce() -> JournalEvent) {
        if self.told.len() < SAMPLE {
            self.told.push(seen());
            *self.shares.entry(endpoint).or_default() += 1;
            return;
        }
        self.untold += 1;
        let share = self.shares.get(&endpoint).copied().unwrap_or(0);
        let place = if share < ASSURED_PER_POD {
            let places: [usize; TRIES] = std::array::from_fn(|_| self.below(SAMPLE));
            places.into_iter().find(|place| self.may_displace(*place))
        } else {
            // Reservoir sampling: each flow so far is in the sample with the same probability.
            let met = SAMPLE + usize::try_from(self.untold).unwrap_or(usize::MAX / 2);
            Some(self.below(met)).filter(|place| *place < SAMPLE && self.may_displace(*place))
        };
        let Some(told) = place.and_then(|place| self.told.get_mut(place)) else { return };
        let former = std::mem::replace(told, seen()).packet.endpoint;
        self.shares.entry(former).and_modify(|share| *share -= 1);
        *self.shares.entry(endpoint).or_default() += 1;
    }

    /// Returns whether a flow of the sample may be displaced: its pod has enough others.
    fn may_displace(&self, place: usize) -> bool {
        let share = self.told.get(place).and_then(|seen| self.shares.get(&seen.packet.endpoint));
        share.is_some_and(|share| *share > ASSURED_PER_POD)
    }

    /// Returns a random number below `end` (xorshift).
    fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % end as u64) as usize
    }

    /// Takes the reported flows, and the number of the others.
    pub(super) fn take_flows(&mut self) -> (Vec<JournalEvent>, u64) {
        self.shares.clear();
        (std::mem::take(&mut self.told), std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn meet(opened: &mut OpenedFlows, endpoint: u32, flows: std::ops::Range<u32>) {
        for number in flows {
            let remote = Ipv4Addr::from(number).into();
            let (local_port, remote_port, protocol) = (80, 4000, 6);
            let tuple = EndpointFlow { endpoint, remote, local_port, remote_port, protocol };
            opened.add_flow(&tuple, CT_INGRESS, Reason::Allowed);
        }
    }

    #[test]
    fn few_flows_are_all_told_and_of_many_some_from_all_over() {
        let mut opened = OpenedFlows::default();
        meet(&mut opened, 1, 0..SAMPLE as u32);
        let (told, untold) = opened.take_flows();
        assert_eq!((told.len(), untold), (SAMPLE, 0));
        let all = 16 * SAMPLE as u32;
        meet(&mut opened, 1, 0..all);
        let (told, untold) = opened.take_flows();
        assert_eq!((told.len(), untold), (SAMPLE, u64::from(all) - SAMPLE as u64));
        let number = |seen: &JournalEvent| {
            let Some(IpAddr::V4(address)) = seen.packet.remote else { panic!("{seen:?}") };
            address.to_bits()
        };
        // A quarter of the flows has about a quarter of the sample; the margin is six standard deviations.
        for quarter in 0..4 {
            let of = quarter * all / 4..(quarter + 1) * all / 4;
            let some = told.iter().filter(|seen| of.contains(&number(seen))).count();
            assert!(some.abs_diff(SAMPLE / 4) < 170, "{some} of quarter {quarter}");
        }
    }

    #[test]
    fn a_flood_of_flows_hides_no_other_pods() {
        let mut opened = OpenedFlows::default();
        meet(&mut opened, 1, 0..20_000);
        (2..50).for_each(|endpoint| meet(&mut opened, endpoint, 0..10));
        meet(&mut opened, 1, 20_000..40_000);
        let (told, untold) = opened.take_flows();
        assert_eq!((told.len() as u64 + untold, told.len()), (40_480, SAMPLE));
        for endpoint in 2..50 {
            let some = told.iter().filter(|seen| seen.packet.endpoint == endpoint).count();
            assert_eq!(some, 10, "of endpoint {endpoint}");
        }
        assert_eq!(opened.take_flows().1, 0);
    }
}
