//! What the node's conntrack has forgotten and netpold remembers: answers that are translated anew, to
//! somebody who is denied (issue 12, 4 and 15).

use std::net::SocketAddr;

use netpold_testbed::{Cni, Proxy, require_root};

use crate::cluster::{Cluster, PATIENCE, allow_to};
use crate::volley::{Sender, Tally, Volley};
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
            sender.send(&netpold_testbed::packet::udp_packet(own, there, b"answer"));
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
            let packet = netpold_testbed::packet::udp_packet(address(family), client, b"begin");
            Sender::node(cluster, 1).send(&packet);
        },
        |_, family| address(family),
        &mut tally,
    );
    tally.holds();
}

#[test]
#[ignore = "open: issue 12 number 4"]
fn answers_to_a_service_that_the_node_has_deleted() {
    if require_root("answers_to_a_service_that_the_node_has_deleted") {
        from_a_service(Forgetting::Deleted);
    }
}

#[test]
#[ignore = "open: issue 12 number 4"]
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
            let packet = netpold_testbed::packet::udp_packet(far, client, b"begin");
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
