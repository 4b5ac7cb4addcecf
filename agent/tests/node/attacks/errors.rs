//! ICMP errors about flows that the node translates: the node rewrites them and sends them to hosts that policy
//! denies to the sender.

use std::net::{IpAddr, SocketAddr};

use netpold_testbed::cluster::{PATIENCE, PORT, TestCluster, allow_to, isolate};
use netpold_testbed::packet::{checksummed, ipv4, udp_packet, unreachable_packet};
use netpold_testbed::services::{NODE_PORT, SERVICE_PORT, TestService, provide};
use netpold_testbed::{Cni, Host, Proxy, RawSocket, require_root};

use crate::attacks::volley::{BOTH, PACKETS, Sender, Tally, Volley};

const CLIENT_PORT: u16 = 5000;
/// Length of the payload behind the quoted headers.
const LONG: usize = 1000;

/// Sends a volley of ICMP errors that quote a datagram.
fn errors(
    sender: &Sender,
    volley: Volley,
    from: IpAddr,
    (quoted, answer): (SocketAddr, SocketAddr),
) {
    for number in 0..PACKETS {
        let inner = udp_packet(quoted, answer, &volley.payload(number, LONG));
        sender.send(&unreachable_packet(from, quoted.ip(), &inner));
    }
}

/// Sends a datagram from a socket bound at `from`. Returns its source address at `wire`.
fn arrives_as(wire: &RawSocket, from: (&Host, IpAddr, u16), to: SocketAddr) -> SocketAddr {
    let socket = from.0.run(|| std::net::UdpSocket::bind((from.1, from.2))).unwrap().unwrap();
    while wire.arrived().is_some() {}
    socket.send_to(b"a flow begins", to).unwrap();
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        assert!(std::time::Instant::now() < deadline, "{to} gets what is sent to it");
        let Some(frame) = wire.arrived() else { continue };
        if !frame.windows(13).any(|part| part == b"a flow begins") {
            continue;
        }
        let (source, at): (IpAddr, _) = if to.is_ipv4() {
            (IpAddr::from(<[u8; 4]>::try_from(&frame[26..30]).unwrap()), 34)
        } else {
            (IpAddr::from(<[u8; 16]>::try_from(&frame[22..38]).unwrap()), 54)
        };
        return (source, u16::from_be_bytes([frame[at], frame[at + 1]])).into();
    }
}

/// Sends errors of `hostile`, which has no allowed peers, about a masqueraded flow of `server`; none arrives at the
/// client. The client is the other node by a node port (`outside`), or a pod by an external address.
fn about_a_masqueraded_flow(cni: Cni, outside: bool, tally: &mut Tally) {
    let mut cluster = TestCluster::two();
    let node = usize::from(cni == Cni::Bridge);
    for name in ["server", "hostile", "client"] {
        cluster.add(node, name);
    }
    let service = TestService::new(1, "one").pods(&cluster, &["server"]).node_port(NODE_PORT);
    let external = service.external_ips();
    provide(&mut cluster, Proxy::Nftables, &[service]);
    let at_server = cluster.pod("server").wire("eth0").unwrap();
    let wire = if outside {
        cluster.nodes[1 - node].wire(&cluster.link(1 - node)).unwrap()
    } else {
        cluster.pod("client").wire("eth0").unwrap()
    };
    for (family, external) in external.into_iter().enumerate() {
        for policy in [false, true] {
            if policy {
                cluster.policy("hostile", isolate("hostile", &BOTH));
                cluster.policy("client", isolate("client", &["Ingress"]));
            }
            cluster.enforce();
            let server = SocketAddr::from((cluster.pod("server").addresses()[family], PORT));
            let (client, to): ((&Host, _, _), SocketAddr) = if outside {
                let far = &cluster.nodes[1 - node];
                let near = cluster.nodes[node].addresses()[family];
                ((far, far.addresses()[family], CLIENT_PORT), (near, NODE_PORT).into())
            } else {
                let pod = cluster.pod("client");
                let to = (external, SERVICE_PORT).into();
                ((pod, pod.addresses()[family], CLIENT_PORT), to)
            };
            let seen = arrives_as(&at_server, client, to);
            assert_ne!(seen.ip(), client.1, "it is masqueraded");
            let hostile = cluster.pod("hostile");
            let volley = Volley::new();
            let own = hostile.addresses()[family];
            errors(&Sender::pod(hostile), volley, own, (seen, server));
            let what = format!("to {} on a {cni:?} node", client.1);
            if policy {
                tally.note(&what, volley.leaked(&wire));
                cluster.without_policy("hostile").without_policy("client");
            } else {
                volley.arrives(&wire, &what);
            }
            cluster.nodes[node].forget_connections().unwrap();
        }
    }
}

#[test]
fn errors_to_a_node_ports_client_outside() {
    require_root!();
    let mut tally = Tally::default();
    about_a_masqueraded_flow(Cni::Ptp, true, &mut tally);
    about_a_masqueraded_flow(Cni::Bridge, true, &mut tally);
    tally.holds();
}

#[test]
fn errors_to_a_pod_that_denies_everything() {
    require_root!();
    let mut tally = Tally::default();
    about_a_masqueraded_flow(Cni::Ptp, false, &mut tally);
    about_a_masqueraded_flow(Cni::Bridge, false, &mut tally);
    tally.holds();
}

/// Sends errors to a Service of a friend and an enemy: netpold drops packets to the enemy behind their translation,
/// but the node's conntrack keeps the flow, and errors about it follow the flow.
fn to_a_denied_backend(cni: Cni, tally: &mut Tally) {
    let mut cluster = TestCluster::one(cni).with_pods(&["hostile", "friend", "enemy"]);
    let service = TestService::new(1, "mixed").pods(&cluster, &["friend", "enemy"]);
    let service_ips = service.cluster_ips();
    provide(&mut cluster, Proxy::Nftables, &[service]);
    let wire = cluster.pod("enemy").wire("eth0").unwrap();
    for (family, service_ip) in service_ips.into_iter().enumerate() {
        for policy in [false, true] {
            if policy {
                cluster.policy("hostile", allow_to("hostile", "friend"));
            }
            cluster.enforce();
            let hostile = cluster.pod("hostile");
            let own = hostile.addresses()[family];
            let service = SocketAddr::from((service_ip, SERVICE_PORT));
            let sender = Sender::pod(hostile);
            let ports = 6000..6000 + 4 * PACKETS as u16;
            for port in ports.clone() {
                sender.send(&udp_packet((own, port).into(), service, b"which one?"));
            }
            let volley = Volley::new();
            for (number, port) in ports.enumerate() {
                // About every other flow leads to the enemy, so four packets share a number.
                let payload = volley.payload(number / 4, LONG);
                let inner = udp_packet(service, (own, port).into(), &payload);
                sender.send(&unreachable_packet(own, service.ip(), &inner));
            }
            let what = format!("about flows to {service} on a {cni:?} node");
            if policy {
                tally.note(&what, volley.leaked(&wire));
                cluster.without_policy("hostile");
            } else {
                volley.arrives(&wire, &what);
            }
            cluster.nodes[0].forget_connections().unwrap();
        }
    }
}

#[test]
fn errors_to_a_denied_backend() {
    require_root!();
    let mut tally = Tally::default();
    to_a_denied_backend(Cni::Ptp, &mut tally);
    to_a_denied_backend(Cni::Bridge, &mut tally);
    tally.holds();
}

/// Enables source routes at the node, which then forwards packets for its own address to the next address of their
/// route.
#[test]
fn errors_by_a_source_route() {
    require_root!();
    let mut tally = Tally::default();
    for error in [true, false] {
        let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["hostile", "victim"]);
        let veth = cluster.pod("hostile").host_interface().to_owned();
        for key in ["all", "default", &veth] {
            let setting = format!("ipv4/conf/{key}/accept_source_route");
            cluster.nodes[0].netns().sysctl(&setting, "1").unwrap();
        }
        let wire = cluster.pod("victim").wire("eth0").unwrap();
        let (IpAddr::V4(node), IpAddr::V4(own), IpAddr::V4(victim)) = (
            cluster.nodes[0].addresses()[0],
            cluster.pod("hostile").addresses()[0],
            cluster.pod("victim").addresses()[0],
        ) else {
            panic!("IPv4 first");
        };
        // NOP, then a loose source route of one address.
        let route = [&[1, 131, 7, 4], &victim.octets()[..]].concat();
        let what = if error { "errors" } else { "datagrams" };
        let attack = |cluster: &TestCluster, volley: Volley| {
            let sender = Sender::pod(cluster.pod("hostile"));
            for number in 0..PACKETS {
                let payload = volley.payload(number, LONG);
                let ends = ((node, 9).into(), (own, 9).into());
                let quoted = udp_packet(ends.0, ends.1, &payload);
                let message = [&[3, 3, 0, 0, 0, 0, 0, 0], &quoted[..]].concat();
                let message = checksummed(own.into(), node.into(), 1, message);
                let datagram = netpold_testbed::packet::udp_message(ends.1, ends.0, &payload);
                let (protocol, body) = if error { (1, message) } else { (17, datagram) };
                sender.send(&ipv4((own, node), protocol, (0, 0), &route, &body));
            }
        };
        crate::attacks::volley::try_both(
            &mut cluster,
            (what, "hostile"),
            &wire,
            &mut tally,
            attack,
        );
    }
    tally.holds();
}

/// Checks that errors of the server about its own flow return to the client, also where the flow is translated.
#[test]
fn errors_about_ones_own_flow_go_back() {
    require_root!();
    let mut cluster = TestCluster::two();
    cluster.add(0, "server");
    let service = TestService::new(1, "one").pods(&cluster, &["server"]).node_port(NODE_PORT);
    provide(&mut cluster, Proxy::Nftables, &[service]);
    cluster.policy("server", isolate("server", &["Egress"])).enforce();
    let at_server = cluster.pod("server").wire("eth0").unwrap();
    let far = cluster.nodes[1].wire(&cluster.link(1)).unwrap();
    for family in 0..2 {
        let server = SocketAddr::from((cluster.pod("server").addresses()[family], PORT));
        let node = &cluster.nodes[1];
        let client: (&Host, _, _) = (node, node.addresses()[family], CLIENT_PORT);
        let to = (cluster.nodes[0].addresses()[family], NODE_PORT).into();
        let seen = arrives_as(&at_server, client, to);
        let volley = Volley::new();
        let sender = Sender::pod(cluster.pod("server"));
        errors(&sender, volley, server.ip(), (seen, server));
        volley.arrives(&far, "errors about one's own flow");
    }
}
