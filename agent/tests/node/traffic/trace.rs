//! `netpold trace` alongside real traffic: its output, unchanged verdicts, and the return of the ordinary programs
//! after any end of the trace.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use netpold_dataplane::attach::{AttachMode, Attacher};
use netpold_testbed::cluster::{
    MOMENT, NAMESPACE, PATIENCE, PORT, TestCluster, allow_from, eventually,
};
use netpold_testbed::{Cni, ProbeProtocol, TestFlow, require_root, slowness};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::traffic::kernel;
use crate::traffic::observe::{Following, compare, explained};

/// Number of packets that a stranger sends at once.
const FLOOD: u64 = 5000;

/// Client of the agent, ended on drop.
struct Trace(Following);

impl Trace {
    fn new(cluster: &TestCluster, arguments: &[&str]) -> Self {
        let trace = [&["trace", "-o", "json"], arguments].concat();
        let mut command = cluster.agents[0].command(&trace);
        command.stderr(Stdio::piped());
        Self(Following::start(command))
    }

    /// Starts a trace, and waits until it has begun.
    fn begun(cluster: &TestCluster, arguments: &[&str]) -> Self {
        let mut trace = Self::new(cluster, arguments);
        // The kernel verifies the programs first.
        let first = trace.0.lines.recv_timeout(PATIENCE * slowness());
        let first = first.unwrap_or_else(|error| {
            let _ = trace.0.process.0.kill();
            panic!("it does not begin: {error}, {:?}", trace.end(PATIENCE));
        });
        assert_eq!(first["type"], "started", "{first}");
        assert_eq!(first["pod"], json!({ "namespace": NAMESPACE, "name": "server" }));
        trace
    }

    /// Returns the first line that meets a condition.
    #[track_caller]
    fn find(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let (deadline, mut others) = (Instant::now() + PATIENCE, Vec::new());
        while let Ok(line) = self.0.lines.recv_timeout(deadline - Instant::now()) {
            if wanted(&line) {
                return line;
            }
            others.push(line.to_string());
        }
        panic!("no line for {what} among {others:#?}");
    }

    fn end(&mut self, deadline: Duration) -> (ExitStatus, String) {
        let deadline = Instant::now() + deadline;
        while Instant::now() < deadline {
            if let Some(status) = self.0.process.0.try_wait().unwrap() {
                let mut said = String::new();
                let mut stderr = self.0.process.0.stderr.take().unwrap();
                Read::read_to_string(&mut stderr, &mut said).unwrap();
                return (status, said);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("it does not end");
    }
}

/// Returns identifiers of the programs at the pods' hooks, by pod.
fn programs(cluster: &TestCluster) -> BTreeMap<&'static str, Vec<u32>> {
    let links = cluster.agents[0].bpffs().join("links");
    // The program that closes new veths is always pinned there.
    let is_link =
        |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name() != "closed";
    let pinned = std::fs::read_dir(&links).is_ok_and(|mut all| all.any(is_link));
    let mode = if pinned { AttachMode::Tcx } else { AttachMode::Clsact };
    let attached =
        cluster.nodes[0].run(move || Attacher::new(&links, mode).unwrap().attached().unwrap());
    let attached = attached.unwrap();
    let of = |name: &'static str| {
        let ifindex = cluster.pod(name).host_ifindex();
        let own = attached.iter().filter(|found| found.hook.ifindex == ifindex);
        (name, own.map(|found| found.program).collect())
    };
    ["server", "friend", "stranger"].map(of).into_iter().collect()
}

/// Waits until these programs are attached again.
#[track_caller]
fn are_back(cluster: &TestCluster, ordinary: &BTreeMap<&'static str, Vec<u32>>, why: &str) {
    let failure = || format!("the ordinary programs are not back: {why}");
    eventually(PATIENCE, || programs(cluster) == *ordinary, failure);
}

/// Returns a cluster where only friends reach the server; the server's answers pass by their flows only.
fn cluster() -> TestCluster {
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "friend", "stranger"]);
    let mut spec = allow_from("server", "friend");
    spec["policyTypes"] = json!(["Ingress", "Egress"]);
    // The agent repairs deviations every second.
    cluster.arguments = ["--readback", "1"].map(str::to_owned).to_vec();
    cluster.policy("server", spec);
    cluster
}

fn probe(cluster: &TestCluster, from: &str, patience: Duration) -> bool {
    let to = cluster.pod("server").ip4().unwrap();
    cluster.pod(from).probe(ProbeProtocol::Tcp, to, PORT, patience).connected()
}

#[track_caller]
fn judges(cluster: &TestCluster, flow: &mut TestFlow, when: &str) {
    assert!(flow.ping(PATIENCE), "an open flow goes on {when}");
    assert!(probe(cluster, "friend", PATIENCE), "friends connect {when}");
    assert!(!probe(cluster, "stranger", MOMENT), "strangers do not {when}");
}

/// Sends packets from the stranger at once.
fn flood(cluster: &TestCluster, packets: u64) {
    let to = SocketAddr::new(cluster.pod("server").ip4().unwrap(), PORT);
    let socket = cluster.pod("stranger").run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    (0..packets).for_each(|_| assert_eq!(socket.send_to(b"flood", to).unwrap(), 5));
}

/// Returns the names of a packet's steps.
fn steps(packet: &Value) -> Vec<&str> {
    packet["steps"].as_array().unwrap().iter().map(|it| it["step"].as_str().unwrap()).collect()
}

fn step<'p>(packet: &'p Value, name: &str) -> Vec<&'p Value> {
    packet["steps"].as_array().unwrap().iter().filter(|it| it["step"] == name).collect()
}

/// Asserts that policy and rule equal those of `explain`.
fn agrees(cluster: &TestCluster, packet: &Value) {
    let mut event = packet.clone();
    event["port"] = packet["local_port"].clone();
    compare(&event, &explained(cluster, &event, &mut BTreeMap::new()));
}

#[test]
fn each_step_of_a_judgement_is_told() {
    require_root!();
    let mut cluster = cluster();
    cluster.enforce();
    let ordinary = programs(&cluster);
    assert!(ordinary.values().all(|ids| ids.len() == 2), "{ordinary:?}");
    let address = cluster.pod("server").ip4().unwrap();
    let mut old = cluster.flow("friend", ProbeProtocol::Tcp, address);
    let mut trace = Trace::begun(&cluster, &["--pod=shop/server", "--port=80/TCP", "--for=5m"]);
    let traced = programs(&cluster);
    assert!(ordinary["server"].iter().all(|id| !traced["server"].contains(id)), "{traced:?}");
    assert_eq!(
        (&traced["friend"], &traced["stranger"]),
        (&ordinary["friend"], &ordinary["stranger"])
    );
    let second = Trace::new(&cluster, &["--pod=shop/friend"]).end(PATIENCE);
    assert_eq!(second.0.code(), Some(1));
    assert!(second.1.contains("another trace is running on this node"), "{}", second.1);
    // An older connection passes by its entry.
    assert!(old.ping(PATIENCE));
    let cached = trace.find("an old flow", |line| line["reason"] == "reply");
    assert_eq!(steps(&cached).last(), Some(&"cached"), "{cached}");
    assert_eq!(step(&cached, "cached")[0]["flow"]["replied"], true, "{cached}");
    assert_eq!(cached["direction"], "egress", "{cached}");

    let peer = |name: &'static str, reason: &'static str| {
        move |line: &Value| line["peer"]["name"] == name && line["reason"] == reason
    };
    judges(&cluster, &mut old, "while traced");
    let opening = trace.find("an opening", |line| {
        peer("friend", "allowed")(line) && steps(line).contains(&"new_flow")
    });
    assert_eq!(steps(&opening), ["endpoint", "class", "row", "flow", "new_flow"], "{opening}");
    let (endpoint, row) = (step(&opening, "endpoint")[0], step(&opening, "row")[0]);
    assert_eq!(row["row"], endpoint["ingress_row"], "{opening}");
    assert_eq!(row["class"], step(&opening, "class")[0]["class"], "{opening}");
    assert_eq!((&row["allows"], &row["port"]), (&json!(true), &json!(PORT)), "{opening}");
    agrees(&cluster, &opening);
    let answer = trace
        .find("an answer", |line| peer("friend", "reply")(line) && steps(line).contains(&"row"));
    assert_eq!(steps(&answer), ["endpoint", "class", "row", "flow", "row"], "{answer}");
    let rows = step(&answer, "row");
    assert_eq!((&rows[0]["direction"], &rows[0]["allows"]), (&json!("egress"), &json!(false)));
    assert_eq!((&rows[1]["direction"], &rows[1]["allows"]), (&json!("ingress"), &json!(true)));
    let denied = trace.find("a denial", peer("stranger", "policy"));
    assert_eq!(steps(&denied), ["endpoint", "class", "row"], "{denied}");
    assert_eq!(step(&denied, "row")[0]["allows"], false, "{denied}");
    assert_eq!((&denied["verdict"], &denied["direction"]), (&json!("deny"), &json!("ingress")));
    agrees(&cluster, &denied);

    assert_eq!(programs(&cluster), traced, "readback leaves them");
    let log = cluster.agents[0].log();
    assert!(!log.contains("restored program"), "{log}");
    // The client is killed, and does not end the trace itself.
    trace.0.process.0.kill().unwrap();
    are_back(&cluster, &ordinary, "the client was killed");
    let arguments = ["--pod=shop/server", "--from=shop/stranger", "--port=80/UDP", "--for=2s"];
    let mut trace = Trace::begun(&cluster, &arguments);
    flood(&cluster, FLOOD);
    let (mut told, mut lost) = (0, 0);
    let ended = trace.0.lines.iter().find(|line| {
        if line["type"] == "packet" {
            let who = (&line["peer"]["name"], &line["protocol"]);
            assert_eq!(who, (&json!("stranger"), &json!("UDP")));
            told += 1;
        }
        lost += line["packets"].as_u64().unwrap_or(0);
        line["type"] == "ended"
    });
    assert_eq!(ended.unwrap()["reason"], "ended after 2 s");
    assert_eq!(told + lost, FLOOD, "each is told or counted; {lost} are counted");
    assert!(lost > FLOOD / 2, "a hundred in a second and CPU are told: {told}");
    assert!(trace.end(PATIENCE).0.success());
    assert_eq!(programs(&cluster), ordinary, "before it says so");
    judges(&cluster, &mut old, "after that");
}

/// Uses filters, as on kernels before 6.6.
#[test]
fn filters_below_clsact_are_traced() {
    require_root!();
    let mut cluster = cluster();
    cluster.prepare = kernel::without_tcx;
    cluster.enforce();
    let ordinary = programs(&cluster);
    assert!(ordinary.values().all(|ids| ids.len() == 2), "{ordinary:?}");
    let mut trace = Trace::begun(&cluster, &["--pod=shop/server"]);
    assert_ne!(programs(&cluster)["server"], ordinary["server"]);
    assert!(probe(&cluster, "friend", PATIENCE));
    assert!(!probe(&cluster, "stranger", MOMENT));
    trace.find("a denial", |line| line["verdict"] == "deny");
    trace.0.process.0.kill().unwrap();
    are_back(&cluster, &ordinary, "the client was killed");
}

/// Checks that the output equals the page, except for times, numbers and addresses.
#[test]
fn the_traced_packets_on_the_page_are_real() {
    require_root!();
    let mut cluster = cluster();
    cluster.enforce();
    let arguments = ["trace", "--pod=shop/server", "--port=80/TCP", "--for=4s"];
    let mut command = cluster.agents[0].command(&arguments);
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut text = String::new();
    // The command prints its first line once packets are traced.
    output.read_line(&mut text).unwrap();
    let address = cluster.pod("server").ip4().unwrap();
    assert!(cluster.flow("friend", ProbeProtocol::Tcp, address).ping(PATIENCE));
    assert!(!probe(&cluster, "stranger", MOMENT));
    output.read_to_string(&mut text).unwrap();
    assert!(process.wait().unwrap().success(), "{text}");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy/trace.md");
    let page = std::fs::read_to_string(page).unwrap();
    let shown =
        page.split("\n```").find_map(|block| block.split_once("$ netpold trace")).unwrap().1;
    let (real, shown) = (packets(&text), packets(shown.split_once('\n').unwrap().1));
    assert!(shown.len() > 4, "{shown:#?}");
    for packet in &shown {
        assert!(real.contains(packet), "{packet:#?}\nis none of {real:#?}");
    }
}

/// Returns the lines of each packet, and each other line, without numbers.
fn packets(text: &str) -> Vec<Vec<String>> {
    let mut packets = Vec::<Vec<String>>::new();
    for line in text.lines() {
        let words = line.split_whitespace().map(without_numbers).collect::<Vec<_>>().join(" ");
        match packets.last_mut().filter(|_| line.starts_with(' ')) {
            Some(packet) => packet.push(words),
            None => packets.push(vec![words]),
        }
    }
    packets
}

/// Replaces each digit by 0, except in port 80, which the page explains.
fn without_numbers(word: &str) -> String {
    if word.contains(":80") || word.starts_with("80") {
        return word.to_owned();
    }
    let mut text = String::new();
    for letter in word.chars() {
        let letter = if letter.is_ascii_digit() { '0' } else { letter };
        if letter != '0' || !text.ends_with('0') {
            text.push(letter);
        }
    }
    text
}

#[test]
fn an_agent_that_ends_leaves_no_traced_program() {
    require_root!();
    let mut cluster = cluster();
    cluster.enforce();
    let address = cluster.pod("server").ip4().unwrap();
    let mut flow = cluster.flow("friend", ProbeProtocol::Tcp, address);
    let ordinary = programs(&cluster);
    let mut trace = Trace::begun(&cluster, &["--pod=shop/server"]);
    cluster.agents[0].end(Signal::SIGTERM);
    assert_eq!(programs(&cluster), ordinary, "it has put them back");
    assert_eq!(trace.end(PATIENCE).0.code(), Some(1), "the agent has ended");
    cluster.restart(0);
    let mut trace = Trace::begun(&cluster, &["--pod=shop/server"]);
    let traced = programs(&cluster);
    cluster.agents[0].end(Signal::SIGKILL);
    assert_eq!(trace.end(PATIENCE).0.code(), Some(1));
    assert_eq!(programs(&cluster), traced, "nobody was there to put them back");
    judges(&cluster, &mut flow, "while no agent runs");
    cluster.restart(0);
    let after = programs(&cluster);
    assert!(traced["server"].iter().all(|id| !after["server"].contains(id)), "{after:?}");
    assert_eq!(after["server"], after["friend"], "those of every other pod");
    judges(&cluster, &mut flow, "under the next agent");
}
