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

mod entry;
mod netlink;
mod proc;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use netpold_ebpf::layout::{CT_EGRESS, CT_INGRESS, CT_NODE, Ct4Key, Ct6Key};
use netpold_ebpf::packet::protocol::is_to_server;

use crate::conntrack::{FlowKey, TrackedFlow};
use entry::ConntrackTuple;
pub use entry::KernelFlow;

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

#[cfg(test)]
mod tests {
    use netpold_ebpf::layout::CT_REPLIED;
    use netpold_ebpf::packet::protocol::TCP;

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
