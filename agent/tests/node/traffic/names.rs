//! Domain names: addresses that pods reach after lookups. A pod runs a resolver with the answers of the test.

mod clients;
mod generations;
mod ignored;
mod resolver;
mod streams;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use netpold_api::probe::EXPLAIN_REQUEST;
use netpold_testbed::cluster::{MOMENT, PATIENCE, PORT, TestCluster, isolate};
use netpold_testbed::{Cni, Host, ProbeProtocol, ProbeResult, require_root};
use netpold_testkit::names::{Record, answer, query, wire};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use self::resolver::{A, AAAA, DNS, Zone, resolver};

/// Looks up the A and AAAA records of a name; returns whether both answers arrived.
fn look_up(host: &Host, resolver: IpAddr, id: u16, name: &str) -> bool {
    let kinds = [A, AAAA].into_iter();
    host.run(|| kinds.zip(id..).all(|(kind, id)| asks(&socket_to(resolver), id, name, kind)))
        .unwrap()
}

fn socket_to(resolver: IpAddr) -> UdpSocket {
    let any = if resolver.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).unwrap();
    socket.connect((resolver, DNS)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

fn asks(socket: &UdpSocket, id: u16, name: &str, kind: u16) -> bool {
    let mut query = query(id, &wire(name));
    let at = query.len() - 4;
    query[at..][..2].copy_from_slice(&kind.to_be_bytes());
    socket.send(&query).unwrap();
    let mut buffer = [0; 1500];
    match socket.recv(&mut buffer) {
        Ok(_) => buffer[..2] == id.to_be_bytes(),
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
            false
        }
    }
}

fn width(address: &IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

/// A ClusterNetworkPolicy for pods with this `app`: the resolver, names at TCP and UDP port 80, and nothing else.
fn names(app: &str, resolver: &[IpAddr], names: &[&str]) -> Value {
    let resolver: Vec<String> = resolver.iter().map(width).collect();
    let port = |protocol: &str, number: u16| json!({ protocol: { "destinationPort": { "number": number } } });
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": { "name": format!("names-{app}") },
        "spec": {
            "tier": "Admin",
            "priority": 10,
            "subject": { "pods": { "podSelector": { "matchLabels": { "app": app } } } },
            "egress": [
                { "action": "Accept", "to": [{ "networks": resolver }], "protocols": [port("udp", DNS), port("tcp", DNS)] },
                {
                    "action": "Accept",
                    "to": [{ "domainNames": names }],
                    "protocols": [port("tcp", PORT), port("udp", PORT)],
                },
                { "action": "Deny", "to": [{ "networks": ["0.0.0.0/0", "::/0"] }] },
            ],
        },
    })
}

/// Pods client, other, server and dns on one node. Ingress of client is denied; client and other may reach only names.
fn cluster(cni: Cni, patterns: &[&str], arguments: &[&str]) -> (TestCluster, Zone) {
    let mut cluster = TestCluster::one(cni).with_pods(&["client", "other", "server", "dns"]);
    let zone = resolver(cluster.pod("dns"));
    enforce(&mut cluster, patterns, arguments);
    (cluster, zone)
}

/// [`cluster`], with clients that start after the agent: it reads their connections from the first one on.
fn cluster_with_newcomers(patterns: &[&str]) -> (TestCluster, Zone) {
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "dns"]);
    let zone = resolver(cluster.pod("dns"));
    enforce(&mut cluster, patterns, &["--check-source", "isolated"]);
    add_clients(&mut cluster);
    (cluster, zone)
}

fn add_clients(cluster: &mut TestCluster) {
    ["client", "other"].into_iter().for_each(|name| cluster.add(0, name));
    cluster.enforce();
}

/// Enforces the rules of [`cluster`].
fn enforce(cluster: &mut TestCluster, patterns: &[&str], arguments: &[&str]) {
    let at = cluster.pod("dns").addresses().to_vec();
    let servers: Vec<String> = at.iter().map(ToString::to_string).collect();
    let resolvers = ["--dns-servers", &servers.join(",")];
    cluster.arguments = resolvers.map(str::to_owned).to_vec();
    cluster.arguments.extend(arguments.iter().map(ToString::to_string));
    cluster.objects.extend(["client", "other"].map(|app| names(app, &at, patterns)));
    cluster.policy("closed", isolate("client", &["Ingress"])).enforce();
}

fn passes(
    cluster: &TestCluster,
    from: &str,
    protocol: ProbeProtocol,
    to: IpAddr,
    patience: Duration,
) -> bool {
    let expected = cluster.pod("server").name();
    matches!(
        cluster.pod(from).probe(protocol, to, PORT, patience),
        ProbeResult::Connected(name) if name == expected
    )
}

fn opens(cni: Cni) {
    let (cluster, zone) = cluster(cni, &["api.example.com"], &[]);
    let (server, dns) = (cluster.pod("server").addresses(), cluster.pod("dns").addresses());
    zone.lock().unwrap().insert("api.example.com".into(), server.to_vec());
    let both = [ProbeProtocol::Tcp, ProbeProtocol::Udp];
    let all = |from: &str, expected: bool, why: &str| {
        let patience = if expected { PATIENCE } else { MOMENT };
        for (protocol, to) in both.into_iter().flat_map(|p| server.iter().map(move |to| (p, *to))) {
            assert_eq!(
                passes(&cluster, from, protocol, to, patience),
                expected,
                "{why}: {from} by {protocol} to {to}"
            );
        }
    };
    all("client", false, "nothing was looked up");
    for (id, (resolver, name)) in dns.iter().zip(["API.example.com", "api.EXAMPLE.com"]).enumerate()
    {
        assert!(look_up(cluster.pod("client"), *resolver, id as u16, name));
        all("client", true, "the name was looked up");
        all("other", false, "by another pod only");
    }
    assert!(look_up(cluster.pod("other"), dns[0], 1, "unknown.example.com"));
    all("other", false, "another name");
    for to in server {
        let answer = explained(&cluster, "client", *to);
        let said = format!("the pod resolved api.example.com to {to}, which counts for another ");
        let lines = answer["lines"].as_array().unwrap();
        assert!(lines.iter().any(|line| line.as_str().unwrap().contains(&said)), "{answer:#}");
        assert_eq!(verdicts(&answer), json!(["allow", "allow", "unknown", "allow"]), "{answer:#}");
        let answer = explained(&cluster, "other", *to);
        assert_eq!(verdicts(&answer), json!(["deny", "deny", "unknown", "deny"]), "{answer:#}");
        let none = format!(
            "no answer that counts leads the pod to {to}; it resolved no name of its rules"
        );
        assert!(answer["lines"].to_string().contains(&none), "{answer:#}");
    }
}

/// Returns the explanation by the node's agent for TCP from a pod to an address.
fn explained(cluster: &TestCluster, from: &str, to: IpAddr) -> Value {
    let from = cluster.pod(from).name();
    let question = json!({ "from": from, "to": to, "protocol": "TCP", "port": PORT });
    netpold_client::socket::request(&cluster.agents[0].socket(), EXPLAIN_REQUEST, &question)
        .unwrap()
}

/// Verdict on the path, and of the objects, the tables and the kernel at the sender.
fn verdicts(answer: &Value) -> Value {
    let ends = answer["ends"].as_array().unwrap();
    let egress = ends.iter().find(|end| end["direction"] == "egress").unwrap();
    json!([answer["verdict"], egress["objects"], egress["tables"], egress["kernel"]])
}

#[test]
fn names_open_addresses_on_a_ptp_node() {
    require_root!();
    opens(Cni::Ptp);
}

#[test]
fn names_open_addresses_on_a_bridge_node() {
    require_root!();
    opens(Cni::Bridge);
}

/// Looks up a name below `example.com` in a pod by the C library, with options of its configuration.
fn get_hosts(
    cluster: &TestCluster,
    pod: &str,
    resolver: IpAddr,
    options: &str,
    name: &str,
) -> String {
    let configuration = format!("nameserver {resolver}\nsearch example.com\noptions {options}\n");
    run_configured(cluster, pod, &configuration, &["getent", "ahosts", name])
}

/// Output of a command in a pod with this `/etc/resolv.conf`.
fn run_configured(
    cluster: &TestCluster,
    pod: &str,
    configuration: &str,
    command: &[&str],
) -> String {
    let file = cluster.directory.path().join("resolv.conf");
    std::fs::write(&file, configuration).unwrap();
    let script = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";
    let mut unshared = cluster.pod(pod).command("unshare").unwrap();
    unshared.args(["--mount", "sh", "-c", script]).arg(&file).args(command);
    String::from_utf8(unshared.output().unwrap().stdout).unwrap()
}

/// The C library queries A and AAAA at once from one port, with its search list, and with EDNS0 on request.
#[test]
fn lookups_of_the_c_library_open_both_families() {
    require_root!();
    let (cluster, zone) = cluster(Cni::Ptp, &["api.example.com"], &[]);
    let server = cluster.pod("server");
    zone.lock().unwrap().insert("api.example.com".into(), server.addresses().to_vec());
    for (resolver, options) in cluster.pod("dns").addresses().iter().zip(["timeout:5", "edns0"]) {
        let found = get_hosts(&cluster, "client", *resolver, options, "api");
        for to in server.addresses() {
            assert!(found.contains(&to.to_string()), "{found}");
            assert!(
                passes(&cluster, "client", ProbeProtocol::Tcp, *to, PATIENCE),
                "{options}: {to}"
            );
        }
    }
}

/// The connection begins as soon as the answer is read: the programs open the address before the pod gets the answer.
#[test]
fn no_connection_is_faster_than_its_name() {
    require_root!();
    let (cluster, zone) = cluster(Cni::Ptp, &["*.race.example"], &["--check-source", "isolated"]);
    let dns = cluster.pod("dns").addresses()[0];
    let socket = cluster.pod("client").run(|| socket_to(dns)).unwrap();
    race(&cluster, &zone, 1_000, |n, name| asks(&socket, n, name, A));
}

/// Looks up each of `pairs` names with `asks`, which takes the number and the name, and connects to its address at
/// once.
fn race(cluster: &TestCluster, zone: &Zone, pairs: u16, asks: impl Fn(u16, &str) -> bool + Sync) {
    // Addresses of an outside service, at the server.
    let server = cluster.pod("server");
    let at = |n: u16| Ipv4Addr::from(0xc612_0000 + u32::from(n));
    server.netns().ip("route add local 198.18.0.0/16 dev lo\n").unwrap();
    let gateway = server.ip4().unwrap();
    cluster.nodes[0].netns().ip(&format!("route add 198.18.0.0/16 via {gateway}\n")).unwrap();
    let name = |n: u16| format!("n{n}.race.example");
    for n in 0..pairs {
        zone.lock().unwrap().insert(name(n), vec![at(n).into()]);
    }
    let dropped = || {
        let mut dropped = 0;
        for n in 0..pairs {
            assert!(asks(n, &name(n)), "pair {n}: no answer");
            let begun = Instant::now();
            let to = SocketAddr::from((at(n), PORT));
            let opened = TcpStream::connect_timeout(&to, Duration::from_secs(10)).is_ok();
            // A dropped SYN is sent again after a second.
            dropped += u32::from(!opened || begun.elapsed() > Duration::from_millis(900));
        }
        dropped
    };
    assert_eq!(cluster.pod("client").run(dropped).unwrap(), 0, "of {pairs} pairs");
}

#[test]
fn names_need_no_agent_and_outlive_it() {
    require_root!();
    let (mut cluster, zone) = cluster(Cni::Ptp, &["*.example.com"], &[]);
    let (server, dns) =
        (cluster.pod("server").addresses().to_vec(), cluster.pod("dns").addresses().to_vec());
    for (name, at) in [("early.example.com", server[0]), ("late.example.com", server[1])] {
        zone.lock().unwrap().insert(name.into(), vec![at]);
    }
    assert!(look_up(cluster.pod("client"), dns[0], 1, "early.example.com"));
    let mut flow = cluster.flow("client", ProbeProtocol::Tcp, server[0]);
    cluster.agents[0].end(Signal::SIGKILL);
    assert!(passes(&cluster, "client", ProbeProtocol::Tcp, server[0], PATIENCE), "known before");
    assert!(look_up(cluster.pod("client"), dns[0], 2, "late.example.com"));
    assert!(
        passes(&cluster, "client", ProbeProtocol::Tcp, server[1], PATIENCE),
        "looked up meanwhile"
    );
    cluster.restart(0);
    for to in &server {
        assert!(
            passes(&cluster, "client", ProbeProtocol::Tcp, *to, PATIENCE),
            "known to the next agent"
        );
    }
    assert!(flow.ping(PATIENCE), "the connection goes on");
    cluster.objects.clear();
    let only = names("client", &dns, &["other.example.org"]);
    cluster.objects.push(only);
    cluster.enforce();
    assert!(!flow.ping(MOMENT), "the rule is gone");
    assert!(!passes(&cluster, "client", ProbeProtocol::Tcp, server[1], MOMENT));
}

/// Resolved addresses move to the tables of another layout, and back.
#[test]
fn names_outlive_an_upgrade_of_layouts() {
    require_root!();
    let (mut cluster, zone) = cluster(Cni::Ptp, &["api.example.com"], &[]);
    let (server, dns) =
        (cluster.pod("server").addresses().to_vec(), cluster.pod("dns").addresses()[0]);
    zone.lock().unwrap().insert("api.example.com".into(), server.clone());
    // Its build may take longer than a name lasts.
    let other = netpold_testbed::other_layout::build();
    assert!(look_up(cluster.pod("client"), dns, 1, "api.example.com"));
    for binary in [other, netpold_testbed::cluster::binary()] {
        cluster.agents[0].end(Signal::SIGTERM);
        cluster.agents[0].set_binary(binary);
        cluster.restart(0);
        for to in &server {
            assert!(passes(&cluster, "client", ProbeProtocol::Tcp, *to, PATIENCE), "{to}");
            assert!(!passes(&cluster, "other", ProbeProtocol::Tcp, *to, MOMENT), "{to}");
        }
    }
}

/// Answers by pods that are not resolvers, with the right port, identifier and name.
#[test]
fn forged_answers_open_nothing() {
    require_root!();
    let (mut cluster, _zone) = cluster(Cni::Bridge, &["silent.example.com"], &[]);
    cluster.add(0, "evil");
    cluster.without_policy("closed").enforce();
    let (server, dns) = (cluster.pod("server").addresses()[0], cluster.pod("dns").addresses()[0]);
    let name = wire("silent.example.com");
    let forged = answer(9, &name, &[Record::address(name.clone(), server, 300)]);
    let client = cluster.pod("client").ip4().unwrap();
    let socket = cluster.pod("client").run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let port = socket.local_addr().unwrap().port();
    socket.send_to(&query(9, &name), (dns, DNS)).unwrap();
    let send = || UdpSocket::bind("0.0.0.0:53").unwrap().send_to(&forged, (client, port)).unwrap();
    cluster.pod("evil").run(send).unwrap();
    let mut buffer = [0; 1500];
    let (_, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(from.ip(), cluster.pod("evil").ip4().unwrap(), "the forged answer arrives");
    assert!(!passes(&cluster, "client", ProbeProtocol::Tcp, server, MOMENT));
    // A forged answer from the client itself.
    let own = || UdpSocket::bind("0.0.0.0:53").unwrap().send_to(&forged, (client, port)).unwrap();
    cluster.pod("client").run(own).unwrap();
    assert!(!passes(&cluster, "client", ProbeProtocol::Tcp, server, MOMENT));
}
