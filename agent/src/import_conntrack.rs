//! Flows that began before netpold recorded flows, from the kernel's own conntrack.
//!
//! It knows who began each of them, which a packet in the middle of one does not tell. A pod that
//! began a flow sees its original tuple; a pod that another one's flow came to sees the other tuple,
//! turned around: behind a Service or a masquerade that is another one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netpold_core::probe::IpProtocol;
use netpold_ebpf::layout::{
    CT_EGRESS, CT_FIN_INGRESS, CT_INGRESS, CT_NODE, CT_REPLIED, CT_STREAM, CT_SYN, CT_SYN_ACK,
    Ct4Key, Ct6Key,
};
use netpold_ebpf::packet::icmp;
use rtnetlink::packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR};
use rtnetlink::sys;

use crate::conntrack::{FlowKey, Tracked};
use crate::netlink::{Message, attributes, messages, status};

/// linux/netlink.h, linux/netfilter/nfnetlink.h, `linux/netfilter/nfnetlink_conntrack.h`
const NETLINK_NETFILTER: isize = 12;
const CT_GET: u16 = 1 << 8 | 1;
const CT_GET_STATS: u16 = 1 << 8 | 5;
const CTA_STATS_GLOBAL_ENTRIES: u16 = 1;
/// `struct nfgenmsg`
const HEADER: usize = 4;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_TIMEOUT: u16 = 7;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_SOURCES: [u16; 2] = [1, 3];
const CTA_IP_DESTINATIONS: [u16; 2] = [2, 4];
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_PROTO_ICMP_IDS: [u16; 2] = [4, 7];
const CTA_PROTO_ICMP_TYPES: [u16; 2] = [5, 8];
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;
const IPS_SEEN_REPLY: u32 = 1 << 1;
const IPS_ASSURED: u32 = 1 << 2;
const IPS_DYING: u32 = 1 << 9;
/// `enum tcp_conntrack`
const TCP_SYN_SENT: u8 = 1;
const TCP_SYN_RECV: u8 = 2;
const TCP_FIN_WAIT: u8 = 4;
const TCP_LAST_ACK: u8 = 6;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The kernel's dumps come in pieces of up to 32 KiB.
const BUFFER: usize = 64 * 1024;

/// One direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tuple {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    /// ICMP echo: the identifier.
    source_port: u16,
    /// ICMP echo: [`icmp::kind`].
    destination_port: u16,
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

/// How many flows the kernel tracks in the calling thread's network namespace; `None`: it does not say. A dump goes
/// through all buckets, empty ones too: 11 ms for the 262,144 of a machine with 4 GB and more.
#[must_use]
pub fn tracked() -> Option<u32> {
    let mut socket = sys::Socket::new(NETLINK_NETFILTER).ok()?;
    socket.bind_auto().ok()?;
    socket.send_to(&request(CT_GET_STATS, 0), &sys::SocketAddr::new(0, 0), 0).ok()?;
    let mut buffer = Vec::with_capacity(BUFFER);
    socket.recv(&mut buffer, 0).ok()?;
    let answer = messages(&buffer).map(|(_, message)| message).find(|m| m.kind == CT_GET_STATS)?;
    let (_, value) =
        answer.attributes(HEADER).find(|(kind, _)| *kind == CTA_STATS_GLOBAL_ENTRIES)?;
    value.first_chunk().map(|word| u32::from_be_bytes(*word))
}

/// Hands over every flow that the kernel tracks in the calling thread's network namespace.
///
/// # Errors
/// The kernel has no conntrack, or does not tell (`CAP_NET_ADMIN`).
pub fn kernel_flows(mut each: impl FnMut(KernelFlow)) -> io::Result<()> {
    let mut socket = sys::Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    let mut buffer = Vec::with_capacity(BUFFER);
    socket.send_to(&request(CT_GET, NLM_F_DUMP), &sys::SocketAddr::new(0, 0), 0)?;
    loop {
        buffer.clear();
        socket.recv(&mut buffer, 0)?;
        for (_, message) in messages(&buffer) {
            match message.kind {
                NLMSG_DONE | NLMSG_ERROR => return status(message),
                _ => flow(message).into_iter().for_each(&mut each),
            }
        }
    }
}

/// About both families.
fn request(kind: u16, flags: u16) -> Vec<u8> {
    let length: u32 = 16 + HEADER as u32;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    // Sequence number, port; family, version, resource.
    bytes.extend([0; 8 + HEADER]);
    bytes
}

fn flow(message: Message<'_>) -> Option<KernelFlow> {
    let (mut original, mut reply, mut bits, mut state) = (None, None, 0, 0);
    let mut remaining = None;
    for (kind, value) in message.attributes(HEADER) {
        match kind {
            CTA_TUPLE_ORIG => original = tuple(value),
            CTA_TUPLE_REPLY => reply = tuple(value),
            CTA_STATUS => bits = u32::from_be_bytes(*value.first_chunk()?),
            CTA_TIMEOUT => remaining = value.first_chunk().map(|word| u32::from_be_bytes(*word)),
            CTA_PROTOINFO => state = tcp_state(value).unwrap_or(0),
            _ => {}
        }
    }
    let original: Tuple = original?;
    let over = original.protocol == TCP && state > TCP_LAST_ACK;
    (bits & IPS_DYING == 0 && !over).then_some(())?;
    let replied = if bits & IPS_SEEN_REPLY != 0 { CT_REPLIED } else { 0 };
    let flags = match (original.protocol, state) {
        (TCP, TCP_SYN_SENT) => CT_SYN,
        (TCP, TCP_SYN_RECV) => CT_SYN | CT_SYN_ACK,
        // Whose FIN it was makes no difference to how long it is kept.
        (TCP, TCP_FIN_WAIT..=TCP_LAST_ACK) => replied | CT_FIN_INGRESS,
        // Of UDP that is said once it is a stream.
        (UDP, _) if bits & IPS_ASSURED != 0 => replied | CT_STREAM,
        _ => replied,
    };
    Some(KernelFlow { original, reply: reply?, flags, remaining })
}

fn tcp_state(info: &[u8]) -> Option<u8> {
    let tcp = attributes(info).find(|(kind, _)| *kind == CTA_PROTOINFO_TCP)?.1;
    let state = attributes(tcp).find(|(kind, _)| *kind == CTA_PROTOINFO_TCP_STATE)?.1;
    state.first().copied()
}

fn tuple(value: &[u8]) -> Option<Tuple> {
    let (mut source, mut destination, mut protocol) = (None, None, None);
    let (mut source_port, mut destination_port, mut message) = (0, 0, None);
    let port = |value: &[u8]| value.first_chunk().map_or(0, |port| u16::from_be_bytes(*port));
    for (kind, value) in attributes(value) {
        for (part, value) in attributes(value) {
            match (kind, part) {
                (CTA_TUPLE_IP, part) if CTA_IP_SOURCES.contains(&part) => source = address(value),
                (CTA_TUPLE_IP, part) if CTA_IP_DESTINATIONS.contains(&part) => {
                    destination = address(value);
                }
                (CTA_TUPLE_PROTO, CTA_PROTO_NUM) => protocol = value.first().copied(),
                (CTA_TUPLE_PROTO, CTA_PROTO_SRC_PORT) => source_port = port(value),
                (CTA_TUPLE_PROTO, CTA_PROTO_DST_PORT) => destination_port = port(value),
                (CTA_TUPLE_PROTO, part) if CTA_PROTO_ICMP_IDS.contains(&part) => {
                    source_port = port(value);
                }
                (CTA_TUPLE_PROTO, part) if CTA_PROTO_ICMP_TYPES.contains(&part) => {
                    message = value.first().copied();
                }
                _ => {}
            }
        }
    }
    let (source, destination, protocol) = (source?, destination?, protocol?);
    let destination_port = message.map_or(destination_port, |it| icmp::kind(protocol, it));
    Some(Tuple { source, destination, protocol, source_port, destination_port })
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => value.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets).into()),
        16 => value.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets).into()),
        _ => None,
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
