//! Export of an agent to a collector in the node's namespace, which decodes the requests with OpenTelemetry's published
//! message types.
#![expect(clippy::float_cmp, reason = "counts, which floats hold exactly")]

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{ENFORCED, NAMESPACE, PORT, TestCluster};
use netpold_testbed::otlp::{Receiver, Security};
use netpold_testbed::{processor_time, require_root, skip};
use serde_json::Value;

use crate::traffic::metrics::{DENIED, Scrape, cluster, send_denied};

/// Standard port of OTLP over HTTP.
const OTLP: u16 = 4318;
const PACKETS: u32 = 10_000;

/// Starts the agent while the pod `stranger` sends packets to the pod `server`, some of them until the agent is ready.
fn denied_from_the_start(cluster: &mut TestCluster) {
    let (is_ready, server) = (AtomicBool::new(false), cluster.pod("server").ip4().unwrap());
    let stranger = Arc::clone(cluster.pod("stranger").netns());
    let send = || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        // The deadline ends the test if the agent does not start.
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

/// Each of 10,000 denied flows, and each flow denied before the agent was ready, reaches the collector as a record or
/// is counted in one.
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

/// Prints the agent's CPU time, memory and lost records during ten minutes without a collector, at 10,000 denied flows
/// a second; run by hand: `cargo nextest run -p netpold --test node --run-ignored all -E
/// 'test(figures_of_an_outage)' --no-capture`.
#[test]
#[ignore = "figures for the page, for ten minutes"]
fn figures_of_an_outage_of_ten_minutes() {
    const OUTAGE: Duration = Duration::from_mins(10);
    // Ten milliseconds of flows: 10 sockets, each to 10 ports.
    const PAUSE: Duration = Duration::from_millis(10);
    require_root!();
    let mut cluster = cluster();
    let endpoint = format!("http://127.0.0.1:{OTLP}");
    cluster.arguments.extend(["--otlp-endpoint", &endpoint].map(str::to_owned));
    cluster.enforce();
    let server = cluster.pod("server").ip4().unwrap();
    let pid = cluster.agents[0].pid();
    let stranger = Arc::clone(cluster.pod("stranger").netns());
    let (begun, before) = (Instant::now(), processor_time(pid).unwrap());
    let send = || {
        let mut due = begun;
        while begun.elapsed() < OUTAGE {
            for socket in (0..10).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap()) {
                for port in PORT..PORT + 10 {
                    socket.send_to(&[0; 8], (server, port)).unwrap();
                }
            }
            due += PAUSE;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    };
    let records = |result: &str| format!("netpold_otlp_log_records_total{{result=\"{result}\"}}");
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| stranger.run(send).unwrap());
        while !sender.is_finished() {
            std::thread::sleep(Duration::from_secs(30));
            let (scrape, seconds) = (Scrape::of(&cluster), begun.elapsed().as_secs_f64());
            let busy = processor_time(pid).unwrap().saturating_sub(before).as_secs_f64();
            println!(
                "{seconds:.0} s: {:.0} denied a second, {:.2} % of a core, {:.1} MB, {} records lost",
                scrape.value(DENIED) / seconds,
                100.0 * busy / seconds,
                scrape.value("process_resident_memory_bytes") / 1e6,
                scrape.value(&records("lost")),
            );
        }
    });
    let start = || Receiver::start(OTLP, Security::default());
    let receiver = cluster.nodes[0].run(start).unwrap().unwrap();
    // The waiting records arrive, with the number of lost ones.
    let deadline = Instant::now() + 3 * ENFORCED;
    loop {
        let (lost, all) =
            (Scrape::of(&cluster).value(&records("lost")), receiver.items("/v1/logs"));
        let told = all.iter().filter(|record| record["event"] == "netpold.lost");
        let told: u64 =
            told.map(|record| record["attributes"]["netpold.count"].as_u64().unwrap()).sum();
        if lost > 0.0 && told as f64 == lost {
            return println!("{} records arrived, and the number of {lost} lost ones", all.len());
        }
        assert!(Instant::now() < deadline, "{told} of {lost}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
