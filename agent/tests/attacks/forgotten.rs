//! What the node's conntrack has forgotten and netpold remembers: answers that are translated anew, to
//! somebody who is denied (issue 12, 4 and 15).

use std::net::SocketAddr;

use netpold_testbed::packet::{packet, tcp_message, udp_packet};
use netpold_testbed::{Cni, Proxy, require_root};

use crate::cluster::{Cluster, MOMENT, PATIENCE, PORT, allow_to, isolate};
use crate::volley::{PACKETS, Sender, Tally, Volley};
use crate::world::{NODE_PORT, SERVICE_PORT, Service, provide};

const CLIENT_PORT: u16 = 5000;

/// How the node comes to forget.
#[derive(Clone, Copy)]
enum Forgetting {
    /// Its entries are deleted.
    Deleted,
    /// They expire before those of netpold.
    Expired,
}

impl Forgetting {
    /// Before the agent starts.
    fn prepare(self, cluster: &Cluster) {
        if matches!(self, Self::Expired) {
            for node in &cluster.nodes {
                for timeout in ["nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"] {
                    node.netns().sysctl(&format!("netfilter/{timeout}"), "1").unwrap();
                }
            }
        }
    }

    fn forget(self, cluster: &Cluster) {
        match self {
            Self::Deleted => cluster.nodes[0].forget_connections().unwrap(),
            // An entry ends within its second; the sweep may come later, but nobody finds it then.
            Self::Expired => std::thread::sleep(std::time::Duration::from_secs(3)),
        }
    }
}

/// A client on the first node that may send to `friend` alone, and a Service whose backend is
/// `enemy`.
fn world(kind: Cni) -> Cluster {
    let mut cluster = Cluster::two();
    let node = usize::from(kind == Cni::Bridge);
    for name in ["client", "friend", "enemy"] {
        cluster.add(node, name);
    }
    let service = Service::new(1, "bad").pods(&cluster, &["enemy"]).node_port(NODE_PORT);
    provide(&mut cluster, Proxy::Nftables, &[service]);
    cluster
}

/// The client answers at an address that now leads to `enemy`.
fn answers(
    cluster: &mut Cluster,
    forgetting: Forgetting,
    begin: impl Fn(&Cluster, usize, SocketAddr),
    service: impl Fn(&Cluster, usize) -> SocketAddr,
    tally: &mut Tally,
) {
    let enemy = cluster.pod("enemy").wire("eth0").unwrap();
    for family in 0..2 {
        for policy in [false, true] {
            if policy {
                cluster.policy("client", allow_to("client", "friend"));
            }
            cluster.enforce();
            let own = (cluster.pod("client").addresses()[family], CLIENT_PORT).into();
            let client = cluster.pod("client").wire("eth0").unwrap();
            let there = service(cluster, family);
            begin(cluster, family, own);
            let deadline = std::time::Instant::now() + PATIENCE;
            while !client.arrived().is_some_and(|frame| frame.windows(5).any(|w| w == b"begin")) {
                assert!(std::time::Instant::now() < deadline, "{there} begins a flow");
                std::thread::yield_now();
            }
            let sender = Sender::pod(cluster.pod("client"));
            // The answer.
            sender.send(&udp_packet(own, there, b"answer"));
            forgetting.forget(cluster);
            let volley = Volley::new();
            sender.datagrams(volley, own, there);
            let what = format!("by way of {there}");
            if policy {
                tally.note(&what, volley.leaked(&enemy));
                cluster.without_policy("client");
            } else {
                volley.arrives(&enemy, &what);
            }
            for node in &cluster.nodes {
                node.forget_connections().unwrap();
            }
        }
    }
}

/// Somebody on the wire sends in the Service's name.
fn from_a_service(forgetting: Forgetting) {
    let mut cluster = world(Cni::Ptp);
    forgetting.prepare(&cluster);
    let address = |family: usize| {
        let all = Service::new(1, "bad").cluster_ips();
        SocketAddr::from((all[family], SERVICE_PORT))
    };
    let mut tally = Tally::default();
    answers(
        &mut cluster,
        forgetting,
        |cluster, family, client| {
            let packet = udp_packet(address(family), client, b"begin");
            Sender::node(cluster, 1).send(&packet);
        },
        |_, family| address(family),
        &mut tally,
    );
    tally.holds();
}

#[test]
fn answers_to_a_service_that_the_node_has_deleted() {
    if require_root("answers_to_a_service_that_the_node_has_deleted") {
        from_a_service(Forgetting::Deleted);
    }
}

#[test]
fn answers_to_a_service_after_the_node_forgot() {
    if require_root("answers_to_a_service_after_the_node_forgot") {
        from_a_service(Forgetting::Expired);
    }
}

/// The node itself asks from the port at which it serves others.
fn from_the_node(forgetting: Forgetting) {
    let mut cluster = world(Cni::Ptp);
    forgetting.prepare(&cluster);
    let address = |cluster: &Cluster, family: usize| {
        SocketAddr::from((cluster.nodes[0].addresses()[family], NODE_PORT))
    };
    let mut tally = Tally::default();
    answers(
        &mut cluster,
        forgetting,
        |cluster, family, client| {
            let own = address(cluster, family);
            let node = &cluster.nodes[0];
            let socket = node.run(|| std::net::UdpSocket::bind(own)).unwrap().unwrap();
            socket.send_to(b"begin", client).unwrap();
        },
        address,
        &mut tally,
    );
    tally.holds();
}

#[test]
#[ignore = "open: issue 12 number 15"]
fn answers_to_a_node_port_that_the_node_has_deleted() {
    if require_root("answers_to_a_node_port_that_the_node_has_deleted") {
        from_the_node(Forgetting::Deleted);
    }
}

#[test]
#[ignore = "open: issue 12 number 15"]
fn answers_to_a_node_port_after_the_node_forgot() {
    if require_root("answers_to_a_node_port_after_the_node_forgot") {
        from_the_node(Forgetting::Expired);
    }
}

/// A client outside comes by a node port to the very pod: masqueraded to an address of the node and a
/// port of the node's choice, which is the node port where no other is asked for.
#[test]
#[ignore = "open: issue 12 number 4"]
fn answers_to_a_masqueraded_client_after_the_node_forgot() {
    if !require_root("answers_to_a_masqueraded_client_after_the_node_forgot") {
        return;
    }
    let mut cluster = world(Cni::Ptp);
    // What comes from the other node has this node's address, and keeps its port.
    crate::volley::nft(
        &cluster.nodes[0],
        "table inet far {
            chain out {
                type nat hook postrouting priority 90;
                iifname \"link*\" masquerade
            }
        }",
    );
    let mut tally = Tally::default();
    answers(
        &mut cluster,
        Forgetting::Deleted,
        |cluster, family, client| {
            let far = SocketAddr::from((cluster.nodes[1].addresses()[family], NODE_PORT));
            let packet = udp_packet(far, client, b"begin");
            Sender::node(cluster, 1).send(&packet);
        },
        |cluster, family| {
            let node = cluster.nodes[0].addresses()[family];
            let client = cluster.pod("client").addresses()[family];
            // The address that a route to the client prefers.
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

/// A packet that conntrack takes for nonsense is not translated: the node answers it, with a reset. The next one
/// is translated.
#[test]
fn a_reset_of_the_node_begins_nothing() {
    const NO_FLAGS: u8 = 0;
    const PUSH_AND_ACK: u8 = 0x18;
    if !require_root("a_reset_of_the_node_begins_nothing") {
        return;
    }
    let mut cluster = world(Cni::Ptp);
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
                sender.send(&packet(own.ip(), node.ip(), 6, &message));
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

/// What a Service led to is dropped where it is denied, but the node remembers: so who was not reached could
/// answer.
fn of_a_denied_backend(cni: Cni, tally: &mut Tally) {
    let mut cluster = Cluster::one(cni).with_pods(&["client", "friend", "enemy"]);
    let service = Service::new(1, "mixed").pods(&cluster, &["friend", "enemy"]);
    let service_ips = service.cluster_ips();
    provide(&mut cluster, Proxy::Nftables, &[service]);
    let client = cluster.pod("client").wire("eth0").unwrap();
    for (family, service_ip) in service_ips.into_iter().enumerate() {
        for policy in [false, true] {
            if policy {
                cluster.policy("client", isolate("client", &["Ingress"]));
                cluster.policy("to", allow_to("client", "friend"));
            }
            cluster.enforce();
            let own = cluster.pod("client").addresses()[family];
            let enemy = SocketAddr::from((cluster.pod("enemy").addresses()[family], PORT));
            let sender = Sender::pod(cluster.pod("client"));
            let ports = 6000..6000 + 4 * PACKETS as u16;
            let to = (service_ip, SERVICE_PORT).into();
            ports.clone().for_each(|port| sender.send(&udp_packet((own, port).into(), to, b"?")));
            let volley = Volley::new();
            let sender = Sender::pod(cluster.pod("enemy"));
            for (number, port) in ports.enumerate() {
                // Every other one was led to the enemy.
                let payload = volley.payload(number / 4, 400);
                sender.send(&udp_packet(enemy, (own, port).into(), &payload));
            }
            let what = format!("of {enemy} on a {cni:?} node");
            if policy {
                tally.note(&what, volley.leaked(&client));
                cluster.without_policy("client").without_policy("to");
            } else {
                volley.arrives(&client, &what);
            }
            cluster.nodes[0].forget_connections().unwrap();
        }
    }
}

#[test]
#[ignore = "open: issue 12 number 12, answers in the place of errors"]
fn answers_of_a_denied_backend() {
    if !require_root("answers_of_a_denied_backend") {
        return;
    }
    let mut tally = Tally::default();
    of_a_denied_backend(Cni::Ptp, &mut tally);
    of_a_denied_backend(Cni::Bridge, &mut tally);
    tally.holds();
}
