//! Packets that reach a pod without passing the programs at its interface. netpold cannot prevent this and reports it.
//!
//! `bpf_redirect_peer` hands a packet directly to the pod's side of the veth. The kernel counts the packet as received
//! on that side (from kernel 6.7 on; before that, not at all), but not as sent on the host's side, so the counters
//! differ. A pod can write neither counter.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netpold_core::compile::Compiler;
use netpold_dataplane::netlink::link::{IFLA_LINK, IFLA_LINK_NETNSID, IFLA_STATS64, LINK_HEADER};
use netpold_dataplane::netlink::{MessageBody, NetlinkConnection, word};

use super::interfaces::NodeInterfaces;

/// Time after the last packet during which the problem is reported.
const REPORTED_FOR: Duration = Duration::from_mins(10);

/// Packets that bypassed the programs, by interface and endpoint.
#[derive(Debug, Default)]
pub(super) struct Bypass {
    requests: Option<NetlinkConnection>,
    pods: BTreeMap<(u32, u32), PastCount>,
    /// Packets of removed pods.
    former: u64,
}

#[derive(Debug)]
struct PastCount {
    /// Interface index and namespace of the pod's side.
    peer: (u32, i32),
    /// Counter when the pod became isolated.
    first: u64,
    /// Counter at the last look.
    packets: u64,
    last: Option<Instant>,
}

/// Attributes and counters of one side of a veth.
#[derive(Clone, Copy, Debug, Default)]
struct VethSide {
    peer: u32,
    namespace: Option<i32>,
    received: u64,
    sent: u64,
}

impl Bypass {
    /// Counts packets that reached pods isolated for ingress past their programs.
    pub(super) fn count_bypassed(&mut self, compiler: &Compiler, interfaces: &NodeInterfaces) {
        let isolated = compiler.endpoints().filter(|e| e.ingress && !e.waiting);
        let isolated: BTreeSet<(u32, u32)> = isolated.map(|e| (e.ifindex, e.id)).collect();
        match self.count(&isolated) {
            Ok(fresh) => {
                for (ifindex, packets) in fresh {
                    let interface = interfaces.veth(ifindex);
                    tracing::warn!(ifindex, interface, packets, "packets bypassed the programs");
                }
            }
            Err(error) => tracing::debug!(%error, "cannot read interface counters"),
        }
    }

    /// Returns the pods that unjudged packets have reached lately.
    pub(super) fn problems(&self, interfaces: &NodeInterfaces) -> impl Iterator<Item = String> {
        let lately = |past: &PastCount| past.last.is_some_and(|last| last.elapsed() < REPORTED_FOR);
        self.pods.iter().filter(move |(_, past)| lately(past)).map(|((ifindex, _), past)| {
            format!(
                "{}: {} packets reached the pod unjudged, past its programs: another tool redirects them \
                 (bpf_redirect_peer); disable that",
                interfaces.label(*ifindex),
                past.packets - past.first
            )
        })
    }

    /// Returns the number of packets that reached isolated pods unjudged, since the agent's start.
    pub(super) fn packets(&self) -> u64 {
        let past = self.pods.values().map(|past| past.packets - past.first);
        self.former + past.sum::<u64>()
    }

    /// Reads the counters of the pods' interfaces. Returns the interfaces with packets past the programs since the last
    /// call, and their number.
    fn count(&mut self, isolated: &BTreeSet<(u32, u32)>) -> io::Result<Vec<(u32, u64)>> {
        let former = &mut self.former;
        self.pods.retain(|key, past| {
            let stays = isolated.contains(key);
            *former += if stays { 0 } else { past.packets - past.first };
            stays
        });
        let requests = match &mut self.requests {
            Some(requests) => requests,
            none => none.insert(NetlinkConnection::open()?),
        };
        let mut fresh = Vec::new();
        for &key in isolated {
            let known = self.pods.get(&key).map(|past| past.peer);
            let Some((peer, packets)) = read_bypassed(requests, key.0, known) else {
                continue;
            };
            let past = self.pods.entry(key).or_insert(PastCount {
                peer,
                first: packets,
                packets,
                last: None,
            });
            past.peer = peer;
            if packets > past.packets {
                fresh.push((key.0, packets - past.packets));
                past.packets = packets;
                past.last = Some(Instant::now());
            }
        }
        Ok(fresh)
    }
}

/// Returns the packets that the pod's side received and the host's side did not send; `None` where the counters are not
/// available, for example of a veth under removal.
fn read_bypassed(
    requests: &mut NetlinkConnection,
    index: u32,
    known: Option<(u32, i32)>,
) -> Option<((u32, i32), u64)> {
    let peer = match known {
        Some(peer) => peer,
        None => {
            let host = side(requests, index, None).ok()?;
            (host.peer, host.namespace?)
        }
    };
    // In this order, packets sent between the two reads can hide a few bypassing packets but never add false ones.
    let received = side(requests, peer.0, Some(peer.1)).ok()?.received;
    let host = side(requests, index, None).ok()?;
    let same = (host.peer, host.namespace) == (peer.0, Some(peer.1));
    same.then(|| (peer, received.saturating_sub(host.sent)))
}

fn side(
    requests: &mut NetlinkConnection,
    index: u32,
    namespace: Option<i32>,
) -> io::Result<VethSide> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.extend(namespace.map(LinkAttribute::IfNetnsId));
    let mut side = VethSide::default();
    requests.request(RouteNetlinkMessage::GetLink(message), 0, |answer| read(answer, &mut side))?;
    Ok(side)
}

fn read(answer: MessageBody<'_>, side: &mut VethSide) {
    for (kind, value) in answer.attributes(LINK_HEADER) {
        match kind {
            IFLA_LINK => side.peer = word(value).unwrap_or(0),
            IFLA_LINK_NETNSID => side.namespace = word(value).map(u32::cast_signed),
            // struct rtnl_link_stats64: rx_packets, tx_packets
            IFLA_STATS64 => {
                side.received = read_u64(value);
                side.sent = value.get(8..).map_or(0, read_u64);
            }
            _ => {}
        }
    }
}

fn read_u64(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}
