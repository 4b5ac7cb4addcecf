//! Ports granted to a set of addresses.

pub(crate) mod blocks;
pub(crate) mod tries;

use crate::model::Protocol;
use tries::{ALL, NAME, NONE, PORT, Trie, Tries};

/// Flag that distinguishes the numbers of rules from those of names. A rule of a tier is not a grant: its effect
/// depends on all rules before it. So sets and blocks carry the numbers of the rules with them as peers, merged by the
/// same unions as grants.
pub(crate) const MARK: u32 = 1 << (NAME - 1);

/// Ports granted per protocol and by name. Equal grants are equal values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct AllowedPorts {
    /// TCP, UDP and SCTP destination ports.
    ports: [Trie; 3],
    /// Numbers of port names, which each destination resolves itself (egress), and, with [`MARK`], numbers of matching
    /// rules of tiers.
    pub(crate) names: Trie,
    /// All other protocols, including ICMP.
    pub(crate) other: bool,
}

impl AllowedPorts {
    /// Every protocol and port.
    pub(crate) const EVERYTHING: Self = Self { ports: [ALL; 3], names: NONE, other: true };

    /// Whether nothing is granted.
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The ports of a protocol.
    pub(crate) fn for_protocol(&self, protocol: Protocol) -> Trie {
        self.ports[protocol as usize]
    }

    /// All four tries.
    pub(crate) fn sets(&self) -> [Trie; 4] {
        let [tcp, udp, sctp] = self.ports;
        [tcp, udp, sctp, self.names]
    }

    /// The grant with each trie mapped by `set`.
    pub(crate) fn map(&self, mut set: impl FnMut(Trie) -> Trie) -> Self {
        Self { ports: self.ports.map(&mut set), names: set(self.names), other: self.other }
    }

    /// Adds a range of ports, both ends included; a range with `first` above `last` is empty.
    pub(crate) fn add(&mut self, protocol: Protocol, first: u16, last: u16, tries: &mut Tries) {
        if first <= last {
            let range = tries.range(PORT, first.into(), last.into());
            self.add_ports(protocol, range, tries);
        }
    }

    /// Adds ports.
    pub(crate) fn add_ports(&mut self, protocol: Protocol, ports: Trie, tries: &mut Tries) {
        let known = &mut self.ports[protocol as usize];
        *known = tries.union(*known, ports);
    }

    /// Adds the number of a name.
    pub(crate) fn add_name(&mut self, name: u32, tries: &mut Tries) {
        let name = tries.range(NAME, name, name);
        self.names = tries.union(self.names, name);
    }

    /// A grant of only the mark of a rule.
    pub(crate) fn mark(rule: u32, tries: &mut Tries) -> Self {
        let mut marked = Self::default();
        marked.add_name(MARK | rule, tries);
        marked
    }

    /// Rules with a mark in the grant, in order.
    pub(crate) fn marks(&self, tries: &Tries) -> Vec<u32> {
        tries.upper_half(NAME, self.names)
    }

    /// Difference of two grants, without names.
    pub(crate) fn minus(&self, other: &Self, tries: &mut Tries) -> Self {
        let mut ports = self.ports;
        for (set, less) in ports.iter_mut().zip(other.ports) {
            *set = tries.minus(*set, less);
        }
        Self { ports, names: NONE, other: self.other && !other.other }
    }

    /// Intersection of two grants, without names.
    pub(crate) fn intersection(&self, other: &Self, tries: &mut Tries) -> Self {
        let rest = self.minus(other, tries);
        self.minus(&rest, tries)
    }

    /// Removes a port.
    pub(crate) fn remove(&mut self, protocol: Protocol, port: u16, tries: &mut Tries) {
        let port = tries.range(PORT, port.into(), port.into());
        let known = &mut self.ports[protocol as usize];
        *known = tries.minus(*known, port);
    }

    /// Union of two grants.
    pub(crate) fn union(&self, other: Self, tries: &mut Tries) -> Self {
        let mut ports = self.ports;
        for (set, more) in ports.iter_mut().zip(other.ports) {
            *set = tries.union(*set, more);
        }
        let names = tries.union(self.names, other.names);
        Self { ports, names, other: self.other || other.other }
    }

    /// The lowest port of each protocol, then the lowest name.
    pub(crate) fn lowest(&self, tries: &Tries) -> [Option<u32>; 4] {
        let [tcp, udp, sctp] = self.ports.map(|set| tries.lowest(PORT, set));
        [tcp, udp, sctp, tries.lowest(NAME, self.names)]
    }
}

/// Ports of one protocol: sorted ranges (both ends included) that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ranges(Vec<(u16, u16)>);

impl Ranges {
    fn new(set: Trie, tries: &Tries) -> Self {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        tries.each_range(set, &mut |first, last| match ranges.last_mut() {
            Some((_, end)) if u32::from(*end) + 1 == u32::from(first) => *end = last,
            _ => ranges.push((first, last)),
        });
        Self(ranges)
    }

    /// The ranges.
    #[must_use]
    pub fn ranges(&self) -> &[(u16, u16)] {
        &self.0
    }
}

/// Allowed ports per protocol, written out.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ports {
    /// TCP destination ports.
    pub tcp: Ranges,
    /// UDP destination ports.
    pub udp: Ranges,
    /// SCTP destination ports.
    pub sctp: Ranges,
    /// All other protocols, including ICMP.
    pub other: bool,
}

impl Ports {
    pub(crate) fn new(grant: &AllowedPorts, tries: &Tries) -> Self {
        let [tcp, udp, sctp] = grant.ports.map(|set| Ranges::new(set, tries));
        Self { tcp, udp, sctp, other: grant.other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_ranges_merge_to_one_value() {
        let mut tries = Tries::default();
        let mut split = AllowedPorts::default();
        for (first, last) in [(0, 99), (200, u16::MAX), (100, 199), (5, 4)] {
            split.add(Protocol::Udp, first, last, &mut tries);
        }
        assert_eq!(split.for_protocol(Protocol::Udp), ALL);
        let mut odd = AllowedPorts::default();
        odd.add(Protocol::Tcp, 80, 82, &mut tries);
        odd.add(Protocol::Tcp, 83, 90, &mut tries);
        assert_eq!(Ports::new(&odd, &tries).tcp.ranges(), [(80, 90)]);
    }
}
