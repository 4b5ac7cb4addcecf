//! An attacker in a pod against answers over TCP: it can read each sequence number, sends any segment from its own
//! address, around its hook too, and to another Service with the same resolver behind it, can cause loss, repetition
//! and reordering of packets on their way, and owns a zone. Regardless of its actions, an address inside a text of an
//! answer never counts.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use netpold_core::model::{Action, Change, Direction, DomainName, Peer, Selector, Tier};
use netpold_ebpf::judge::hook::PacketHook;
use netpold_ebpf::judge::post_nat;
use netpold_ebpf::judge::proof::{Exit, Origin};
use netpold_ebpf::packet::parse;
use netpold_ebpf::packet::protocol::{TCP, TCP_ACK, TCP_FIN, TCP_PSH, TCP_RST, TCP_SYN};

use crate::flows::{HZ, MemoryFlowTables};
use crate::frames::{frame, ip_between, segment, tcp};
use crate::names::{Record, answer, query, wire};
use crate::node::NodeTables;
use crate::objects::{
    self, NODE, block, cluster_policy, cluster_rule, interface, ip, namespace, node, pod,
};
use crate::resolver::{Resolver, Segment};
use crate::streams::framed;
use crate::world::World;

const OWN: &str = "10.0.0.1";
/// The resolver.
pub(super) const DNS: &str = "10.96.0.10";
/// Another Service with the resolver as its backend.
const ALIAS: &str = "10.96.0.77";
/// Address that occurs in no answer's records, only in a text inside an answer.
const EVIL: &str = "192.0.2.66";
/// The name in the pod's rules.
pub(super) const NAME: &str = "api.example.com";
/// A name of the attacker.
const MINE: &str = "mine.example";
const IFINDEX: u32 = 1;
const UPLINK: u32 = 9;
const PORTS: [u16; 2] = [41_000, 41_001];
/// Number of the pod's SYN.
const CLIENT: u32 = 0xffff_ff00;
/// Seconds after which a packet on its way is lost.
const DELAY: u32 = 10;
/// Bytes of an input for one step.
const STEP: usize = 4;
/// Jiffies at the beginning of an input.
const BEGIN: u32 = 1_000_000;
/// Steps of an input.
const STEPS: usize = 200;

/// A segment's way from the pod to the resolver.
#[derive(Clone, Copy, Debug)]
enum SegmentPath {
    /// By the pod's hook.
    Hook,
    /// Around it, so that the node's exit is the first to judge it.
    Around,
    /// By the other Service.
    Alias,
}

/// The pod, the resolver, and packets on their way.
struct Attack<'a> {
    tables: &'a NodeTables,
    resolver: Resolver,
    /// Packets, with the second of their sending, and the size of [`Resolver::cookie`].
    to_resolver: Vec<(Segment, u32, u32)>,
    to_pod: Vec<(Segment, u32)>,
    second: u32,
    /// The text that the attacker's zone has.
    text: Vec<u8>,
    /// Number of the last SYN of each port.
    opened: [u32; 2],
}

/// Runs one input.
///
/// # Panics
/// An address counts that occurs in no answer's records.
pub fn run(bytes: &[u8]) {
    thread_local! {
        static TABLES: RefCell<NodeTables> = RefCell::new(tables());
    }
    TABLES.with_borrow_mut(|tables| {
        tables.flows.forget_flows();
        tables.flows.forget_streams();
        tables.flows.now.store(BEGIN, Ordering::Release);
        let mut attack = Attack {
            tables,
            resolver: Resolver { minute: 7, ..Resolver::default() },
            to_resolver: Vec::new(),
            to_pod: Vec::new(),
            second: 0,
            text: Vec::new(),
            opened: [CLIENT; 2],
        };
        for step in bytes.chunks_exact(STEP).take(STEPS) {
            attack.step(step);
        }
    });
}

/// A pod that may reach the resolver and the addresses of [`NAME`].
pub(super) fn tables() -> NodeTables {
    let name = DomainName::try_from(NAME.to_owned()).expect("a name");
    let everything = vec![block("0.0.0.0/0", &[])];
    let resolvers = [DNS, ALIAS].map(|at| block(&format!("{at}/32"), &[]));
    let rules = vec![
        cluster_rule(Action::Accept, resolvers.to_vec(), None),
        cluster_rule(Action::Accept, vec![Peer::Domain(name)], None),
        cluster_rule(Action::Deny, everything, None),
    ];
    let world = World::new([
        Change::Node(node(NODE, &["192.168.0.1"])),
        Change::Namespace(namespace("a", &[])),
        Change::Namespace(namespace("kube-system", &[])),
        Change::Pod(pod("a", "p", &[], &[OWN])),
        Change::Interface(interface(IFINDEX, &[OWN])),
        Change::Service(objects::service(("kube-system", "kube-dns"), &[DNS], &[("", 53, None)])),
        Change::Service(objects::service(("a", "mine"), &[ALIAS], &[("", 80, None)])),
        Change::Policy(objects::policy("a", "in", Selector::default(), Some(vec![]), None)),
        Change::ClusterPolicy(cluster_policy("names", (Tier::Admin, 10), vec![], rules)),
    ]);
    NodeTables { policy: world.tables, flows: MemoryFlowTables::new(16) }
}

/// The answer that the attacker wants to inject: an address of its choice for its own question.
fn evil() -> Vec<u8> {
    framed(&answer(7, &wire(NAME), &[Record::address(vec![0xc0, 12], ip(EVIL), 300)]))
}

/// The resolver's answer: the name's own address, or a text of the attacker.
fn respond(message: &[u8], text: &[u8]) -> Option<Vec<u8>> {
    let id = u16::from_be_bytes(*message.first_chunk()?);
    let name = message.get(12..)?;
    if name.starts_with(&wire(NAME)) {
        return Some(answer(
            id,
            &wire(NAME),
            &[Record::address(vec![0xc0, 12], ip("192.0.2.7"), 300)],
        ));
    }
    let text = Record { owner: vec![0xc0, 12], kind: 16, ttl: 300, data: text.to_vec() };
    name.starts_with(&wire(MINE)).then(|| answer(id, &wire(MINE), &[text]))
}

impl Attack<'_> {
    fn step(&mut self, step: &[u8]) {
        let [kind, first, second, third] = [step[0], step[1], step[2], step[3]];
        let way = [SegmentPath::Hook, SegmentPath::Hook, SegmentPath::Around, SegmentPath::Alias]
            [usize::from(kind / 10) % 4];
        match kind % 10 {
            0 | 1 => self.forge(way, [first, second, third]),
            2 => self.open(way, first, second),
            3 => self.carry(first),
            4 | 5 => self.deliver(first),
            6 => {
                let at = usize::from(second);
                if first.is_multiple_of(2) && at < self.to_resolver.len() {
                    self.to_resolver.remove(at);
                } else if at < self.to_pod.len() {
                    let packet = self.to_pod[at].clone();
                    self.to_pod.push(packet);
                }
            }
            7 => self.transmit(first, second, third),
            8 => self.wait([1, 1, 4, 11, 31, 61][usize::from(first) % 6]),
            _ => self.change(first, second),
        }
    }

    /// A frame with a segment between the pod and port 53 of the resolver, or the other Service's port.
    fn frame(direction: Direction, it: &Segment, way: SegmentPath) -> Vec<u8> {
        let (remote, port) =
            if matches!(way, SegmentPath::Alias) { (ALIAS, 80) } else { (DNS, 53) };
        let (ports, ends) = match direction {
            Direction::Egress => ((it.port, port), (OWN, remote)),
            Direction::Ingress => ((port, it.port), (remote, OWN)),
        };
        let data = segment(ports, it.flags, (it.sequence, it.acknowledged), &it.data);
        frame(&ip_between(ip(ends.0), ip(ends.1), TCP, &data))
    }

    /// Judges a segment at the pod's hook; returns whether the segment passes.
    fn judge(&self, direction: Direction, it: &Segment, way: SegmentPath) -> bool {
        let ingress_ifindex = if direction == Direction::Egress { IFINDEX } else { UPLINK };
        let hook = PacketHook { ifindex: IFINDEX, ingress_ifindex };
        self.tables.judge_by_names(direction, hook, &Self::frame(direction, it, way)).1
    }

    /// Judges a segment at the node's exit alone; returns whether the segment passes.
    fn leaves(&self, it: &Segment) -> bool {
        let exit = Exit { ifindex: UPLINK, ingress_ifindex: IFINDEX, ..Exit::default() };
        let (tables, packet) =
            (self.tables, Self::frame(Direction::Egress, it, SegmentPath::Around));
        let (origin, bytes) = (Origin::at_exit(tables, &exit), &*packet);
        post_nat::judge(&bytes, parse::link(&bytes), tables, origin, UPLINK, None, || true).passes()
    }

    fn send(&mut self, way: SegmentPath, segment: Segment, size: u32) {
        let passes = match way {
            SegmentPath::Around => self.leaves(&segment),
            SegmentPath::Hook | SegmentPath::Alias => self.judge(Direction::Egress, &segment, way),
        };
        if passes {
            self.to_resolver.push((segment, self.second, size));
        }
    }

    fn open(&mut self, way: SegmentPath, which: u8, shift: u8) {
        let index = usize::from(which % 2);
        let sequence = CLIENT.wrapping_add((shift % 4).into());
        self.opened[index] = sequence;
        let open = Segment {
            port: PORTS[index],
            flags: TCP_SYN,
            sequence,
            acknowledged: 0,
            data: Vec::new(),
        };
        self.send(way, open, u32::from(which >> 4));
    }

    /// Sends a segment of a connection that may exist.
    fn forge(&mut self, way: SegmentPath, [which, numbers, content]: [u8; 3]) {
        const FLAGS: [u8; 5] =
            [TCP_ACK, TCP_ACK | TCP_PSH, TCP_ACK | TCP_FIN, TCP_RST, TCP_RST | TCP_ACK];
        let index = usize::from(which % 2);
        let port = PORTS[index];
        let stream = self.resolver.streams.get(&port);
        let opened = self.opened[index];
        let next = stream.map_or_else(|| opened.wrapping_add(1), |stream| stream.next);
        let sequence = match numbers % 4 {
            0 | 1 => next,
            2 => next.wrapping_sub((numbers >> 4).into()),
            _ => opened.wrapping_add(1),
        };
        let cookie = |minute, size| Resolver::cookie(port, opened, minute, size).wrapping_add(1);
        let minute = self.resolver.minute;
        let size = u32::from(numbers >> 4);
        let read = stream.map_or(0, |stream| stream.written.len() as u32);
        let first = stream.map_or_else(|| cookie(minute, 0), |stream| stream.first);
        let acknowledged = match numbers >> 2 & 3 {
            0 => first,
            1 => first.wrapping_add(read),
            2 => cookie(minute, size),
            _ => cookie(minute.wrapping_sub(1), size),
        };
        let question = |id, name: &str| framed(&query(id, &wire(name)));
        let data = match content % 8 {
            0 | 1 => Vec::new(),
            2 => question(7, NAME),
            3 => question(9, MINE),
            4 => [question(7, NAME), question(9, MINE)].concat(),
            5 => question(9, MINE)[..usize::from(content >> 3)].to_vec(),
            6 => question(9, MINE)[usize::from(content >> 3).min(20)..].to_vec(),
            _ => evil(),
        };
        let flags = FLAGS[usize::from(which >> 1) % 5];
        self.send(way, Segment { port, flags, sequence, acknowledged, data }, 0);
    }

    /// Lets a packet arrive at the resolver.
    fn carry(&mut self, which: u8) {
        if self.to_resolver.is_empty() {
            return;
        }
        let at = usize::from(which) % self.to_resolver.len();
        let (segment, sent, size) = self.to_resolver.remove(at);
        if sent + DELAY < self.second {
            return;
        }
        let text = &self.text;
        let replies = self.resolver.receive(&segment, size, |message| respond(message, text));
        self.to_pod.extend(replies.into_iter().map(|reply| (reply, self.second)));
    }

    /// Lets a packet arrive at the pod.
    fn deliver(&mut self, which: u8) {
        if self.to_pod.is_empty() {
            return;
        }
        let at = usize::from(which) % self.to_pod.len();
        let (segment, sent) = self.to_pod.remove(at);
        if sent + DELAY < self.second {
            return;
        }
        self.judge(Direction::Ingress, &segment, SegmentPath::Hook);
        let data = tcp(40_000, 443, TCP_SYN);
        let open = frame(&ip_between(ip(OWN), ip(EVIL), TCP, &data));
        let hook = PacketHook { ifindex: IFINDEX, ingress_ifindex: IFINDEX };
        let (reason, _) = self.tables.judge_by_names(Direction::Egress, hook, &open);
        assert!(reason.is_drop(), "{EVIL} counts behind {segment:02x?}");
    }

    /// The resolver sends bytes that it has written.
    fn transmit(&mut self, which: u8, from: u8, length: u8) {
        let port = PORTS[usize::from(which % 2)];
        let Some(stream) = self.resolver.streams.get(&port) else { return };
        let written = stream.written.len();
        let from = if from < 0xf0 { from.into() } else { written / 2 };
        let length = if length < 0xf0 { length.into() } else { written };
        let segment = stream.transmit(port, from, length);
        self.to_pod.push((segment, self.second));
    }

    fn wait(&mut self, seconds: u32) {
        self.second += seconds;
        self.resolver.minute = 7 + self.second / 60;
        self.tables.flows.later(seconds * HZ);
    }

    /// Changes the attacker's text, or lets a connection of the resolver end.
    fn change(&mut self, which: u8, shift: u8) {
        let port = PORTS[usize::from(which >> 4) % 2];
        match which % 4 {
            0 => self.text.clear(),
            // A text begins where an answer with an empty text ends.
            1 => self.text = evil(),
            2 => self.text = [&[b'.'; 3][..usize::from(shift % 4)], &evil(), &evil()].concat(),
            _ => {
                let ended = self.resolver.streams.remove(&port).filter(|_| shift.is_multiple_of(2));
                let reset =
                    ended.map(|it| Segment { flags: TCP_RST, ..it.transmit(port, usize::MAX, 0) });
                self.to_pod.extend(reset.map(|reset| (reset, self.second)));
            }
        }
    }
}
