//! `netpold observe` alongside real traffic: its events about packets and flows, and their attribution.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{
    NAMESPACE, PATIENCE, PORT, TestCluster, binary, eventually, isolate, network_policy,
};
use netpold_testbed::{Cni, KillOnDrop, ProbeProtocol, require_root, without_twins};
use serde_json::{Value, json};

use crate::traffic::udp::socket;

fn command(cluster: &TestCluster, arguments: &[&str]) -> Command {
    cluster.agents[0].command(&[&["observe"], arguments].concat())
}

fn output(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the events that the agent keeps.
pub(crate) fn events(cluster: &TestCluster, arguments: &[&str]) -> Vec<Value> {
    let all = output(command(cluster, &[&["-o", "json"], arguments].concat()));
    let all = all.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|line| line["type"] == "event").collect()
}

/// Running command that writes JSON lines, ended on drop.
pub(crate) struct Following {
    pub(crate) process: KillOnDrop,
    pub(crate) lines: Receiver<Value>,
}

impl Following {
    fn new(cluster: &TestCluster, arguments: &[&str]) -> Self {
        Self::start(command(cluster, &[&["--follow", "-o", "json"], arguments].concat()))
    }

    pub(crate) fn start(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { process: KillOnDrop(process), lines }
    }
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

/// Returns verdict, pod, direction, peer and protocol of an event.
pub(crate) fn kind(event: &Value) -> (String, String, String, String, String) {
    let own = |field: &str| text(event, field).to_owned();
    let (pod, peer) = (text(&event["pod"], "name"), text(&event["peer"], "name"));
    (own("verdict"), pod.to_owned(), own("direction"), peer.to_owned(), own("protocol"))
}

/// Returns the answer of `netpold explain` for an event's direction at its pod.
pub(crate) fn explained(
    cluster: &TestCluster,
    event: &Value,
    known: &mut BTreeMap<String, Value>,
) -> Value {
    let direction = text(event, "direction");
    let (local, remote) = (text(event, "local"), text(event, "remote"));
    let (from, to) = if direction == "egress" { (local, remote) } else { (remote, local) };
    let port = event["port"].as_u64().map(|port| port.to_string());
    let mut arguments = vec!["--from", from, "--to", to, "--protocol", text(event, "protocol")];
    arguments.extend(port.iter().flat_map(|port| ["--port", port]));
    let answer = known.entry(arguments.join(" ")).or_insert_with(|| {
        let mut command = Command::new(binary());
        let command = without_twins(&mut command).args(["explain", "-o", "json", "--manifests"]);
        let command = command.arg(cluster.manifests.directory()).args(&arguments);
        serde_json::from_slice(&command.output().unwrap().stdout).unwrap()
    });
    answer[direction].clone()
}

/// Asserts that the event has the policy and the rule of `explain`.
pub(crate) fn compare(event: &Value, explained: &Value) {
    let names = |list: &Value| -> BTreeSet<(String, String)> {
        let all = list.as_array().into_iter().flatten();
        all.map(|it| (text(it, "namespace").to_owned(), text(it, "name").to_owned())).collect()
    };
    let policies = names(&event["policies"]);
    match text(event, "verdict") {
        "deny" => {
            assert_eq!(explained["verdict"], "deny", "{event}\n{explained}");
            assert_eq!(policies, names(&explained["isolated_by"]), "{event}\n{explained}");
            let nearest = &explained["nearest"];
            assert_eq!(event["nearest"]["index"], nearest["rule"]["index"], "{event}");
            assert_eq!(event["nearest"]["matches"], nearest["rule"]["allows"], "{event}");
            assert_eq!(event["lacks"], nearest["lacks"], "{event}\n{explained}");
        }
        "audit" => {
            assert_eq!(explained["verdict"], "allow", "{event}\n{explained}");
            assert_eq!(policies, names(&explained["denied_on_trial"]), "{event}\n{explained}");
        }
        _ => {
            assert_eq!(explained["verdict"], "allow", "{event}\n{explained}");
            let rule = &explained["allowed_by"];
            let named = (!rule.is_null()).then(|| json!([rule["policy"]]));
            assert_eq!(policies, names(&named.unwrap_or_default()), "{event}\n{explained}");
            assert_eq!(event["rule"]["index"], rule["index"], "{event}\n{explained}");
            assert_eq!(event["rule"]["matches"], rule["allows"], "{event}\n{explained}");
        }
    }
}

/// Returns a cluster where only friends reach the server, with the friends' egress in audit mode.
fn cluster() -> TestCluster {
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "friend", "stranger"]);
    cluster.arguments = ["--readback", "1"].map(str::to_owned).to_vec();
    let app = |app: &str| json!({ "matchLabels": { "app": app } });
    let ports = ["TCP", "UDP", "SCTP"].map(|it| json!({ "protocol": it, "port": PORT }));
    cluster.policy(
        "server",
        json!({
            "podSelector": app("server"),
            "ingress": [{ "from": [{ "podSelector": app("friend") }], "ports": ports }],
        }),
    );
    let mut trial = network_policy("trial", &isolate("friend", &["Egress"]));
    trial["metadata"]["annotations"] = json!({ "netpold.io/enforcement": "audit" });
    cluster.objects = vec![trial];
    cluster.enforce();
    cluster
}

fn probe(cluster: &TestCluster, from: &str, protocol: ProbeProtocol, patience: Duration) -> bool {
    let to = cluster.pod("server").ip4().unwrap();
    cluster.pod(from).probe(protocol, to, PORT, patience).connected()
}

#[test]
fn events_have_the_policy_and_rule_that_explain_names() {
    require_root!();
    let cluster = cluster();
    // The command may connect only after the first events.
    let watcher = Following::new(&cluster, &["--new-flows", "--since", "10m"]);
    let all = [ProbeProtocol::Tcp, ProbeProtocol::Udp, ProbeProtocol::Sctp];
    for protocol in all {
        assert!(probe(&cluster, "friend", protocol, PATIENCE), "{protocol}");
        assert!(!probe(&cluster, "stranger", protocol, Duration::from_millis(300)));
    }
    assert!(!probe(&cluster, "friend", ProbeProtocol::Icmp, Duration::from_millis(300)));
    let expected: BTreeSet<_> = all
        .iter()
        .flat_map(|protocol| {
            [
                ("deny", "server", "ingress", "stranger"),
                ("allow", "server", "ingress", "friend"),
                ("allow", "friend", "egress", "server"),
                ("audit", "friend", "egress", "server"),
            ]
            .map(|(verdict, pod, direction, peer)| {
                (verdict, pod, direction, peer, protocol.to_string())
            })
        })
        .chain([("deny", "server", "ingress", "friend", "ICMP".to_owned())])
        .map(|(a, b, c, d, protocol)| {
            (a.to_owned(), b.to_owned(), c.to_owned(), d.to_owned(), protocol)
        })
        .collect();
    // A follower and a later client both get all events.
    let (mut seen, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    while !expected.iter().all(|kind_of| seen.iter().any(|event| kind(event) == *kind_of)) {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = watcher.lines.recv_timeout(left);
        let line = line.unwrap_or_else(|_| panic!("{expected:#?} are not all in {seen:#?}"));
        if line["type"] == "event" {
            seen.push(line);
        }
    }
    let kept = events(&cluster, &["--new-flows"]);
    let kinds = |events: &[Value]| -> BTreeSet<_> { events.iter().map(kind).collect() };
    assert!(kinds(&kept).is_superset(&expected), "{kept:#?}");

    let (mut known, mut compared) = (BTreeMap::new(), 0);
    for event in seen.iter().chain(&kept).filter(|event| event["pod"]["namespace"] == NAMESPACE) {
        if event["reason"] != "node" {
            compare(event, &explained(&cluster, event, &mut known));
            compared += 1;
        }
    }
    assert!(compared >= 2 * expected.len(), "{compared}");

    let shown = output(command(&cluster, &["--pod", "server", "--protocol", "tcp"]));
    let line = shown.lines().find(|line| line.contains("shop/stranger:")).unwrap();
    assert!(line.contains(" deny ingress shop/server:80 <- shop/stranger:"), "{line}");
    assert!(line.contains("TCP policy: shop/server; nearest is rule 1 of shop/server: "), "{line}");
    assert!(!shown.contains('\u{1b}'), "no colour where there is no terminal: {shown:?}");
}

#[test]
fn filters_leave_what_matches_and_what_the_kernel_left_out_is_told() {
    require_root!();
    let cluster = cluster();
    for protocol in [ProbeProtocol::Tcp, ProbeProtocol::Udp] {
        assert!(probe(&cluster, "friend", protocol, PATIENCE), "{protocol}");
        assert!(!probe(&cluster, "stranger", protocol, Duration::from_millis(300)));
    }
    let flows = ["--verdict", "allow", "--pod", "server"];
    let two = |arguments: &[&str]| events(&cluster, arguments).len() >= 2;
    let seen = || format!("{:#?}", events(&cluster, &["--new-flows"]));
    eventually(PATIENCE, || two(&flows) && two(&["--verdict", "audit"]), seen);
    let stranger = cluster.pod("stranger").ip4().unwrap().to_string();
    let block = format!("{stranger}/32");
    type Predicate<'p> = &'p dyn Fn(&Value) -> bool;
    let cases: [(&[&str], Predicate<'_>); 10] = [
        (&["--verdict", "deny"], &|it| it["verdict"] == "deny"),
        (&["--verdict", "audit"], &|it| it["verdict"] == "audit"),
        (&["--new-flows", "--verdict", "audit"], &|it| it["verdict"] != "deny"),
        (&["-n", NAMESPACE, "--pod", "s*"], &|it| {
            it["pod"]["name"] == "server" && it["verdict"] != "allow"
        }),
        (&["--peer", "shop/str*"], &|it| {
            it["peer"]["name"] == "stranger" && it["verdict"] != "allow"
        }),
        (&["--peer", &stranger], &|it| it["remote"] == stranger && it["verdict"] != "allow"),
        (&["--peer", &block, "--direction", "ingress"], &|it| {
            it["remote"] == stranger && it["direction"] == "ingress" && it["verdict"] != "allow"
        }),
        (&["--protocol", "udp", "--new-flows"], &|it| it["protocol"] == "UDP"),
        (&["--port", "80,81", "--new-flows"], &|it| it["port"] == PORT),
        (&["--reason", "policy", "--new-flows"], &|it| it["reason"] == "policy"),
    ];
    for (arguments, predicate) in cases {
        let before = events(&cluster, &["--new-flows"]);
        let filtered = events(&cluster, arguments);
        let after = events(&cluster, &["--new-flows"]);
        let [before, after] =
            [before, after].map(|all| all.into_iter().filter(predicate).collect::<Vec<_>>());
        assert!(!filtered.is_empty(), "{arguments:?}");
        assert!(before.iter().all(|event| filtered.contains(event)), "{arguments:?}: {before:#?}");
        assert!(filtered.iter().all(|event| after.contains(event)), "{arguments:?}: {filtered:#?}");
    }
    for nothing in [["-n", "elsewhere"], ["--port", "81"], ["--since", "0s"]] {
        assert_eq!(events(&cluster, &nothing), [] as [Value; 0], "{nothing:?}");
    }

    // More drops at once than the kernel reports.
    let watcher = Following::new(&cluster, &[]);
    let (from, to) = (cluster.pod("stranger"), cluster.pod("server").ip4().unwrap());
    let flood = socket(from, from.ip4().unwrap(), 0);
    let deadline = Instant::now() + PATIENCE;
    while watcher.lines.recv_timeout(Duration::from_millis(300)).is_err() {
        assert!(Instant::now() < deadline, "the watcher sees nothing");
        flood.send_to(b"x", (to, 9999)).unwrap();
    }
    let (mut events, mut lost) = (0, 0);
    // Each CPU reports its own number.
    while lost <= 1000 {
        assert!(Instant::now() < deadline, "{lost} lost of a flood, {events} events");
        (0..5000).for_each(|_| assert_eq!(flood.send_to(b"x", (to, 9999)).unwrap(), 1));
        // The first event of the next second carries the number of lost events before it.
        std::thread::sleep(Duration::from_millis(1100));
        flood.send_to(b"x", (to, 9999)).unwrap();
        while let Ok(line) = watcher.lines.recv_timeout(Duration::from_millis(300)) {
            match text(&line, "type") {
                "lost" => lost += line["kernel"].as_u64().unwrap(),
                _ => events += 1,
            }
        }
    }
    println!("{events} events, {lost} told as lost");
    assert!(events >= 50, "{events} events, {lost} lost");
}

/// Floods from one pod: the kernel reports a hundred drops per second and CPU, and still reports another pod's drops.
#[test]
fn a_pods_flood_hides_no_other_pods_drops() {
    require_root!();
    let pods = ["flooder", "quiet"];
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&pods);
    for pod in pods {
        cluster.policy(pod, isolate(pod, &["Egress"]));
    }
    cluster.enforce();
    let watcher = Following::new(&cluster, &[]);
    let [flood, quiet] =
        pods.map(|pod| socket(cluster.pod(pod), cluster.pod(pod).ip4().unwrap(), 0));
    let nowhere = Ipv4Addr::new(10, 1, 1, 200);
    let deadline = Instant::now() + PATIENCE;
    while watcher.lines.recv_timeout(Duration::from_millis(300)).is_err() {
        assert!(Instant::now() < deadline, "the watcher sees nothing");
        flood.send_to(b"x", (nowhere, 9999)).unwrap();
    }
    for port in 7000..7005_u16 {
        (0..3000).for_each(|_| assert_eq!(flood.send_to(b"x", (nowhere, 9999)).unwrap(), 1));
        quiet.send_to(b"x", (nowhere, port)).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut lines = std::iter::from_fn(|| watcher.lines.recv_timeout(left()).ok());
        let shown = lines.any(|it| it["pod"]["name"] == "quiet" && it["port"] == port);
        assert!(shown, "the drop at port {port}");
        // The next flood starts in a new second.
        std::thread::sleep(Duration::from_millis(1100));
    }
}
