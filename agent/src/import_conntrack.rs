//! Flows that began before netpold recorded flows, from the kernel's own conntrack.
//!
//! It knows who began each of them, which a packet in the middle of one does not tell. A pod that
//! began a flow sees its original tuple; a pod that another one's flow came to sees the other tuple,
//! turned around: behind a Service or a masquerade that is another one.

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

use crate::conntrack::{FlowKey, Tracked};

/// One direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tuple {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    /// ICMP echo: the identifier.
    source_port: u16,
    /// ICMP echo: [`icmp::kind`].
    destination_port: u16,
}

/// A tuple, as far as it was read.
#[derive(Default)]
struct PartialTuple {
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    source_port: u16,
    destination_port: u16,
    /// ICMP
    message: Option<u8>,
}

impl PartialTuple {
    /// The tuple; `None` without its addresses.
    fn whole(self, protocol: u8) -> Option<Tuple> {
        let Self { source_port, destination_port, message, .. } = self;
        let (source, destination) = (self.source?, self.destination?);
        let destination_port = message.map_or(destination_port, |it| icmp::kind(protocol, it));
        Some(Tuple { source, destination, protocol, source_port, destination_port })
    }
}

/// A flow as the kernel's conntrack has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFlow {
    /// As it was begun.
    original: Tuple,
    /// As it is answered.
    reply: Tuple,
    /// What both sides have shown, as flags.
    flags: u16,
    /// Seconds until the kernel forgets it, if it goes on as before.
    pub remaining: Option<u32>,
}

impl KernelFlow {
    /// The flow as it is sent and as it is sent on, each from where and to where, if it is to somewhere else: TCP,
    /// UDP and SCTP.
    #[must_use]
    pub fn sent_on(&self) -> Option<(u8, [[SocketAddr; 2]; 2])> {
        let Self { original, reply, .. } = self;
        let source = |it: &Tuple| SocketAddr::new(it.source, it.source_port);
        let destination = |it: &Tuple| SocketAddr::new(it.destination, it.destination_port);
        let sent = [source(original), destination(original)];
        let on = [destination(reply), source(reply)];
        let has_ports = IpProtocol(original.protocol).has_ports();
        (has_ports && sent[1] != on[1]).then_some((original.protocol, [sent, on]))
    }
}

/// Whose flows are wanted.
#[derive(Debug, Default)]
pub struct Wanted {
    /// Endpoints' numbers by the pods' addresses.
    pub endpoints: BTreeMap<IpAddr, u32>,
    /// The node's own addresses.
    pub own: BTreeSet<IpAddr>,
}

impl Wanted {
    /// A kernel's flow as the endpoints on either side see it.
    pub fn sides(&self, flow: &KernelFlow, now: u32) -> impl Iterator<Item = Tracked> {
        let node = if self.own.contains(&flow.original.source) { CT_NODE } else { 0 };
        let sides = [(flow.original, CT_EGRESS), (flow.reply, CT_INGRESS | node)];
        let flags = flow.flags;
        let side = move |(tuple, began): (Tuple, u16)| {
            let key = key(*self.endpoints.get(&tuple.source)?, &tuple)?;
            Some(Tracked { key, flags: flags | began, seen: now })
        };
        sides.into_iter().filter_map(side)
    }
}

/// The flow as the endpoint sees it that a tuple's source is.
fn key(endpoint: u32, tuple: &Tuple) -> Option<FlowKey> {
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

/// Up to so many flows, `/proc` is asked: it passes an empty bucket in half a nanosecond, a dump in 40, and there are
/// 262,144 on a machine with 4 GB and more. With more flows kernels before 6.18 are slower there, where each read
/// begins anew with the first bucket.
const FEW: u32 = 1000;

/// Hands over every flow that the kernel tracks in the calling thread's network namespace.
///
/// # Errors
/// The kernel has no conntrack, or does not tell (`CAP_NET_ADMIN`).
pub fn kernel_flows(each: impl FnMut(KernelFlow)) -> io::Result<()> {
    match netlink::count() {
        Some(0) => return Ok(()),
        Some(1..=FEW) => {
            if let Ok(flows) = proc::flows() {
                flows.into_iter().for_each(each);
                return Ok(());
            }
        }
        _ => {}
    }
    netlink::dump(each)
}

/// What the kernel's conntrack says of a flow, over or not.
#[derive(Debug)]
struct Shown {
    original: Tuple,
    reply: Tuple,
    remaining: Option<u32>,
    /// `enum tcp_conntrack`; 0 if it is not TCP.
    tcp_state: u8,
    /// `IPS_SEEN_REPLY`
    replied: bool,
    /// `IPS_ASSURED`
    assured: bool,
}

/// `enum tcp_conntrack`
const TCP_SYN_SENT: u8 = 1;
const TCP_SYN_RECV: u8 = 2;
const TCP_FIN_WAIT: u8 = 4;
const TCP_LAST_ACK: u8 = 6;
const TCP_TIME_WAIT: u8 = 7;
const TCP: u8 = 6;
const UDP: u8 = 17;

impl Shown {
    /// The flow; `None` if it is over.
    fn flow(self) -> Option<KernelFlow> {
        let replied = if self.replied { CT_REPLIED } else { 0 };
        let flags = match (self.original.protocol, self.tcp_state) {
            (TCP, TCP_SYN_SENT) => CT_SYN,
            (TCP, TCP_SYN_RECV) => CT_SYN | CT_SYN_ACK,
            // Whose FIN it was makes no difference to how long it is kept.
            (TCP, TCP_FIN_WAIT..=TCP_LAST_ACK) => replied | CT_FIN_INGRESS,
            (TCP, TCP_TIME_WAIT..) => return None,
            // Of UDP that is said once it is a stream.
            (UDP, _) if self.assured => replied | CT_STREAM,
            _ => replied,
        };
        let Self { original, reply, remaining, .. } = self;
        Some(KernelFlow { original, reply, flags, remaining })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(source: &str, destination: &str, ports: (u16, u16)) -> Tuple {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        let (source_port, destination_port) = ports;
        Tuple { source, destination, protocol: TCP, source_port, destination_port }
    }

    /// A client that reaches a server through a Service's address.
    #[test]
    fn each_side_sees_its_own_tuple() {
        let flow = KernelFlow {
            original: tuple("10.0.0.1", "10.96.0.1", (4000, 80)),
            reply: tuple("10.0.0.2", "10.0.0.1", (8080, 4000)),
            flags: CT_REPLIED,
            remaining: None,
        };
        let wanted = Wanted {
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
        let sides: Vec<Tracked> = wanted.sides(&flow, 7).collect();
        let flags = [CT_REPLIED | CT_EGRESS, CT_REPLIED | CT_INGRESS];
        assert_eq!(
            sides,
            [
                Tracked { key: key(1, [10, 96, 0, 1], 4000, 80), flags: flags[0], seen: 7 },
                Tracked { key: key(2, [10, 0, 0, 1], 8080, 4000), flags: flags[1], seen: 7 },
            ]
        );
    }
}
