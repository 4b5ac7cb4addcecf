//! Bridges that must pass no packet to the node without the proof of a judgement; the rule is in
//! [`netpold_ebpf::judge::proof`].
//!
//! The demand on a bridge begins once each of its ports has a program that leaves the proof, and outlives agents and
//! generations. Netlink reports a new port without a program: until it has one, only packets with an endpoint's source
//! are certain to come from another port ([`BRIDGE_OPEN`]).

use std::collections::{BTreeMap, BTreeSet};

use netpold_ebpf::layout::{BRIDGE_GONE, BRIDGE_ISOLATED, BRIDGE_OPEN, BRIDGES, bridge_ifindex};

use super::role::{Role, Roles};

/// A bridge with pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bridge {
    /// Ports of the bridge, by interface index.
    pub ports: BTreeSet<u32>,
    /// Whether policy isolates one of its pods for egress.
    pub isolated: bool,
}

/// Bridges with pods, and the ports with programs: the basis of the demands on bridges.
#[derive(Debug, Default)]
pub(super) struct Bridges {
    /// Bridges by interface index.
    known: BTreeMap<u32, Bridge>,
    /// Interfaces with a program of any generation that leaves the proof.
    proving: BTreeSet<u32>,
}

impl Bridges {
    /// Sets the bridges with pods.
    pub(super) fn are(&mut self, bridges: BTreeMap<u32, Bridge>) {
        self.known = bridges;
    }

    /// Adds interfaces with programs of an earlier agent that leave the proof.
    pub(super) fn prove(&mut self, interfaces: impl IntoIterator<Item = u32>) {
        self.proving.extend(interfaces);
    }

    /// Records the role of the programs at an interface.
    pub(super) fn attached(&mut self, ifindex: u32, role: Role) {
        if role.proves() {
            self.proving.insert(ifindex);
        } else {
            self.proving.remove(&ifindex);
        }
    }

    /// Records that an interface has lost its programs, or is gone.
    pub(super) fn detached(&mut self, ifindex: u32) {
        self.proving.remove(&ifindex);
    }

    /// Drops interfaces that are not wanted any more, before they lose their programs.
    pub(super) fn leaves(&mut self, wanted: &Roles) {
        self.proving.retain(|ifindex| wanted.get(ifindex).is_some_and(|role| role.proves()));
    }

    /// Whether an interface is a port without a program, of a bridge with a demand already.
    pub(super) fn waits_for(&self, ifindex: u32, role: Role, demanded: &[u32; BRIDGES]) -> bool {
        let mut bridges = demanded.iter().filter_map(|word| self.known.get(&bridge_ifindex(*word)));
        role.proves()
            && !self.proving.contains(&ifindex)
            && bridges.any(|bridge| bridge.ports.contains(&ifindex))
    }

    /// Word of a bridge in [`netpold_ebpf::layout::Settings::bridges`]; `None` if it has no pods.
    fn word(&self, bridge: u32) -> Option<u32> {
        let it = self.known.get(&bridge)?;
        let isolated = if it.isolated { BRIDGE_ISOLATED } else { 0 };
        let open = if it.ports.is_subset(&self.proving) { 0 } else { BRIDGE_OPEN };
        Some(bridge | isolated | open)
    }

    /// Words of the bridges where all ports leave the proof.
    fn complete(&self) -> impl Iterator<Item = u32> {
        let words = self.known.keys().filter_map(|bridge| self.word(*bridge));
        words.filter(|word| word & BRIDGE_OPEN == 0)
    }

    /// Words after `now` without new demands: only bridges that still have pods.
    pub(super) fn kept(&self, now: &[u32; BRIDGES]) -> [u32; BRIDGES] {
        tidy(now.map(|word| self.word(bridge_ifindex(word)).unwrap_or(0)))
    }

    /// Words after `now` with all possible demands; and the bridges without a place.
    pub(super) fn demanded(&self, now: &[u32; BRIDGES]) -> ([u32; BRIDGES], Vec<u32>) {
        let (mut words, mut left) = (self.kept(now), Vec::new());
        for word in self.complete() {
            if words.contains(&word) {
                continue;
            }
            match words.iter_mut().find(|place| bridge_ifindex(**place) == 0) {
                Some(place) => *place = word,
                None => left.push(bridge_ifindex(word)),
            }
        }
        (words, left)
    }
}

/// Ends the list with zeros, where programs stop reading, and marks earlier free places as [`BRIDGE_GONE`].
fn tidy(mut words: [u32; BRIDGES]) -> [u32; BRIDGES] {
    let end = words.iter().rposition(|word| bridge_ifindex(*word) != 0).map_or(0, |last| last + 1);
    words[end..].fill(0);
    words[..end].iter_mut().filter(|word| **word == 0).for_each(|word| *word = BRIDGE_GONE);
    words
}

#[cfg(test)]
mod tests {
    use super::super::role::DeviceLink;
    use super::*;

    fn bridge(ports: &[u32], isolated: bool) -> Bridge {
        Bridge { ports: ports.iter().copied().collect(), isolated }
    }

    fn first<const N: usize>(words: [u32; N]) -> [u32; BRIDGES] {
        std::array::from_fn(|place| words.get(place).copied().unwrap_or(0))
    }

    #[test]
    fn a_bridge_proves_all_once_each_of_its_ports_does() {
        let mut bridges = Bridges::default();
        let complete = |bridges: &Bridges| bridges.complete().collect::<Vec<_>>();
        bridges.known = [(2, bridge(&[5, 6], true)), (3, bridge(&[7], false))].into();
        assert!(complete(&bridges).is_empty());
        bridges.attached(5, Role::Pod(1));
        bridges.attached(6, Role::Device(DeviceLink::Ethernet));
        bridges.attached(7, Role::Device(DeviceLink::EthernetTunnel));
        assert_eq!(complete(&bridges), [3], "an uplink proves nothing by itself");
        let waits = |port, role| bridges.waits_for(port, role, &first([3, 2]));
        assert!(waits(6, Role::Device(DeviceLink::Port)), "so its program comes first");
        assert!(!waits(6, Role::Device(DeviceLink::Ethernet)), "which leaves no proof");
        assert!(!waits(7, Role::Device(DeviceLink::Port)), "it has one");
        assert!(!waits(9, Role::Pod(1)), "no port");
        assert!(!bridges.waits_for(6, Role::Pod(1), &first([3])), "nothing is demanded yet");
        bridges.attached(6, Role::Device(DeviceLink::Port));
        assert_eq!(complete(&bridges), [2 | BRIDGE_ISOLATED, 3]);
        bridges.known.insert(2, bridge(&[5, 6, 8], true));
        assert_eq!(complete(&bridges), [3], "a port that has just come");
        bridges.attached(8, Role::Device(DeviceLink::Veth));
        bridges.attached(8, Role::Pod(2));
        assert_eq!(complete(&bridges).len(), 2);
        bridges.detached(5);
        bridges.attached(7, Role::Device(DeviceLink::Ethernet));
        assert!(complete(&bridges).is_empty());
    }

    #[test]
    fn what_is_demanded_of_a_bridge_lapses_with_its_pods_alone() {
        let mut bridges = Bridges::default();
        let nothing = [0; BRIDGES];
        bridges.known = [(2, bridge(&[5], true)), (3, bridge(&[6], false))].into();
        assert_eq!(bridges.demanded(&nothing), (nothing, vec![]), "no program anywhere");
        bridges.attached(5, Role::Pod(1));
        bridges.attached(6, Role::Pod(2));
        let isolated = 2 | BRIDGE_ISOLATED;
        assert_eq!(bridges.kept(&nothing), nothing, "more is demanded after the attachment alone");
        let (both, _) = bridges.demanded(&nothing);
        assert_eq!(both, first([isolated, 3]));
        bridges.known.insert(2, bridge(&[5, 7], true));
        let open = first([isolated | BRIDGE_OPEN, 3]);
        assert_eq!(bridges.kept(&both), open);
        assert_eq!(bridges.demanded(&open), (open, vec![]), "until the port has its program");
        bridges.attached(7, Role::Device(DeviceLink::Veth));
        assert_eq!(bridges.demanded(&open), (both, vec![]));
        bridges.known.remove(&2);
        let second = first([BRIDGE_GONE, 3]);
        assert_eq!(bridges.kept(&both), second, "programs look beyond it");
        bridges.known.insert(4, bridge(&[5], false));
        assert_eq!(bridges.demanded(&second), (first([4, 3]), vec![]), "its place is free");
        bridges.known.remove(&3);
        assert_eq!(bridges.kept(&first([4, 3])), first([4]));
    }

    #[test]
    fn more_bridges_than_there_are_places_are_named() {
        let last = BRIDGES as u32 + 2;
        let known = (1..=last).map(|index| (index, bridge(&[100 + index], false))).collect();
        let mut bridges = Bridges { known, ..Bridges::default() };
        (1..=last).for_each(|index| bridges.attached(100 + index, Role::Pod(index)));
        let (words, left) = bridges.demanded(&[0; BRIDGES]);
        assert_eq!(words.len() + left.len(), last as usize);
        assert!(words.into_iter().chain(left.clone()).eq(1..=last));
        assert_eq!(bridges.demanded(&words), (words, left));
    }
}
