//! Domain names: conversations with resolvers, and connections to resolved addresses, in the kernel and on the host.

mod ignored;

use std::ops::Range;
use std::os::fd::AsFd;

use netpold_core::model::{
    Action, Change, ClusterRule, Direction, DomainName, Peer, Selector, Tier,
};
use netpold_dataplane::bpf::test_run::{Run, run};
use netpold_ebpf::judge::post_nat;
use netpold_ebpf::judge::proof::{Exit, Origin};
use netpold_ebpf::layout::MAY_BE_BEHIND;
use netpold_ebpf::names::ignored::IgnoredAnswer;
use netpold_ebpf::packet::parse;
use netpold_ebpf::packet::protocol::{TCP, TCP_ACK, TCP_SYN, UDP};
use netpold_ebpf::reason::Reason;
use netpold_testkit::flows::MemoryFlowTables;
use netpold_testkit::frames::{frame, ip_between, tcp as tcp_header, udp};
use netpold_testkit::names::{Record, answer, query, wire};
use netpold_testkit::node::NodeTables;
use netpold_testkit::objects::{
    self, NODE, block, cluster_policy, cluster_rule, interface, ip, namespace, node, pod, tcp,
};
use netpold_testkit::random::Random;
use netpold_testkit::streams::{
    DirectedPacket, DnsConnection, framed, transmit, transmit_in_order,
};
use netpold_testkit::world::World as Compiled;

use super::world::{IFINDEX, UPLINK, World, program};

const BUCKETS: u32 = 1024;
/// The resolver of each family, in the order of [`OWN`].
const DNS: [&str; 2] = ["10.96.0.10", "fd96::10"];
const STRANGER: &str = "192.0.2.53";
const OWN: [&str; 2] = ["10.0.0.1", "fd00::1"];
const NAMES: [&str; 6] =
    ["a.example", "b.example", "x.a.example", "y.x.a.example", "c.test", "x.c.test"];
const PATTERNS: [&str; 7] =
    ["a.example", "*.a.example", "b.example", "*.x.a.example", "c.test", "*.c.test", "none.test"];
const ADDRESSES: [&str; 5] =
    ["192.0.2.1", "192.0.2.2", "198.51.100.1", "2001:db8::1", "2001:db8:1::1"];
/// A resolved address of the measurements.
const FOUND6: &str = "2001:db8::1";
const BLOCKS: [&str; 3] = ["192.0.2.0/24", "2001:db8::/48", "192.0.2.2/32"];

fn domain(name: &str) -> Peer {
    Peer::Domain(DomainName::try_from(name.to_owned()).expect("a name"))
}

/// Rules that allow the resolvers, then `rules`, and nothing else.
fn only(rules: Vec<ClusterRule>) -> Vec<ClusterRule> {
    let resolvers = [block("10.96.0.10/32", &[]), block("fd96::10/128", &[])];
    let resolvers = cluster_rule(Action::Accept, resolvers.to_vec(), None);
    let everything = vec![block("0.0.0.0/0", &[]), block("::/0", &[])];
    let last = cluster_rule(Action::Deny, everything, None);
    [resolvers].into_iter().chain(rules).chain([last]).collect()
}

fn random_rules(random: &mut Random) -> Vec<ClusterRule> {
    let ports = [None, Some(vec![tcp(443)]), Some(vec![tcp(80), tcp(443)])];
    let rules = (0..=random.below(6)).map(|_| {
        let ports = ports[random.below(3)].clone();
        let peer = block(BLOCKS[random.below(3)], &[]);
        match random.below(6) {
            0 => cluster_rule(Action::Deny, vec![peer], ports),
            1 => cluster_rule(Action::Pass, vec![peer], ports),
            _ => {
                let names = (0..=random.below(2)).map(|_| domain(PATTERNS[random.below(7)]));
                cluster_rule(Action::Accept, names.collect(), ports)
            }
        }
    });
    only(rules.collect())
}

/// Creates a pod with all ingress denied and these rules for egress.
fn world(rules: Vec<ClusterRule>) -> World {
    let dns = ("kube-system", "kube-dns");
    let compiled = Compiled::new([
        Change::Node(node(NODE, &["192.168.0.1"])),
        Change::Namespace(namespace("a", &[])),
        Change::Namespace(namespace("kube-system", &[])),
        Change::Pod(pod("a", "p", &[], &OWN)),
        Change::Interface(interface(IFINDEX, &OWN)),
        Change::Service(objects::service(dns, &DNS, &[("", 53, None)])),
        Change::Policy(objects::policy("a", "in", Selector::default(), Some(vec![]), None)),
        Change::ClusterPolicy(cluster_policy("names", (Tier::Admin, 10), vec![], rules)),
    ]);
    let host = NodeTables { policy: compiled.tables, flows: MemoryFlowTables::new(BUCKETS) };
    World::with(host, BUCKETS)
}

fn judge(world: &mut World, direction: Direction, remote: &str, kind: u8, data: &[u8]) -> Reason {
    let came_from = if direction == Direction::Egress { IFINDEX } else { UPLINK };
    world.judge(direction, came_from, &packet(direction, remote, kind, data))
}

/// A frame between the pod and a remote address.
fn packet(direction: Direction, remote: &str, kind: u8, data: &[u8]) -> Vec<u8> {
    let own = ip(OWN[usize::from(remote.contains(':'))]);
    let (from, to) = match direction {
        Direction::Egress => (own, ip(remote)),
        Direction::Ingress => (ip(remote), own),
    };
    frame(&ip_between(from, to, kind, data))
}

/// Sends one question, or none, and delivers one answer. One answer in five is wrong in some way.
fn converse(world: &mut World, random: &mut Random) {
    let (name, resolver) = (NAMES[random.below(6)], DNS[random.below(2)]);
    let (id, port) = (random.below(1 << 16) as u16, 5000 + random.below(3) as u16);
    let letter = |c: char, up| if up { c.to_ascii_uppercase() } else { c };
    let mixed: String = name.chars().map(|c| letter(c, random.below(2) == 0)).collect();
    if random.below(10) > 0 {
        let _ = judge(
            world,
            Direction::Egress,
            resolver,
            UDP,
            &udp(port, 53, &query(id, &wire(&mixed))),
        );
    }
    let (mut records, mut owner) = (Vec::new(), wire(name));
    for _ in 0..random.below(5) {
        let address = ip(ADDRESSES[random.below(5)]);
        match random.below(6) {
            0 => {
                let target = wire(NAMES[random.below(6)]);
                records.push(Record::alias(owner, target.clone()));
                owner = target;
            }
            1 => records.push(Record::address(wire("other.test"), address, 600)),
            2 if owner == wire(name) => {
                records.push(Record::address(vec![0xc0, 12], address, 600));
            }
            _ => records.push(Record::address(owner.clone(), address, 600)),
        }
    }
    let (mut from, mut said) = (resolver, answer(id, &wire(name), &records));
    match random.below(20) {
        0 => said[0] ^= 1,
        1 if resolver == DNS[0] => from = STRANGER,
        2 => said.truncate(random.below(said.len())),
        3 => {
            let at = random.below(said.len());
            said[at] = random.below(256) as u8;
        }
        _ => {}
    }
    let _ = judge(world, Direction::Ingress, from, UDP, &udp(53, port, &said));
}

/// The kernel's programs read the same DNS conversations as the code on the host, and then allow the same addresses.
#[test]
fn conversations_open_the_same_as_on_the_host() {
    let (mut opened, mut closed, mut ignored) = (0, 0, [0; IgnoredAnswer::COUNT]);
    if !netpold_testbed::require_root("a test of the programs") {
        return;
    }
    for seed in 1..=6_u64 {
        let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut world = world(random_rules(random));
        let mut source = 40_000;
        for _ in 0..80 {
            converse(&mut world, random);
            for address in ADDRESSES {
                let port = [80, 443, 22][random.below(3)];
                source += 1;
                let (kind, first, reply) = match random.below(3) {
                    0 => (UDP, udp(source, port, &[0]), udp(port, source, &[0])),
                    _ => {
                        let answers = tcp_header(port, source, TCP_SYN | TCP_ACK);
                        (TCP, tcp_header(source, port, TCP_SYN), answers)
                    }
                };
                let reason = judge(&mut world, Direction::Egress, address, kind, &first);
                let replied = judge(&mut world, Direction::Ingress, address, kind, &reply);
                assert_eq!(replied.is_drop(), reason.is_drop(), "the reply of {address}");
                let _ = judge(&mut world, Direction::Egress, address, kind, &first);
                *(if reason.is_drop() { &mut closed } else { &mut opened }) += 1;
            }
        }
        for (sum, count) in ignored.iter_mut().zip(ignored::counts(&world)) {
            *sum += count;
        }
    }
    println!("{opened} connections passed, {closed} did not, answers ignored {ignored:?}");
    assert!(ignored[1..3].iter().all(|count| *count > 0), "{ignored:?}");
    assert!(opened > 200 && closed > 200, "{opened} passed, {closed} did not");
}

/// A packet of a connection that an attacker may forge, or that the network may repeat.
fn forged(random: &mut Random, connection: &DnsConnection, bytes: &[u8]) -> DirectedPacket {
    let at = random.below(bytes.len().min(1_000));
    let other = DnsConnection { server: connection.server.wrapping_add(3), ..*connection };
    match random.below(12) {
        0 => connection.syn(),
        1 => connection.syn_ack(),
        2 => other.syn_ack(),
        3 => connection.answers(0, &[]),
        4 => connection.received(TCP_ACK, 0, &bytes[..at]),
        5 => connection.fin(at),
        6 => connection.reset(),
        7 => connection.answers(1 << (20 + random.below(12)), &bytes[..at]),
        8 => DnsConnection { client: 7, ..*connection }.syn(),
        9 => connection.asks(at, &bytes[..at]),
        _ => connection.answers(at, &bytes[at..(at + 100).min(bytes.len())]),
    }
}

/// The kernel's programs read the same TCP connections to resolvers as the code on the host, with any segmentation and
/// with forged or repeated packets between.
#[test]
fn streams_open_the_same_as_on_the_host() {
    if !netpold_testbed::require_root("a test of the programs") {
        return;
    }
    let names = NAMES.map(domain).to_vec();
    let mut world = world(only(vec![cluster_rule(Action::Accept, names, None)]));
    let (mut opened, mut closed) = (0, 0);
    let judge_one = |world: &mut World, (direction, packet): &DirectedPacket| {
        let (reason, passes) = world.judge_and_read(*direction, came(*direction), &frame(packet));
        assert!(passes || reason.is_drop(), "reading drops no segment that one CPU alone judges");
        passes
    };
    for seed in 1..=60_u64 {
        let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let family = random.below(2);
        let numbers = (random.below(1 << 32) as u32, random.below(1 << 32) as u32);
        let port = 41_000 + seed as u16;
        let connection = DnsConnection::new(ip(OWN[family]), ip(DNS[family]), port, numbers);
        for packet in connection.handshake() {
            judge_one(&mut world, &packet);
        }
        let (mut bytes, mut asked, mut addresses) = (Vec::new(), 0, Vec::new());
        for n in 0..=random.below(8) {
            let name = NAMES[random.below(6)];
            let at = format!("198.18.{seed}.{n}");
            let question = framed(&query(n as u16, &wire(name)));
            judge_one(&mut world, &connection.asks(asked, &question));
            asked += question.len();
            let padding =
                Record { owner: wire(name), kind: 16, ttl: 9, data: vec![1; random.below(1_500)] };
            let record = Record::address(vec![0xc0, 12], ip(&at), 600);
            bytes.extend(framed(&answer(
                n as u16,
                &wire(name),
                &[padding.clone(), record, padding],
            )));
            addresses.push(at);
        }
        let (is_in_order, is_disturbed) = (random.below(3) > 0, random.below(3) == 0);
        let mut chance = Random(seed);
        let mut send = |packet: &DirectedPacket| {
            if is_disturbed && chance.below(20) == 0 {
                let packet = forged(&mut chance, &connection, &bytes);
                judge_one(&mut world, &packet);
            }
            judge_one(&mut world, packet)
        };
        if is_in_order {
            transmit_in_order(&connection, random, (&bytes, 700), |packet| {
                let _ = send(packet);
            });
        } else {
            let _ = transmit(&connection, random, &bytes, send);
        }
        for at in &addresses {
            let syn = tcp_header(40_000 + seed as u16, 443, TCP_SYN);
            let is_closed = judge(&mut world, Direction::Egress, at, TCP, &syn).is_drop();
            *(if is_closed { &mut closed } else { &mut opened }) += 1;
            assert!(!is_closed || !is_in_order || is_disturbed, "seed {seed}: {at}");
        }
    }
    let ignored = ignored::counts(&world);
    println!("{opened} answers read, {closed} not, ignored {ignored:?}");
    assert!(opened > 100 && closed > 20, "{opened} {closed}");
}

/// The end of a connection ends its reading in the kernel as on the host, also for packets with VLAN tags.
#[test]
fn ends_of_streams_count_as_on_the_host() {
    if !netpold_testbed::require_root("a test of the programs") {
        return;
    }
    let rules = only(vec![cluster_rule(Action::Accept, vec![domain("a.example")], None)]);
    let mut world = world(rules);
    let record = |at: &str| Record::address(vec![0xc0, 12], ip(at), 600);
    let tagged = |packet: &DirectedPacket, tags: usize| {
        let plain = frame(&packet.1);
        [&plain[..12], &[0x81, 0, 0, 0].repeat(tags), &plain[12..]].concat()
    };
    for case in 0..14_u16 {
        let family = usize::from(case % 2);
        let it = DnsConnection::new(ip(OWN[family]), ip(DNS[family]), 42_000 + case, (7, 1 << 31));
        let found = format!("198.18.7.{case}");
        let bytes = framed(&answer(case, &wire("a.example"), &[record(&found)]));
        let question = framed(&query(case, &wire("a.example")));
        for packet in it.handshake().into_iter().chain([it.asks(0, &question)]) {
            assert!(world.judge_and_read(packet.0, came(packet.0), &frame(&packet.1)).1);
        }
        let first = it.answers(0, &bytes[..20]);
        assert!(world.judge_and_read(first.0, UPLINK, &frame(&first.1)).1);
        let (packet, tags) = match case / 2 {
            0 => (it.reset(), 1),
            1 => (it.reset(), 2),
            2 => (DnsConnection { client: 8, ..it }.syn(), 1),
            3 => (it.fin(bytes.len()), 0),
            4 => (it.sent(TCP_ACK | 1, 1, &[]), 0),
            6 => (DnsConnection { remote_port: 5353, ..it }.sent(TCP_ACK, 1, &[]), 0),
            _ => (it.answers(0, &bytes[..20]), 0),
        };
        let ends = case / 2 != 5;
        let _ = world.judge_and_read(packet.0, came(packet.0), &tagged(&packet, tags));
        let rest = it.answers(20, &bytes[20..]);
        let _ = world.judge_and_read(rest.0, UPLINK, &frame(&rest.1));
        let syn = tcp_header(42_000 + case, 443, TCP_SYN);
        let reason = judge(&mut world, Direction::Egress, &found, TCP, &syn);
        assert_eq!(reason.is_drop(), ends, "case {case}");
    }
}

/// Packets that no program reads end the reading in the kernel as on the host: packets past the pod's hook, from the
/// node itself, dropped by policy, and to another port of the resolver's Service.
#[test]
fn unread_packets_end_streams_as_on_the_host() {
    if !netpold_testbed::require_root("a test of the programs") {
        return;
    }
    let rules = only(vec![cluster_rule(Action::Accept, vec![domain("a.example")], None)]);
    for case in 0..7_u16 {
        let mut world = world(rules.clone());
        let family = usize::from(case % 2);
        let it = DnsConnection::new(ip(OWN[family]), ip(DNS[family]), 42_000, (7, 1 << 31));
        let mut from_node = false;
        let dropped = it.received(TCP_ACK, 1, &[0]);
        match case {
            0 => {}
            1 => bypass(&mut world, "netpold_node", &it.reset()),
            2 => bypass(&mut world, "netpold_node", &DnsConnection { port: 9, ..it }.asks(0, &[0])),
            3 => bypass(&mut world, "netpold_ingress", &it.sent(TCP_ACK, 1, &[])),
            4 => from_node = true,
            5 => assert!(!world.judge_and_read(dropped.0, UPLINK, &frame(&dropped.1)).1),
            _ => {
                let (direction, packet) =
                    DnsConnection { remote_port: 80, ..it }.sent(TCP_ACK, 1, &[]);
                assert!(world.judge_and_read(direction, IFINDEX, &frame(&packet)).1);
            }
        }
        let record = Record::address(vec![0xc0, 12], ip("198.18.7.7"), 600);
        let bytes = framed(&answer(7, &wire("a.example"), &[record]));
        let question = framed(&query(7, &wire("a.example")));
        let packets = it.handshake().into_iter();
        for (direction, packet) in packets.chain([it.asks(0, &question), it.answers(0, &bytes)]) {
            let is_of_node = from_node && direction == Direction::Ingress;
            let from = if is_of_node { 0 } else { came(direction) };
            assert!(world.judge_and_read(direction, from, &frame(&packet)).1, "case {case}");
        }
        let syn = tcp_header(42_000, 443, TCP_SYN);
        let reason = judge(&mut world, Direction::Egress, "198.18.7.7", TCP, &syn);
        assert_eq!(reason.is_drop(), case != 0, "case {case}");
    }
}

/// Judges a packet of the pod without the proof of its hook, in the kernel and on the host.
fn bypass(world: &mut World, name: &str, (_, packet): &DirectedPacket) {
    let packet = frame(packet);
    let fd = program(&mut world.bpf, name).fd().expect(name);
    let once = Run { ingress_ifindex: IFINDEX, ..Run::once(&packet) };
    run(fd.as_fd(), &once).expect(name);
    let exit = Exit { ifindex: UPLINK, ingress_ifindex: IFINDEX, ..Exit::default() };
    let (origin, bytes) = (Origin::at_exit(&world.host, &exit), &*packet);
    let _ =
        post_nat::judge(&bytes, parse::link(&bytes), &world.host, origin, UPLINK, None, || true);
}

const fn came(direction: Direction) -> u32 {
    match direction {
        Direction::Egress => IFINDEX,
        Direction::Ingress => UPLINK,
    }
}

/// Shortest time of a program for one packet, with `before` judged before each run.
fn fastest(world: &mut World, direction: Direction, frame: &[u8], before: Option<&[u8]>) -> u32 {
    let rounds = if before.is_some() { 20_000 } else { 20 };
    let repeat = if before.is_some() { 1 } else { 1_000_000 };
    // The runs share the packet's mark: with the proof of the first one, the pod's hook would refuse all others.
    world.set_handover(if before.is_some() { 0 } else { MAY_BE_BEHIND });
    let took = (0..rounds).map(|_| {
        if let Some(before) = before {
            let asks = program(&mut world.bpf, "netpold_egress").fd().expect("netpold_egress");
            run(asks.as_fd(), &Run::once(before)).expect("netpold_egress");
        }
        once(world, direction, &Run { repeat, ..Run::once(frame) })
    });
    let least = took.min().unwrap_or_default();
    world.set_handover(0);
    least
}

/// Shortest times of a SYN, its SYN-ACK, the acknowledgement, a question and an answer over TCP, of connections from
/// many ports.
fn fastest_over_tcp(world: &mut World, ports: Range<u16>, answer: &[u8]) -> [u32; 5] {
    let mut least = [u32::MAX; 5];
    for port in ports {
        let it = DnsConnection::new(ip(OWN[0]), ip(DNS[0]), port, (7, 9));
        let question = it.asks(0, &framed(&query(7, &wire("a.example"))));
        let packets = it.handshake().into_iter().chain([question, it.answers(0, answer)]);
        for (least, (direction, packet)) in least.iter_mut().zip(packets) {
            let packet = frame(&packet);
            let took = once(world, direction, &Run::once(&packet));
            *least = took.min(*least);
        }
    }
    least
}

/// Nanoseconds of a program's test run.
fn once(world: &mut World, direction: Direction, packet: &Run<'_>) -> u32 {
    let name = match direction {
        Direction::Egress => "netpold_egress",
        Direction::Ingress => "netpold_ingress",
    };
    let fd = program(&mut world.bpf, name).fd().expect(name);
    let run_of = Run { ingress_ifindex: came(direction), ..*packet };
    run(fd.as_fd(), &run_of).expect(name).nanoseconds
}

#[test]
#[ignore = "a measurement, not a test"]
fn nanoseconds_per_packet_with_names() {
    if !netpold_testbed::require_root("a measurement of the programs") {
        return;
    }
    let found = "192.0.2.1";
    let blocks = vec![block("192.0.2.1/32", &[]), block("2001:db8::1/128", &[])];
    let blocks = only(vec![cluster_rule(Action::Accept, blocks, None)]);
    let names = only(vec![cluster_rule(Action::Accept, vec![domain("a.example")], None)]);
    for (case, rules) in [("without names", blocks), ("with names", names)] {
        let mut world = world(rules);
        let question = query(7, &wire("a.example"));
        let question = packet(Direction::Egress, DNS[0], UDP, &udp(5000, 53, &question));
        let answers = [1, 16].map(|records| {
            let record = Record::address(vec![0xc0, 12], ip(found), 600);
            let said = answer(7, &wire("a.example"), &vec![record; records]);
            (records, packet(Direction::Ingress, DNS[0], UDP, &udp(53, 5000, &said)))
        });
        let _ = world.egress(&question);
        let _ = world.ingress(&answers[0].1);
        for (what, to) in [("to the resolver", DNS[0]), ("to the address", found)] {
            let syn = tcp_header(41_000, 443, TCP_SYN);
            assert!(!judge(&mut world, Direction::Egress, to, TCP, &syn).is_drop(), "{to}");
            let syn_ack = tcp_header(443, 41_000, TCP_SYN | TCP_ACK);
            assert!(!judge(&mut world, Direction::Ingress, to, TCP, &syn_ack).is_drop(), "{to}");
            let ack = packet(Direction::Egress, to, TCP, &tcp_header(41_000, 443, TCP_ACK));
            let took = fastest(&mut world, Direction::Egress, &ack, None);
            println!("{case}, an open connection {what}: {took} ns");
        }
        let took = (20_000..22_000).map(|port| {
            let syn = packet(Direction::Egress, found, TCP, &tcp_header(port, 443, TCP_SYN));
            once(&mut world, Direction::Egress, &Run::once(&syn))
        });
        println!("{case}, a new connection to the address: {} ns", took.min().unwrap_or_default());
        let took = (20_000..22_000).map(|port| {
            let first = packet(Direction::Egress, found, UDP, &udp(port, 443, &[0]));
            once(&mut world, Direction::Egress, &Run::once(&first))
        });
        println!("{case}, a new UDP flow to the address: {} ns", took.min().unwrap_or_default());
        let record = Record::address(vec![0xc0, 12], ip(FOUND6), 600);
        let said = answer(7, &wire("a.example"), &[record]);
        let _ = world.egress(&question);
        let _ = judge(&mut world, Direction::Ingress, DNS[0], UDP, &udp(53, 5000, &said));
        let took = (22_000..24_000).map(|port| {
            let syn = packet(Direction::Egress, FOUND6, TCP, &tcp_header(port, 443, TCP_SYN));
            once(&mut world, Direction::Egress, &Run::once(&syn))
        });
        println!("{case}, a new connection over IPv6: {} ns", took.min().unwrap_or_default());
        let took = fastest(&mut world, Direction::Egress, &question, None);
        println!("{case}, a question: {took} ns");
        for (records, said) in &answers {
            let took = fastest(&mut world, Direction::Ingress, said, Some(&question));
            println!("{case}, an answer of {records} records: {took} ns");
        }
        for (records, ports) in [(1, 40_000..40_500), (16, 40_500..41_000)] {
            let record = Record::address(vec![0xc0, 12], ip(found), 600);
            let said = framed(&answer(7, &wire("a.example"), &vec![record; records]));
            let took = fastest_over_tcp(&mut world, ports, &said);
            println!("{case}, SYN, SYN-ACK, ACK, question, answer of {records}: {took:?} ns");
        }
    }
}
