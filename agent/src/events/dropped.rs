//! Packets that were dropped, and flows that would be: one by one, and as people are told of them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use k8s_openapi::jiff::Timestamp;
use netpold_core::model::{Direction, Key};
use netpold_core::probe::IpProtocol;
use netpold_ebpf::layout::DropEvent;
use netpold_ebpf::reason::Reason;
use serde::Serialize;

use crate::conntrack::FlowTuple;

/// [`Dropped::reason`] of a flow that passed and that policies on trial would have denied.
pub const AUDIT: &str = "audit";

/// A dropped packet, or a flow that would be dropped ([`AUDIT`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// When the agent read it, in milliseconds since 1970.
    pub unix_millis: u64,
    /// Host-side interface index; 0 of an audited flow.
    pub ifindex: u32,
    /// Number of the pod instance.
    pub endpoint: u32,
    /// As the pod sees it.
    pub direction: Direction,
    /// Name of the reason; `unknown` for one of a newer program.
    pub reason: &'static str,
    /// The pod's address in this packet, if the packet was understood that far.
    pub local: Option<IpAddr>,
    /// The other side's address.
    pub remote: Option<IpAddr>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// The pod's port, or ICMP type and code.
    pub local_port: u16,
    /// The other side's port.
    pub remote_port: u16,
    /// Packet length in bytes.
    pub length: u32,
}

impl Dropped {
    pub(crate) fn new(event: &DropEvent) -> Self {
        let direction = if event.direction == 0 { Direction::Ingress } else { Direction::Egress };
        Self {
            unix_millis: unix_millis(),
            ifindex: event.ifindex,
            endpoint: event.endpoint,
            direction,
            reason: Reason::from_number(event.reason).map_or("unknown", Reason::as_str),
            local: address(event.family, &event.local),
            remote: address(event.family, &event.remote),
            protocol: (event.family != 0).then_some(event.protocol),
            local_port: event.local_port,
            remote_port: event.remote_port,
            length: event.length,
        }
    }

    /// The pod's port and the other side's, where the protocol has ports.
    pub(crate) fn ports(&self) -> Option<[u16; 2]> {
        let has_ports = self.protocol.is_some_and(|number| IpProtocol(number).has_ports());
        has_ports.then_some([self.local_port, self.remote_port])
    }

    /// When the agent read it, in RFC 3339 with milliseconds, UTC.
    pub(crate) fn time(&self) -> String {
        let time = Timestamp::from_millisecond(self.unix_millis.cast_signed());
        format!("{:.3}", time.unwrap_or_default())
    }

    /// A flow that policies on trial would deny.
    pub(crate) fn audited(tuple: &FlowTuple, direction: Direction, local: Option<IpAddr>) -> Self {
        // An echo's number makes no other flow for whoever reads it.
        let has_ports = IpProtocol(tuple.protocol).has_ports();
        let [local_port, remote_port] =
            [tuple.local_port, tuple.remote_port].map(|port| if has_ports { port } else { 0 });
        Self {
            unix_millis: unix_millis(),
            ifindex: 0,
            endpoint: tuple.endpoint,
            direction,
            reason: AUDIT,
            local,
            remote: Some(tuple.remote),
            protocol: Some(tuple.protocol),
            local_port,
            remote_port,
            length: 0,
        }
    }

    /// What makes two drops the same for the log: the port is that of the service.
    pub(crate) fn key(&self) -> DropKey {
        let port = match self.direction {
            Direction::Ingress => self.local_port,
            Direction::Egress => self.remote_port,
        };
        (self.endpoint, self.direction, self.reason, self.remote, self.protocol, port)
    }
}

/// The packet as its sender addressed it: `TCP 10.0.0.1:40000 to 10.0.0.2:80`.
impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(local), Some(remote), Some(protocol)) = (self.local, self.remote, self.protocol)
        else {
            return write!(f, "{} bytes", self.length);
        };
        let side = |address: IpAddr, port: u16| match protocol {
            6 | 17 | 132 => SocketAddr::new(address, port).to_string(),
            _ => address.to_string(),
        };
        let (local, remote) = (side(local, self.local_port), side(remote, self.remote_port));
        let (from, to) = match self.direction {
            Direction::Ingress => (remote, local),
            Direction::Egress => (local, remote),
        };
        write!(f, "{} {from} to {to}", IpProtocol(protocol))
    }
}

impl Dropped {
    /// Policy decided, and can say why.
    pub(crate) fn is_denial(&self) -> bool {
        [Reason::Policy, Reason::ServiceBackend].map(Reason::as_str).contains(&self.reason)
    }

    /// It passed: policies on trial would have dropped it.
    pub(crate) fn is_audit(&self) -> bool {
        self.reason == AUDIT
    }
}

/// Milliseconds since 1970.
pub(crate) fn unix_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) type DropKey = (u32, Direction, &'static str, Option<IpAddr>, Option<u8>, u16);

fn address(family: u8, bytes: &[u8; 16]) -> Option<IpAddr> {
    match family {
        4 => Some(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()),
        6 => Some(Ipv6Addr::from(*bytes).into()),
        _ => None,
    }
}

/// A drop to be logged, and how often it was seen since the last line about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The latest of them.
    pub dropped: Dropped,
    /// How many the line stands for.
    pub times: u64,
}

/// A denial to tell a pod's owner of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The pod.
    pub pod: Key,
    /// Its `metadata.uid`.
    pub uid: String,
    /// Denials with the same are the same to the owner.
    pub(crate) key: DropKey,
    /// What was denied and why, in a sentence.
    pub text: String,
}

/// Denials, and how fast they may be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denials {
    /// The denials, of as many pods as possible.
    pub all: Vec<Denial>,
    /// Nodes whose agents write Events beside this one's.
    pub nodes: usize,
}
