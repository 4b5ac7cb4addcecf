//! Connections older than the first agent: the kernel's conntrack shows the initiator of each.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use netpold_dataplane::import_conntrack::{KernelFlow, kernel_flows};
use netpold_testbed::cluster::{MOMENT, PATIENCE, TestCluster, allow_from, allow_to, isolate};
use netpold_testbed::{Cni, ProbeProtocol, ReachProbe, TestFlow, probe_all, require_root};

const BOTH: [&str; 2] = ["Ingress", "Egress"];
/// Server port above the range of client ports; a guess by ports would take the client for the server.
const HIGH: u16 = 64_000;
/// Address and port of a Service, which the node translates.
const SERVICE: (&str, u16) = ("10.96.0.1", 64_001);

/// Makes the node's kernel track connections, and translate connections to [`SERVICE`].
fn track(cluster: &TestCluster) {
    let server = cluster.pod("server").ip4().unwrap();
    let (address, port) = SERVICE;
    let rules = format!(
        "table inet track {{
            chain forward {{ type filter hook forward priority 0; ct state established accept; }}
            chain services {{
                type nat hook prerouting priority -100;
                ip daddr {address} tcp dport {port} dnat ip to {server}:{HIGH}
            }}
        }}"
    );
    cluster.nodes[0].netns().nft(&rules).unwrap();
}

fn open(cluster: &TestCluster, from: &str, to: (IpAddr, u16)) -> TestFlow {
    let to = SocketAddr::from(to);
    let mut flow = cluster.pod(from).open_flow(ProbeProtocol::Tcp, to, PATIENCE).unwrap();
    assert!(flow.ping(PATIENCE), "no policy applies yet");
    flow
}

#[test]
fn connections_older_than_the_agent_go_on() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "client", "other"]);
    for pod in ["server", "client"] {
        cluster.pod(pod).serve(ProbeProtocol::Tcp, HIGH).unwrap();
    }
    track(&cluster);
    let servers = cluster.pod("server").addresses().to_vec();
    let mut allowed: Vec<TestFlow> =
        servers.iter().map(|to| open(&cluster, "client", (*to, HIGH))).collect();
    let (address, port) = SERVICE;
    allowed.push(open(&cluster, "client", (address.parse().unwrap(), port)));
    let mut denied: Vec<TestFlow> =
        servers.iter().map(|to| open(&cluster, "other", (*to, HIGH))).collect();
    let clients = cluster.pod("client").addresses().to_vec();
    // Connections in the opposite direction, which no policy will allow, between the same two pods.
    denied.extend(clients.iter().map(|to| open(&cluster, "server", (*to, HIGH))));

    cluster.policy("s", isolate("server", &BOTH)).policy("from", allow_from("server", "client"));
    cluster.policy("c", isolate("client", &["Ingress"])).enforce();
    assert!(allowed.iter_mut().all(|flow| flow.ping(PATIENCE)), "allowed flows go on");
    assert!(denied.iter_mut().all(|flow| !flow.ping(MOMENT)), "denied flows are cut");
    assert!(allowed.iter_mut().all(|flow| flow.ping(PATIENCE)), "allowed flows still go on");
}

/// A pod becomes isolated while the agent runs; its older connections continue.
#[test]
fn connections_older_than_isolation_go_on() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Bridge).with_pods(&["server", "client"]);
    let bridged = [("bridge-nf-call-iptables", "1"), ("bridge-nf-call-ip6tables", "1")];
    for (key, value) in bridged {
        if cluster.nodes[0].netns().sysctl(&format!("bridge/{key}"), value).is_err() {
            return eprintln!("SKIPPED: bridged packets are not tracked here (br_netfilter)");
        }
    }
    cluster.pod("server").serve(ProbeProtocol::Tcp, HIGH).unwrap();
    track(&cluster);
    cluster.enforce();
    let to = cluster.pod("server").addresses().to_vec();
    let mut flows: Vec<TestFlow> =
        to.iter().map(|to| open(&cluster, "client", (*to, HIGH))).collect();
    cluster.policy("c", isolate("client", &BOTH)).policy("to", allow_to("client", "server"));
    cluster.policy("s", isolate("server", &BOTH)).policy("from", allow_from("server", "client"));
    cluster.enforce();
    assert!(flows.iter_mut().all(|flow| flow.ping(PATIENCE)), "allowed flows go on");
}

/// With few flows the agent reads `/proc/net/nf_conntrack`, with many it requests a netlink dump.
#[test]
fn proc_and_netlink_show_the_same_flows() {
    require_root!();
    let cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "client"]);
    track(&cluster);
    let (server, client) = (cluster.pod("server"), cluster.pod("client"));
    let protocols = [ProbeProtocol::Tcp, ProbeProtocol::Udp, ProbeProtocol::Sctp];
    protocols.iter().for_each(|protocol| server.serve(*protocol, HIGH).unwrap());
    let (address, port) = SERVICE;
    let mut flows = vec![open(&cluster, "client", (address.parse().unwrap(), port))];
    for to in server.addresses() {
        flows.push(open(&cluster, "client", (*to, HIGH)));
        for protocol in [ProbeProtocol::Udp, ProbeProtocol::Sctp, ProbeProtocol::Icmp] {
            let probe = ReachProbe { from: client, protocol, to: *to, port: HIGH };
            assert!(probe_all(&[probe], PATIENCE)[0].connected());
        }
    }
    let read_flows = || -> Vec<KernelFlow> {
        let mut flows = Vec::new();
        let timeless = |mut flow: KernelFlow| {
            flow.remaining = None;
            flow
        };
        let read = || kernel_flows(|_| true, |flow| flows.push(timeless(flow)));
        cluster.nodes[0].netns().run(read).unwrap().unwrap();
        flows
    };
    let few = read_flows();
    let to = SocketAddr::new(server.ip4().unwrap(), 9);
    let crowd =
        || (0..1500).try_for_each(|_| UdpSocket::bind("0.0.0.0:0")?.send_to(&[0], to).map(drop));
    client.run(crowd).unwrap().unwrap();
    let many = read_flows();
    assert!(few.len() >= 9 && many.len() > 1000 + few.len(), "{} and {}", few.len(), many.len());
    for flow in few {
        assert!(many.contains(&flow), "{flow:?} is not in the dump");
    }
}
