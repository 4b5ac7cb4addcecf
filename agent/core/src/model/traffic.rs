//! Protocol and direction of packets.

use serde::{Deserialize, Serialize};

/// A protocol that has ports in the NetworkPolicy API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// IP protocol 6
    Tcp,
    /// IP protocol 17
    Udp,
    /// IP protocol 132
    Sctp,
}

impl Protocol {
    /// IP protocol number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

/// Direction of a packet, as the pod sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Into the pod; the remote side is the source.
    Ingress,
    /// Out of the pod; the remote side is the destination.
    Egress,
}

impl Direction {
    /// Ingress and egress, in the order of the API.
    pub const BOTH: [Self; 2] = [Self::Ingress, Self::Egress];

    /// The direction of replies.
    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::Ingress => Self::Egress,
            Self::Egress => Self::Ingress,
        }
    }
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        })
    }
}
