//! Counts of the properties and paths of packets, so that the test fails if one never occurs.

use std::collections::BTreeMap;
use std::fmt;

use crate::wirefuzz::judge::Sent;
use crate::wirefuzz::read::Parsed;
use crate::wirefuzz::traits::{ALL, Trait};
use crate::wirefuzz::world::{Kind, World};

/// Path of a packet through the stack between two parties, according to the arrived frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// IPv4, over the node's routes.
    Routed4,
    /// IPv6, over the node's routes.
    Routed6,
    /// IPv4, between ports of a bridge.
    Bridged4,
    /// IPv6, between ports of a bridge.
    Bridged6,
    /// Sent in fragments, arrived as a longer packet.
    Defragmented,
    /// Arrived with another destination.
    Service,
    /// Arrived with another source.
    Masqueraded,
    /// ICMP error about a flow.
    Error,
}

impl Way {
    /// Returns the paths that packets of a world must have taken.
    fn expected(kind: Kind) -> &'static [Self] {
        use Way::{
            Bridged4, Bridged6, Defragmented, Error, Masqueraded, Routed4, Routed6, Service,
        };
        match kind {
            Kind::Plain => &[Routed4, Routed6, Bridged4, Bridged6, Error],
            Kind::Translated => {
                &[Routed4, Routed6, Bridged4, Bridged6, Defragmented, Service, Masqueraded, Error]
            }
            Kind::Overlay => &[Routed4, Routed6, Bridged4, Bridged6, Defragmented, Service, Error],
        }
    }
}

/// Numbers of packets sent, and of frames that arrived where policy allows them.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    traits: BTreeMap<Trait, [usize; 2]>,
    ways: BTreeMap<Way, usize>,
}

impl Tally {
    pub(crate) fn sent(&mut self, sent: &Sent) {
        for of in &sent.traits {
            self.traits.entry(*of).or_default()[0] += 1;
        }
    }

    /// Counts a frame that policy allows at a party other than its sender.
    pub(crate) fn allowed(
        &mut self,
        world: &World,
        (receiver, length): (usize, usize),
        sent: &Sent,
        parsed: Option<&Parsed>,
    ) {
        for of in &sent.traits {
            self.traits.entry(*of).or_default()[1] += 1;
        }
        if let Some(parsed) = parsed {
            for way in ways(world, receiver, sent, parsed) {
                *self.ways.entry(way).or_default() += 1;
            }
            let longest = sent.frames.iter().map(Vec::len).max().unwrap_or(0);
            if sent.frames.len() > 1 && length > longest {
                *self.ways.entry(Way::Defragmented).or_default() += 1;
            }
        }
    }

    /// Asserts that every property and every path of the world has occurred.
    ///
    /// # Panics
    /// The message names the missing ones.
    pub(crate) fn check(&self, kind: Kind, bounces: bool) {
        let expected = ALL.iter().map(|(of, _)| of);
        let expected = expected.filter(|of| of.is_generated(kind, bounces));
        let never: Vec<_> = expected.filter(|of| !self.traits.contains_key(of)).collect();
        assert!(never.is_empty(), "{kind:?}: no packet was {never:?}");
        let ways = Way::expected(kind).iter();
        let never: Vec<_> = ways.filter(|way| !self.ways.contains_key(way)).collect();
        assert!(never.is_empty(), "{kind:?}: nothing arrived {never:?}");
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "trait: packets sent, allowed frames of them that arrived")?;
        for (of, name) in ALL {
            let [sent, allowed] = self.traits.get(&of).copied().unwrap_or_default();
            writeln!(f, "  {name:16} {sent:9} {allowed:9}")?;
        }
        writeln!(f, "way: allowed frames that arrived by it")?;
        self.ways.iter().try_for_each(|(way, count)| writeln!(f, "  {way:16?} {count:9}"))
    }
}

/// Returns the paths that match a frame's addresses.
fn ways(world: &World, receiver: usize, sent: &Sent, parsed: &Parsed) -> Vec<Way> {
    let (from, to) = (&world.parties[sent.sender], &world.parties[receiver]);
    let mut ways = vec![match (from.is_bridged_to(to), parsed.tuple.to.0.is_ipv6()) {
        (false, false) => Way::Routed4,
        (false, true) => Way::Routed6,
        (true, false) => Way::Bridged4,
        (true, true) => Way::Bridged6,
    }];
    if let Some(meant) = &sent.parsed
        && !sent.traits.contains(&Trait::Damaged)
        && !sent.traits.contains(&Trait::Routing)
    {
        ways.extend((meant.tuple.to.0 != parsed.tuple.to.0).then_some(Way::Service));
        ways.extend((meant.tuple.from.0 != parsed.tuple.from.0).then_some(Way::Masqueraded));
    }
    ways.extend((!parsed.quoted.is_empty()).then_some(Way::Error));
    ways
}
