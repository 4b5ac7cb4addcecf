//! Denied packets that are answered at once (`netpold.io/deny: reject`): the errors of real clients, and their times.

mod behind;
mod chosen;
mod cut;
mod limited;

use std::io::Error;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{MOMENT, PORT, TestCluster, isolate, network_policy};
use netpold_testbed::{Cni, Host, ProbeProtocol, ProbeResult, require_root};
use serde_json::{Value, json};

use crate::traffic::kernel;

/// Time in which a refused client gets its error; a client whose packets are dropped waits for seconds.
const AT_ONCE: Duration = Duration::from_millis(200);

/// A NetworkPolicy with the annotation.
fn annotated(name: &str, spec: &Value, value: &str) -> Value {
    let mut policy = network_policy(name, spec);
    policy["metadata"]["annotations"] = json!({ "netpold.io/deny": value });
    policy
}

/// A policy that isolates an app in a direction, and rejects.
fn rejecting(app: &str, direction: &str) -> Value {
    annotated(&format!("reject-{app}-{direction}"), &isolate(app, &[direction]), "reject")
}

/// The error of a connection attempt, and its time.
fn connect(from: &Host, to: SocketAddr) -> (Option<i32>, Duration) {
    let began = Instant::now();
    let result = from.run(|| TcpStream::connect_timeout(&to, MOMENT * 4)).unwrap();
    (result.err().and_then(|error| error.raw_os_error()), began.elapsed())
}

/// The error of a connected UDP socket's second call, and its time.
fn send(from: &Host, to: SocketAddr) -> (Option<i32>, Duration) {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = from.run(|| UdpSocket::bind(any)).unwrap().unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(MOMENT * 4)).unwrap();
    let began = Instant::now();
    socket.send(b"question").unwrap();
    let error: Option<Error> = socket.recv(&mut [0; 16]).err();
    (error.and_then(|error| error.raw_os_error()), began.elapsed())
}

/// The errors of TCP and of UDP with an address.
fn expected(to: IpAddr) -> [i32; 2] {
    [libc::ECONNREFUSED, if to.is_ipv4() { libc::EHOSTUNREACH } else { libc::EACCES }]
}

/// Asserts that both protocols get their error at once at these addresses.
#[track_caller]
fn refused(from: &Host, to: &[SocketAddr]) {
    for &to in to {
        let answers = [connect(from, to), send(from, to)];
        println!("{} to {to}: {answers:?}", from.name());
        for ((error, time), expected) in answers.into_iter().zip(expected(to.ip())) {
            assert_eq!(error, Some(expected), "{} to {to}", from.name());
            assert!(time < AT_ONCE, "{} to {to}: {time:?}", from.name());
        }
    }
}

/// Asserts that no protocol gets an answer.
#[track_caller]
fn unanswered(from: &Host, to: &[SocketAddr]) {
    for &to in to {
        for protocol in [ProbeProtocol::Tcp, ProbeProtocol::Udp] {
            let result = from.probe(protocol, to.ip(), to.port(), MOMENT);
            assert_eq!(result, ProbeResult::Timeout, "{} to {to}, {protocol}", from.name());
        }
    }
}

fn sockets(addresses: &[IpAddr]) -> Vec<SocketAddr> {
    addresses.iter().map(|address| (*address, PORT).into()).collect()
}

/// Checks both directions between two pods of a node, and between two nodes.
fn both_directions(cluster: &mut TestCluster, to: &str) {
    for (app, direction) in [("client", "Egress"), (to, "Ingress")] {
        cluster.objects = vec![rejecting(app, direction)];
        cluster.enforce();
        refused(cluster.pod("client"), &sockets(cluster.pod(to).addresses()));
        cluster.reaches(to, "client");
        cluster.objects = vec![annotated("drops", &isolate(app, &[direction]), "drop")];
        cluster.enforce();
        unanswered(cluster.pod("client"), &sockets(cluster.pod(to).addresses()));
    }
}

fn on_a_node(cni: Cni, prepare: fn(&mut std::process::Command)) {
    let mut cluster = TestCluster::one(cni).with_pods(&["server", "client"]);
    cluster.prepare = prepare;
    both_directions(&mut cluster, "server");
}

#[test]
fn denied_clients_have_an_error_at_once_on_a_ptp_node() {
    require_root!();
    on_a_node(Cni::Ptp, |_| ());
}

#[test]
fn denied_clients_have_an_error_at_once_on_a_bridge_node() {
    require_root!();
    on_a_node(Cni::Bridge, |_| ());
}

#[test]
fn denied_clients_have_an_error_at_once_by_clsact_filters() {
    require_root!();
    on_a_node(Cni::Ptp, kernel::without_tcx);
    on_a_node(Cni::Bridge, kernel::without_tcx);
}

#[test]
fn denied_clients_have_an_error_at_once_on_another_node() {
    require_root!();
    for (from, to) in [(0, 1), (1, 0)] {
        let mut cluster = TestCluster::two();
        cluster.add(from, "client");
        cluster.add(to, "server");
        both_directions(&mut cluster, "server");
    }
}

/// The denied packets leave their checksums to the card, and the answers go out of devices without one: the kernel would
/// complete a checksum that an answer has taken over, and the client would discard the answer.
#[test]
fn answers_have_checksums_of_their_own() {
    require_root!();
    let mut cluster = TestCluster::two();
    cluster.add(0, "client");
    cluster.add(1, "server");
    cluster.nodes[0].complete_checksums(cluster.pod("client").host_interface()).unwrap();
    cluster.nodes[1].complete_checksums(&cluster.link(1)).unwrap();
    for (app, direction) in [("client", "Egress"), ("server", "Ingress")] {
        cluster.objects = vec![rejecting(app, direction)];
        cluster.enforce();
        refused(cluster.pod("client"), &sockets(cluster.pod("server").addresses()));
    }
}

/// Echoes and SCTP get errors too, and so do hosts outside.
#[test]
fn every_protocol_has_an_error() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "client"]);
    cluster.objects = vec![rejecting("server", "Ingress")];
    cluster.enforce();
    for to in cluster.pod("server").addresses() {
        for protocol in [ProbeProtocol::Icmp, ProbeProtocol::Sctp] {
            let result = cluster.pod("client").probe(protocol, *to, PORT, MOMENT);
            assert_ne!(result, ProbeResult::Timeout, "{protocol} to {to}");
            assert!(!result.connected(), "{protocol} to {to}: {result}");
        }
    }
}
