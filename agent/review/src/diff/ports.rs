//! Gained or lost ports, as ranges.

use std::fmt;

use netpold_core::model::Protocol;
use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};

/// Protocols with ports, in display order.
pub(super) const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
/// First destination port.
pub(super) const FIRST_PORT: u16 = 1;

/// Ports of each protocol, and all other protocols.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRanges {
    /// Ranges (both ends included) of TCP, UDP and SCTP, sorted, disjoint and not adjacent.
    ranges: [Vec<(u16, u16)>; 3],
    /// Whether every protocol without ports, ICMP included, is part of the set.
    pub other: bool,
}

/// Range in JSON.
#[derive(Serialize)]
struct Range {
    protocol: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<u16>,
}

impl PortRanges {
    /// Empty set.
    pub const NONE: Self = Self { ranges: [const { Vec::new() }; 3], other: false };

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the set contains a port of a protocol.
    #[must_use]
    pub fn contains(&self, protocol: Protocol, port: u16) -> bool {
        self.ranges_of(protocol).iter().any(|(first, last)| (*first..=*last).contains(&port))
    }

    /// Returns the ranges of a protocol.
    #[must_use]
    pub fn ranges_of(&self, protocol: Protocol) -> &[(u16, u16)] {
        &self.ranges[protocol as usize]
    }

    /// Appends a range that begins after all other ranges of the protocol.
    pub(super) fn push(&mut self, protocol: Protocol, (first, last): (u16, u16)) {
        let ranges = &mut self.ranges[protocol as usize];
        match ranges.last_mut() {
            Some((_, end)) if u32::from(*end) + 1 == u32::from(first) => *end = last,
            _ => ranges.push((first, last)),
        }
    }

    /// Adds all ports of another set.
    pub(super) fn add(&mut self, more: &Self) {
        self.other |= more.other;
        for protocol in PROTOCOLS {
            let mut all = [self.ranges_of(protocol), more.ranges_of(protocol)].concat();
            all.sort_unstable();
            let mut merged: Vec<(u16, u16)> = Vec::new();
            for (first, last) in all {
                match merged.last_mut() {
                    Some((_, end)) if u32::from(first) <= u32::from(*end) + 1 => {
                        *end = last.max(*end);
                    }
                    _ => merged.push((first, last)),
                }
            }
            self.ranges[protocol as usize] = merged;
        }
    }

    /// Every port and protocol.
    pub(super) fn everything() -> Self {
        Self { ranges: [const { (FIRST_PORT, u16::MAX) }; 3].map(|all| vec![all]), other: true }
    }

    /// Returns the ports that are in both sets.
    pub(super) fn intersection(&self, with: &Self) -> Self {
        let mut both = Self { other: self.other && with.other, ..Self::NONE };
        for protocol in PROTOCOLS {
            for (first, last) in self.ranges_of(protocol) {
                let overlapping = with
                    .ranges_of(protocol)
                    .iter()
                    .filter(|(other, end)| other <= last && end >= first);
                for (other, end) in overlapping {
                    both.push(protocol, (*first.max(other), *last.min(end)));
                }
            }
        }
        both
    }

    /// Returns the ports that are not in another set.
    pub(super) fn without(&self, other: &Self) -> Self {
        let mut outside = Self { other: !other.other, ..Self::NONE };
        for protocol in PROTOCOLS {
            let mut next = u32::from(FIRST_PORT);
            for (first, last) in other.ranges_of(protocol) {
                if u32::from(*first) > next {
                    outside.push(protocol, (next as u16, first - 1));
                }
                next = u32::from(*last) + 1;
            }
            if let Ok(next) = u16::try_from(next) {
                outside.push(protocol, (next, u16::MAX));
            }
        }
        self.intersection(&outside)
    }

    fn is_everything(&self) -> bool {
        self.other && PROTOCOLS.iter().all(|protocol| is_whole(self.ranges_of(*protocol)))
    }
}

fn is_whole(ranges: &[(u16, u16)]) -> bool {
    *ranges == [(FIRST_PORT, u16::MAX)]
}

impl fmt::Display for PortRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_everything() {
            return f.write_str("everything");
        }
        let mut parts = Vec::new();
        for protocol in PROTOCOLS {
            let ranges = self.ranges_of(protocol);
            let texts: Vec<String> = ranges
                .iter()
                .map(|(first, last)| match first == last {
                    true => first.to_string(),
                    false => format!("{first}-{last}"),
                })
                .collect();
            match texts[..] {
                [] => {}
                _ if is_whole(ranges) => parts.push(format!("every {protocol} port")),
                _ => parts.push(format!("{protocol} {}", texts.join(","))),
            }
        }
        if self.other {
            parts.push("ICMP and other protocols".to_owned());
        }
        f.write_str(&parts.join(", "))
    }
}

impl Serialize for PortRanges {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for protocol in PROTOCOLS {
            for (first, last) in self.ranges_of(protocol) {
                let (first, last) = (Some(*first), Some(*last));
                list.serialize_element(&Range { protocol: protocol.to_string(), first, last })?;
            }
        }
        if self.other {
            let protocol = "other".to_owned();
            list.serialize_element(&Range { protocol, first: None, last: None })?;
        }
        list.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(protocol: Protocol, ranges: &[(u16, u16)]) -> PortRanges {
        let mut ports = PortRanges::default();
        ranges.iter().for_each(|range| ports.push(protocol, *range));
        ports
    }

    #[test]
    fn ranges_that_touch_or_overlap_are_one() {
        let mut all = ports(Protocol::Tcp, &[(1, 79), (80, 80), (443, 443)]);
        assert_eq!(all.ranges_of(Protocol::Tcp), [(1, 80), (443, 443)]);
        all.add(&ports(Protocol::Tcp, &[(50, 442), (60000, u16::MAX)]));
        all.add(&ports(Protocol::Udp, &[(53, 53)]));
        assert_eq!(all.to_string(), "TCP 1-443,60000-65535, UDP 53");
        assert!(all.contains(Protocol::Udp, 53) && !all.contains(Protocol::Udp, 54));
    }

    #[test]
    fn sets_intersect_and_lack_each_other() {
        let some = ports(Protocol::Tcp, &[(1, 80), (443, 500), (u16::MAX, u16::MAX)]);
        let more = ports(Protocol::Tcp, &[(80, 443), (450, 450)]);
        let text = |ports: PortRanges| ports.to_string();
        assert_eq!(text(some.intersection(&more)), "TCP 80,443,450");
        assert_eq!(text(some.without(&more)), "TCP 1-79,444-449,451-500,65535");
        assert_eq!(text(more.without(&some)), "TCP 81-442");
        let everything = PortRanges::everything();
        assert_eq!(everything.to_string(), "everything");
        assert_eq!(some.intersection(&everything), some);
        assert_eq!(some.without(&PortRanges::NONE), some);
        assert!(some.without(&everything).is_empty() && some.without(&some).is_empty());
        assert_eq!(everything.without(&everything.without(&some)), some);
    }

    #[test]
    fn whole_protocols_are_named() {
        let mut all = PortRanges { other: true, ..PortRanges::default() };
        assert_eq!(all.to_string(), "ICMP and other protocols");
        for protocol in PROTOCOLS {
            assert!(!all.is_everything());
            all.add(&ports(protocol, &[(1, u16::MAX)]));
        }
        assert_eq!(all.to_string(), "everything");
        assert_eq!(ports(Protocol::Sctp, &[(1, u16::MAX)]).to_string(), "every SCTP port");
    }
}
