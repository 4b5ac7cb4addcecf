//! Answers that the node translates anew, to a denied pod, because its conntrack has lost a flow that netpold still
//! has.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{MOMENT, PATIENCE, PORT, TestCluster, allow_to, isolate};
use netpold_testbed::packet::{packet, tcp_message, udp_packet, unreachable_packet};
use netpold_testbed::services::{NODE_PORT, SERVICE_PORT, TestService, answer, describe, provide};
use netpold_testbed::{Cni, ProbeProtocol, Proxy, TestFlow, require_root};

use crate::attacks::volley::{PACKETS, Sender, Tally, Volley};

const CLIENT_PORT: u16 = 5000;
/// Client ports without policy and with policy. They differ because late answers of the first volley leave conntrack
/// entries, which must not belong to flows of the second.
const CLIENT_PORTS: [u16; 2] = [CLIENT_PORT, 5001];
pub(crate) const TCP: u8 = 6;
const PUSH_AND_ACK: u8 = 0x18;
/// Length of the payload behind the quoted headers.
pub(crate) const LONG: usize = 400;

/// Way in which the node's conntrack loses its entries.
#[derive(Clone, Copy)]
enum Forgetting {
    /// The entries are deleted.
    Deleted,
    /// The entries expire before those of netpold.
    Expired,
}

impl Forgetting {
    /// Sets the kernel's timeouts; to be called before the agent starts.
    fn prepare(self, cluster: &TestCluster) {
        if matches!(self, Self::Expired) {
            for node in &cluster.nodes {
                for timeout in ["nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"] {
                    node.netns().sysctl(&format!("netfilter/{timeout}"), "1").unwrap();
                }
            }
        }
    }

    fn forget(self, world: &World) {
        match self {
            Self::Deleted => world.cluster.nodes[world.node].forget_connections().unwrap(),
            // Entries expire within one second; lookups skip expired entries that the sweep has not freed.
            Self::Expired => std::thread::sleep(Duration::from_secs(3)),
        }
    }
}

/// Packets that the client sends after the node has lost the flow.
#[derive(Clone, Copy)]
enum Answers {
    Datagrams,
    /// TCP segments in the middle of a connection.
    Segments,
    /// ICMP errors about the first packet of the flow, behind a datagram that is a new flow for the node.
    Errors,
}

impl Answers {
    fn protocol(self) -> ProbeProtocol {
        if matches!(self, Self::Segments) { ProbeProtocol::Tcp } else { ProbeProtocol::Udp }
    }

    fn send(self, sender: &Sender, volley: Volley, own: SocketAddr, there: SocketAddr) {
        match self {
            Self::Datagrams => sender.datagrams(volley, own, there),
            Self::Segments => {
                for number in 0..PACKETS {
                    let place = (1000 + 40 * number as u32, 1);
                    let payload = volley.payload(number, 40);
                    let message = tcp_message(own, there, PUSH_AND_ACK, place, &payload);
                    sender.send(&packet(own.ip(), there.ip(), TCP, &message));
                }
            }
            Self::Errors => {
                sender.send(&udp_packet(own, there, b"a new flow"));
                for number in 0..PACKETS {
                    let quoted = udp_packet(there, own, &volley.payload(number, LONG));
                    sender.send(&unreachable_packet(own.ip(), there.ip(), &quoted));
                }
            }
        }
    }
}

/// Cluster with a client that may send to `friend` only and a Service with the backend `enemy`, and the node of both.
struct World {
    cluster: TestCluster,
    node: usize,
}

fn world(kind: Cni) -> World {
    let mut cluster = TestCluster::two();
    let node = usize::from(kind == Cni::Bridge);
    for name in ["client", "friend", "enemy"] {
        cluster.add(node, name);
    }
    for port in CLIENT_PORTS {
        cluster.pod("client").serve(ProbeProtocol::Tcp, port).unwrap();
    }
    let service = TestService::new(1, "bad").pods(&cluster, &["enemy"]).node_port(NODE_PORT);
    provide(&mut cluster, Proxy::Nftables, &[service]);
    World { cluster, node }
}

/// Runs an attack. `begin` begins a flow with the client from an address that leads to `enemy`, and returns the flow
/// if it must stay open. The node then loses the flow, and the client answers to that address.
fn attack(
    world: &mut World,
    (forgetting, answers): (Forgetting, Answers),
    begin: impl Fn(&World, SocketAddr, SocketAddr) -> Option<TestFlow>,
    address: impl Fn(&World, usize) -> SocketAddr,
    tally: &mut Tally,
) {
    let enemy = world.cluster.pod("enemy").wire("eth0").unwrap();
    for family in 0..2 {
        for policy in [false, true] {
            if policy {
                world.cluster.policy("client", allow_to("client", "friend"));
            }
            world.cluster.enforce();
            let client = world.cluster.pod("client");
            let own = (client.addresses()[family], CLIENT_PORTS[usize::from(policy)]).into();
            let wire = client.wire("eth0").unwrap();
            let there = address(world, family);
            let flow = begin(world, there, own);
            let deadline = Instant::now() + PATIENCE;
            let begun = |frame: &Vec<u8>| frame.windows(5).any(|part| part == b"begin");
            while flow.is_none() && !wire.arrived().is_some_and(|frame| begun(&frame)) {
                assert!(Instant::now() < deadline, "{there} begins a flow");
                std::thread::yield_now();
            }
            let sender = Sender::pod(world.cluster.pod("client"));
            if flow.is_none() {
                sender.send(&udp_packet(own, there, b"answer"));
            }
            forgetting.forget(world);
            let volley = Volley::new();
            answers.send(&sender, volley, own, there);
            let what = format!("by way of {there}, {}", answers.protocol());
            if policy {
                tally.note(&what, volley.leaked(&enemy));
                world.cluster.without_policy("client");
            } else {
                volley.arrives(&enemy, &what);
            }
            drop(flow);
            for node in &world.cluster.nodes {
                node.forget_connections().unwrap();
            }
        }
    }
}

/// Drops UDP at the node that begins flows with forged packets. Its conntrack has no such flow, so its own node port
/// would translate the answer to `enemy` (see THREATS.md), and the reply of `enemy` would restore the flow under
/// test.
fn takes_no_datagram(node: &netpold_testbed::Host) {
    node.netns()
        .nft(
            "table inet deaf {
            chain first {
                type filter hook prerouting priority raw;
                meta l4proto udp drop
            }
        }",
        )
        .unwrap();
}

/// Sends from a host on the wire, with a Service's address as the source.
fn from_a_service(forgetting: Forgetting, addresses: fn(&TestService) -> [IpAddr; 2]) {
    let mut world = world(Cni::Ptp);
    takes_no_datagram(&world.cluster.nodes[1]);
    forgetting.prepare(&world.cluster);
    let service = addresses(&TestService::new(1, "bad"));
    let mut tally = Tally::default();
    attack(
        &mut world,
        (forgetting, Answers::Datagrams),
        |world, there, client| {
            Sender::node(&world.cluster, 1).send(&udp_packet(there, client, b"begin"));
            None
        },
        |_, family| (service[family], SERVICE_PORT).into(),
        &mut tally,
    );
    tally.holds();
}

#[test]
fn answers_to_a_service_that_the_node_has_deleted() {
    require_root!();
    from_a_service(Forgetting::Deleted, TestService::cluster_ips);
}

#[test]
fn answers_to_a_service_after_the_node_forgot() {
    require_root!();
    from_a_service(Forgetting::Expired, TestService::cluster_ips);
}

/// An external address may be a real host's, so flows may begin there.
#[test]
fn answers_to_an_external_address_that_the_node_has_deleted() {
    require_root!();
    from_a_service(Forgetting::Deleted, TestService::external_ips);
}

/// Begins the flow at the node itself, from its node port at an address of its Node object or (`further`) at another
/// address.
fn from_the_node(kind: Cni, forgetting: Forgetting, answers: Answers, further: bool) {
    const FURTHER: [&str; 2] = ["10.77.0.1", "fd00:77::1"];
    let mut world = world(kind);
    forgetting.prepare(&world.cluster);
    if further {
        let add = FURTHER.map(|address| format!("address add {address} dev lo\n")).concat();
        world.cluster.nodes[world.node].netns().ip(&add).unwrap();
    }
    let mut tally = Tally::default();
    attack(
        &mut world,
        (forgetting, answers),
        |world, there, client| {
            let node = &world.cluster.nodes[world.node];
            if matches!(answers, Answers::Segments) {
                return Some(connected(node, there, client));
            }
            let socket = node.run(|| std::net::UdpSocket::bind(there)).unwrap().unwrap();
            socket.send_to(b"begin", client).unwrap();
            None
        },
        |world, family| {
            let own = world.cluster.nodes[world.node].addresses()[family];
            let address = if further { FURTHER[family].parse().unwrap() } else { own };
            (address, NODE_PORT).into()
        },
        &mut tally,
    );
    tally.holds();
}

fn connected(from: &netpold_testbed::Host, own: SocketAddr, to: SocketAddr) -> TestFlow {
    let mut flow = from.open_flow_from(own, ProbeProtocol::Tcp, to, PATIENCE).unwrap();
    assert!(flow.ping(PATIENCE), "{own} to {to}");
    flow
}

#[test]
fn answers_to_a_node_port_that_the_node_has_deleted() {
    require_root!();
    from_the_node(Cni::Ptp, Forgetting::Deleted, Answers::Datagrams, false);
    from_the_node(Cni::Bridge, Forgetting::Deleted, Answers::Datagrams, false);
}

#[test]
fn answers_to_a_node_port_after_the_node_forgot() {
    require_root!();
    from_the_node(Cni::Ptp, Forgetting::Expired, Answers::Datagrams, false);
}

#[test]
fn answers_to_a_node_port_of_a_further_address() {
    require_root!();
    from_the_node(Cni::Ptp, Forgetting::Deleted, Answers::Datagrams, true);
}

#[test]
fn segments_to_a_node_port_that_the_node_has_deleted() {
    require_root!();
    from_the_node(Cni::Ptp, Forgetting::Deleted, Answers::Segments, false);
    from_the_node(Cni::Bridge, Forgetting::Deleted, Answers::Segments, false);
}

#[test]
fn errors_to_a_node_port_that_the_node_has_deleted() {
    require_root!();
    from_the_node(Cni::Ptp, Forgetting::Deleted, Answers::Errors, false);
    from_the_node(Cni::Bridge, Forgetting::Deleted, Answers::Errors, false);
}

/// Begins a flow from outside that the node masquerades to its own address. The flow keeps its source port, which
/// equals the node port.
fn masqueraded(answers: Answers) {
    let mut world = world(Cni::Ptp);
    takes_no_datagram(&world.cluster.nodes[1]);
    // Traffic from the other node gets this node's address and keeps its port.
    world.cluster.nodes[0]
        .netns()
        .nft(
            "table inet far {
            chain out {
                type nat hook postrouting priority 90;
                iifname \"link*\" masquerade
            }
        }",
        )
        .unwrap();
    let mut tally = Tally::default();
    attack(
        &mut world,
        (Forgetting::Deleted, answers),
        |world, _, client| {
            let node = &world.cluster.nodes[1];
            let family = usize::from(client.is_ipv6());
            let far = SocketAddr::from((node.addresses()[family], NODE_PORT));
            if matches!(answers, Answers::Segments) {
                return Some(connected(node, far, client));
            }
            Sender::node(&world.cluster, 1).send(&udp_packet(far, client, b"begin"));
            None
        },
        |World { cluster, .. }, family| {
            let node = cluster.nodes[0].addresses()[family];
            let client = cluster.pod("client").addresses()[family];
            // Address that the route to the client prefers.
            let preferred = cluster.nodes[0].run(|| {
                let socket = std::net::UdpSocket::bind((node, 0)).unwrap();
                socket.connect((client, 1)).unwrap();
                socket.local_addr().unwrap().ip()
            });
            (preferred.unwrap(), NODE_PORT).into()
        },
        &mut tally,
    );
    tally.holds();
}

#[test]
fn answers_to_a_masqueraded_client_after_the_node_forgot() {
    require_root!();
    masqueraded(Answers::Datagrams);
}

#[test]
fn segments_to_a_masqueraded_client_after_the_node_forgot() {
    require_root!();
    masqueraded(Answers::Segments);
}

#[test]
fn errors_to_a_masqueraded_client_after_the_node_forgot() {
    require_root!();
    masqueraded(Answers::Errors);
}

/// Checks that a server without allowed peers still answers nodes, with conntrack and without, and clients of its
/// node port, however often the node loses the flows.
#[test]
fn answers_to_allowed_clients_go_on() {
    require_root!();
    let mut cluster = TestCluster::two();
    let servers = ["server1", "server2"];
    servers.iter().enumerate().for_each(|(node, name)| cluster.add(node, name));
    Forgetting::Expired.prepare(&cluster);
    let services: Vec<TestService> = servers
        .iter()
        .zip(0..)
        .map(|(name, number)| {
            let service = TestService::new(number + 1, name).pods(&cluster, &[name]);
            service.node_port(NODE_PORT + u16::from(number))
        })
        .collect();
    for name in servers {
        cluster.policy(name, isolate(name, &["Egress"]));
    }
    for tracked in [false, true] {
        if tracked {
            provide(&mut cluster, Proxy::Nftables, &services);
        } else {
            describe(&mut cluster, &services);
        }
        cluster.enforce();
        for (node, name) in servers.iter().enumerate() {
            let far = &cluster.nodes[1 - node];
            let pod = cluster.pod(name).addresses().to_vec();
            let sockets: Vec<_> = pod.iter().map(|address| (*address, PORT).into()).collect();
            answer(far, &sockets, &[name]);
            answer(&cluster.nodes[node], &sockets, &[name]);
            for address in pod {
                let ping = far.probe(ProbeProtocol::Icmp, address, 0, PATIENCE);
                assert!(!ping.dropped(), "{name} answers {ping}");
            }
        }
    }
    let far = &cluster.nodes[1];
    for to in cluster.nodes[0].addresses() {
        let to: Vec<SocketAddr> = [0, 1].map(|number| (to, NODE_PORT + number).into()).into();
        for port in [NODE_PORT, CLIENT_PORT] {
            let own = far.addresses()[usize::from(to[0].is_ipv6())];
            let mut flows: Vec<TestFlow> = (to.iter().zip(0..))
                .map(|(to, number)| {
                    let own = (own, port + number).into();
                    far.open_flow_from(own, ProbeProtocol::Udp, *to, PATIENCE).unwrap()
                })
                .collect();
            for _ in 0..3 {
                flows.iter_mut().for_each(|flow| assert!(flow.ping(PATIENCE), "{to:?}"));
                std::thread::sleep(Duration::from_secs(2));
            }
        }
    }
}

/// Sends a segment without flags, which conntrack considers invalid: the node does not translate it, and answers with
/// a reset. The next segment is translated.
#[test]
fn a_reset_of_the_node_begins_nothing() {
    const NO_FLAGS: u8 = 0;
    require_root!();
    let World { mut cluster, .. } = world(Cni::Ptp);
    let enemy = cluster.pod("enemy").wire("eth0").unwrap();
    let mut tally = Tally::default();
    for family in 0..2 {
        for policy in [false, true] {
            if policy {
                cluster.policy("client", allow_to("client", "friend"));
            }
            cluster.enforce();
            let own = SocketAddr::from((cluster.pod("client").addresses()[family], CLIENT_PORT));
            let node = SocketAddr::from((cluster.nodes[0].addresses()[family], NODE_PORT));
            let sender = Sender::pod(cluster.pod("client"));
            let send = |flags: u8, sequence: u32, payload: &[u8]| {
                let message = tcp_message(own, node, flags, (sequence, 1), payload);
                sender.send(&packet(own.ip(), node.ip(), TCP, &message));
            };
            send(NO_FLAGS, 1, &[]);
            std::thread::sleep(MOMENT);
            let volley = Volley::new();
            for number in 0..PACKETS {
                send(PUSH_AND_ACK, 1000 + 40 * number as u32, &volley.payload(number, 40));
            }
            let what = format!("to {node}");
            if policy {
                tally.note(&what, volley.leaked(&enemy));
                cluster.without_policy("client");
            } else {
                volley.arrives(&enemy, &what);
            }
            cluster.nodes[0].forget_connections().unwrap();
        }
    }
    tally.holds();
}
