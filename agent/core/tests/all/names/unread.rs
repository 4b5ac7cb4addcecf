//! Packets of connections to resolvers that no program reads: sent around the pod's hook, to the node itself, dropped
//! by policy, or to another address of the same resolver.

use netpold_core::compile::Compiler;
use netpold_core::model::{Action, Change, Direction, Tier};
use netpold_core::options::Options;
use netpold_ebpf::judge::hook::PacketHook;
use netpold_ebpf::judge::post_nat;
use netpold_ebpf::judge::proof::{Exit, Origin, Rebuilt, UNKNOWN_INTERFACE};
use netpold_ebpf::packet::parse;
use netpold_ebpf::packet::protocol::{TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN, UDP};
use netpold_ebpf::reason::Reason;
use netpold_testkit::flows::HZ;
use netpold_testkit::frames::{frame, ip_between, udp};
use netpold_testkit::memory::MemoryTables;
use netpold_testkit::node::NodeTables;
use netpold_testkit::objects::{self, NODE, block, cluster_policy, cluster_rule, ip};
use netpold_testkit::streams::{DirectedPacket, DnsConnection};
use netpold_testkit::world::World;

use super::connections::{PORT, connection, good, question, questions};
use super::net::{
    API, BACKEND, DNS, DNS6, FOUND, Net, UPLINK, accept, cluster, domain, only, width,
};

/// Another Service with the resolvers as its backends, at port 80.
const ALIAS: [&str; 2] = ["10.96.0.77", "fd96::77"];
const BACKEND6: &str = "fd00:5::5";

/// A connection of pod a/p in each family.
fn families() -> [DnsConnection; 2] {
    let v4 = connection();
    [v4, DnsConnection { own: ip("fd00::1"), resolver: ip(DNS6), ..v4 }]
}

impl Net {
    /// Reason of the uplink's verdict about a packet that came from pod a/p without the proof of its hook, or that the
    /// kernel rebuilt.
    fn leaves(&self, packet: &[u8], rebuilt: Rebuilt) -> Reason {
        let tables = NodeTables { policy: &self.world.tables, flows: &self.flows };
        let ingress_ifindex = u32::from(rebuilt == Rebuilt::No);
        let exit = Exit { ifindex: UPLINK, ingress_ifindex, rebuilt, ..Exit::default() };
        let (origin, bytes) = (Origin::at_exit(&tables, &exit), &*frame(packet));
        post_nat::judge(&bytes, parse::link(&bytes), &tables, origin, UPLINK, None, || true)
            .reason()
    }

    /// Whether an answer counts in this connection.
    fn counts(&self, it: &DnsConnection) -> bool {
        assert!(self.passes(&it.answers(0, &good())));
        let counts = self.connects(FOUND);
        self.flows.later(400 * HZ);
        counts
    }

    /// Opens a connection and asks a question in it.
    fn asks_in(&self, it: &DnsConnection) {
        self.open(it);
        assert!(self.passes(&it.asks(0, &questions())));
    }
}

/// With such a packet, the pod could end a connection to a resolver with SYN cookies, and begin another one in its
/// place. The packet's port may be translated at the exit.
#[test]
fn a_packet_around_the_hook_ends_all_readings_of_its_pod() {
    for it in families() {
        let other = DnsConnection { port: 9, ..it };
        let datagram = ip_between(it.own, it.resolver, UDP, &udp(9, 53, &question()));
        for (packet, rebuilt) in [
            (it.reset().1, Rebuilt::No),
            (other.sent(TCP_ACK, 1, &[]).1, Rebuilt::No),
            (other.asks(0, &questions()).1, Rebuilt::No),
            (datagram, Rebuilt::No),
            (other.syn().1, Rebuilt::Opening),
        ] {
            let net = Net::of_api();
            net.asks_in(&it);
            let reason = net.leaves(&packet, rebuilt);
            assert!(!reason.is_drop(), "{reason:?} of {packet:02x?}");
            assert!(!net.counts(&it), "{packet:02x?}");
            for (seconds, counts) in [(29, false), (45, true)] {
                assert!(!net.leaves(&packet, rebuilt).is_drop());
                net.flows.later(seconds * HZ);
                let next = DnsConnection { port: PORT + seconds as u16, ..it };
                net.asks_in(&next);
                assert_eq!(net.counts(&next), counts, "{seconds} s behind {packet:02x?}");
            }
        }
        // Another pod's packets end no reading.
        let net = Net::of_api();
        let tables = NodeTables { policy: &net.world.tables, flows: &net.flows };
        let exit = Exit { ifindex: UPLINK, ingress_ifindex: 2, ..Exit::default() };
        let theirs = DnsConnection { own: ip("10.0.0.2"), resolver: ip(BACKEND), ..it };
        let bytes = &*frame(&theirs.syn().1);
        net.asks_in(&it);
        let origin = Origin::at_exit(&tables, &exit);
        let verdict =
            post_nat::judge(&bytes, parse::link(&bytes), &tables, origin, UPLINK, None, || true);
        assert!(verdict.passes() && net.counts(&it));
    }
}

/// The pod's packets to the node pass no exit, which would demand their proof. Over UDP, the resolver's answers count.
#[test]
fn a_resolver_on_the_node_is_not_read_over_tcp() {
    for it in families() {
        for node in [0, UNKNOWN_INTERFACE] {
            let net = Net::of_api();
            let tables = NodeTables { policy: &net.world.tables, flows: &net.flows };
            let arrives = |(direction, packet): DirectedPacket| {
                assert_eq!(direction, Direction::Ingress);
                let hook = PacketHook { ifindex: 1, ingress_ifindex: node };
                let (reason, passes) = tables.judge_by_names(direction, hook, &frame(&packet));
                assert!(passes, "{reason:?}");
            };
            assert!(net.passes(&it.syn()));
            arrives(it.syn_ack());
            assert!(net.passes(&it.sent(TCP_ACK, 1, &[])));
            assert!(net.passes(&it.asks(0, &questions())));
            arrives(it.answers(0, &good()));
            assert!(!net.connects(FOUND));
            // A forged SYN-ACK of the node's resolver ends the reading of another one.
            net.flows.later(60 * HZ);
            net.asks_in(&it);
            arrives(it.syn_ack());
            assert!(!net.counts(&it));
            let asks = ip_between(it.own, it.resolver, UDP, &udp(5000, 53, &question()));
            let says = ip_between(it.resolver, it.own, UDP, &udp(53, 5000, &good()[2..]));
            assert!(net.passes(&(Direction::Egress, asks)));
            arrives((Direction::Ingress, says));
            assert!(net.connects(FOUND), "over UDP");
        }
    }
}

/// A segment of the pod that policy drops may be forwarded as a reset.
#[test]
fn a_question_that_policy_drops_ends_the_reading() {
    for it in families() {
        let mut net = Net::of_api();
        net.asks_in(&it);
        let names = accept(vec![domain(API)], None);
        let everything = vec![block("0.0.0.0/0", &[]), block("::/0", &[])];
        let deny = cluster_rule(Action::Deny, everything, None);
        let rules = vec![names, deny];
        let policy = cluster_policy("names", (Tier::Admin, 10), vec![], rules);
        net.world.apply([Change::ClusterPolicy(policy)]);
        net.flows.settings.revision += 1;
        assert_eq!(net.streams(), 1);
        let (direction, packet) = it.sent(TCP_ACK, 1 + questions().len() as u32, &[]);
        assert_eq!(net.judge(1, direction, &packet).0, Reason::Policy);
        assert_eq!(net.streams(), 0);
        net.world.apply([only(vec![accept(vec![domain(API)], None)])]);
        net.flows.settings.revision += 1;
        assert!(!net.counts(&it));
    }
}

/// A user with write access to EndpointSlices can point another Service at the resolver. Where the node keeps the pod's
/// port, both addresses lead to one connection of the resolver.
#[test]
fn a_segment_to_another_address_of_the_resolver_ends_the_reading() {
    let slice = |name: &str, to: &str| {
        Change::EndpointSlice(objects::slice(("a", name), "mine", &[to], &[("", 53)]))
    };
    for (it, alias) in families().into_iter().zip(ALIAS) {
        let direct = if it.own.is_ipv4() { BACKEND } else { BACKEND6 };
        for (to, remote_port) in [(alias, 80), (direct, 53), ("192.0.2.9", 53)] {
            if it.own.is_ipv4() != ip(to).is_ipv4() {
                continue;
            }
            let other = DnsConnection { resolver: ip(to), remote_port, ..it };
            for packet in [
                other.syn(),
                other.sent(TCP_ACK, 1, &[]),
                other.asks(0, &questions()),
                other.sent(TCP_FIN | TCP_ACK, 1, &[]),
                other.sent(TCP_RST, 1, &[]),
            ] {
                for is_before in [false, true] {
                    let stranger = block("192.0.2.9/32", &[]);
                    let backend6 = block(&format!("{BACKEND6}/{}", width(BACKEND6)), &[]);
                    let mut net = Net::new(vec![
                        accept(vec![domain(API)], None),
                        accept(vec![stranger, backend6], None),
                    ]);
                    let mine = objects::service(("a", "mine"), &ALIAS, &[("", 80, None)]);
                    let slices = [slice("mine-4", BACKEND), slice("mine-6", BACKEND6)];
                    net.world.apply([Change::Service(mine)].into_iter().chain(slices));
                    if is_before {
                        assert!(net.passes(&packet));
                        net.flows.later(29 * HZ);
                        net.asks_in(&it);
                    } else {
                        net.asks_in(&it);
                        assert!(net.passes(&packet));
                    }
                    assert!(!net.counts(&it), "{to} before: {is_before}");
                }
            }
        }
        // Another address that the node does not translate is not a resolver's.
        let net = Net::of_api();
        let other = DnsConnection { resolver: ip(BACKEND), remote_port: 443, ..connection() };
        net.asks_in(&it);
        assert!(net.passes(&other.syn()) && net.counts(&it));
    }
}

/// Whether each resolver's answers over TCP count, with these changes to the cluster and further resolvers.
fn resolvers(changes: Vec<Change>, further: &[&str]) -> Vec<(String, bool)> {
    let options = Options {
        node: NODE.into(),
        names_over_tcp: true,
        resolvers: further.iter().map(|at| ip(at)).collect(),
        ..Options::default()
    };
    let mut world = World { compiler: Compiler::new(options), tables: MemoryTables::new() };
    let names = only(vec![accept(vec![domain(API)], None)]);
    world.apply(cluster().into_iter().chain([names]));
    world.apply(changes);
    let resolvers = world.tables.resolvers.iter();
    resolvers.map(|(address, over_tcp)| (address.to_string(), *over_tcp)).collect()
}

/// Answers over TCP count if all ways of a pod's packets to the resolver are known.
#[test]
fn resolvers_with_unknown_backends_count_over_udp_alone() {
    let expected = |own: bool, further: &[(&str, bool)]| {
        let mut all = [(BACKEND, own), (DNS, own), (DNS6, own)].to_vec();
        all.extend(further);
        all.sort_by_key(|(at, _)| ip(at));
        all.into_iter().map(|(at, over_tcp)| (at.to_owned(), over_tcp)).collect::<Vec<_>>()
    };
    assert_eq!(resolvers(vec![], &["192.0.2.53"]), expected(true, &[("192.0.2.53", true)]));
    let mine = || Change::Service(objects::service(("a", "mine"), &ALIAS, &[("", 53, None)]));
    assert_eq!(resolvers(vec![mine()], &[ALIAS[0]]), expected(true, &[(ALIAS[0], false)]));
    let slice = |ports: &[(&str, u16)]| {
        let key = ("kube-system", "dns-2");
        Change::EndpointSlice(objects::slice(key, "kube-dns", &[BACKEND], ports))
    };
    assert_eq!(resolvers(vec![slice(&[("", 5353)])], &[]), expected(false, &[]));
    assert_eq!(resolvers(vec![slice(&[("metrics", 9153)])], &[]), expected(true, &[]));
    let many: Vec<String> =
        (0..2_000_u32).map(|n| format!("10.1.{}.{}", n / 250, n % 250)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let key = ("kube-system", "dns-2");
    let many = Change::EndpointSlice(objects::slice(key, "kube-dns", &many, &[("", 53)]));
    assert!(resolvers(vec![many], &[]).iter().all(|(_, over_tcp)| !over_tcp));
}

/// A connection from the same port of the pod to a host that is not a resolver does not affect the reading, unless it
/// uses the DNS port.
#[test]
fn other_connections_of_the_port_do_not_matter() {
    for it in families() {
        let net = Net::new(vec![
            accept(vec![domain(API)], None),
            accept(vec![block("192.0.2.9/32", &[])], None),
        ]);
        let other = DnsConnection {
            own: ip("10.0.0.1"),
            resolver: ip("192.0.2.9"),
            remote_port: 443,
            ..it
        };
        assert!(net.passes(&other.syn()) && net.passes(&other.received(TCP_SYN | TCP_ACK, 0, &[])));
        net.asks_in(&it);
        assert!(net.passes(&other.fin(0)) && net.passes(&other.reset()) && net.counts(&it));
    }
}
