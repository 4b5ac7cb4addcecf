//! What an interface is to the dataplane, and which programs that means at its hooks.

use std::collections::BTreeMap;

use netpold_core::model::Direction;

/// What interfaces are, by index.
pub type Roles = BTreeMap<u32, Role>;

/// What an interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The host side of a pod's veth, with its endpoint's number: an index may be reused.
    Pod(u32),
    /// Another device: what pods sent to a Service is judged again where it goes out there.
    Device(Link),
    /// The host side of a pod's veth for which the endpoint table has no room, or of a new one whose pod is not known
    /// yet: everything drops.
    Closed,
    /// A veth that no program judges, by `--node-devices`.
    Unjudged,
}

/// What the packets of a device begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// An Ethernet header.
    Ethernet,
    /// The IP header, as those of tunnels and `WireGuard`.
    Ip,
    /// An Ethernet header; and the other side is in another namespace, from where a packet could
    /// bring a mark along that is not ours.
    Veth,
    /// An Ethernet header; and a port of a bridge that has pods, which must tell what comes in from what
    /// they send.
    Port,
    /// An Ethernet header; and what comes in was unpacked by the node.
    EthernetTunnel,
    /// The IP header; and what comes in was unpacked by the node.
    IpTunnel,
    /// An Ethernet header; and what comes in is what a bridge with pods hands to the node.
    Bridge,
}

impl Link {
    /// The same, of a device where what comes in gets no program.
    #[must_use]
    pub const fn of_exit(self) -> Self {
        match self {
            Self::Ethernet | Self::Veth | Self::Port | Self::EthernetTunnel | Self::Bridge => {
                Self::Ethernet
            }
            Self::Ip | Self::IpTunnel => Self::Ip,
        }
    }
}

/// A program at a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// Judges what a pod gets.
    Ingress,
    /// Judges what a pod sends.
    Egress,
    /// Judges marked packets that leave by a device.
    Node,
    /// The same where they have no Ethernet header.
    NodeIp,
    /// Takes marks off, and proves that what comes in is no endpoint's.
    Unmark,
    /// Drops what pods packed for a tunnel of their own node, and proves the same of the rest.
    Tunnel,
    /// Drops what a bridge hands to the node and has no proof.
    Bridge,
}

impl Program {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Ingress,
        Self::Egress,
        Self::Node,
        Self::NodeIp,
        Self::Unmark,
        Self::Tunnel,
        Self::Bridge,
    ];

    /// Its name in the object.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "netpold_ingress",
            Self::Egress => "netpold_egress",
            Self::Node => "netpold_node",
            Self::NodeIp => "netpold_node_ip",
            Self::Unmark => "netpold_unmark",
            Self::Tunnel => "netpold_tunnel",
            Self::Bridge => "netpold_bridge",
        }
    }
}

/// The one that judges a pod in a direction.
impl From<Direction> for Program {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Ingress => Self::Ingress,
            Direction::Egress => Self::Egress,
        }
    }
}

impl Role {
    /// The program at an interface's hook, named as a pod sees it: ingress is what goes out there.
    #[must_use]
    pub const fn program(self, direction: Direction) -> Option<Program> {
        match (self, direction) {
            (Self::Pod(_), Direction::Ingress) => Some(Program::Ingress),
            (Self::Pod(_), Direction::Egress) => Some(Program::Egress),
            (Self::Device(Link::Ip | Link::IpTunnel), Direction::Ingress) => Some(Program::NodeIp),
            // A bridge hands all of that to its ports.
            (Self::Device(Link::Bridge), Direction::Ingress)
            | (Self::Device(Link::Ethernet | Link::Ip), Direction::Egress)
            | (Self::Closed | Self::Unjudged, _) => None,
            (Self::Device(_), Direction::Ingress) => Some(Program::Node),
            (Self::Device(Link::Veth | Link::Port), Direction::Egress) => Some(Program::Unmark),
            (Self::Device(Link::EthernetTunnel | Link::IpTunnel), Direction::Egress) => {
                Some(Program::Tunnel)
            }
            (Self::Device(Link::Bridge), Direction::Egress) => Some(Program::Bridge),
        }
    }

    /// Whether all that comes in by an interface gets the proof, whoever sent it.
    #[must_use]
    pub const fn proves(self) -> bool {
        matches!(
            self.program(Direction::Egress),
            Some(Program::Egress | Program::Unmark | Program::Tunnel)
        )
    }
}
