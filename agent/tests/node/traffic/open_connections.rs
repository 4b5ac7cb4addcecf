//! Open connections: `netpold flows` lists them, `netpold diff --live` reports which of them a change cuts, and the
//! change cuts exactly the reported ones.

mod masqueraded;
mod two_agents;

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{MOMENT, NAMESPACE, PATIENCE, PORT, TestCluster, network_policy};
use netpold_testbed::services::{SERVICE_PORT, TestService, provide};
use netpold_testbed::{Agent, Cni, Host, ProbeProtocol, Proxy, TestFlow, require_root};
use serde_json::{Value, json};

const CLIENTS: [&str; 4] = ["a", "b", "c", "d"];
const SERVERS: [&str; 2] = ["s1", "s2"];
/// Number of UDP sockets of each client.
const SOCKETS: usize = 29;
/// First UDP port of each server, and number of ports.
const FIRST: u16 = 5000;
const PORTS: u16 = 50;
/// Number of TCP connections of each client to a Service.
const CONNECTIONS: usize = 3;

/// Source of a connection, and the destination to which its first packet was sent.
type Pair = (SocketAddr, SocketAddr);

/// Flows from each client's sockets to each server's ports.
struct Datagrams {
    clients: Vec<UdpSocket>,
    servers: Vec<UdpSocket>,
}

impl Datagrams {
    fn new(cluster: &TestCluster) -> Self {
        let bind = |host: &Host, address: IpAddr, port: u16| {
            let socket = host.run(|| UdpSocket::bind((address, port))).unwrap().unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let at = |name: &&str, port: u16| {
            let pod = cluster.pod(name);
            bind(pod, pod.ip4().unwrap(), port)
        };
        let clients = CLIENTS.iter().flat_map(|name| (0..SOCKETS).map(move |_| (name, 0)));
        let servers =
            SERVERS.iter().flat_map(|name| (FIRST..FIRST + PORTS).map(move |p| (name, p)));
        Self {
            clients: clients.map(|(name, port)| at(name, port)).collect(),
            servers: servers.map(|(name, port)| at(name, port)).collect(),
        }
    }

    /// Sends a datagram on each of these flows. Returns the answered flows.
    fn exchange(&self, wanted: impl Fn(&Pair) -> bool) -> BTreeSet<Pair> {
        let address = |socket: &UdpSocket| socket.local_addr().unwrap();
        let mut answered = BTreeSet::new();
        let mut buffer = [0; 64];
        for client in &self.clients {
            for server in &self.servers {
                if wanted(&(address(client), address(server))) {
                    // The socket reports no error for a packet dropped on its way out.
                    let _ = client.send_to(b"?", address(server));
                }
            }
            for server in &self.servers {
                while let Ok((_, from)) = server.recv_from(&mut buffer) {
                    let _ = server.send_to(b"!", from);
                }
            }
            while let Ok((_, from)) = client.recv_from(&mut buffer) {
                answered.insert((address(client), from));
            }
        }
        answered
    }

    /// Returns the flows that pass; repeats flows without an answer.
    fn passing(&self) -> BTreeSet<Pair> {
        let mut passing = BTreeSet::new();
        for _ in 0..3 {
            let more = self.exchange(|pair| !passing.contains(pair));
            passing.extend(more);
            std::thread::sleep(Duration::from_millis(50));
        }
        passing
    }
}

fn app(app: &str) -> Value {
    json!({ "podSelector": { "matchLabels": { "app": app } } })
}

fn spec(of: &str, types: &[&str], direction: &str, rules: Value) -> Value {
    json!({
        "podSelector": { "matchLabels": { "app": of } },
        "policyTypes": types,
        direction: rules,
    })
}

/// Returns the policies after the change, by name.
fn changed() -> [(&'static str, Value); 3] {
    let ports =
        |first: u16, last: u16| json!({ "protocol": "UDP", "port": first, "endPort": last });
    let s1 = json!([
        { "from": [app("a")], "ports": [ports(FIRST, FIRST + 24)] },
        { "from": [app("b")] },
    ]);
    let s2 = json!([
        { "from": [app("a"), app("b"), app("d")], "ports": [ports(FIRST + 10, FIRST + 39)] },
        { "from": [app("a")], "ports": [{ "port": PORT }] },
    ]);
    [
        ("s1-in", spec("s1", &["Ingress"], "ingress", s1)),
        ("s2-in", spec("s2", &["Ingress"], "ingress", s2)),
        ("d-out", spec("d", &["Egress"], "egress", json!([{ "to": [app("s2")] }]))),
    ]
}

fn netpold(arguments: &[&str], agent: &Agent) -> (Option<i32>, String) {
    let output = agent.command(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.is_empty(), "{arguments:?}: {errors}");
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

fn flows(cluster: &TestCluster, arguments: &[&str]) -> Value {
    let arguments = [&["flows", "-o", "json"], arguments].concat();
    let (code, text) = netpold(&arguments, &cluster.agents[0]);
    assert_eq!(code, Some(0));
    serde_json::from_str(&text).unwrap()
}

fn number(value: &Value) -> usize {
    value.as_array().map_or(0, Vec::len)
}

/// Returns the connections of an answer, with their original destinations.
fn pairs(groups: &Value) -> BTreeSet<Pair> {
    let address = |value: &Value| value.as_str().unwrap().parse().unwrap();
    let groups = groups.as_array().unwrap().iter();
    let all = groups.flat_map(|group| group["connections"].as_array().unwrap());
    let sent_to = |it: &Value| address(it.get("sent_to").unwrap_or(&it["to"]));
    all.map(|it| (address(&it["from"]), sent_to(it))).collect()
}

#[test]
fn a_change_cuts_exactly_the_reported_connections() {
    require_root!();
    let pods = [&CLIENTS[..], &SERVERS[..]].concat();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&pods);
    let service = TestService::new(1, "both").pods(&cluster, &SERVERS);
    provide(&mut cluster, Proxy::Nftables, std::slice::from_ref(&service));
    let three = json!([{ "from": [app("a"), app("b"), app("c")] }]);
    let both = json!([{ "to": [app("s1"), app("s2")] }]);
    cluster.policy("s1-in", spec("s1", &["Ingress"], "ingress", three));
    cluster.policy("a-out", spec("a", &["Egress"], "egress", both)).enforce();

    let datagrams = Datagrams::new(&cluster);
    let mut open = datagrams.passing();
    let to_s1 = SOCKETS * usize::from(PORTS);
    assert_eq!(open.len(), to_s1 * CLIENTS.len() * SERVERS.len() - to_s1, "all but d to s1");
    let to = SocketAddr::new(service.cluster_ips()[0], SERVICE_PORT);
    let mut connections: Vec<(Pair, TestFlow)> = Vec::new();
    for name in &CLIENTS[..3] {
        for _ in 0..CONNECTIONS {
            let flow = cluster.pod(name).open_flow(ProbeProtocol::Tcp, to, PATIENCE);
            let mut flow = flow.unwrap();
            assert!(flow.ping(PATIENCE));
            connections.push(((flow.local().unwrap(), to), flow));
        }
    }
    open.extend(connections.iter().map(|(pair, _)| *pair));

    lists(&cluster, open.len());
    let file = cluster.directory.path().join("change.json");
    let policies = changed().map(|(name, spec)| network_policy(name, &spec));
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": policies });
    fs::write(&file, list.to_string()).unwrap();
    let manifests = cluster.manifests.directory().to_str().unwrap();
    let change = ["diff", "--manifests", manifests, "-f", file.to_str().unwrap(), "--live"];
    let begin = Instant::now();
    let agent = &cluster.agents[0];
    let (code, text) = netpold(&[&change[..], &["-o", "json"]].concat(), agent);
    println!("diff --live of {} connections: {:?}", open.len(), begin.elapsed());
    assert_eq!(code, Some(1));
    let live = serde_json::from_str::<Value>(&text).unwrap()["live"].clone();
    let named = pairs(&live["cut"]);
    assert_eq!(live["unsure"], json!([]), "each backend is known by its own flow");
    assert_eq!(live["problems"], json!([]));
    assert_eq!(live["gone"], json!(0));
    let known = usize::try_from(live["open"].as_u64().unwrap()).unwrap();
    assert!(known >= open.len(), "{known} of {} are known", open.len());
    // Renews the flows: a flow of one question and its answer expires after 30 s, and the listings may take longer.
    datagrams.passing();
    reports_the_number(&change, agent, named.len());

    for (name, spec) in changed() {
        cluster.policy(name, spec);
    }
    cluster.enforce();
    let mut passing = datagrams.passing();
    for (pair, flow) in &mut connections {
        if flow.ping(MOMENT) {
            passing.insert(*pair);
        }
    }
    let cut: BTreeSet<Pair> = open.difference(&passing).copied().collect();
    assert!(cut.len() > 1000 && passing.len() > 1000, "{} of {}", cut.len(), open.len());
    let wrong: Vec<_> = cut.symmetric_difference(&named).take(20).collect();
    assert_eq!(wrong, [] as [&Pair; 0], "named {}, cut {}", named.len(), cut.len());
}

/// Checks that `netpold flows` lists as many flows as requested and counts the rest.
fn lists(cluster: &TestCluster, open: usize) {
    let begin = Instant::now();
    let all = flows(cluster, &["--limit", "0"]);
    println!("{} flows listed in {:?}", number(&all["flows"]), begin.elapsed());
    // `netpold flows` lists a flow at its client, at its server or at both.
    assert!(number(&all["flows"]) >= open, "{}", number(&all["flows"]));
    assert_eq!(all["left_out"], json!([]));
    let each = all["flows"].as_array().unwrap();
    let is_cached = |flow: &&Value| flow["cached"]["stale"] == json!(false);
    assert!(each.iter().any(|flow| is_cached(&flow)), "some verdicts are cached");
    let some = flows(cluster, &["--limit", "100"]);
    assert_eq!(number(&some["flows"]), 100);
    let left_out = some["left_out"].as_array().unwrap().iter();
    let left_out: u64 = left_out.map(|pod| pod["flows"].as_u64().unwrap()).sum();
    assert_eq!(left_out as usize + 100, each.len(), "flows that are not listed are counted");
    let of_one = flows(cluster, &["-n", NAMESPACE, "--pod", "s1", "--limit", "0"]);
    let s1 = |flow: &&Value| flow["pod"]["name"] == "s1";
    assert_eq!(number(&of_one["flows"]), each.iter().filter(s1).count());
    let remote = &of_one["flows"][0]["remote_name"];
    assert!(CLIENTS.iter().any(|name| *remote == format!("{NAMESPACE}/{name}")), "{remote}");
}

/// The other formats report the number too.
fn reports_the_number(change: &[&str], agent: &Agent, cut: usize) {
    for (format, words) in [
        ("table", format!("open connections: {cut} of ")),
        ("markdown", format!("**Open connections: {cut} of ")),
        ("mermaid", format!("%% open connections: {cut} of ")),
    ] {
        let (_, text) = netpold(&[change, &["-o", format]].concat(), agent);
        assert!(text.contains(&words), "{format}: {text}");
    }
}
