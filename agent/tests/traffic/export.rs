//! Export of an agent to a collector in the node's namespace, which decodes by OpenTelemetry's published messages.
#![expect(clippy::float_cmp, reason = "counts, which floats hold exactly")]

use std::net::UdpSocket;
use std::time::Instant;

use netpold_testbed::cluster::{ENFORCED, NAMESPACE, PORT};
use netpold_testbed::otlp::{Receiver, Security};
use netpold_testbed::{require_root, skip};
use serde_json::Value;

use crate::metrics::{DENIED, Scrape, cluster};

/// Standard port of OTLP over HTTP.
const OTLP: u16 = 4318;
const PACKETS: usize = 10_000;

/// Of ten thousand denied flows, a record or a number in a record reaches the collector for each one.
#[test]
fn every_denied_packet_reaches_the_collector_as_a_record_or_in_a_number() {
    require_root!();
    if Receiver::packages().is_none() {
        let name = "every_denied_packet_reaches_the_collector_as_a_record_or_in_a_number";
        return skip(name, "needs Python's opentelemetry-proto (`cargo xtask setup`)");
    }
    let mut cluster = cluster();
    let endpoint = format!("http://127.0.0.1:{OTLP}");
    cluster.arguments.extend(["--otlp-endpoint", &endpoint].map(str::to_owned));
    cluster.arguments.extend(["--otlp-metrics-interval", "1"].map(str::to_owned));
    let start = || Receiver::start(OTLP, Security::default());
    let receiver = cluster.nodes[0].run(start).unwrap().unwrap();
    cluster.enforce();
    let server = (cluster.pod("server").ip4().unwrap(), PORT);
    // Each packet begins a flow of its own.
    let send = || {
        let sockets = (0..PACKETS / 10).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap());
        for socket in sockets {
            for port in 0..10 {
                socket.send_to(&[0; 8], (server.0, server.1 + port)).unwrap();
            }
        }
    };
    cluster.pod("stranger").run(send).unwrap();
    let attribute = |record: &Value, name: &str| record["attributes"][name].clone();
    let is_policy = |record: &&Value| {
        attribute(record, "netpold.direction") == "ingress"
            && attribute(record, "netpold.reason") == "policy"
    };
    let deadline = Instant::now() + ENFORCED;
    let records = loop {
        let kernel = Scrape::of(&cluster).value(DENIED);
        let records = receiver.items("/v1/logs");
        let count = |record: &Value| attribute(record, "netpold.count").as_u64().unwrap_or(1);
        let reached: u64 = records.iter().filter(is_policy).map(count).sum();
        if reached as f64 == kernel && kernel >= PACKETS as f64 {
            break records;
        }
        assert!(Instant::now() < deadline, "{reached} of {kernel}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    let denied = records.iter().find(|record| record["event"] == "netpold.packet.denied");
    let denied = denied.expect("the kernel reports some packets");
    for (name, value) in [
        ("k8s.namespace.name", NAMESPACE),
        ("k8s.pod.name", "server"),
        ("netpold.peer.name", "stranger"),
        ("network.transport", "udp"),
    ] {
        assert_eq!(attribute(denied, name), value, "{denied}");
    }
    assert_eq!(
        attribute(denied, "netpold.policies"),
        serde_json::json!([format!("{NAMESPACE}/from")])
    );
    // The same registry as /metrics.
    let is_there = |name: &str| receiver.items("/v1/metrics").iter().any(|it| it["name"] == name);
    for name in
        ["netpold_denied_packets", "netpold_programming_duration_seconds", "netpold_build_info"]
    {
        while !is_there(name) {
            assert!(Instant::now() < deadline, "{name}");
        }
    }
}
