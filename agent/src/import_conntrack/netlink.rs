//! ctnetlink: a dump of all flows, and their number.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_DUMP};

use super::{KernelFlow, PartialTuple, Shown, Tuple};
use crate::netlink::{Message, NETFILTER_HEADER, ask_netfilter, attributes};

/// linux/netfilter/nfnetlink.h, `linux/netfilter/nfnetlink_conntrack.h`
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
const IPS_SEEN_REPLY: u32 = 1 << 1;
const IPS_ASSURED: u32 = 1 << 2;
const IPS_DYING: u32 = 1 << 9;

/// How many flows the kernel tracks in the calling thread's network namespace; `None`: it does not say.
pub(super) fn count() -> Option<u32> {
    let mut entries = None;
    let asked = ask_netfilter(CT_GET_STATS, NLM_F_ACK, |answer| {
        let mut attributes = answer.attributes(NETFILTER_HEADER);
        let found = attributes.find(|(kind, _)| *kind == CTA_STATS_GLOBAL_ENTRIES);
        entries = found.and_then(|(_, value)| word(value));
    });
    asked.ok().and(entries)
}

/// Hands over every flow that the kernel tracks in the calling thread's network namespace.
///
/// # Errors
/// The kernel has no conntrack, or does not tell (`CAP_NET_ADMIN`).
pub(super) fn dump(mut each: impl FnMut(KernelFlow)) -> io::Result<()> {
    ask_netfilter(CT_GET, NLM_F_DUMP, |answer| flow(answer).into_iter().for_each(&mut each))
}

fn flow(message: Message<'_>) -> Option<KernelFlow> {
    let (mut original, mut reply, mut bits, mut tcp_state) = (None, None, 0, 0);
    let mut remaining = None;
    for (kind, value) in message.attributes(NETFILTER_HEADER) {
        match kind {
            CTA_TUPLE_ORIG => original = tuple(value),
            CTA_TUPLE_REPLY => reply = tuple(value),
            CTA_STATUS => bits = word(value)?,
            CTA_TIMEOUT => remaining = word(value),
            CTA_PROTOINFO => tcp_state = state(value).unwrap_or(0),
            _ => {}
        }
    }
    (bits & IPS_DYING == 0).then_some(())?;
    let (replied, assured) = (bits & IPS_SEEN_REPLY != 0, bits & IPS_ASSURED != 0);
    let (original, reply) = (original?, reply?);
    Shown { original, reply, remaining, tcp_state, replied, assured }.flow()
}

/// 32 bits in network byte order, as netfilter writes them.
fn word(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

fn state(info: &[u8]) -> Option<u8> {
    let tcp = attributes(info).find(|(kind, _)| *kind == CTA_PROTOINFO_TCP)?.1;
    let state = attributes(tcp).find(|(kind, _)| *kind == CTA_PROTOINFO_TCP_STATE)?.1;
    state.first().copied()
}

fn tuple(value: &[u8]) -> Option<Tuple> {
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
