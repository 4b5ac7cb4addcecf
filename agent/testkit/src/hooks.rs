//! The packet path over [`MemoryTables`]: verdicts of a pod's hooks about the packets of a flow, each compared with the
//! verdict of XDP before it.

use std::cell::Cell;
use std::fmt;
use std::net::IpAddr;

use netpold_ebpf::direction::{Egress, Ingress};
use netpold_ebpf::judge::hook::PacketHook;
use netpold_ebpf::judge::reject::is_requested;
use netpold_ebpf::layout::{ENDPOINT_ADDRS, EP_ADDR4_SHIFT, EP_ADDR6_SHIFT, Endpoint};
use netpold_ebpf::packet::parse;
use netpold_ebpf::packet::protocol::{ICMP, ICMPV6, SCTP, TCP, TCP_ACK, TCP_SYN, UDP};
use netpold_ebpf::reason::Reason;
use netpold_ebpf::xdp::uplink::Scope;
use netpold_ebpf::xdp::{pod, uplink};

use crate::flows::MemoryFlowTables;
use crate::frames::{self, IpVersion, ip_between, vlan};
use crate::memory::MemoryTables;
use crate::node::{NodeTables, Plain};
use netpold_core::model::Direction;

/// Interface on which packets arrive at the node.
const UPLINK: u32 = 2;
/// Number of buckets of the flow tables, for one flow at a time.
const BUCKETS: u32 = 4;
/// Port of a client, and a port of no known flow.
const CLIENT: u16 = 40_000;
const UNKNOWN: u16 = 40_001;

/// A flow opened by a pod or to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The pod's interface.
    pub ifindex: u32,
    /// Direction of the first packet, as the pod sees it.
    pub direction: Direction,
    /// The remote address.
    pub remote: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Destination port.
    pub port: u16,
}

/// A disagreement of XDP and the pod's hook about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookDisagreement {
    /// Reason of the hook's verdict.
    pub hook: Reason,
    /// Reasons of XDP's drops: at an uplink for openings and for all packets, and at the pod's interface.
    pub early: Early,
    /// The packet of the flow.
    pub packet: FlowPacket,
}

impl fmt::Display for HookDisagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hook, early, packet } = self;
        write!(f, "{packet:?}: the pod's hook says {hook:?}, XDP {early:?}")
    }
}

/// Reasons why XDP drops a packet, by mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Early {
    /// At an uplink, [`Scope::Openings`].
    pub openings: Option<Reason>,
    /// At an uplink, [`Scope::All`].
    pub all: Option<Reason>,
    /// At the pod's own interface.
    pub sent: Option<Reason>,
}

/// A packet of a flow, by its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowPacket {
    /// The first packet.
    Opening,
    /// The first reply.
    Answer,
    /// A packet from the middle of an unknown flow.
    Unknown,
    /// A reply from the middle of an unknown flow.
    UnknownAnswer,
}

/// Hooks of a node, and the number of packets that XDP dropped in front of them.
#[derive(Debug)]
pub struct Hooks {
    flows: MemoryFlowTables,
    dropped: [Cell<u64>; 3],
}

impl Default for Hooks {
    fn default() -> Self {
        Self::new()
    }
}

impl Hooks {
    /// Hooks without flows.
    #[must_use]
    pub fn new() -> Self {
        Self { flows: MemoryFlowTables::new(BUCKETS), dropped: Default::default() }
    }

    /// Tables with the last flow.
    #[must_use]
    pub fn flows(&self) -> &MemoryFlowTables {
        &self.flows
    }

    /// Packets that XDP dropped so far: openings only, all, and those sent by pods.
    #[must_use]
    pub fn dropped(&self) -> [u64; 3] {
        self.dropped.each_ref().map(Cell::get)
    }

    /// Whether the pod's hook passes the first packet of a flow. `None` if there is no such packet: no such endpoint,
    /// no address of that family, or a protocol that is an IPv6 extension header. Also compares XDP on further packets
    /// of the flow.
    ///
    /// # Errors
    /// XDP drops a packet that the hook passes, or passes one that it must drop.
    pub fn begin(
        &self,
        tables: &MemoryTables,
        begun: &Begun,
    ) -> Result<Option<bool>, HookDisagreement> {
        let Some(endpoint) = tables.endpoint(begun.ifindex) else { return Ok(None) };
        let Some(local) = address_of(endpoint, begun.remote.is_ipv6()) else { return Ok(None) };
        if begun.remote.is_ipv6() && matches!(begun.protocol, 0 | 43 | 44 | 51 | 60) {
            return Ok(None);
        }
        self.flows.forget_flows();
        let alone = tables.endpoints.values().filter(|other| owns(other, local)).count() == 1;
        let path = Path { hooks: self, tables, begun, local, alone };
        let passes = path.show(FlowPacket::Opening)?;
        for packet in [FlowPacket::Answer, FlowPacket::Unknown, FlowPacket::UnknownAnswer] {
            path.show(packet)?;
        }
        Ok(Some(passes))
    }
}

/// One flow and the tables for its packets.
struct Path<'a> {
    hooks: &'a Hooks,
    tables: &'a MemoryTables,
    begun: &'a Begun,
    local: IpAddr,
    /// No other endpoint claims the local address.
    alone: bool,
}

impl Path<'_> {
    /// Passes a packet to XDP and then to the hook; returns whether the hook passes it.
    fn show(&self, packet: FlowPacket) -> Result<bool, HookDisagreement> {
        let forward = matches!(packet, FlowPacket::Opening | FlowPacket::Unknown);
        let begun = self.begun.direction;
        let direction = if forward { begun } else { begun.opposite() };
        let frame = self.frame(packet, direction, forward);
        let node = NodeTables { policy: self.tables, flows: &self.hooks.flows };
        let early = self.early(&node, direction, &frame);
        let ifindex = self.begun.ifindex;
        let ingress_ifindex = if direction == Direction::Ingress { UPLINK } else { ifindex };
        let hook = node.judge(direction, PacketHook { ifindex, ingress_ifindex }, &frame);
        let reason = hook.reason();
        if early != self.wanted(packet, direction, reason) {
            return Err(HookDisagreement { hook: reason, early, packet });
        }
        Ok(hook.passes())
    }

    fn early(
        &self,
        node: &NodeTables<&MemoryTables, &MemoryFlowTables>,
        direction: Direction,
        frame: &[u8],
    ) -> Early {
        let frame = Plain(frame);
        let link = parse::link(&frame);
        let uplink =
            |scope| uplink::drops(&frame, link, node, UPLINK, scope).map(|_| Reason::Policy);
        let early = match direction {
            Direction::Ingress => {
                Early { openings: uplink(Scope::Openings), all: uplink(Scope::All), sent: None }
            }
            Direction::Egress => {
                let sent = pod::drops(&frame, link, node, self.begun.ifindex);
                Early { sent: sent.map(|(_, reason)| reason), ..Early::default() }
            }
        };
        let all = [early.openings, early.all, early.sent];
        for (count, _) in self.hooks.dropped.iter().zip(all).filter(|(_, why)| why.is_some()) {
            count.set(count.get() + 1);
        }
        early
    }

    /// Expected verdicts of XDP for this verdict of the hook.
    fn wanted(&self, packet: FlowPacket, direction: Direction, hook: Reason) -> Early {
        let protocol = self.begun.protocol;
        if !matches!(protocol, TCP | UDP | SCTP) {
            return Early::default();
        }
        // XDP leaves packets that get an answer to the hook.
        let flags = self.tables.endpoint(self.begun.ifindex).map_or(0, |endpoint| endpoint.flags);
        let answered = match direction {
            Direction::Ingress => is_requested::<Ingress>(flags),
            Direction::Egress => is_requested::<Egress>(flags),
        };
        let policy = (hook == Reason::Policy && !answered).then_some(hook);
        let opening = packet == FlowPacket::Opening && matches!(protocol, TCP | SCTP);
        match direction {
            Direction::Ingress => {
                let all = policy.filter(|_| self.alone);
                Early { openings: all.filter(|_| opening), all, sent: None }
            }
            Direction::Egress => {
                let spoofed = (hook == Reason::SpoofedSource).then_some(hook);
                Early { sent: policy.or(spoofed), ..Early::default() }
            }
        }
    }

    /// The frame; flows with an odd port have a VLAN tag.
    fn frame(&self, packet: FlowPacket, direction: Direction, forward: bool) -> Vec<u8> {
        let known = matches!(packet, FlowPacket::Opening | FlowPacket::Answer);
        let client = if known { CLIENT } else { UNKNOWN };
        let mut ports = (client, self.begun.port);
        if !forward {
            ports = (ports.1, ports.0);
        }
        let data = transport(self.begun.protocol, ports, packet);
        let (from, to) = match direction {
            Direction::Ingress => (self.begun.remote, self.local),
            Direction::Egress => (self.local, self.begun.remote),
        };
        let protocol = self.begun.protocol;
        let packet = ip_between(from, to, protocol, &data);
        let tags: &[u16] = if self.begun.port & 1 != 0 { &[0x8100] } else { &[] };
        vlan(tags, &frames::frame(&packet))
    }
}

/// The first address of an endpoint in a family.
fn address_of(endpoint: &Endpoint, v6: bool) -> Option<IpAddr> {
    addresses(endpoint).find(|address| address.is_ipv6() == v6)
}

fn owns(endpoint: &Endpoint, address: IpAddr) -> bool {
    addresses(endpoint).any(|own| own == address)
}

fn addresses(endpoint: &Endpoint) -> impl Iterator<Item = IpAddr> {
    let valid = |shift: u32, slot: usize| endpoint.flags >> (shift + slot as u32) & 1 != 0;
    let slots = 0..ENDPOINT_ADDRS;
    let four = slots.clone().filter(move |slot| valid(EP_ADDR4_SHIFT, *slot));
    let six = slots.filter(move |slot| valid(EP_ADDR6_SHIFT, *slot));
    let four = four.map(|slot| IpAddr::V4(endpoint.addr4[slot].into()));
    four.chain(six.map(|slot| IpAddr::V6(endpoint.addr6[slot].into())))
}

/// Transport header and payload; a UDP header for other protocols.
fn transport(protocol: u8, (source, destination): (u16, u16), packet: FlowPacket) -> Vec<u8> {
    let answer = matches!(packet, FlowPacket::Answer | FlowPacket::UnknownAnswer);
    let begins = matches!(packet, FlowPacket::Opening | FlowPacket::Answer);
    match protocol {
        TCP => {
            let syn = if begins { TCP_SYN } else { 0 };
            let ack = if packet == FlowPacket::Opening { 0 } else { TCP_ACK };
            frames::tcp(source, destination, syn | ack)
        }
        // INIT, INIT ACK, DATA.
        SCTP => {
            let chunk = if begins { 1 + u8::from(answer) } else { 0 };
            frames::sctp(source, destination, chunk)
        }
        // Echo: the identifier is the client's port.
        ICMP | ICMPV6 => {
            let family = if protocol == ICMP { IpVersion::V4 } else { IpVersion::V6 };
            let kind = if answer { family.echo_reply() } else { family.echo_request() };
            let port = if answer { destination } else { source };
            let [high, low] = port.to_be_bytes();
            frames::icmp(kind, 0, [high, low, 0, 1], &[])
        }
        _ => frames::udp(source, destination, &[]),
    }
}
