//! ctnetlink: a dump of all flows, and their number.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netpold_ebpf::packet::icmp;
use rtnetlink::packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR};
use rtnetlink::sys;

use super::{KernelFlow, Shown, Tuple};
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
/// The kernel's dumps come in pieces of up to 32 KiB.
const BUFFER: usize = 64 * 1024;

/// How many flows the kernel tracks in the calling thread's network namespace; `None`: it does not say.
pub(super) fn count() -> Option<u32> {
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
pub(super) fn dump(mut each: impl FnMut(KernelFlow)) -> io::Result<()> {
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
    (bits & IPS_DYING == 0).then_some(())?;
    let original: Tuple = original?;
    let (replied, assured) = (bits & IPS_SEEN_REPLY != 0, bits & IPS_ASSURED != 0);
    let flags = Shown { tcp_state: state, replied, assured }.flags(original.protocol)?;
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
