//! What is special about a packet.

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
    /// Tagged, any number of times.
    Tagged,
    /// From another's station, from a pod.
    OtherStation,
    /// Asks whether another's address is free, from a pod.
    Probe,
    /// Its checksum, and the segments that it is cut into, are left to the card.
    Offloaded,
    /// What is left to the card writes into its headers, from a pod.
    Overwritten,
    /// By way of an `ifb`, which makes the kernel skip its pod's program.
    Bounced,
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
    /// To what is translated, after conntrack of the nodes forgot everything.
    Forgotten,
}

impl Trait {
    /// Whether packets of a world can have it.
    pub(crate) fn is_generated(self, kind: Kind, bounces: bool) -> bool {
        let is_translated = matches!(self, Self::Service | Self::FarNodePort);
        (kind != Kind::Plain || !is_translated) && (bounces || self != Self::Bounced)
    }

    /// Whether no packet of a pod that has it may arrive anywhere.
    pub(crate) const fn is_never_allowed(self) -> bool {
        matches!(self, Self::OtherStation | Self::Probe | Self::Overwritten)
    }
}

/// All of them, with their names.
pub(crate) const ALL: [(Trait, &str); 25] = [
    (Trait::Forged, "forged"),
    (Trait::Stranger, "stranger"),
    (Trait::Service, "service"),
    (Trait::Itself, "itself"),
    (Trait::Station, "station"),
    (Trait::Arp, "arp"),
    (Trait::Neighbour, "neighbour"),
    (Trait::Tunnel, "tunnel"),
    (Trait::Tagged, "tagged"),
    (Trait::OtherStation, "other-station"),
    (Trait::Probe, "probe"),
    (Trait::Offloaded, "offloaded"),
    (Trait::Overwritten, "overwritten"),
    (Trait::Bounced, "bounced"),
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
    (Trait::Forgotten, "forgotten"),
];
