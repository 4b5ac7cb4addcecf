//! Sets of ports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use netpold_core::model::{PortMatch, PortRule, Protocol};
use netpold_core::probe::IpProtocol;

/// Least number of consecutive ports that form a range.
const ROW: usize = 3;

/// Ports of each protocol, or everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LearnedPorts {
    /// Whether every protocol and port is part of the set.
    pub all: bool,
    /// Ports of protocols with ports.
    pub some: BTreeMap<Protocol, BTreeSet<u16>>,
}

impl LearnedPorts {
    /// Creates a set of one port; for a protocol without ports, the set is everything.
    #[must_use]
    pub fn single(number: IpProtocol, port: u16) -> Self {
        match number.transport() {
            Some(protocol) => {
                let some = BTreeMap::from([(protocol, BTreeSet::from([port]))]);
                Self { all: false, some }
            }
            None => Self { all: true, some: BTreeMap::new() },
        }
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.all && self.some.is_empty()
    }

    /// Returns whether the set contains a port.
    #[must_use]
    pub fn contains(&self, number: IpProtocol, port: u16) -> bool {
        let of = number.transport().and_then(|protocol| self.some.get(&protocol));
        self.all || of.is_some_and(|ports| ports.contains(&port))
    }

    /// Adds all ports of another set.
    pub fn add(&mut self, more: &Self) {
        self.all |= more.all;
        for (protocol, ports) in &more.some {
            self.some.entry(*protocol).or_default().extend(ports);
        }
    }

    /// Returns the difference to another set. Everything minus some ports counts as everything.
    #[must_use]
    pub fn without(&self, others: &Self) -> Self {
        if others.all {
            return Self::default();
        }
        let mut rest = Self { all: self.all, some: BTreeMap::new() };
        for (protocol, ports) in self.some.iter().filter(|_| !self.all) {
            let known = others.some.get(protocol);
            let is_new = |port: &&u16| known.is_none_or(|known| !known.contains(port));
            let left: BTreeSet<u16> = ports.iter().filter(is_new).copied().collect();
            if !left.is_empty() {
                rest.some.insert(*protocol, left);
            }
        }
        rest
    }

    /// Returns the ranges, both ends included, by protocol.
    fn ranges(&self) -> Vec<(Protocol, u16, u16)> {
        let mut ranges: Vec<(Protocol, u16, u16)> = Vec::new();
        for (protocol, ports) in &self.some {
            let mut rows: Vec<Vec<u16>> = Vec::new();
            for port in ports {
                match rows.last_mut() {
                    Some(row)
                        if row.last().is_some_and(|end| end.checked_add(1) == Some(*port)) =>
                    {
                        row.push(*port);
                    }
                    _ => rows.push(vec![*port]),
                }
            }
            for row in rows {
                match row[..] {
                    [first, .., last] if row.len() >= ROW => ranges.push((*protocol, first, last)),
                    _ => ranges.extend(row.into_iter().map(|port| (*protocol, port, port))),
                }
            }
        }
        ranges
    }

    /// Returns the `ports` of a rule.
    #[must_use]
    pub fn rules(&self) -> Option<Vec<PortRule>> {
        let rule =
            |(protocol, first, last)| PortRule { protocol, port: PortMatch::Range(first, last) };
        (!self.all).then(|| self.ranges().into_iter().map(rule).collect())
    }
}

/// Formats as `TCP 80,8080-8090, UDP 53`.
impl fmt::Display for LearnedPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.all {
            return f.write_str("everything");
        }
        let mut last = None;
        for (protocol, first, end) in self.ranges() {
            match last {
                Some(before) if before == protocol => f.write_str(",")?,
                Some(_) => write!(f, ", {protocol} ")?,
                None => write!(f, "{protocol} ")?,
            }
            last = Some(protocol);
            write!(f, "{first}")?;
            if first != end {
                write!(f, "-{end}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_in_a_row_are_a_range() {
        let mut ports = LearnedPorts::default();
        for port in [80, 81, 443, 65534, 65535, 65533] {
            ports.add(&LearnedPorts::single(IpProtocol::TCP, port));
        }
        ports.add(&LearnedPorts::single(IpProtocol::UDP, 53));
        assert_eq!(ports.to_string(), "TCP 80,81,443,65533-65535, UDP 53");
        assert!(ports.contains(IpProtocol::UDP, 53) && !ports.contains(IpProtocol::UDP, 80));
        assert_eq!(ports.rules().unwrap().len(), 5);
        let rest = ports.without(&LearnedPorts::single(IpProtocol::UDP, 53));
        assert_eq!(rest.to_string(), "TCP 80,81,443,65533-65535");
        assert!(rest.without(&ports).is_empty());
        let all = LearnedPorts::single(IpProtocol::ICMP, 0);
        assert_eq!((all.rules(), all.to_string()), (None, "everything".to_owned()));
    }
}
