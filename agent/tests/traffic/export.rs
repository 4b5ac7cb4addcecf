//! Export of an agent to a collector in the node's namespace, which decodes by OpenTelemetry's published messages.
#![expect(clippy::float_cmp, reason = "counts, which floats hold exactly")]

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{Cluster, ENFORCED, NAMESPACE, PORT};
use netpold_testbed::otlp::{Receiver, Security};
use netpold_testbed::{require_root, skip};
use serde_json::Value;

use crate::metrics::{DENIED, Scrape, cluster, send_denied};

/// Standard port of OTLP over HTTP.
const OTLP: u16 = 4318;
const PACKETS: u32 = 10_000;

/// Starts the agent while the pod `stranger` sends packets to the pod `server`, some of them until the agent is ready.
fn denied_from_the_start(cluster: &mut Cluster) {
    let (is_ready, server) = (AtomicBool::new(false), cluster.pod("server").ip4().unwrap());
    let stranger = Arc::clone(cluster.pod("stranger").netns());
    let send = || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        // A start that fails ends the test.
        let end = Instant::now() + 2 * ENFORCED;
        while !is_ready.load(Ordering::Relaxed) && Instant::now() < end {
            socket.send_to(&[0; 8], (server, PORT)).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| stranger.run(send).unwrap());
        cluster.enforce();
        is_ready.store(true, Ordering::Relaxed);
    });
}

/// Of ten thousand denied flows, and of those that the agent's programs denied before it was ready, a record or a number in
/// a record reaches the collector for each one.
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
    denied_from_the_start(&mut cluster);
    send_denied(&cluster, PACKETS);
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
        if reached as f64 == kernel {
            break records;
        }
        assert!(Instant::now() < deadline, "{reached} of {kernel}");
        std::thread::sleep(Duration::from_millis(50));
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
