//! ctnetlink: dump of all flows, number of flows, and query for one flow.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_DUMP};

use super::entry::{ConntrackEntry, ConntrackTuple, KernelFlow, PartialTuple};
use crate::netlink::{
    MessageBody, NETFILTER_HEADER, NLA_F_NESTED, ask_netfilter, attribute, attributes,
};

// Constants of `linux/netfilter/nfnetlink.h`, `nfnetlink_conntrack.h` and `nf_conntrack_common.h`.
const CT_GET: u16 = 1 << 8 | 1;
const CT_GET_STATS: u16 = 1 << 8 | 5;
const CTA_STATS_GLOBAL_ENTRIES: u16 = 1;
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
const CTA_PROTOINFO_TCP_FLAGS: [u16; 2] = [4, 5];
/// `IP_CT_TCP_FLAG_BE_LIBERAL` of `linux/netfilter/nf_conntrack_tcp.h`: set for both sides if the first packet was not
/// a SYN (`tcp_new` of `nf_conntrack_proto_tcp.c`), and for flows of a flowtable; a handshake clears it.
const BE_LIBERAL: u8 = 1 << 3;
const IPS_SEEN_REPLY: u32 = 1 << 1;
const IPS_ASSURED: u32 = 1 << 2;
const IPS_DYING: u32 = 1 << 9;

/// Returns the number of flows that the kernel tracks in the calling thread's network namespace; `None` if unknown.
pub(super) fn count() -> Option<u32> {
    let mut entries = None;
    let requested = ask_netfilter(CT_GET_STATS, NLM_F_ACK, (0, &[]), |answer| {
        let mut attributes = answer.attributes(NETFILTER_HEADER);
        let found = attributes.find(|(kind, _)| *kind == CTA_STATS_GLOBAL_ENTRIES);
        entries = found.and_then(|(_, value)| word(value));
    });
    requested.ok().and(entries)
}

/// Calls `each` for every flow that the kernel tracks in the calling thread's network namespace.
///
/// # Errors
/// The kernel has no conntrack, or refuses access (`CAP_NET_ADMIN`).
pub(super) fn dump(mut each: impl FnMut(KernelFlow)) -> io::Result<()> {
    ask_netfilter(CT_GET, NLM_F_DUMP, (0, &[]), |answer| {
        flow(answer).into_iter().for_each(&mut each);
    })
}

/// Returns [`KernelFlow::seen_from_start`] for the flow of an original tuple; `None` if unknown.
pub(super) fn seen_from_start(original: &ConntrackTuple) -> Option<bool> {
    let family = if original.source.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let version = usize::from(original.source.is_ipv6());
    let ip = [
        attribute(CTA_IP_SOURCES[version], &octets(original.source)),
        attribute(CTA_IP_DESTINATIONS[version], &octets(original.destination)),
    ];
    let proto = [
        attribute(CTA_PROTO_NUM, &[original.protocol]),
        attribute(CTA_PROTO_SRC_PORT, &original.source_port.to_be_bytes()),
        attribute(CTA_PROTO_DST_PORT, &original.destination_port.to_be_bytes()),
    ];
    let tuple = [
        attribute(CTA_TUPLE_IP | NLA_F_NESTED, &ip.concat()),
        attribute(CTA_TUPLE_PROTO | NLA_F_NESTED, &proto.concat()),
    ];
    let wanted = attribute(CTA_TUPLE_ORIG | NLA_F_NESTED, &tuple.concat());
    let mut seen = None;
    let requested = ask_netfilter(CT_GET, NLM_F_ACK, (family as u8, &wanted), |answer| {
        let found = flow(answer).filter(|flow| flow.original == *original);
        seen = found.and_then(|flow| flow.seen_from_start).or(seen);
    });
    requested.ok().and(seen)
}

fn flow(message: MessageBody<'_>) -> Option<KernelFlow> {
    let (mut original, mut reply, mut bits, mut tcp) = (None, None, 0, (0, None));
    let mut remaining = None;
    for (kind, value) in message.attributes(NETFILTER_HEADER) {
        match kind {
            CTA_TUPLE_ORIG => original = tuple(value),
            CTA_TUPLE_REPLY => reply = tuple(value),
            CTA_STATUS => bits = word(value)?,
            CTA_TIMEOUT => remaining = word(value),
            CTA_PROTOINFO => tcp = tcp_state(value).unwrap_or(tcp),
            _ => {}
        }
    }
    (bits & IPS_DYING == 0).then_some(())?;
    let (replied, assured) = (bits & IPS_SEEN_REPLY != 0, bits & IPS_ASSURED != 0);
    let (original, reply) = (original?, reply?);
    let (tcp_state, picked_up) = tcp;
    ConntrackEntry { original, reply, remaining, tcp_state, picked_up, replied, assured }.flow()
}

/// Reads the first 32 bits in network byte order; `None` if the value is shorter.
fn word(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Returns `enum tcp_conntrack`, and whether the first packet that the kernel saw was not a SYN; `None` if unknown.
fn tcp_state(info: &[u8]) -> Option<(u8, Option<bool>)> {
    let tcp = attributes(info).find(|(kind, _)| *kind == CTA_PROTOINFO_TCP)?.1;
    let (mut state, mut picked_up) = (None, None);
    for (kind, value) in attributes(tcp) {
        match kind {
            CTA_PROTOINFO_TCP_STATE => state = value.first().copied(),
            // struct nf_ct_tcp_flags: flags, mask.
            kind if CTA_PROTOINFO_TCP_FLAGS.contains(&kind) => {
                let liberal = value.first().map(|flags| flags & BE_LIBERAL != 0);
                picked_up = liberal.map(|liberal| liberal || picked_up == Some(true));
            }
            _ => {}
        }
    }
    Some((state?, picked_up))
}

fn tuple(value: &[u8]) -> Option<ConntrackTuple> {
    let (mut tuple, mut protocol) = (PartialTuple::default(), None);
    let port = |value: &[u8]| value.first_chunk().map_or(0, |port| u16::from_be_bytes(*port));
    for (kind, value) in attributes(value) {
        for (part, value) in attributes(value) {
            match (kind, part) {
                (CTA_TUPLE_IP, part) if CTA_IP_SOURCES.contains(&part) => {
                    tuple.source = address(value);
                }
                (CTA_TUPLE_IP, part) if CTA_IP_DESTINATIONS.contains(&part) => {
                    tuple.destination = address(value);
                }
                (CTA_TUPLE_PROTO, CTA_PROTO_NUM) => protocol = value.first().copied(),
                (CTA_TUPLE_PROTO, CTA_PROTO_SRC_PORT) => tuple.source_port = port(value),
                (CTA_TUPLE_PROTO, CTA_PROTO_DST_PORT) => tuple.destination_port = port(value),
                (CTA_TUPLE_PROTO, part) if CTA_PROTO_ICMP_IDS.contains(&part) => {
                    tuple.source_port = port(value);
                }
                (CTA_TUPLE_PROTO, part) if CTA_PROTO_ICMP_TYPES.contains(&part) => {
                    tuple.message = value.first().copied();
                }
                _ => {}
            }
        }
    }
    tuple.whole(protocol?)
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => value.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets).into()),
        16 => value.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets).into()),
        _ => None,
    }
}
