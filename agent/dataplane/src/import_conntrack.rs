//! Import of flows that began before netpold recorded flows, from the kernel's own conntrack.
//!
//! The kernel's entry shows the initiator of a flow, which a packet in the middle of the flow does not. The initiator's
//! pod sees the original tuple, the responder's pod the reply tuple; with a Service or a masquerade, their addresses
//! differ.
//!
//! The initiator is reliable if the kernel saw the first packet ([`KernelFlow::seen_from_start`]). An RST with a TTL
//! that ends at the node closes the kernel's entry of a connection that continues. Seconds later the entry is gone, and
//! the server's next packet creates one with the server as initiator (`nf_conntrack_tcp_loose`). For such flows the
//! ports decide: if only one side has a client port, it is the initiator; else the flow is imported without one. A flow
//! without initiator passes where policy allows both directions.

mod netlink;
mod proc;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use netpold_core::probe::IpProtocol;
use netpold_ebpf::layout::{
    CT_EGRESS, CT_FIN_INGRESS, CT_INGRESS, CT_NODE, CT_REPLIED, CT_STREAM, CT_SYN, CT_SYN_ACK,
    Ct4Key, Ct6Key,
};
use netpold_ebpf::packet::icmp;
use netpold_ebpf::packet::protocol::{SCTP, TCP, UDP, is_to_server};

use crate::conntrack::{FlowKey, TrackedFlow};

/// One direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ConntrackTuple {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    /// Source port; ICMP echo: the identifier.
    source_port: u16,
    /// Destination port; ICMP echo: [`icmp::exchange_type`].
    destination_port: u16,
}

/// A partially read tuple.
#[derive(Default)]
struct PartialTuple {
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    source_port: u16,
    destination_port: u16,
    /// ICMP message type.
    message: Option<u8>,
}

impl PartialTuple {
    /// Completes the tuple; `None` if an address is missing.
    fn whole(self, protocol: u8) -> Option<ConntrackTuple> {
        let Self { source_port, destination_port, message, .. } = self;
        let (source, destination) = (self.source?, self.destination?);
        let destination_port =
            message.map_or(destination_port, |it| icmp::exchange_type(protocol, it));
        Some(ConntrackTuple { source, destination, protocol, source_port, destination_port })
    }
}

/// A flow of the kernel's conntrack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFlow {
    /// Tuple of the initiator's packets.
    original: ConntrackTuple,
    /// Tuple of the responder's packets.
    reply: ConntrackTuple,
    /// State of the flow as `CT_*` flags.
    flags: u16,
    /// Seconds until the kernel's entry expires without further packets; `None` if the flow is offloaded.
    pub remaining: Option<u32>,
    /// Whether the kernel saw the first packet, which makes the initiator reliable; `None` if unknown.
    pub seen_from_start: Option<bool>,
}

impl KernelFlow {
    /// Protocol of a TCP, UDP or SCTP flow with a translated destination, and its source and destination before and
    /// after the translation.
    #[must_use]
    pub fn sent_on(&self) -> Option<(u8, [[SocketAddr; 2]; 2])> {
        let Self { original, reply, .. } = self;
        let source = |it: &ConntrackTuple| SocketAddr::new(it.source, it.source_port);
        let destination =
            |it: &ConntrackTuple| SocketAddr::new(it.destination, it.destination_port);
        let sent = [source(original), destination(original)];
        let on = [destination(reply), source(reply)];
        let has_ports = IpProtocol(original.protocol).has_ports();
        (has_ports && sent[1] != on[1]).then_some((original.protocol, [sent, on]))
    }
}

/// Endpoints with flows to import.
#[derive(Debug, Default)]
pub struct ImportRequest {
    /// Endpoint numbers by pod address.
    pub endpoints: BTreeMap<IpAddr, u32>,
    /// The node's own addresses.
    pub own: BTreeSet<IpAddr>,
}

/// Result of a walk over the kernel's conntrack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Number of the kernel's flows that were visited.
    pub visited: u64,
    /// Number of those in which a wanted endpoint takes part.
    pub wanted: u64,
    /// Number of imported entries.
    pub flows: u64,
}

impl Imported {
    /// Share of the wanted flows in the visited ones, from 0 to 1; 1 if none was visited.
    #[must_use]
    pub fn share(self) -> f64 {
        if self.visited == 0 { 1.0 } else { self.wanted as f64 / self.visited as f64 }
    }
}

impl ImportRequest {
    /// Returns the conntrack entries for a flow of the kernel, one for each endpoint that is a side of the flow.
    pub fn sides(&self, flow: &KernelFlow, now: u32) -> impl Iterator<Item = TrackedFlow> {
        let node = if self.own.contains(&flow.original.source) { CT_NODE } else { 0 };
        let mut sides = [(flow.original, CT_EGRESS), (flow.reply, CT_INGRESS | node)];
        if flow.seen_from_start != Some(true) {
            sides = sides.map(|(tuple, _)| (tuple, began_by_ports(&tuple)));
        }
        let flags = flow.flags;
        let side = move |(tuple, began): (ConntrackTuple, u16)| {
            let key = key(*self.endpoints.get(&tuple.source)?, &tuple)?;
            Some(TrackedFlow { key, flags: flags | began, seen: now })
        };
        sides.into_iter().filter_map(side)
    }
}

/// Returns the direction in which a flow began, from the view of the tuple's source and by the ports: `CT_EGRESS`,
/// `CT_INGRESS`, or 0 if unclear.
fn began_by_ports(tuple: &ConntrackTuple) -> u16 {
    let (own, other) = (tuple.source_port, tuple.destination_port);
    match () {
        () if is_to_server(own, other) => CT_EGRESS,
        () if is_to_server(other, own) => CT_INGRESS,
        () => 0,
    }
}

/// Returns the key of the flow at the endpoint that is the tuple's source.
fn key(endpoint: u32, tuple: &ConntrackTuple) -> Option<FlowKey> {
    let (local_port, remote_port) = (tuple.source_port, tuple.destination_port);
    let protocol = u32::from(tuple.protocol);
    Some(match tuple.destination {
        IpAddr::V4(remote) => {
            let remote = remote.to_bits();
            FlowKey::V4(Ct4Key { endpoint, remote, local_port, remote_port, protocol })
        }
        IpAddr::V6(remote) => {
            let remote = remote.octets();
            let reserved = 0;
            FlowKey::V6(Ct6Key { endpoint, local_port, remote_port, remote, protocol, reserved })
        }
    })
}

/// Maximum number of flows to read from `/proc`, which takes 0.5 ns for an empty bucket; a netlink dump takes 40 ns,
/// and a machine with 4 GB or more has 262,144 buckets. With more flows, `/proc` is slower before kernel 6.18, because
/// each read starts again at the first bucket.
const FEW: u32 = 1000;
/// Maximum number of flows to complete by single requests of 10 us; a dump of 262,144 empty buckets takes 11 ms.
const ASKED: usize = 200;

/// Calls `each` for every flow that the kernel tracks in the calling thread's network namespace. `/proc` lacks
/// [`KernelFlow::seen_from_start`] for TCP: netlink requests complete the `wanted` flows.
///
/// # Errors
/// The kernel has no conntrack, or refuses access (`CAP_NET_ADMIN`).
pub fn kernel_flows(
    wanted: impl Fn(&KernelFlow) -> bool,
    mut each: impl FnMut(KernelFlow),
) -> io::Result<()> {
    match netlink::count() {
        Some(0) => return Ok(()),
        Some(1..=FEW) => {
            if let Ok(mut flows) = proc::flows() {
                let unknown = flows.iter_mut().filter(|it| it.seen_from_start.is_none());
                let unknown: Vec<&mut KernelFlow> = unknown.filter(|it| wanted(it)).collect();
                if unknown.len() <= ASKED {
                    for flow in unknown {
                        // `None` for a flow that has just ended.
                        flow.seen_from_start = netlink::seen_from_start(&flow.original);
                    }
                    flows.into_iter().for_each(each);
                    return Ok(());
                }
            }
        }
        _ => {}
    }
    netlink::dump(&mut each)
}

/// An entry of the kernel's conntrack, of a live or ended flow.
#[derive(Debug)]
struct ConntrackEntry {
    original: ConntrackTuple,
    reply: ConntrackTuple,
    remaining: Option<u32>,
    /// `enum tcp_conntrack`; 0 for other protocols.
    tcp_state: u8,
    /// TCP: whether the kernel picked the flow up in the middle (`IP_CT_TCP_FLAG_BE_LIBERAL`); `None` if unknown.
    picked_up: Option<bool>,
    /// Status bit `IPS_SEEN_REPLY`.
    replied: bool,
    /// Status bit `IPS_ASSURED`.
    assured: bool,
}

/// Values of `enum tcp_conntrack`.
const TCP_SYN_SENT: u8 = 1;
const TCP_SYN_RECV: u8 = 2;
const TCP_FIN_WAIT: u8 = 4;
const TCP_LAST_ACK: u8 = 6;
const TCP_TIME_WAIT: u8 = 7;

impl ConntrackEntry {
    /// Returns the value of [`KernelFlow::seen_from_start`]. A TCP flow in its handshake began with a SYN. An SCTP
    /// HEARTBEAT of either side re-creates the entry, which does not show it. Other protocols have no first packet: the
    /// sender after a silence is the initiator, in netpold's table as in the kernel's.
    fn seen_from_start(&self) -> Option<bool> {
        match (self.original.protocol, self.tcp_state) {
            (TCP, TCP_SYN_SENT | TCP_SYN_RECV) => Some(true),
            (TCP, _) => self.picked_up.map(|picked_up| !picked_up),
            (protocol, _) => Some(protocol != SCTP),
        }
    }

    /// Converts to a flow; `None` if the flow has ended.
    fn flow(self) -> Option<KernelFlow> {
        let seen_from_start = self.seen_from_start();
        let replied = if self.replied { CT_REPLIED } else { 0 };
        let flags = match (self.original.protocol, self.tcp_state) {
            (TCP, TCP_SYN_SENT) => CT_SYN,
            (TCP, TCP_SYN_RECV) => CT_SYN | CT_SYN_ACK,
            // The timeout does not depend on the sender of the FIN.
            (TCP, TCP_FIN_WAIT..=TCP_LAST_ACK) => replied | CT_FIN_INGRESS,
            (TCP, TCP_TIME_WAIT..) => return None,
            // The kernel sets IPS_ASSURED of UDP once the flow is a stream.
            (UDP, _) if self.assured => replied | CT_STREAM,
            _ => replied,
        };
        let Self { original, reply, remaining, .. } = self;
        Some(KernelFlow { original, reply, flags, remaining, seen_from_start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(source: &str, destination: &str, ports: (u16, u16)) -> ConntrackTuple {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        let (source_port, destination_port) = ports;
        ConntrackTuple { source, destination, protocol: TCP, source_port, destination_port }
    }

    /// A client reaches a server through a Service's address.
    #[test]
    fn each_side_sees_its_own_tuple() {
        let flow = KernelFlow {
            original: tuple("10.0.0.1", "10.96.0.1", (4000, 80)),
            reply: tuple("10.0.0.2", "10.0.0.1", (8080, 4000)),
            flags: CT_REPLIED,
            remaining: None,
            seen_from_start: Some(true),
        };
        let wanted = ImportRequest {
            endpoints: BTreeMap::from([
                ("10.0.0.1".parse().unwrap(), 1),
                ("10.0.0.2".parse().unwrap(), 2),
            ]),
            own: BTreeSet::new(),
        };
        let key = |endpoint, remote: [u8; 4], local_port, remote_port| {
            let remote = u32::from_be_bytes(remote);
            FlowKey::V4(Ct4Key { endpoint, remote, local_port, remote_port, protocol: 6 })
        };
        let sides: Vec<TrackedFlow> = wanted.sides(&flow, 7).collect();
        let flags = [CT_REPLIED | CT_EGRESS, CT_REPLIED | CT_INGRESS];
        assert_eq!(
            sides,
            [
                TrackedFlow { key: key(1, [10, 96, 0, 1], 4000, 80), flags: flags[0], seen: 7 },
                TrackedFlow { key: key(2, [10, 0, 0, 1], 8080, 4000), flags: flags[1], seen: 7 },
            ]
        );
    }

    /// A connection that the kernel tracks only from an answer of the server on.
    #[test]
    fn ports_show_the_initiator_of_a_flow_that_was_picked_up() {
        let (server, client) = ("10.0.0.2", "10.0.0.1");
        let wanted = ImportRequest {
            endpoints: BTreeMap::from([(server.parse().unwrap(), 2)]),
            own: BTreeSet::new(),
        };
        let began = |seen_from_start, server_port, client_port| {
            let flow = KernelFlow {
                original: tuple(server, client, (server_port, client_port)),
                reply: tuple(client, server, (client_port, server_port)),
                flags: CT_REPLIED,
                remaining: None,
                seen_from_start,
            };
            let sides: Vec<u16> = wanted.sides(&flow, 7).map(|side| side.flags).collect();
            let [flags] = sides[..] else { panic!("{sides:?}") };
            flags & (CT_EGRESS | CT_INGRESS)
        };
        assert_eq!(began(Some(true), 8080, 40_000), CT_EGRESS, "the server has sent a SYN");
        for seen in [Some(false), None] {
            assert_eq!(began(seen, 8080, 40_000), CT_INGRESS);
            assert_eq!(began(seen, 8080, 1000), 0, "a client that has chosen a low port");
            assert_eq!(began(seen, 40_000, 1000), CT_EGRESS);
            assert_eq!(began(seen, 40_000, 50_000), 0);
        }
    }
}
