//! Dropped packets, and flows that audited policies would drop.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use k8s_openapi::jiff::Timestamp;
use netpold_api::events::AUDIT;
use netpold_api::unix_time::unix_time;
use netpold_core::model::Direction;
use netpold_core::probe::IpProtocol;
use netpold_dataplane::conntrack::EndpointFlow;
use netpold_ebpf::layout::DropEvent;
use netpold_ebpf::reason::Reason;
use netpold_kube::cluster::DropKey;
use serde::Serialize;

/// A dropped packet, or a flow that would be dropped ([`AUDIT`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// Time when the agent read the event, in milliseconds since 1970.
    pub unix_millis: u64,
    /// Interface index of the host side of the veth; 0 for an audited flow.
    pub ifindex: u32,
    /// Number of the endpoint.
    pub endpoint: u32,
    /// Direction from the pod's view.
    pub direction: Direction,
    /// Name of the reason; `unknown` for a reason of a newer program.
    pub reason: &'static str,
    /// Address of the pod in this packet, if the packet could be parsed that far.
    pub local: Option<IpAddr>,
    /// Address of the other side.
    pub remote: Option<IpAddr>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Port of the pod, or ICMP type and code.
    pub local_port: u16,
    /// Port of the other side.
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

    /// Returns the ports of the pod and of the other side, where the protocol has ports.
    pub(crate) fn ports(&self) -> Option<[u16; 2]> {
        let has_ports = self.protocol.is_some_and(|number| IpProtocol(number).has_ports());
        has_ports.then_some([self.local_port, self.remote_port])
    }

    /// Returns the time when the agent read the event, in RFC 3339 with milliseconds, UTC.
    pub(crate) fn time(&self) -> String {
        let time = Timestamp::from_millisecond(self.unix_millis.cast_signed());
        format!("{:.3}", time.unwrap_or_default())
    }

    /// Creates the record of a flow that audited policies would deny.
    pub(crate) fn audited(
        tuple: &EndpointFlow,
        direction: Direction,
        local: Option<IpAddr>,
    ) -> Self {
        // The identifier of an echo does not make a different flow for the reader.
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

    /// Returns the key of equal drops in the log; the port is the service's.
    pub(crate) fn key(&self) -> DropKey {
        let port = match self.direction {
            Direction::Ingress => self.local_port,
            Direction::Egress => self.remote_port,
        };
        (self.endpoint, self.direction, self.reason, self.remote, self.protocol, port)
    }
}

/// Formats the packet from its sender's view: `TCP 10.0.0.1:40000 to 10.0.0.2:80`.
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
    /// Returns whether policy dropped the packet, so that policy can explain the drop.
    pub(crate) fn is_denial(&self) -> bool {
        [Reason::Policy, Reason::ServiceBackend].map(Reason::as_str).contains(&self.reason)
    }

    /// Returns whether the flow passed and audited policies would have dropped it.
    pub(crate) fn is_audit(&self) -> bool {
        self.reason == AUDIT
    }
}

/// Returns the milliseconds since 1970.
pub(crate) fn unix_millis() -> u64 {
    u64::try_from(unix_time().as_millis()).unwrap_or(u64::MAX)
}

fn address(family: u8, bytes: &[u8; 16]) -> Option<IpAddr> {
    match family {
        4 => Some(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()),
        6 => Some(Ipv6Addr::from(*bytes).into()),
        _ => None,
    }
}

/// A drop to log, with the number of equal drops since the last line about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropLogLine {
    /// Latest of these drops.
    pub dropped: Dropped,
    /// Number of these drops.
    pub times: u64,
}
