//! Grants of the ipBlocks in one direction's rules, by address, computed by a sweep over the blocks' prefixes.
//!
//! An address has the union of the grants of all blocks that contain it outside their exceptions. 10,000 blocks with
//! one exception each yield 10,000 addresses, each in all blocks but one, so sets of blocks are never materialized. The
//! sweep visits all prefixes in order, maintains the grants in force, and records their union. Adjacent prefixes differ
//! in few grants, so in a tree of unions over the grants, only the paths of these grants are recomputed, and within
//! each union (`tries`) only the ports that differ.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;

use crate::model::{Direction, IpBlock, Peer, Policy, PortMatch, Protocol, Rule};
use crate::ports::AllowedPorts;
use crate::ports::tries::{Trie, Tries};
use crate::prefix::Prefix;

/// Number of the value that grants nothing.
pub(crate) const NOTHING: u32 = 0;

/// The prefixes at which the grant changes, in order, with the number of the value from there on. An address has the
/// value of the longest prefix that contains it.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Changes(pub(crate) Vec<(Prefix, u32)>);

impl Changes {
    /// Number of the value for a prefix's addresses.
    pub(crate) fn at(&self, prefix: Prefix) -> u32 {
        let found = (0..=prefix.len).rev().find_map(|len| {
            let holder = prefix.truncate(len);
            self.0.binary_search_by_key(&holder, |(at, _)| *at).ok()
        });
        found.map_or(NOTHING, |place| self.0[place].1)
    }
}

/// Grants of blocks by address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct BlockMap {
    /// Prefixes at which the grant changes.
    pub(crate) changes: Arc<Changes>,
    /// Values; number `n` is at index `n - 1`.
    values: Vec<AllowedPorts>,
}

impl BlockMap {
    /// Computes the grants of these blocks.
    pub(crate) fn new(blocks: &[(&IpBlock, AllowedPorts)], tries: &mut Tries) -> Self {
        let Some(sweep) = Sweep::new(blocks, tries) else { return Self::default() };
        let (mut map, scratch) = sweep.run(usize::MAX);
        let mut known = HashMap::new();
        for value in &mut map.values {
            *value = value.map(|set| tries.take_over(&scratch, set, &mut known));
        }
        tries.work += scratch.work;
        map
    }

    /// Whether these blocks lead to more than `most` different values.
    fn exceeds(blocks: &[(&IpBlock, AllowedPorts)], tries: &Tries, most: usize) -> bool {
        let sweep = Sweep::new(blocks, tries);
        sweep.is_some_and(|sweep| sweep.run(most).0.values.len() > most)
    }

    /// Number of different values.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// All values except the empty one.
    pub(crate) fn values(&self) -> &[AllowedPorts] {
        &self.values
    }

    /// The value of a number.
    pub(crate) fn value(&self, number: u32) -> AllowedPorts {
        let place = number.checked_sub(1).map(|place| place as usize);
        place.and_then(|place| self.values.get(place)).copied().unwrap_or_default()
    }
}

/// Event at a prefix: block `.1` applies to the prefix or, if `.2`, an exception of the block does.
type BlockEvent = (Prefix, u32, bool);

/// A prefix that contains the position of the sweep.
struct Open {
    prefix: Prefix,
    /// Range of the prefix's events.
    events: std::ops::Range<usize>,
    value: u32,
}

struct Sweep {
    events: Vec<BlockEvent>,
    /// By block: index of its distinct grant.
    grant_of: Vec<u32>,
    grants: Vec<AllowedPorts>,
    /// By block: number of exceptions that contain the position of the sweep.
    cuts: Vec<u32>,
    /// By distinct grant: number of blocks in force.
    counts: Vec<u32>,
    /// Unions of the grants in force: leaves in the upper half; node `n` is the union of `2n` and `2n + 1`.
    tree: Vec<AllowedPorts>,
    /// Leaves that differ from `counts`.
    stale: BTreeSet<usize>,
    tries: Tries,
    numbers: HashMap<AllowedPorts, u32>,
}

impl Sweep {
    /// Prepares a sweep; `None` if no block grants a port.
    fn new(blocks: &[(&IpBlock, AllowedPorts)], of: &Tries) -> Option<Self> {
        let mut tries = Tries::default();
        let (mut known, mut distinct) = (HashMap::new(), HashMap::new());
        let mut grants: Vec<AllowedPorts> = Vec::new();
        let (mut events, mut grant_of) = (Vec::new(), Vec::new());
        for (block, grant) in blocks {
            let cidr = Prefix::net(block.cidr);
            let except = || block.except.iter().map(|except| Prefix::net(*except));
            if grant.is_none() || except().any(|except| except.contains(cidr)) {
                continue;
            }
            let number = *distinct.entry(*grant).or_insert_with(|| {
                grants.push(grant.map(|set: Trie| tries.take_over(of, set, &mut known)));
                grants.len() as u32 - 1
            });
            let block = grant_of.len() as u32;
            grant_of.push(number);
            events.push((cidr, block, false));
            events
                .extend(except().filter(|e| cidr.contains(*e)).map(|except| (except, block, true)));
        }
        if events.is_empty() {
            return None;
        }
        events.sort_unstable();
        // Grants of neighbouring ports are united first, because their tries share the most nodes.
        let mut order: Vec<u32> = (0..grants.len() as u32).collect();
        order.sort_by_key(|number| grants[*number as usize].lowest(&tries));
        let mut places = vec![0; grants.len()];
        (0..).zip(&order).for_each(|(place, number)| places[*number as usize] = place);
        grant_of.iter_mut().for_each(|number| *number = places[*number as usize]);
        let leaves = grants.len().next_power_of_two();
        Some(Self {
            cuts: vec![0; grant_of.len()],
            grant_of,
            counts: vec![0; grants.len()],
            grants: order.iter().map(|number| grants[*number as usize]).collect(),
            tree: vec![AllowedPorts::default(); 2 * leaves],
            stale: BTreeSet::new(),
            events,
            tries,
            numbers: HashMap::new(),
        })
    }

    /// Visits all prefixes; stops early once there are more than `most` values.
    fn run(mut self, most: usize) -> (BlockMap, Tries) {
        let (mut changes, mut values) = (Vec::new(), Vec::new());
        let mut open: Vec<Open> = Vec::new();
        let mut next = 0;
        while let Some((prefix, ..)) = self.events.get(next).copied() {
            while let Some(outer) = open.pop_if(|outer| !outer.prefix.contains(prefix)) {
                self.pass(outer.events, false);
            }
            let same = self.events[next..].iter().take_while(|event| event.0 == prefix).count();
            let events = next..next + same;
            self.pass(events.clone(), true);
            let value = self.value(&mut values);
            if value != open.last().map_or(NOTHING, |outer| outer.value) {
                changes.push((prefix, value));
            }
            if values.len() > most {
                break;
            }
            open.push(Open { prefix, events, value });
            next += same;
        }
        (BlockMap { changes: Arc::new(Changes(changes)), values }, self.tries)
    }

    /// Enters or leaves a prefix.
    fn pass(&mut self, events: std::ops::Range<usize>, inwards: bool) {
        for event in events {
            let (_, block, is_except) = self.events[event];
            let cuts = &mut self.cuts[block as usize];
            let begins = if is_except {
                *cuts = if inwards { *cuts + 1 } else { *cuts - 1 };
                match (inwards, *cuts) {
                    (true, 1) => false,
                    (false, 0) => true,
                    // The exception is nested in another one of the same block.
                    _ => continue,
                }
            } else {
                inwards
            };
            let grant = self.grant_of[block as usize] as usize;
            let count = &mut self.counts[grant];
            *count = if begins { *count + 1 } else { *count - 1 };
            self.stale.insert(grant);
        }
    }

    /// Number of the value at the position of the sweep.
    fn value(&mut self, values: &mut Vec<AllowedPorts>) -> u32 {
        let leaves = self.tree.len() / 2;
        let mut above = Vec::new();
        for leaf in std::mem::take(&mut self.stale) {
            let grant =
                if self.counts[leaf] > 0 { self.grants[leaf] } else { AllowedPorts::default() };
            if self.tree[leaves + leaf] != grant {
                self.tree[leaves + leaf] = grant;
                above.push(usize::midpoint(leaves, leaf));
            }
        }
        above.dedup();
        while above.first().is_some_and(|node| *node > 0) {
            for node in &above {
                let [one, other] = [self.tree[2 * node], self.tree[2 * node + 1]];
                self.tree[*node] = one.union(other, &mut self.tries);
            }
            above.iter_mut().for_each(|node| *node /= 2);
            above.dedup();
        }
        let all = self.tree[1];
        if all.is_none() {
            return NOTHING;
        }
        let number = *self.numbers.entry(all).or_insert_with(|| {
            values.push(all);
            values.len() as u32
        });
        if self.tries.is_large() {
            let used = self.grants.iter().chain(&self.tree).chain(values.iter());
            self.tries.collect(used.flat_map(AllowedPorts::sets));
        }
        number
    }
}

/// Whether a policy's blocks lead to more than `most` different port sets in a direction.
pub(crate) fn exceeds_port_sets(policy: &Policy, direction: Direction, most: usize) -> bool {
    let mut tries = Tries::default();
    let mut names = BTreeMap::new();
    let mut granted = Vec::new();
    for rule in policy.rules(direction).unwrap_or_default() {
        let Some(peers) = &rule.peers else { continue };
        let blocks = peers.iter().filter_map(|peer| match peer {
            Peer::Block(block) => Some(block),
            Peer::Pods { .. } | Peer::Nodes(_) | Peer::Domain(_) => None,
        });
        let grant = grant(rule, &mut names, &mut tries);
        granted.extend(blocks.map(|block| (block, grant)));
    }
    BlockMap::exceeds(&granted, &tries, most)
}

/// Grant of a rule, with the caller's numbers for port names.
pub(crate) fn grant<'a>(
    rule: &'a Rule,
    names: &mut BTreeMap<(Protocol, &'a str), u32>,
    tries: &mut Tries,
) -> AllowedPorts {
    let Some(ports) = &rule.ports else { return AllowedPorts::EVERYTHING };
    let mut grant = AllowedPorts::default();
    for port in ports {
        match &port.port {
            PortMatch::Any => grant.add(port.protocol, 0, u16::MAX, tries),
            PortMatch::Range(first, last) => grant.add(port.protocol, *first, *last, tries),
            PortMatch::Named(name) => {
                let next = names.len() as u32;
                grant.add_name(*names.entry((port.protocol, name)).or_insert(next), tries);
            }
        }
    }
    grant
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::model::Protocol;
    use crate::ports::tries::PORT;
    use proptest::prelude::*;

    fn grant(tries: &mut Tries, port: u16) -> AllowedPorts {
        let mut grant = AllowedPorts::default();
        grant.add(Protocol::Tcp, port, port, tries);
        grant
    }

    proptest! {
        /// Compares the map of blocks with few, nested prefixes with an evaluation of each block.
        #[test]
        fn equals_an_evaluation_of_each_block(
            blocks in prop::collection::vec(
                ((0u8..8, 0u8..=5), prop::collection::vec((0u8..8, 0u8..=5), 0..4), 0u16..6),
                0..12,
            ),
        ) {
            // Addresses 0.0.0.0 to 7, and all others.
            let net = |(low, len): (u8, u8)| {
                let length = [0, 8, 29, 30, 31, 32][usize::from(len)];
                let address = IpAddr::from([0, 0, 0, low]);
                ipnet::IpNet::new(address, length).unwrap().trunc()
            };
            let blocks: Vec<(IpBlock, u16)> = blocks.into_iter().map(|(cidr, except, port)| {
                let except = except.into_iter().map(net).collect();
                (IpBlock { cidr: net(cidr), except }, port)
            }).collect();
            let mut tries = Tries::default();
            let granted: Vec<(&IpBlock, AllowedPorts)> =
                blocks.iter().map(|(block, port)| (block, grant(&mut tries, *port))).collect();
            let map = BlockMap::new(&granted, &mut tries);
            for low in 0..12u8 {
                for address in [[0, 0, 0, low], [0, 1, 0, low], [9, 0, 0, low]] {
                    let address = IpAddr::from(address);
                    let value = map.value(map.changes.at(Prefix::host(address)));
                    for port in 0..6 {
                        let expected =
                            blocks.iter().any(|(b, granted)| *granted == port && b.contains(address));
                        let found = tries.contains(PORT, value.for_protocol(Protocol::Tcp), port.into());
                        prop_assert_eq!(found, expected, "{} {}", address, port);
                    }
                }
            }
        }
    }

    /// Work of a sweep over rules that each allow one port to everything but one address.
    fn work(rules: u32, port: impl Fn(u32) -> u16) -> u64 {
        let mut tries = Tries::default();
        let blocks: Vec<(IpBlock, AllowedPorts)> = (0..rules)
            .map(|n| {
                let host = std::net::Ipv4Addr::from_bits(n.wrapping_mul(0x9e37_79b1));
                let except = vec![ipnet::IpNet::new(host.into(), 32).unwrap()];
                let block = IpBlock { cidr: "0.0.0.0/0".parse().unwrap(), except };
                (block, grant(&mut tries, port(n)))
            })
            .collect();
        let blocks: Vec<_> = blocks.iter().map(|(block, grant)| (block, *grant)).collect();
        let map = BlockMap::new(&blocks, &mut tries);
        assert_eq!(map.len(), rules as usize + 1);
        tries.work
    }

    #[test]
    fn work_is_about_linear_in_the_rules() {
        // Ports far apart share less of their tries: n log² n.
        type BlockShape = (&'static str, u64, fn(u32) -> u16);
        let shapes: [BlockShape; 2] =
            [("in order", 23, |n| n as u16), ("scattered", 26, |n| (n as u16).reverse_bits())];
        for (shape, tenths, port) in shapes {
            let figures: Vec<u64> = [1000, 2000, 4000, 8000].map(|n| work(n, port)).to_vec();
            for pair in figures.windows(2) {
                assert!(pair[1] * 10 <= pair[0] * tenths, "{shape}: {figures:?}");
            }
        }
    }
}
