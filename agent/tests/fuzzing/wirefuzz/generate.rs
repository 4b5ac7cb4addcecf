//! Random packets of all kinds, most of them nearly valid: of existing flows, answers to received packets, errors about
//! received packets, fragmented, with options, in frames to another station.

mod link;

use std::collections::BTreeSet;
use std::net::IpAddr;

use netpold_testbed::Offload;
use netpold_testbed::packet::{frame, icmp_packet, packet, udp_packet};
use netpold_testbed::services::NODE_PORT;

use crate::wirefuzz::judge::{History, Sent};
use crate::wirefuzz::read::{self, ICMP, ICMPV6, SCTP, TCP, Tuple, UDP};
use crate::wirefuzz::shape::{Shape, extension, message, options, routing};
use crate::wirefuzz::traits::Trait;
use crate::wirefuzz::world::{PORTS, Party, World};
use netpold_testkit::random::Random;

const BROADCAST: [u8; 6] = [0xff; 6];
const SOURCE_PORTS: [u16; 7] = [5000, 5001, 5002, 4000, 80, 8080, NODE_PORT];
const OTHERS: [u8; 9] = [4, 41, 47, 50, 89, 103, 253, 59, 0];
const VXLAN_PORT: u16 = 8472;

pub(crate) struct Generator {
    pub(crate) random: Random,
    /// Whether the nodes' conntrack has been flushed.
    pub(crate) forgotten: bool,
    /// Whether packets bypass the program of their pod's veth. Forged source MACs and VXLAN are then not generated:
    /// no hook judges them.
    pub(crate) bounces: bool,
}

/// Returns the cookie of a packet: `{np`, two digits of the sender, eight of the packet's number, one check digit,
/// `}`.
pub(crate) fn cookie(sender: usize, number: usize) -> String {
    let digits = format!("{sender:02}{number:08}");
    format!("{{np{digits}{}}}", check(digits.as_bytes()))
}

fn check(digits: &[u8]) -> u32 {
    digits.iter().map(|digit| u32::from(*digit)).sum::<u32>() % 10
}

/// Returns the packet number of the cookie in a frame.
pub(crate) fn number_in(frame: &[u8]) -> Option<usize> {
    let of = |cookie: &[u8]| {
        let digits = cookie.get(3..13)?;
        let checksum: u32 = std::str::from_utf8(cookie.get(13..14)?).ok()?.parse().ok()?;
        let whole = cookie.starts_with(b"{np") && cookie[14] == b'}' && check(digits) == checksum;
        whole.then(|| std::str::from_utf8(&digits[2..]).ok()?.parse().ok())?
    };
    frame.windows(15).find_map(of)
}

/// Packet under construction.
struct Draft<'a> {
    world: &'a World,
    history: &'a History,
    sender: usize,
    cookie: String,
    traits: BTreeSet<Trait>,
}

impl<'a> Draft<'a> {
    fn party(&self) -> &'a Party {
        &self.world.parties[self.sender]
    }

    fn payload(&self, length: usize) -> Vec<u8> {
        self.cookie.bytes().cycle().take(length.max(self.cookie.len())).collect()
    }
}

impl Generator {
    pub(crate) fn new(seed: u64) -> Self {
        // Neither 0 nor close to the state of another seed.
        let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Self { random, forgotten: false, bounces: false }
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.random.below(100) < percent
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.below(of.len())]
    }

    /// Returns the next packet of a random party.
    pub(crate) fn next(&mut self, world: &World, history: &History, number: usize) -> Sent {
        loop {
            let sender = self.random.below(world.parties.len());
            if let Some(sent) = self.next_of(world, history, (sender, number)) {
                return sent;
            }
        }
    }

    /// Returns the next packet of a party; `None` if no packet of the drawn kind is possible.
    pub(crate) fn next_of(
        &mut self,
        world: &World,
        history: &History,
        (sender, number): (usize, usize),
    ) -> Option<Sent> {
        let cookie = cookie(sender, number);
        let mut traits = BTreeSet::new();
        if self.bounces {
            traits.insert(Trait::Bounced);
        }
        let mut draft = Draft { world, history, sender, cookie, traits };
        self.packet(&mut draft)
    }

    fn packet(&mut self, draft: &mut Draft<'_>) -> Option<Sent> {
        match self.random.below(20) {
            0 | 1 => self.about(draft),
            2 => self.link_message(draft),
            // A packet that bypasses the veth's program into a tunnel of the node meets no hook (THREATS.md).
            3 if !self.bounces => self.wrapped(draft),
            kind => {
                let mut flow = match kind {
                    4..=8 => self.answer(draft)?,
                    9 => {
                        let flows = draft.history.sent_flows(draft.sender)?;
                        *flows.iter().nth(self.random.below(flows.len()))?
                    }
                    _ => {
                        return {
                            let flow = self.fresh(draft);
                            self.flow(draft, flow)
                        };
                    }
                };
                // Answers to a multicast packet have the party's own source.
                flow.from.0 = draft.party().addresses[usize::from(flow.from.0.is_ipv6())];
                self.flow(draft, flow)
            }
        }
    }

    /// Returns the tuple of an answer to a packet that the sender received.
    fn answer(&mut self, draft: &mut Draft<'_>) -> Option<Tuple> {
        draft.traits.insert(Trait::Answer);
        let flows = draft.history.received_flows(draft.sender)?;
        let (tuple, _) = flows.iter().nth(self.random.below(flows.len()))?;
        Some(tuple.reversed())
    }

    fn fresh(&mut self, draft: &mut Draft<'_>) -> Tuple {
        let family = self.random.below(2);
        let from = self.source(draft, family);
        let to = self.destination(draft, family);
        let (tcp, icmp) = (TCP, if family == 0 { ICMP } else { ICMPV6 });
        let protocol = match self.random.below(20) {
            0..=7 => UDP,
            8..=12 => tcp,
            13..=15 => icmp,
            16 | 17 => SCTP,
            _ => self.one(&OTHERS),
        };
        let (source, mut port) = (self.one(&SOURCE_PORTS), self.one(&PORTS));
        if let Some((_, known)) = draft.world.frontends.iter().find(|(address, _)| *address == to) {
            port = *known;
        }
        match protocol {
            UDP | TCP | SCTP => Tuple { protocol, from: (from, source), to: (to, port) },
            ICMP | ICMPV6 if self.chance(20) => {
                Tuple { protocol, from: (from, 0), to: (to, source) }
            }
            ICMP | ICMPV6 => Tuple { protocol, from: (from, source), to: (to, 0) },
            _ => Tuple { protocol, from: (from, 0), to: (to, 0) },
        }
    }

    fn source(&mut self, draft: &mut Draft<'_>, family: usize) -> IpAddr {
        let own = draft.party().addresses[family];
        if !self.chance(8) {
            return own;
        }
        let nobody: [IpAddr; 2] = ["198.18.0.1".parse(), "2001:db8::1".parse()].map(Result::unwrap);
        if draft.party().pod.is_none() {
            let services = &draft.world.frontends;
            if services.is_empty() || self.chance(30) {
                return nobody[family];
            }
            let of_family = services.iter().filter(|(a, _)| usize::from(a.is_ipv6()) == family);
            let all: Vec<IpAddr> = of_family.map(|(address, _)| *address).collect();
            draft.traits.insert(Trait::Service);
            return self.one(&all);
        }
        if self.chance(20) {
            draft.traits.insert(Trait::Stranger);
            let odd: [[IpAddr; 2]; 2] = [
                ["0.0.0.0".parse().unwrap(), "::".parse().unwrap()],
                ["127.0.0.1".parse().unwrap(), "fe80::77".parse().unwrap()],
            ];
            return if self.chance(50) { nobody[family] } else { self.one(&odd)[family] };
        }
        let (others, nodes) = (&draft.world.parties, &draft.world.nodes);
        let claimed = if self.chance(80) {
            others[self.random.below(others.len())].addresses[family]
        } else {
            nodes[self.random.below(nodes.len())][family]
        };
        if claimed != own {
            draft.traits.insert(Trait::Forged);
        }
        claimed
    }

    fn destination(&mut self, draft: &mut Draft<'_>, family: usize) -> IpAddr {
        let World { parties, frontends, nodes, .. } = draft.world;
        match self.random.below(40) {
            0..=26 => {
                let to = self.random.below(parties.len());
                if to == draft.sender {
                    draft.traits.insert(Trait::Itself);
                }
                parties[to].addresses[family]
            }
            27..=33 if !frontends.is_empty() => {
                let of = frontends.iter().filter(|(a, _)| usize::from(a.is_ipv6()) == family);
                let all: Vec<IpAddr> = of.map(|(address, _)| *address).collect();
                self.one(&all)
            }
            34 => {
                draft.traits.insert(Trait::Itself);
                draft.party().addresses[family]
            }
            35 => {
                let many: [[IpAddr; 2]; 2] = [
                    ["224.0.0.251".parse().unwrap(), "ff02::fb".parse().unwrap()],
                    ["255.255.255.255".parse().unwrap(), "ff02::1".parse().unwrap()],
                ];
                self.one(&many)[family]
            }
            _ => {
                let node = self.random.below(nodes.len());
                if node != draft.party().node && !frontends.is_empty() {
                    draft.traits.insert(Trait::FarNodePort);
                }
                nodes[node][family]
            }
        }
    }

    /// Returns a packet of a flow.
    fn flow(&mut self, draft: &mut Draft<'_>, flow: Tuple) -> Option<Sent> {
        if draft.party().addresses.contains(&flow.to.0) {
            draft.traits.insert(Trait::Itself);
        }
        if self.forgotten && draft.world.is_translated(flow.to.0) {
            draft.traits.insert(Trait::Forgotten);
        }
        let length = match self.random.below(10) {
            0 => 1200,
            1 => 400,
            _ => 30,
        };
        let in_parts = self.chance(12);
        let length = if in_parts { 200 + self.random.below(3600) } else { length };
        let payload = draft.payload(length);
        let message = message(&mut self.random, flow, &payload);
        let shape = self.shape(draft, flow, message);
        self.sent(draft, &shape, in_parts)
    }

    fn shape(&mut self, draft: &mut Draft<'_>, flow: Tuple, message: Vec<u8>) -> Shape {
        let Tuple { protocol, from, to } = flow;
        let ident = self.random.below(1 << 16) as u16;
        let mut shape = Shape {
            from: from.0,
            to: to.0,
            protocol,
            message,
            options: Vec::new(),
            extensions: Vec::new(),
            inside: false,
            ident,
        };
        if !self.chance(12) {
            return shape;
        }
        let other = self.random.below(draft.world.parties.len());
        let other = draft.world.parties[other].addresses;
        if from.0.is_ipv4() {
            draft.traits.insert(Trait::Options);
            shape.options = options(&mut self.random, other[0]);
        } else if self.chance(20) {
            draft.traits.insert(Trait::Routing);
            shape.extensions = vec![routing(&mut self.random, other[1])];
        } else if self.chance(25) {
            shape.inside = true;
        } else {
            draft.traits.insert(Trait::Extensions);
            let count = 1 + self.random.below(3) * self.random.below(4);
            shape.extensions = (0..count).map(|_| extension(&mut self.random)).collect();
        }
        shape
    }

    /// Returns the packet, or its fragments in any order, some of them duplicated, missing or overlapping.
    fn pieces(&mut self, draft: &mut Draft<'_>, shape: &Shape, in_parts: bool) -> Vec<Vec<u8>> {
        if !in_parts {
            return vec![shape.whole()];
        }
        draft.traits.insert(Trait::Fragments);
        if shape.inside {
            draft.traits.insert(Trait::OptionsInside);
        }
        let size = [64, 256, 1232, 1232, 8][self.random.below(5)].max(shape.body().len() / 12);
        let mut parts = shape.cut(size.min(1400));
        match self.random.below(8) {
            0 => parts.reverse(),
            1 => {
                let at = self.random.below(parts.len());
                parts.remove(at);
            }
            2 => {
                let again = parts[self.random.below(parts.len())].clone();
                parts.push(again);
            }
            3 => {
                // Overlap: a fragment begins before the end of the fragment before it.
                let at = self.random.below(parts.len());
                parts[at].0 = parts[at].0.saturating_sub(8 * (1 + self.random.below(3)));
            }
            4 => {
                for at in 0..parts.len() {
                    let with = self.random.below(parts.len());
                    parts.swap(at, with);
                }
            }
            _ => {}
        }
        parts.iter().map(|part| shape.part(part)).collect()
    }

    fn sent(&mut self, draft: &mut Draft<'_>, shape: &Shape, in_parts: bool) -> Option<Sent> {
        let whole = shape.whole();
        if whole.is_empty() {
            return None;
        }
        let (own, next) = (draft.party().mac, self.next_hop(draft, shape.to));
        let parsed = read::frame(&frame(next, own, &whole));
        let pieces = self.pieces(draft, shape, in_parts);
        let mut frames: Vec<Vec<u8>> =
            pieces.iter().map(|packet| frame(next, own, packet)).collect();
        if frames.is_empty() {
            return None;
        }
        let offload = match frames.as_slice() {
            [_] => self.offload(draft, shape, whole.len()),
            _ => Offload::default(),
        };
        let left = offload != Offload::default();
        if !left && self.chance(5) {
            self.tag(draft, &mut frames);
        }
        self.steal_station(draft, &mut frames);
        if !left && self.chance(6) {
            draft.traits.insert(Trait::Damaged);
            let at = self.random.below(frames.len());
            self.damage(&mut frames[at]);
        }
        let traits = std::mem::take(&mut draft.traits);
        Some(Sent { sender: draft.sender, frames, traits, offload, parsed })
    }

    /// Returns an offload request for a whole packet: one that a socket would make, or one that overwrites headers.
    fn offload(&mut self, draft: &mut Draft<'_>, shape: &Shape, length: usize) -> Offload {
        let message = 14 + length - shape.body().len();
        let (own, judged) = match shape.protocol {
            TCP => (16, 8),
            UDP => (6, 6),
            _ => (usize::MAX, 0),
        };
        if shape.inside || !self.chance(10) {
            return Offload::default();
        }
        if own == usize::MAX || draft.party().pod.is_some() && self.chance(50) {
            // The judgement ends at a Mobility header: bytes written after it do not change the verdict.
            let ends = shape.extensions.iter().any(|(kind, _)| *kind == 135);
            if draft.party().pod.is_none() || ends {
                return Offload::default();
            }
            draft.traits.insert(Trait::Overwritten);
            let at = 12 + self.random.below(message + judged - 12);
            let start = self.random.below(at + 1);
            return Offload { checksum: Some((start as u16, (at - start) as u16)), segments: None };
        }
        if !shape.extensions.is_empty() || !shape.options.is_empty() {
            return Offload::default();
        }
        draft.traits.insert(Trait::Offloaded);
        let segments = (shape.message.len() > 300 && self.chance(50)).then(|| {
            let header = message + if shape.protocol == TCP { 20 } else { 8 };
            (self.one(&Offload::SEGMENTS), 200, header as u16)
        });
        Offload { checksum: Some((message as u16, own as u16)), segments }
    }

    /// Replaces the source MAC of a pod's frames by the MAC of another party or of the node, or by an unused one.
    fn steal_station(&mut self, draft: &mut Draft<'_>, frames: &mut [Vec<u8>]) {
        let party = draft.party();
        if party.pod.is_none() || self.bounces || !self.chance(4) {
            return;
        }
        let other = match self.random.below(3) {
            0 => party.gateway,
            1 => [0x0a, 0x58, 0xaa, 1, 2, 3],
            _ => draft.world.parties[self.random.below(draft.world.parties.len())].mac,
        };
        if other != party.mac {
            draft.traits.insert(Trait::OtherStation);
            frames.iter_mut().for_each(|frame| frame[6..12].copy_from_slice(&other));
        }
    }

    fn damage(&mut self, frame: &mut Vec<u8>) {
        // Damages the end, or a byte from the network header on.
        match self.random.below(3) {
            0 => frame.truncate(frame.len().saturating_sub(1 + self.random.below(40)).max(15)),
            1 => frame.extend(vec![0; 1 + self.random.below(40)]),
            _ => {
                // Lengths, types and offsets; changed addresses would make a different packet.
                let transport = if frame.get(12) == Some(&0x86) { 40 } else { 20 };
                let at = match self.random.below(12) {
                    7 => transport,
                    8 => transport + 4,
                    9.. => transport + self.random.below(14),
                    header => [0, 2, 3, 4, 5, 6, 7][header],
                };
                let at = 14 + at;
                if let Some(byte) = frame.get_mut(at) {
                    *byte = self.random.below(256) as u8;
                }
            }
        }
    }

    /// Returns the MAC address of a packet's next hop, or of another station.
    fn next_hop(&mut self, draft: &mut Draft<'_>, to: IpAddr) -> [u8; 6] {
        let parties = &draft.world.parties;
        let party = draft.party();
        let neighbour =
            |other: &&Party| party.is_bridged_to(other) && other.addresses.contains(&to);
        let right = match to {
            IpAddr::V4(to) if to.is_broadcast() => BROADCAST,
            IpAddr::V4(to) if to.is_multicast() => [1, 0, 0x5e, 0, 0, 0xfb],
            IpAddr::V6(to) if to.is_multicast() => [0x33, 0x33, 0, 0, 0, 1],
            IpAddr::V4(_) | IpAddr::V6(_) => {
                parties.iter().find(neighbour).map_or(party.gateway, |other| other.mac)
            }
        };
        if !self.chance(8) {
            return right;
        }
        let other = match self.random.below(4) {
            0 => BROADCAST,
            1 => [0x0a, 0x58, 0xaa, 1, 2, 3],
            _ => parties[self.random.below(parties.len())].mac,
        };
        if other != right {
            draft.traits.insert(Trait::Station);
        }
        other
    }

    /// Returns an ICMP error about a flow.
    fn about(&mut self, draft: &mut Draft<'_>) -> Option<Sent> {
        let quoted = if self.chance(60) {
            draft.traits.insert(Trait::Error);
            let flows = draft.history.received_flows(draft.sender)?;
            *flows.iter().nth(self.random.below(flows.len()))?.0
        } else {
            draft.traits.insert(Trait::ErrorOfOthers);
            let other = self.random.below(draft.world.parties.len());
            let flows = draft.history.sent_flows(other)?;
            let tuple = *flows.iter().nth(self.random.below(flows.len()))?;
            if other == draft.sender { tuple.reversed() } else { tuple }
        };
        if draft.world.is_translated(quoted.from.0) {
            draft.traits.insert(Trait::ErrorOfOthers);
        }
        let v4 = quoted.from.0.is_ipv4();
        let own = draft.party().addresses[usize::from(!v4)];
        let payload = draft.payload(40 + 900 * self.random.below(2));
        let message = message(&mut self.random, quoted, &payload);
        let inner = packet(quoted.from.0, quoted.to.0, quoted.protocol, &message);
        let kind = if v4 {
            self.one(&[(3, 0), (3, 1), (3, 3), (3, 4), (11, 0), (12, 0), (4, 0), (5, 1)])
        } else {
            self.one(&[(1, 0), (1, 4), (2, 0), (3, 0), (4, 0), (137, 0)])
        };
        let word = if matches!(kind, (3, 4) | (2, 0)) { [0, 0, 5, 0x78] } else { [0; 4] };
        let whole = icmp_packet((own, quoted.from.0), kind, word, &inner);
        let header = if v4 { 20 } else { 40 };
        let protocol = if v4 { ICMP } else { ICMPV6 };
        let flow = Tuple { protocol, from: (own, 0), to: (quoted.from.0, 0) };
        if draft.party().addresses.contains(&quoted.from.0) {
            draft.traits.insert(Trait::Itself);
        }
        let shape = self.shape(draft, flow, whole[header..].to_vec());
        let in_parts = self.chance(8);
        self.sent(draft, &shape, in_parts)
    }

    /// Adds VLAN tags: mostly as many as the parser skips, and mostly of VLAN 0, which the kernel strips.
    fn tag(&mut self, draft: &mut Draft<'_>, frames: &mut [Vec<u8>]) {
        draft.traits.insert(Trait::Tagged);
        let count = match self.random.below(4) {
            0 => 1 + self.random.below(12),
            few => few,
        };
        let vlan = self.random.below(3).saturating_sub(1) as u8;
        let tags =
            (0..count).map(|_| [[0x81, 0, 0, vlan], [0x88, 0xa8, 0, vlan]][self.random.below(2)]);
        let tags: Vec<u8> = tags.flatten().collect();
        for frame in frames {
            frame.splice(12..12, tags.iter().copied());
        }
    }

    /// Returns a packet in VXLAN, to a node.
    fn wrapped(&mut self, draft: &mut Draft<'_>) -> Option<Sent> {
        let number = self.random.below(2);
        let [node, _] = draft.world.nodes[number];
        let whose = self.random.below(draft.world.parties.len());
        let mut flow = self.fresh(draft);
        draft.traits.insert(Trait::Tunnel);
        let family = usize::from(flow.from.0.is_ipv6());
        flow.from.0 = draft.world.parties[whose].addresses[family];
        let payload = draft.payload(60);
        let message = message(&mut self.random, flow, &payload);
        let shape = self.shape(draft, flow, message);
        let mac = [0x0a, 0x58, 9, 0, 0, number as u8 + 1];
        let inner = frame(mac, [0x0a, 0x58, 9, 0, 0, 9], &shape.whole());
        let datagram = [&[8, 0, 0, 0, 0, 0, 9, 0], &inner[..]].concat();
        let party = draft.party();
        let own = (party.addresses[0], 5000).into();
        let outer = udp_packet(own, (node, VXLAN_PORT).into(), &datagram);
        let frames = vec![frame(party.gateway, party.mac, &outer)];
        let parsed = read::frame(&inner);
        let traits = std::mem::take(&mut draft.traits);
        Some(Sent { sender: draft.sender, frames, traits, offload: Offload::default(), parsed })
    }
}
