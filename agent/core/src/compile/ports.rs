//! Sets of ports, canonical: equal sets are equal values.

use netpold_ebpf::layout::PortBitmap;

use crate::model::Protocol;

/// Ports of one protocol: sorted ranges (both ends included) that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ranges(Vec<(u16, u16)>);

impl Ranges {
    /// Every port.
    #[must_use]
    pub fn all() -> Self {
        Self(vec![(0, u16::MAX)])
    }

    /// Whether this is every port.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.0 == [(0, u16::MAX)]
    }

    /// Whether there is no port.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges.
    #[must_use]
    pub fn ranges(&self) -> &[(u16, u16)] {
        &self.0
    }

    /// Whether a port is in it.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        let next = self.0.partition_point(|(_, last)| *last < port);
        self.0.get(next).is_some_and(|(first, _)| *first <= port)
    }

    /// Adds a range, both ends included; an inverted one is empty.
    pub fn add(&mut self, first: u16, last: u16) {
        if first > last {
            return;
        }
        // Ranges that overlap or touch the new one are merged with it.
        let start = self.0.partition_point(|(_, l)| u32::from(*l) + 1 < u32::from(first));
        let end = self.0.partition_point(|(f, _)| u32::from(*f) <= u32::from(last) + 1);
        let (mut first, mut last) = (first, last);
        for (f, l) in &self.0[start..end] {
            first = first.min(*f);
            last = last.max(*l);
        }
        self.0.splice(start..end, [(first, last)]);
    }

    /// Adds all of another set.
    pub fn union(&mut self, other: &Self) {
        if self.is_empty() {
            self.0.clone_from(&other.0);
            return;
        }
        for (first, last) in &other.0 {
            self.add(*first, *last);
        }
    }

    /// As the packet path reads it.
    pub(crate) fn bitmap(&self) -> Box<PortBitmap> {
        let mut words = Box::new([0u64; 1024]);
        for (first, last) in &self.0 {
            for (index, word) in words.iter_mut().enumerate().take(usize::from(last >> 6) + 1) {
                let base = (index as u32) << 6;
                if base + 63 < u32::from(*first) {
                    continue;
                }
                let from = u32::from(*first).saturating_sub(base);
                let to = (u32::from(*last) - base).min(63);
                *word |= (u64::MAX << from) & (u64::MAX >> (63 - to));
            }
        }
        words
    }
}

/// What is allowed of every protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ports {
    /// TCP destination ports.
    pub tcp: Ranges,
    /// UDP destination ports.
    pub udp: Ranges,
    /// SCTP destination ports.
    pub sctp: Ranges,
    /// Every other protocol, ICMP included.
    pub other: bool,
}

impl Ports {
    /// Every protocol and port.
    #[must_use]
    pub fn all() -> Self {
        Self { tcp: Ranges::all(), udp: Ranges::all(), sctp: Ranges::all(), other: true }
    }

    /// Whether nothing is allowed.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.tcp.is_empty() && self.udp.is_empty() && self.sctp.is_empty() && !self.other
    }

    /// Whether everything is allowed.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.tcp.is_all() && self.udp.is_all() && self.sctp.is_all() && self.other
    }

    /// The ports of a protocol.
    #[must_use]
    pub fn of(&self, protocol: Protocol) -> &Ranges {
        match protocol {
            Protocol::Tcp => &self.tcp,
            Protocol::Udp => &self.udp,
            Protocol::Sctp => &self.sctp,
        }
    }

    /// The ports of a protocol.
    pub fn of_mut(&mut self, protocol: Protocol) -> &mut Ranges {
        match protocol {
            Protocol::Tcp => &mut self.tcp,
            Protocol::Udp => &mut self.udp,
            Protocol::Sctp => &mut self.sctp,
        }
    }

    /// Adds all of another set.
    pub fn union(&mut self, other: &Self) {
        self.tcp.union(&other.tcp);
        self.udp.union(&other.udp);
        self.sctp.union(&other.sctp);
        self.other |= other.other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn touching_ranges_merge_to_one_value() {
        let mut split = Ranges::default();
        split.add(0, 99);
        split.add(200, u16::MAX);
        split.add(100, 199);
        assert!(split.is_all());
        split.add(5, 4);
        assert_eq!(split, Ranges::all());
    }

    proptest! {
        #[test]
        fn bitmap_and_ranges_hold_what_was_added(
            added in prop::collection::vec((0u16.., 0u16..3000), 0..8),
            probes in prop::collection::vec(0u16.., 32),
        ) {
            let mut ranges = Ranges::default();
            let added: Vec<_> = added.into_iter().map(|(f, n)| (f, f.saturating_add(n))).collect();
            for (first, last) in &added {
                ranges.add(*first, *last);
            }
            let bitmap = ranges.bitmap();
            let edges = added.iter().flat_map(|(f, l)| {
                [*f, *l, f.wrapping_sub(1), l.wrapping_add(1)]
            });
            for port in edges.chain(probes) {
                let expected = added.iter().any(|(f, l)| (*f..=*l).contains(&port));
                let bit = bitmap[usize::from(port >> 6)] >> (port & 63) & 1 == 1;
                prop_assert_eq!(bit, expected);
                let inside = ranges.ranges().iter().any(|(f, l)| (*f..=*l).contains(&port));
                prop_assert_eq!(inside, expected);
                prop_assert_eq!(ranges.contains(port), expected);
            }
            let gaps = ranges.ranges().windows(2).all(|w| u32::from(w[0].1) + 1 < u32::from(w[1].0));
            prop_assert!(gaps, "ranges touch: {:?}", ranges);
        }
    }
}
