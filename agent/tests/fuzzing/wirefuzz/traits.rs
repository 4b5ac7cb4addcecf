//! Special properties of generated packets.

use crate::wirefuzz::world::Kind;

/// Property that the generator may give a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Trait {
    /// Source address of another party or a node, from a pod.
    Forged,
    /// Unassigned or special source address, from a pod.
    Stranger,
    /// Source address of a Service, from outside.
    Service,
    /// Destination equal to the sender's own address.
    Itself,
    /// Frame to another station than the packet's next hop.
    Station,
    /// ARP message.
    Arp,
    /// Neighbour or listener discovery.
    Neighbour,
    /// VXLAN to a node.
    Tunnel,
    /// VLAN tags, any number of them.
    Tagged,
    /// Source MAC of another station, from a pod.
    OtherStation,
    /// Probe for the use of another party's address, from a pod.
    Probe,
    /// Checksum, and segmentation, left to the card.
    Offloaded,
    /// Checksum offload that overwrites the packet's headers, from a pod.
    Overwritten,
    /// Sent by an `ifb`, so that the kernel skips the program of the pod's veth.
    Bounced,
    /// IPv4 options.
    Options,
    /// IPv6 extension headers.
    Extensions,
    /// Routing header.
    Routing,
    /// Fragmented.
    Fragments,
    /// Fragmented, with options after the Fragment header.
    OptionsInside,
    /// Truncated, padded, or with a changed header byte.
    Damaged,
    /// ICMP error about a packet that its sender received.
    Error,
    /// ICMP error about another party's flow, or to a translated address.
    ErrorOfOthers,
    /// Answer to a packet that its sender received.
    Answer,
    /// Destination equal to another node's node port.
    FarNodePort,
    /// Destination that the node translates, after the nodes' conntrack was flushed.
    Forgotten,
}

impl Trait {
    /// Returns whether packets of a world can have the property.
    pub(crate) fn is_generated(self, kind: Kind, bounces: bool) -> bool {
        let is_translated = matches!(self, Self::Service | Self::FarNodePort);
        (kind != Kind::Plain || !is_translated) && (bounces || self != Self::Bounced)
    }

    /// Returns whether no packet of a pod with this property may arrive anywhere.
    pub(crate) const fn is_never_allowed(self) -> bool {
        matches!(self, Self::OtherStation | Self::Probe | Self::Overwritten)
    }
}

/// All properties, with their names.
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
