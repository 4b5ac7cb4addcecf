//! Connections that a change of policy cuts: both ends get an error at once.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{PATIENCE, PORT, TestCluster, isolate, network_policy};
use netpold_testbed::services::{TestService, provide};
use netpold_testbed::{Cni, Host, Netns, Proxy, require_root};
use serde_json::{Value, json};

use super::{annotated, rejecting};
use crate::traffic::kernel;

/// Port of the server's end.
const LISTENING: u16 = 8099;

/// A policy that allows everything, so that the flow tables know the connections.
fn open() -> Value {
    let both = ["Ingress", "Egress"];
    let spec = json!({ "podSelector": {}, "policyTypes": both, "ingress": [{}], "egress": [{}] });
    network_policy("open", &spec)
}

/// A connection between two pods; the server's end, too.
fn connection(cluster: &TestCluster, to: IpAddr) -> [TcpStream; 2] {
    let to: SocketAddr = (to, LISTENING).into();
    let listener = cluster.pod("server").run(|| TcpListener::bind(to)).unwrap().unwrap();
    let client = cluster.pod("client").run(|| TcpStream::connect(to)).unwrap().unwrap();
    let server = listener.accept().unwrap().0;
    let mut ends = [client, server];
    for (from, to) in [(0, 1), (1, 0)] {
        ends[from].write_all(b"x").unwrap();
        ends[to].read_exact(&mut [0]).unwrap();
    }
    ends
}

/// The error of a connection's end, and its time since `began`.
fn error(mut end: &TcpStream, began: Instant) -> (Option<i32>, Duration) {
    end.set_read_timeout(Some(PATIENCE)).unwrap();
    let error = loop {
        match end.read(&mut [0; 64]) {
            Ok(0) => break None,
            Ok(_) => {}
            Err(error) => break error.raw_os_error(),
        }
    };
    (error, began.elapsed())
}

/// Opens a connection, cuts it by policies, lets one end send, and expects a reset at both.
fn cut(cluster: &mut TestCluster, policies: &[Value], first: usize) {
    for family in 0..2 {
        cluster.objects = vec![open()];
        cluster.enforce();
        let ends = connection(cluster, cluster.pod("server").addresses()[family]);
        cluster.objects = policies.to_vec();
        cluster.enforce();
        let began = Instant::now();
        (&ends[first]).write_all(b"question").unwrap();
        let errors = [&ends[first], &ends[1 - first]].map(|end| error(end, began));
        println!("sender and receiver of the next segment: {errors:?}");
        let reset = Some(libc::ECONNRESET);
        assert_eq!(errors.map(|(error, _)| error), [reset; 2], "{policies:?} {first} {family}");
    }
}

/// Cuts of a client's egress, of a server's ingress, and of both directions of both.
fn cuts(cluster: &mut TestCluster) {
    let both = ["Ingress", "Egress"];
    let denied = |app: &str| annotated(&format!("denies-{app}"), &isolate(app, &both), "reject");
    for policies in [
        vec![rejecting("client", "Egress")],
        vec![rejecting("server", "Ingress")],
        vec![denied("client"), denied("server")],
    ] {
        for first in [0, 1] {
            cut(cluster, &policies, first);
        }
    }
}

fn on_a_node(cni: Cni, prepare: fn(&mut Command)) {
    let mut cluster = TestCluster::one(cni).with_pods(&["server", "client"]);
    cluster.prepare = prepare;
    cuts(&mut cluster);
}

#[test]
fn a_connection_that_is_cut_is_reset_at_both_ends_on_a_ptp_node() {
    require_root!();
    on_a_node(Cni::Ptp, |_| ());
}

#[test]
fn a_connection_that_is_cut_is_reset_at_both_ends_on_a_bridge_node() {
    require_root!();
    on_a_node(Cni::Bridge, |_| ());
}

#[test]
fn a_connection_that_is_cut_is_reset_at_both_ends_by_clsact_filters() {
    require_root!();
    on_a_node(Cni::Ptp, kernel::without_tcx);
}

#[test]
fn a_connection_that_is_cut_is_reset_at_both_ends_on_two_nodes() {
    require_root!();
    for (from, to) in [(0, 1), (1, 0)] {
        let mut cluster = TestCluster::two();
        cluster.add(from, "client");
        cluster.add(to, "server");
        cuts(&mut cluster);
    }
}

/// Keepalives do not have the sequence number that the receiver expects, so the receiver is reset at its own next
/// segment.
#[test]
fn an_end_that_is_not_reset_by_a_keepalive_is_reset_at_its_next_segment() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "client"]);
    for policy in [("client", "Egress"), ("server", "Ingress")] {
        for family in 0..2 {
            cluster.objects = vec![open()];
            cluster.enforce();
            let ends = connection(&cluster, cluster.pod("server").addresses()[family]);
            cluster.objects = vec![rejecting(policy.0, policy.1)];
            cluster.enforce();
            // The client's keepalives are denied at its own interface, or at the server's.
            let [client, server] = &ends;
            keep_alive(client);
            assert_eq!(
                error(client, Instant::now()).0,
                Some(libc::ECONNRESET),
                "{policy:?} {family}"
            );
            (&ends[1]).write_all(b"news").unwrap();
            assert_eq!(
                error(server, Instant::now()).0,
                Some(libc::ECONNRESET),
                "{policy:?} {family}"
            );
        }
    }
}

/// Drops segments at a hook of a network namespace, until this value is dropped.
struct Loss(Arc<Netns>);

impl Loss {
    fn of(host: &Host, hook: &str, port: &str) -> Self {
        let rules = format!(
            "add table inet loss; \
             add chain inet loss segments {{ type filter hook {hook} priority 0; }}; \
             add rule inet loss segments tcp {port} {LISTENING} drop"
        );
        host.netns().nft(&rules).unwrap();
        Self(Arc::clone(host.netns()))
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        self.0.nft("delete table inet loss").unwrap();
    }
}

/// Three cases: a segment before the first denied one is lost, so that the forwarded reset does not have the expected
/// sequence number; the reset is lost; the answer to the sender is lost. Later segments reset both ends.
#[test]
fn ends_are_reset_although_segments_are_lost_around_the_cut() {
    require_root!();
    let mut cluster = TestCluster::two();
    cluster.add(0, "client");
    cluster.add(1, "server");
    for (app, direction, lost) in [
        ("client", "Egress", "before"),
        ("server", "Ingress", "before"),
        ("client", "Egress", "dport"),
        ("server", "Ingress", "sport"),
    ] {
        for family in 0..2 {
            cluster.objects = vec![open()];
            cluster.enforce();
            let ends = connection(&cluster, cluster.pod("server").addresses()[family]);
            cluster.objects = vec![rejecting(app, direction)];
            cluster.enforce();
            let loss = match lost {
                "before" => Loss::of(cluster.pod("client"), "postrouting", "dport"),
                port => Loss::of(&cluster.nodes[0], "forward", port),
            };
            let [client, server] = &ends;
            (&ends[0]).write_all(b"question").unwrap();
            let reset = |end| {
                let (error, time) = error(end, Instant::now());
                assert_eq!(error, Some(libc::ECONNRESET), "{app} {direction} {lost} {family}");
                time
            };
            match lost {
                "before" => {
                    drop(loss);
                    (&ends[0]).write_all(b"behind it").unwrap();
                    println!("{app}, a segment before: {:?}", [client, server].map(reset));
                }
                // The client gets an error, and the server gets one at its next segment.
                "dport" => {
                    reset(client);
                    drop(loss);
                    (&ends[1]).write_all(b"news").unwrap();
                    println!("{app}, the reset: {:?}", reset(server));
                }
                // The server gets an error, and the client gets one as soon as it repeats its segment.
                _ => {
                    reset(server);
                    drop(loss);
                    println!("{app}, the answer: {:?}", reset(client));
                }
            }
        }
    }
}

/// Sends a keepalive after each second of silence.
fn keep_alive(end: &TcpStream) {
    let options = [
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    ];
    let (one, size) = (1_i32, size_of::<i32>() as u32);
    for (level, option) in options {
        // SAFETY: an open socket, and an option of that size.
        let result = unsafe {
            libc::setsockopt(end.as_raw_fd(), level, option, (&raw const one).cast(), size)
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
}

/// Number of a pod's established connections at [`PORT`].
fn established(pod: &Host) -> usize {
    let files = ["tcp", "tcp6"].map(|name| format!("/proc/thread-self/net/{name}"));
    let tables = pod.run(|| files.map(|file| fs::read_to_string(file).unwrap())).unwrap();
    let local = format!(":{PORT:04X}");
    let is_open = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|own| own.ends_with(&local)) && fields.nth(1) == Some("01")
    };
    tables.iter().map(|table| table.lines().filter(is_open).count()).sum()
}

/// Waits for a number of a pod's established connections.
fn wait_for(pod: &Host, number: usize) {
    let began = Instant::now();
    while established(pod) != number {
        assert!(began.elapsed() < PATIENCE, "{} of {number}", established(pod));
        sleep(Duration::from_millis(10));
    }
}

/// A connection with a Service: the client's end gets the error from the Service's address. The backend gets one if its
/// own policy denies the client; a segment that the client's node denies is not forwarded to a translated address.
fn behind(proxy: Proxy) {
    for to in [0, 1] {
        let mut cluster = TestCluster::two();
        cluster.add(0, "client");
        cluster.add(to, "server");
        let service = TestService::new(1, "s").pods(&cluster, &["server"]);
        provide(&mut cluster, proxy, std::slice::from_ref(&service));
        let others = cluster.objects.clone();
        for (app, direction) in [("server", "Ingress"), ("client", "Egress")] {
            for address in service.cluster_ips() {
                cluster.objects.clone_from(&others);
                cluster.objects.push(open());
                cluster.enforce();
                let before = established(cluster.pod("server"));
                let at: SocketAddr = (address, service.port).into();
                let client = cluster.pod("client").run(|| TcpStream::connect(at)).unwrap().unwrap();
                wait_for(cluster.pod("server"), before + 1);
                cluster.objects.pop();
                cluster.objects.push(rejecting(app, direction));
                cluster.enforce();
                let began = Instant::now();
                (&client).write_all(b"question\n").unwrap();
                let (error, time) = error(&client, began);
                println!("{app} {direction} {at}: {error:?} {time:?}");
                assert_eq!(error, Some(libc::ECONNRESET), "{app} {direction} {at}");
                if direction == "Ingress" {
                    wait_for(cluster.pod("server"), before);
                }
            }
        }
    }
}

#[test]
fn a_connection_with_a_service_is_reset_at_both_ends_by_nftables() {
    require_root!();
    behind(Proxy::Nftables);
}

#[test]
fn a_connection_with_a_service_is_reset_at_both_ends_by_iptables() {
    require_root!();
    behind(Proxy::Iptables);
}
