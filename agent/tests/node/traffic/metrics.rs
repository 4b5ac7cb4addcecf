//! Metrics and probes of `--listen`, requested over real sockets in the node's namespace.
#![expect(clippy::float_cmp, reason = "counts, which floats hold exactly")]
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream, UdpSocket};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{
    ENFORCED, MOMENT, NAMESPACE, PATIENCE, PORT, TestCluster, allow_from, eventually,
};
use netpold_testbed::{Cni, Host, ProbeProtocol, backlog_drops, require_root};
use nix::sys::signal::Signal;
use tokio::net::TcpSocket;

pub(crate) const LISTEN: u16 = 9417;

pub(crate) fn cluster() -> TestCluster {
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "friend", "stranger"]);
    cluster.arguments = ["--listen", &format!(":{LISTEN}")].map(str::to_owned).to_vec();
    cluster.policy("from", allow_from("server", "friend"));
    cluster
}

/// Waits until the update has ended: its policy is in force earlier, while a scrape still finds the engine busy.
fn enforce(cluster: &mut TestCluster) {
    cluster.enforce();
    let deadline = Instant::now() + ENFORCED;
    while get(&cluster.nodes[0], local(6), "/readyz").0 != 200 && Instant::now() < deadline {}
}

/// Returns status and body of an answer, requested from a namespace.
fn get(host: &Host, to: SocketAddr, path: &str) -> (u16, String) {
    let exchange = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: netpold\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    let answer = host.run(exchange).unwrap().unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
    if path == "/metrics" {
        assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    }
    (status, body.to_owned())
}

fn local(family: u8) -> SocketAddr {
    let address = if family == 4 { "127.0.0.1" } else { "::1" };
    (address.parse::<std::net::IpAddr>().unwrap(), LISTEN).into()
}

/// Samples by name and labels, and types by metric name.
pub(crate) struct Scrape {
    samples: BTreeMap<String, f64>,
    types: BTreeMap<String, String>,
}

impl Scrape {
    pub(crate) fn of(cluster: &TestCluster) -> Self {
        let (status, text) = get(&cluster.nodes[0], local(4), "/metrics");
        assert_eq!(status, 200, "{text}");
        assert!(text.ends_with("# EOF\n"), "complete");
        let mut scrape = Self { samples: BTreeMap::new(), types: BTreeMap::new() };
        for line in text.lines() {
            if let Some(declared) = line.strip_prefix("# TYPE ") {
                let (name, kind) = declared.split_once(' ').unwrap();
                let suffix = match kind {
                    "counter" => "_total",
                    "info" => "_info",
                    _ => "",
                };
                scrape.types.insert(format!("{name}{suffix}"), kind.to_owned());
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let former = scrape.samples.insert(series.to_owned(), value.parse().unwrap());
                assert!(former.is_none(), "{series} is there twice");
            }
        }
        scrape
    }

    #[track_caller]
    pub(crate) fn value(&self, series: &str) -> f64 {
        let value = self.samples.get(series);
        assert!(value.is_some(), "{series} in {:#?}", self.samples);
        *value.unwrap()
    }
}

pub(crate) const DENIED: &str =
    "netpold_dropped_packets_total{direction=\"ingress\",reason=\"policy\"}";

#[test]
fn numbers_tell_what_happens() {
    require_root!();
    let mut cluster = cluster();
    enforce(&mut cluster);
    let before = Scrape::of(&cluster);
    assert_eq!(before.value(DENIED), 0.0, "the series exists before the first denied packet");
    assert_eq!(before.value("netpold_endpoints"), 3.0);
    assert_eq!(before.value("netpold_endpoints_enforced"), 3.0);
    assert_eq!(before.value("netpold_endpoints_isolated{direction=\"ingress\"}"), 1.0);
    assert_eq!(before.value("netpold_endpoints_isolated{direction=\"egress\"}"), 0.0);
    assert_eq!(before.value("netpold_objects{kind=\"NetworkPolicy\"}"), 1.0);
    assert_eq!(before.value("netpold_source_in_sync"), 1.0);
    assert_eq!(before.value("netpold_enforcing"), 1.0);
    assert!(before.value("netpold_table_entries{table=\"classes\"}") > 0.0);
    let (used, capacity) = ("netpold_table_entries", "netpold_table_capacity_entries");
    for (series, value) in
        before.samples.iter().filter(|(s, _)| s.starts_with(&format!("{used}{{")))
    {
        assert!(*value <= before.value(&series.replace(used, capacity)), "{series}");
    }
    assert!(before.value("process_resident_memory_bytes") > 1e6);

    cluster.denied("stranger", "server");
    let after = Scrape::of(&cluster);
    assert!(after.value(DENIED) >= 8.0, "four protocols, two families");
    assert!(after.value("netpold_drop_events_total") >= 1.0);
    every_denied_packet_is_counted_by_workload(&cluster);

    let programmed = "netpold_programming_duration_seconds_count";
    let count = after.value(programmed);
    cluster.policy("more", allow_from("server", "stranger")).enforce();
    // The policy is in force before a scrape shows that the update has ended.
    let revisions = ["netpold_revision_desired", "netpold_revision_enforced"];
    let is_over = || Scrape::of(&cluster).value(revisions[1]) > after.value(revisions[1]);
    eventually(ENFORCED, is_over, || "the update does not end".to_owned());
    let edited = Scrape::of(&cluster);
    assert!(edited.value(programmed) > count);
    assert!(edited.value("netpold_programming_duration_seconds_sum") > 0.0);
    assert!(edited.value("netpold_updates_total") > after.value("netpold_updates_total"));
    assert_eq!(edited.value(revisions[0]), edited.value(revisions[1]));
    let log = cluster.agents[0].log();
    let updates = log.lines().filter(|line| line.contains("enforced") && line.contains("revision"));
    assert_eq!(updates.count(), 1, "only the first update after a start is logged:\n{log}");
    nothing_is_named(&cluster, &edited);
}

/// Metrics with names of workloads.
const NAMED: [&str; 2] = ["netpold_denied_packets_total", "netpold_audit_denied_flows_total"];

/// Sends packets of the pod `stranger` to the pod `server`, each in a flow of its own, until netpold's program has
/// denied at least `packets` of them.
///
/// A packet waits in the backlog of a processor before the program sees it (`net.core.netdev_max_backlog`, 1000 packets for
/// all namespaces), and a busy processor's backlog drops packets. So the packets come in rounds with room for each, and
/// every packet of a round is denied or among the backlogs' drops before the next round. The first round is one packet,
/// since few packets can wait for the server's link-layer address.
pub(crate) fn send_denied(cluster: &TestCluster, packets: u32) {
    const ROUND: u32 = 500;
    const PORTS: u16 = 10;
    let server = cluster.pod("server").ip4().unwrap();
    let send = |count: u32| {
        let sockets =
            (0..count.div_ceil(PORTS.into())).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap());
        let flows = sockets.flat_map(|socket| {
            let socket = Rc::new(socket);
            (0..PORTS).map(move |port| (Rc::clone(&socket), PORT + port))
        });
        for (socket, port) in flows.take(count as usize) {
            assert_eq!(socket.send_to(&[0; 8], (server, port)).unwrap(), 8);
        }
    };
    let denied = || Scrape::of(cluster).value(DENIED);
    let (before, dropped_before) = (denied(), backlog_drops().unwrap());
    let mut sent = 0;
    while denied() - before < f64::from(packets) {
        let round = if sent == 0 { 1 } else { ROUND };
        cluster.pod("stranger").run(|| send(round)).unwrap();
        sent += round;
        let missing = || {
            let dropped = backlog_drops().unwrap() - dropped_before;
            f64::from(sent) - (denied() - before) - dropped as f64
        };
        eventually(ENFORCED, || missing() <= 0.0, || format!("{} of {sent} packets", missing()));
    }
}

/// Sends more packets than the kernel reports one by one, and waits until the series add up to the kernel's number.
fn every_denied_packet_is_counted_by_workload(cluster: &TestCluster) {
    const PACKETS: u32 = 5000;
    send_denied(cluster, PACKETS);
    let ingress = |scrape: &Scrape, workload: &str| -> f64 {
        let labels = ["direction=\"ingress\"", "reason=\"policy\"", workload];
        let of = |series: &str| {
            series.starts_with(NAMED[0]) && labels.iter().all(|label| series.contains(label))
        };
        scrape.samples.iter().filter(|(series, _)| of(series)).map(|(_, value)| value).sum()
    };
    let deadline = Instant::now() + ENFORCED;
    loop {
        let scrape = Scrape::of(cluster);
        let (all, kernel) = (ingress(&scrape, ""), scrape.value(DENIED));
        if all == kernel && kernel > f64::from(PACKETS) {
            let own = format!(
                "{}{{namespace=\"{NAMESPACE}\",workload=\"server\",direction=\"ingress\",\
                 peer_namespace=\"{NAMESPACE}\",peer_workload=\"stranger\",\
                 policy=\"{NAMESPACE}/from\",reason=\"policy\"}}",
                NAMED[0]
            );
            assert!(scrape.value(&own) > 8.0, "{:#?}", scrape.samples);
            let rest = ingress(&scrape, ",workload=\"\"");
            assert!(rest > 0.0, "the kernel reports 50 a second of a pod and CPU");
            return;
        }
        assert!(Instant::now() < deadline, "{all} of {kernel}");
    }
}

/// Asserts that labels contain no addresses of pods, and that only metrics of denied traffic contain names of
/// workloads.
fn nothing_is_named(cluster: &TestCluster, scrape: &Scrape) {
    let addresses = ["server", "friend", "stranger"].map(|name| cluster.pod(name).ip4().unwrap());
    for address in addresses.map(|address| address.to_string()) {
        assert!(!scrape.samples.keys().any(|series| series.contains(&address)), "{address}");
    }
    let others = || scrape.samples.keys().filter(|s| !NAMED.iter().any(|it| s.starts_with(it)));
    for name in ["server", "friend", "stranger", NAMESPACE] {
        assert!(!others().any(|series| series.contains(name)), "{name} is a label");
    }
}

/// Returns name and type of each row of the documented table.
fn documented() -> BTreeMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let (name, rest) = row.split_once('`').unwrap();
        let kind = rest.split('|').nth(1).unwrap().trim();
        (name.to_owned(), kind.to_owned())
    })
    .collect()
}

#[test]
fn every_metric_is_documented_and_every_documented_one_is_there() {
    require_root!();
    let mut cluster = cluster();
    enforce(&mut cluster);
    let scrape = Scrape::of(&cluster);
    assert_eq!(scrape.types, documented());
    let bases: BTreeSet<&str> =
        scrape.samples.keys().map(|s| s.split('{').next().unwrap()).collect();
    // Metrics of watches exist with an API server only; this test uses files.
    let of_files = scrape.types.iter().filter(|(name, _)| !name.starts_with("netpold_watch_"));
    for (name, kind) in of_files {
        let sample = if kind == "histogram" { format!("{name}_count") } else { name.clone() };
        assert!(bases.contains(sample.as_str()), "{name} has a sample");
    }
}

#[test]
fn readiness_says_what_is_missing() {
    require_root!();
    let mut cluster = cluster();
    enforce(&mut cluster);
    let ask = |cluster: &TestCluster, path: &str| get(&cluster.nodes[0], local(6), path);
    assert_eq!(ask(&cluster, "/readyz"), (200, "ok\n".to_owned()));
    assert_eq!(ask(&cluster, "/livez"), (200, "ok\n".to_owned()));
    assert_eq!(ask(&cluster, "/else").0, 404);
    cluster.manifests.remove("state.json").unwrap();
    cluster.agents[0].restart(&cluster.nodes[0]).unwrap();
    let held = |status: &serde_json::Value| status["problems"][0].is_string();
    cluster.agents[0].wait_for("held", ENFORCED, held).unwrap();
    // The problem appears in the status before `/readyz` takes it into account.
    eventually(
        ENFORCED,
        || matches!(ask(&cluster, "/readyz"), (503, body) if body.contains("holds no object")),
        || format!("{:?}", ask(&cluster, "/readyz")),
    );
    assert_eq!(ask(&cluster, "/livez").0, 200, "a restart would not help");
    cluster.write();
    // The enforced state looks the same before the agent has read the objects, so the problem must disappear first.
    let taken = |status: &serde_json::Value| status["problems"][0].is_null();
    cluster.agents[0].wait_for("taken in", ENFORCED, taken).unwrap();
    cluster.wait();
    assert_eq!(ask(&cluster, "/readyz"), (200, "ok\n".to_owned()));
}

/// Opens connections from a pod, which always reaches its own node, to keep the kubelet's probes out.
#[test]
fn a_pod_cannot_keep_the_node_from_being_answered() {
    require_root!();
    let mut cluster = cluster();
    enforce(&mut cluster);
    let node = cluster.nodes[0].addresses()[0];
    let to = SocketAddr::from((node, LISTEN));
    let stranger = cluster.pod("stranger");
    assert_eq!(get(stranger, to, "/livez").0, 200);
    let hold = || (0..200).map_while(|_| TcpStream::connect_timeout(&to, MOMENT).ok()).collect();
    let held: Vec<TcpStream> = stranger.run(hold).unwrap();
    assert!(held.len() > 16, "{} connections", held.len());
    for to in [local(4), local(6), to] {
        assert_eq!(get(&cluster.nodes[0], to, "/livez").0, 200, "{to}");
    }
    drop(held);
}

/// Keeps as many connections as possible open from one pod, without requests: scrapes by this pod and by another one
/// get through.
#[test]
fn a_pod_cannot_keep_another_from_being_answered() {
    require_root!();
    let mut cluster = cluster();
    enforce(&mut cluster);
    let to = SocketAddr::from((cluster.nodes[0].addresses()[0], LISTEN));
    let (stranger, friend) = (cluster.pod("stranger"), cluster.pod("friend"));
    let connect = || TcpStream::connect_timeout(&to, PATIENCE).ok();
    for round in 0..20 {
        let hold = || (0..100).map_while(|_| connect()).collect();
        let held: Vec<TcpStream> = stranger.run(hold).unwrap();
        assert_eq!(held.len(), 100, "nobody is refused");
        assert_eq!(get(friend, to, "/metrics").0, 200, "scrape {round}");
        drop(held);
    }
    assert_eq!(get(stranger, to, "/metrics").0, 200);
}

/// Connects continuously from two pods, each with many link-local addresses, without requests.
#[test]
fn link_local_sources_crowd_no_scrape_out() {
    const SOURCES: u16 = 200;
    require_root!();
    let mut cluster = cluster();
    enforce(&mut cluster);
    let node = cluster.nodes[0].addresses();
    let to = SocketAddr::from((node[1], LISTEN));
    let attackers = ["stranger", "server"].map(|name| cluster.pod(name));
    let addresses = (1..=SOURCES).map(|n| format!("addr add fe80::7:{n:x}/64 dev eth0 nodad\n"));
    let addresses: String = addresses.collect();
    for attacker in attackers {
        attacker.netns().ip(&addresses).unwrap();
    }
    let ends = AtomicBool::new(false);
    let attack = || {
        let interface = nix::net::if_::if_nametoindex("eth0").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut held = VecDeque::new();
        let mut connected = 0_usize;
        for number in (1..=SOURCES).cycle() {
            if ends.load(Ordering::Relaxed) {
                break;
            }
            let from = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 7, number);
            let connection = runtime.block_on(async {
                let socket = TcpSocket::new_v6()?;
                socket.bind(SocketAddrV6::new(from, 0, 0, interface).into())?;
                tokio::time::timeout(MOMENT, socket.connect(to)).await?
            });
            connected += usize::from(connection.is_ok());
            held.extend(connection.ok());
            if held.len() > 400 {
                held.pop_front();
            }
        }
        connected
    };
    let friend = cluster.pod("friend");
    let scrape = || {
        let mut stream = TcpStream::connect_timeout(&(node[0], LISTEN).into(), PATIENCE).ok()?;
        // Like a scrape by a loaded server, which sends its request some time after the connect.
        std::thread::sleep(Duration::from_millis(20));
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: netpold\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.ends_with("# EOF\n").then_some(())
    };
    let (answered, connected) = std::thread::scope(|scope| {
        let attacks = attackers.map(|pod| scope.spawn(move || pod.run(attack).unwrap()));
        std::thread::sleep(Duration::from_secs(1));
        let answered = (0..50).filter(|_| friend.run(scrape).unwrap().is_some()).count();
        ends.store(true, Ordering::Relaxed);
        (answered, attacks.map(|attack| attack.join().unwrap()))
    });
    println!("{answered} of 50 scrapes beside {connected:?} connections");
    assert!(connected.iter().all(|connected| *connected > 200), "{connected:?}");
    assert_eq!(answered, 50);
}

#[test]
fn it_stops_at_once_whoever_is_connected() {
    require_root!();
    let mut cluster = cluster();
    enforce(&mut cluster);
    let connect = || TcpStream::connect_timeout(&local(4), PATIENCE).unwrap();
    let mut idle = cluster.nodes[0].run(connect).unwrap();
    let start = Instant::now();
    cluster.agents[0].end(Signal::SIGTERM);
    println!("stopped after {:?}", start.elapsed());
    assert!(cluster.agents[0].log().contains("netpold exits; enforcement stays in place"));
    assert!(start.elapsed() < netpold_testbed::GRACE, "it was not killed");
    let _ = idle.read(&mut [0]);
    let friend = cluster.pod("friend");
    let server = cluster.pod("server").ip4().unwrap();
    assert!(friend.probe(ProbeProtocol::Tcp, server, PORT, PATIENCE).connected());
    cluster.denied("stranger", "server");
}
