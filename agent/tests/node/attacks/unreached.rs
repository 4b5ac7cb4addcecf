//! Answers of a denied backend: the node's conntrack, or another node's, has a flow that netpold dropped.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use netpold_testbed::cluster::{MOMENT, PORT, TestCluster, allow_to, isolate};
use netpold_testbed::packet::{packet, tcp_message, udp_packet, unreachable_packet};
use netpold_testbed::services::{SERVICE_PORT, TestService, provide};
use netpold_testbed::{Cni, Proxy, require_root};

use crate::attacks::forgotten::{LONG, TCP};
use crate::attacks::volley::{PACKETS, Sender, Tally, Volley};

const SYN: u8 = 0x02;
const SYN_AND_ACK: u8 = 0x12;
/// Client ports; the Service distributes them over two backends, about half to each.
const PORTS: Range<u16> = 6000..6000 + 4 * PACKETS as u16;

/// Packets of a backend that the client's packets have not reached.
#[derive(Clone, Copy, Debug)]
enum Unreached {
    Datagrams,
    /// Second packet of a handshake, with data.
    Handshakes,
    /// ICMP errors about the client's packets to the Service.
    Errors,
}

impl Unreached {
    fn ask(self, sender: &Sender, own: SocketAddr, to: SocketAddr) {
        let message = tcp_message(own, to, SYN, (1, 0), &[]);
        sender.send(&match self {
            Self::Handshakes => packet(own.ip(), to.ip(), TCP, &message),
            Self::Datagrams | Self::Errors => udp_packet(own, to, b"?"),
        });
    }

    fn answer(self, sender: &Sender, own: SocketAddr, to: SocketAddr, payload: &[u8]) {
        let message = tcp_message(own, to, SYN_AND_ACK, (1, 2), payload);
        sender.send(&match self {
            Self::Datagrams => udp_packet(own, to, payload),
            Self::Handshakes => packet(own.ip(), to.ip(), TCP, &message),
            Self::Errors => unreachable_packet(own.ip(), to.ip(), &udp_packet(to, own, payload)),
        });
    }

    /// Sends from a backend to each port of the client. Four ports share a number, since only some belong to this
    /// backend.
    fn answer_all(self, sender: &Sender, backend: SocketAddr, client: IpAddr) -> Volley {
        let volley = Volley::new();
        for (number, port) in PORTS.enumerate() {
            let payload = volley.payload(number / 4, LONG);
            self.answer(sender, backend, (client, port).into(), &payload);
        }
        volley
    }
}

/// Sends answers of a denied backend: netpold dropped the request, but the node's conntrack has the flow. The denied
/// backend's answers must not arrive; answers of the allowed backend arrive.
fn of_a_denied_backend(cluster: &mut TestCluster, unreached: Unreached, tally: &mut Tally) {
    let service = TestService::new(1, "mixed").pods(cluster, &["friend", "enemy"]);
    let service_ips = service.cluster_ips();
    provide(cluster, Proxy::Nftables, &[service]);
    let client = cluster.pod("client").wire("eth0").unwrap();
    for (family, service_ip) in service_ips.into_iter().enumerate() {
        for policy in [false, true] {
            if policy {
                cluster.policy("client", isolate("client", &["Ingress"]));
                cluster.policy("to", allow_to("client", "friend"));
            }
            cluster.enforce();
            let own = cluster.pod("client").addresses()[family];
            let sender = Sender::pod(cluster.pod("client"));
            let to = (service_ip, SERVICE_PORT).into();
            PORTS.for_each(|port| unreached.ask(&sender, (own, port).into(), to));
            // Waits until the packets have arrived.
            std::thread::sleep(MOMENT);
            for name in ["enemy", "friend"] {
                let backend = SocketAddr::from((cluster.pod(name).addresses()[family], PORT));
                let volley = unreached.answer_all(&Sender::pod(cluster.pod(name)), backend, own);
                let what = format!("{unreached:?} of {name}, {backend}");
                if policy && name == "enemy" {
                    tally.note(&what, volley.leaked(&client));
                } else {
                    volley.arrives(&client, &what);
                }
            }
            if policy {
                cluster.without_policy("client").without_policy("to");
            }
            cluster.nodes.iter().for_each(|node| node.forget_connections().unwrap());
        }
    }
}

/// Runs the attack with backends on the client's node, for both kinds of CNI.
fn of_a_denied_neighbour(unreached: Unreached) {
    let mut tally = Tally::default();
    for kind in [Cni::Ptp, Cni::Bridge] {
        let mut cluster = TestCluster::one(kind).with_pods(&["client", "friend", "enemy"]);
        of_a_denied_backend(&mut cluster, unreached, &mut tally);
    }
    tally.holds();
}

#[test]
fn answers_of_a_denied_backend() {
    require_root!();
    of_a_denied_neighbour(Unreached::Datagrams);
}

#[test]
fn handshakes_of_a_denied_backend() {
    require_root!();
    of_a_denied_neighbour(Unreached::Handshakes);
}

#[test]
fn errors_of_a_denied_backend() {
    require_root!();
    of_a_denied_neighbour(Unreached::Errors);
}

/// Runs the attack with backends on another node: the client's packets drop where they leave their own node.
#[test]
fn answers_of_a_denied_backend_elsewhere() {
    require_root!();
    let mut tally = Tally::default();
    for node in [0, 1] {
        for unreached in [Unreached::Datagrams, Unreached::Errors] {
            let mut cluster = TestCluster::two();
            cluster.add(node, "client");
            cluster.add(1 - node, "friend");
            cluster.add(1 - node, "enemy");
            of_a_denied_backend(&mut cluster, unreached, &mut tally);
        }
    }
    tally.holds();
}

/// Creates the client's flow to a Service on another node by a forged packet, and makes the client's node lose it:
/// packets of a backend there arrive with the Service's address as their source.
#[test]
fn answers_in_a_services_name_by_another_node() {
    require_root!();
    let mut tally = Tally::default();
    for node in [0, 1] {
        let mut cluster = TestCluster::two();
        for (node, name) in [(node, "client"), (1 - node, "friend"), (1 - node, "enemy")] {
            cluster.add(node, name);
        }
        let service = TestService::new(1, "mixed").pods(&cluster, &["friend", "enemy"]);
        let service_ips = service.cluster_ips();
        provide(&mut cluster, Proxy::Nftables, &[service]);
        let wire = cluster.pod("client").wire("eth0").unwrap();
        for policy in [false, true] {
            if policy {
                cluster.policy("client", isolate("client", &["Ingress"]));
                cluster.policy("to", allow_to("client", "friend"));
            }
            cluster.enforce();
            for (family, service_ip) in service_ips.into_iter().enumerate() {
                let own = cluster.pod("client").addresses()[family];
                let enemy = SocketAddr::from((cluster.pod("enemy").addresses()[family], PORT));
                let (client, forger) =
                    (Sender::pod(cluster.pod("client")), Sender::node(&cluster, node));
                let to = (service_ip, SERVICE_PORT).into();
                for sender in [&client, &forger] {
                    let ask = |port| Unreached::Datagrams.ask(sender, (own, port).into(), to);
                    PORTS.for_each(ask);
                }
                // Waits until the packets have arrived.
                std::thread::sleep(MOMENT);
                cluster.nodes[node].forget_connections().unwrap();
                let sender = Sender::pod(cluster.pod("enemy"));
                let volley = Unreached::Datagrams.answer_all(&sender, enemy, own);
                let what = format!("{enemy} as {service_ip}");
                if policy {
                    tally.note(&what, volley.leaked(&wire));
                } else {
                    volley.arrives(&wire, &what);
                }
                cluster.nodes.iter().for_each(|node| node.forget_connections().unwrap());
            }
        }
    }
    tally.holds();
}
