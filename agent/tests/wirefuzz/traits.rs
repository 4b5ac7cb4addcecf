//! What is special about a packet.

use std::collections::BTreeSet;

use crate::world::Kind;

/// One of the things that a generator may do to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Trait {
    /// Another's source address, from a pod.
    Forged,
    /// A source that is nobody's, from a pod.
    Stranger,
    /// In a Service's name, from outside.
    Service,
    /// To its sender's own address.
    Itself,
    /// In a frame to somebody else than the packet's next hop.
    Station,
    /// An ARP message.
    Arp,
    /// Neighbour or listener discovery.
    Neighbour,
    /// VXLAN to a node.
    Tunnel,
    /// Tagged once or twice.
    Tagged,
    /// IPv4 options.
    Options,
    /// IPv6 extension headers.
    Extensions,
    /// A Routing header.
    Routing,
    /// In parts.
    Fragments,
    /// In parts, with options behind the Fragment header.
    OptionsInside,
    /// Wrong lengths, or cut.
    Damaged,
    /// An ICMP error about what came to its sender.
    Error,
    /// An ICMP error about somebody else's flow, or to an address that is translated.
    ErrorOfOthers,
    /// Answers what came to its sender.
    Answer,
    /// To another node's node port.
    FarNodePort,
    /// Answers what a translated address began, and is translated anew, to somebody else.
    TranslatedAnew,
    /// Comes through a Service's translation from a backend that its receiver may not ask.
    DeniedBackend,
    /// To what is translated, after conntrack of the nodes forgot everything.
    Forgotten,
}

impl Trait {
    /// Whether packets of a world can have it; else the judge says it of what arrives.
    pub(crate) fn is_generated(self, kind: Kind) -> bool {
        match self {
            Self::Service | Self::FarNodePort => kind != Kind::Plain,
            Self::TranslatedAnew | Self::DeniedBackend => false,
            _ => true,
        }
    }
}

/// All of them, with the names that `NETPOLD_WIREFUZZ_OPEN` knows.
pub(crate) const ALL: [(Trait, &str); 22] = [
    (Trait::Forged, "forged"),
    (Trait::Stranger, "stranger"),
    (Trait::Service, "service"),
    (Trait::Itself, "itself"),
    (Trait::Station, "station"),
    (Trait::Arp, "arp"),
    (Trait::Neighbour, "neighbour"),
    (Trait::Tunnel, "tunnel"),
    (Trait::Tagged, "tagged"),
    (Trait::Options, "options"),
    (Trait::Extensions, "extensions"),
    (Trait::Routing, "routing"),
    (Trait::Fragments, "fragments"),
    (Trait::OptionsInside, "options-inside"),
    (Trait::Damaged, "damaged"),
    (Trait::Error, "error"),
    (Trait::ErrorOfOthers, "error-of-others"),
    (Trait::Answer, "answer"),
    (Trait::FarNodePort, "far-node-port"),
    (Trait::TranslatedAnew, "translated-anew"),
    (Trait::DeniedBackend, "denied-backend"),
    (Trait::Forgotten, "forgotten"),
];

pub(crate) const OPEN: [Trait; 0] = [];

/// The traits that packets of this run must not have.
pub(crate) fn left_out() -> BTreeSet<Trait> {
    let wanted = std::env::var("NETPOLD_WIREFUZZ_OPEN").unwrap_or_default();
    if wanted == "all" {
        return BTreeSet::new();
    }
    let wanted: Vec<Trait> = wanted
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| {
            let found = ALL.iter().find(|(_, known)| *known == name);
            found.unwrap_or_else(|| panic!("NETPOLD_WIREFUZZ_OPEN: no trait {name}: {ALL:?}")).0
        })
        .collect();
    OPEN.into_iter().filter(|open| !wanted.contains(open)).collect()
}
