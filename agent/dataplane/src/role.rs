//! Roles of interfaces in the dataplane, and the programs at their hooks by role.

use std::collections::BTreeMap;

use netpold_core::model::Direction;

/// Roles by interface index.
pub type Roles = BTreeMap<u32, Role>;

/// Role of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Host side of a pod's veth, with the number of its endpoint, because an interface index may be reused.
    Pod(u32),
    /// Another device, at which the packets of pods to Services are judged again as they leave.
    Device(DeviceLink),
    /// Host side of a pod's veth for which the endpoint table has no room, or of a pod that is not known yet: every
    /// packet is dropped.
    Closed,
    /// A veth without programs, by `--node-devices`.
    Unjudged,
}

/// Link type of a device: the first header of its packets, and the origin of incoming ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceLink {
    /// An Ethernet header.
    Ethernet,
    /// The IP header, as with tunnels and `WireGuard`.
    Ip,
    /// An Ethernet header. The other side is in another namespace, from where packets may carry foreign marks.
    Veth,
    /// An Ethernet header. The device is a port of a bridge with pods, and its incoming packets must differ from the
    /// pods' own.
    Port,
    /// An Ethernet header. The node has decapsulated incoming packets.
    EthernetTunnel,
    /// The IP header. The node has decapsulated incoming packets.
    IpTunnel,
    /// An Ethernet header. Incoming packets are those that a bridge with pods hands to the node.
    Bridge,
}

impl DeviceLink {
    /// Link type of the device without a program for incoming packets.
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
    /// Judges packets to a pod.
    Ingress,
    /// Judges packets from a pod.
    Egress,
    /// Judges marked packets that leave by a device.
    Node,
    /// Judges marked packets that leave by a device without Ethernet header.
    NodeIp,
    /// Replaces foreign marks of incoming packets, which are not an endpoint's, and sets the proof on them.
    Unmark,
    /// Drops packets that pods encapsulated for a tunnel of their own node, and sets the proof on all others.
    Tunnel,
    /// Drops packets without the proof that a bridge hands to the node.
    Bridge,
}

impl Program {
    /// Every program.
    pub const ALL: [Self; 7] = [
        Self::Ingress,
        Self::Egress,
        Self::Node,
        Self::NodeIp,
        Self::Unmark,
        Self::Tunnel,
        Self::Bridge,
    ];

    /// Name of the program in the object.
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

/// The program that judges a pod in a direction.
impl From<Direction> for Program {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Ingress => Self::Ingress,
            Direction::Egress => Self::Egress,
        }
    }
}

impl Role {
    /// The program at an interface's hook. The direction is the pod's: ingress is the interface's outgoing side.
    #[must_use]
    pub const fn program(self, direction: Direction) -> Option<Program> {
        match (self, direction) {
            (Self::Pod(_), Direction::Ingress) => Some(Program::Ingress),
            (Self::Pod(_), Direction::Egress) => Some(Program::Egress),
            (Self::Device(DeviceLink::Ip | DeviceLink::IpTunnel), Direction::Ingress) => {
                Some(Program::NodeIp)
            }
            // A bridge hands all outgoing packets to its ports.
            (Self::Device(DeviceLink::Bridge), Direction::Ingress)
            | (Self::Device(DeviceLink::Ethernet | DeviceLink::Ip), Direction::Egress)
            | (Self::Closed | Self::Unjudged, _) => None,
            (Self::Device(_), Direction::Ingress) => Some(Program::Node),
            (Self::Device(DeviceLink::Veth | DeviceLink::Port), Direction::Egress) => {
                Some(Program::Unmark)
            }
            (
                Self::Device(DeviceLink::EthernetTunnel | DeviceLink::IpTunnel),
                Direction::Egress,
            ) => Some(Program::Tunnel),
            (Self::Device(DeviceLink::Bridge), Direction::Egress) => Some(Program::Bridge),
        }
    }

    /// Whether all incoming packets of an interface get the proof.
    #[must_use]
    pub const fn proves(self) -> bool {
        matches!(
            self.program(Direction::Egress),
            Some(Program::Egress | Program::Unmark | Program::Tunnel)
        )
    }
}
