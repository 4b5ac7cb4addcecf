//! Connections that the node's SYNPROXY opens in a client's name: its packets have no receiving interface.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netpold_testbed::cluster::{PATIENCE, PORT, TestCluster, isolate};
use netpold_testbed::{ProbeProtocol, Proxy, ReachProbe, probe_all, require_root};

use crate::attacks::volley::{BOTH, PACKETS, Tally};

const RULES: &str = "table inet guard {
    chain raw {
        type filter hook prerouting priority raw;
        tcp dport 80 tcp flags & (fin | syn | rst | ack) == syn notrack
    }
    chain forward {
        type filter hook forward priority filter;
        tcp dport 80 ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm
        tcp dport 80 ct state invalid drop
    }
}";

/// Opens connections. Returns the number that reach the victim, and the number of answers.
fn tried(cluster: &TestCluster, family: usize) -> (usize, usize) {
    let (from, victim) = (cluster.pod("stranger"), cluster.pod("victim"));
    let (own, to) = (from.addresses()[family], victim.addresses()[family]);
    let wire = victim.wire("eth0").unwrap();
    let probe = ReachProbe { from, protocol: ProbeProtocol::Tcp, to, port: PORT };
    let results = probe_all(&vec![probe; PACKETS], PATIENCE / 4);
    let mut heard = BTreeSet::new();
    while let Some(frame) = wire.arrived() {
        heard.extend(client_port(own, &frame));
    }
    (heard.len(), results.iter().filter(|result| result.connected()).count())
}

/// Returns the source port of a frame of the client to [`PORT`].
fn client_port(client: IpAddr, frame: &[u8]) -> Option<u16> {
    let (source, transport) = match client {
        IpAddr::V4(own) => (frame.get(26..30)? == own.octets(), 34),
        IpAddr::V6(own) => (frame.get(22..38)? == own.octets(), 54),
    };
    let port = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    (source && port(transport + 2)? == PORT).then_some(port(transport)?)
}

#[test]
fn connections_that_synproxy_opens() {
    require_root!();
    let mut cluster =
        TestCluster::one(netpold_testbed::Cni::Ptp).with_pods(&["victim", "stranger"]);
    let node = &cluster.nodes[0];
    node.translate(Proxy::Nftables, &[]).unwrap();
    node.netns().sysctl("netfilter/nf_conntrack_tcp_loose", "0").unwrap();
    node.netns().sysctl("ipv4/tcp_syncookies", "2").unwrap();
    node.netns().nft(RULES).unwrap();
    let mut tally = Tally::default();
    cluster.enforce();
    for family in 0..2 {
        let (heard, answered) = tried(&cluster, family);
        assert!(heard > PACKETS / 2 && answered > PACKETS / 2, "{heard}, {answered}");
    }
    cluster.policy("victim", isolate("victim", &BOTH)).enforce();
    for (family, what) in ["IPv4", "IPv6"].into_iter().enumerate() {
        let (heard, answered) = tried(&cluster, family);
        tally.note(&format!("{what}, heard of"), heard);
        tally.note(&format!("{what}, answered"), answered);
    }
    tally.holds();
}
