//! Parties of the fuzzing: ten pods on two nodes, and a host outside with a link to each node.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use netpold_core::model::{Key, Pod as PodModel};
use netpold_testbed::cluster::{NAMESPACE, PORT, TestCluster, isolate};
use netpold_testbed::services::{NODE_PORT, SERVICE_PORT, TestService, provide};
use netpold_testbed::{
    Cni, Host, PodSpec, ProbeProtocol, Proxy, RawSocket, TestFlow, TestNode, link_nodes, skip,
};
use netpold_testkit::oracle::Oracle;
use serde_json::json;

/// Network stack between the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Routing and bridging only.
    Plain,
    /// Conntrack, defragmentation, Services and masquerade; the bridge passes its packets to netfilter.
    Translated,
    /// Services, and VXLAN between the nodes; the bridge does not pass its packets to netfilter.
    Overlay,
}

/// Sender and receiver with a raw socket.
pub(crate) struct Party {
    pub(crate) name: String,
    /// Pod of the party; `None` for the host outside.
    pub(crate) pod: Option<PodModel>,
    /// Number of the party's node, or of the node that it is linked to.
    pub(crate) node: usize,
    /// IPv4 address and IPv6 address.
    pub(crate) addresses: [IpAddr; 2],
    pub(crate) mac: [u8; 6],
    pub(crate) gateway: [u8; 6],
    pub(crate) wire: RawSocket,
}

impl Party {
    /// Returns whether both parties are pods of the node with a bridge.
    pub(crate) fn is_bridged_to(&self, other: &Self) -> bool {
        let here = |party: &Self| party.pod.is_some() && party.node == 1;
        here(self) && here(other)
    }
}

/// Nodes and parties of the fuzzing. The order of the fields is the order of their drop.
pub(crate) struct World {
    pub(crate) parties: Vec<Party>,
    pub(crate) oracle: Oracle,
    /// Addresses and ports of Services.
    pub(crate) frontends: Vec<(IpAddr, u16)>,
    /// Addresses of the nodes.
    pub(crate) nodes: Vec<[IpAddr; 2]>,
    /// Addresses of each node's interfaces, without link-local ones.
    pub(crate) interfaces: Vec<BTreeSet<IpAddr>>,
    pub(crate) cluster: TestCluster,
    flows: Vec<(&'static str, TestFlow)>,
    outside: TestNode,
    /// Whether the kernel has `ifb` devices.
    pub(crate) bounces: bool,
}

/// Setting that makes bridges pass their packets to netfilter.
const SHOWN: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";
/// Labels of the pods, two pods each. `mute` may send and receive nothing, `part` some things; `deaf` receives
/// nothing, `bound` sends nothing, no policy selects `free`.
const APPS: [&str; 5] = ["mute", "part", "deaf", "bound", "free"];
/// Flows that run alongside the fuzzing: name, from, protocol, to.
const BESIDE: [(&str, &str, ProbeProtocol, &str); 6] = [
    ("free1 to part1", "free1", ProbeProtocol::Tcp, "part1"),
    ("free1 to part2", "free1", ProbeProtocol::Tcp, "part2"),
    ("part1 to free2", "part1", ProbeProtocol::Tcp, "free2"),
    ("part2 to free2", "part2", ProbeProtocol::Tcp, "free2"),
    ("deaf2 to free1", "deaf2", ProbeProtocol::Udp, "free1"),
    ("deaf1 to free1", "deaf1", ProbeProtocol::Udp, "free1"),
];

impl World {
    pub(crate) fn new(kind: Kind) -> Self {
        let mut cluster = TestCluster::two();
        for node in 0..2 {
            for app in APPS {
                let name = format!("{app}{}", node + 1);
                cluster.add_as(node, PodSpec::new(NAMESPACE, &name).label("app", app));
            }
        }
        let outside = TestNode::new("outside", Cni::Ptp, "10.8.0.0/24", "fd00:8::/64").unwrap();
        let mut links = Vec::new();
        for node in &cluster.nodes {
            link_nodes(node, &outside).unwrap();
            let new = links_of(&outside).into_iter().find(|name| !links.contains(name)).unwrap();
            links.push(new);
        }
        quiet(&cluster);
        let services = between(&mut cluster, kind);
        policies(&mut cluster);
        for name in ["free1", "part1", "free2", "part2"] {
            let (node, pod) = (usize::from(name.ends_with('2')), cluster.pod(name));
            cluster.nodes[node].complete_checksums(pod.host_interface()).unwrap();
        }
        let bounces =
            APPS.iter().flat_map(|app| [format!("{app}1"), format!("{app}2")]).all(|name| {
                cluster.pod(&name).netns().ip("link add ifb0 type ifb\nlink set ifb0 up\n").is_ok()
            });
        if !bounces {
            skip("wirefuzz", "no ifb here: nothing goes round a pod's program");
        }
        cluster.enforce();
        let flows = beside(&cluster);
        let (changes, status) =
            netpold_kube::manifests::read_once(cluster.manifests.directory()).unwrap();
        assert!(status.problems.is_empty(), "{:?}", status.problems);
        let oracle = Oracle::from_iter(changes);
        let mut parties = pods(&cluster, &oracle);
        for (number, link) in links.iter().enumerate() {
            parties.push(Party {
                name: format!("outside{}", number + 1),
                pod: None,
                node: number,
                addresses: outside.addresses(),
                mac: outside.hardware_address(link).unwrap(),
                gateway: cluster.nodes[number].hardware_address(link).unwrap(),
                wire: outside.wire(link).unwrap(),
            });
        }
        let frontends = services.iter().flat_map(TestService::sockets);
        let frontends = frontends.map(|socket| (socket.ip(), socket.port())).collect();
        let nodes = cluster.nodes.iter().map(TestNode::addresses).collect();
        let interfaces = cluster.nodes.iter().map(addresses_of).collect();
        Self { parties, oracle, frontends, nodes, interfaces, cluster, flows, outside, bounces }
    }

    /// Returns the number of parties that are pods; they come first.
    pub(crate) fn pods(&self) -> usize {
        self.parties.iter().filter(|party| party.pod.is_some()).count()
    }

    /// Redirects the packets that `send` sends by a pod's eth0 to its `ifb`, so that they skip the host's hook. `ifb0`
    /// holds them until eth0's filter is gone.
    pub(crate) fn bounce(&self, party: usize, send: impl FnOnce()) {
        let pod = self.cluster.pod(&self.parties[party].name);
        let tc = |arguments: &str| {
            let done = pod.command("tc").unwrap().args(arguments.split(' ')).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        };
        tc("qdisc replace dev ifb0 root tbf rate 8kbit burst 1600 limit 1000000");
        tc("qdisc add dev eth0 clsact");
        tc(
            "filter add dev eth0 egress protocol all u32 match u32 0 0 action mirred egress redirect dev ifb0",
        );
        send();
        tc("qdisc del dev eth0 clsact");
        tc("qdisc change dev ifb0 root tbf rate 1gbit burst 100000 limit 1000000");
        // The timer of the first held packet was set at the old rate.
        std::thread::sleep(Duration::from_millis(200));
    }

    /// Returns whether the node may translate packets to an address: it belongs to a Service or a node.
    pub(crate) fn is_translated(&self, address: IpAddr) -> bool {
        self.frontends.iter().any(|(frontend, _)| *frontend == address)
            || self.nodes.as_flattened().contains(&address)
    }

    /// Asserts that the bridge passes packets to netfilter or not, and that the overlay was used, as the kind demands.
    pub(crate) fn check_between(&self, kind: Kind) {
        let [_, bridge] = &self.cluster.nodes[..] else { panic!("two nodes") };
        let shown = bridge.run(|| std::fs::read_to_string(SHOWN)).unwrap();
        match (kind, shown) {
            (Kind::Plain, _) => {}
            (_, Err(error)) => skip("bridges with netfilter", format!("{SHOWN}: {error}")),
            (_, Ok(shown)) => assert_eq!(shown.trim() == "1", kind == Kind::Translated),
        }
        let nodes = self.cluster.nodes.iter().filter(|_| kind == Kind::Overlay);
        for node in nodes {
            let devices = node.run(|| std::fs::read_to_string("/proc/thread-self/net/dev"));
            let devices = devices.unwrap().unwrap();
            let line = devices.lines().find_map(|line| line.trim().strip_prefix("vxlan9:"));
            let packets: Vec<&str> = line.expect("a tunnel").split_whitespace().collect();
            let ([received, sent], zero) = ([packets[1], packets[9]], "0");
            assert!(received != zero && sent != zero, "{}: nothing by VXLAN", node.name());
        }
    }

    /// Asserts that the flows that run alongside are still open.
    pub(crate) fn check_flows(&mut self) {
        for (name, flow) in &mut self.flows {
            let patience = netpold_testbed::cluster::PATIENCE;
            assert!(flow.ping(patience), "{name}: an allowed flow suffers, at {:?}", flow.local());
        }
        assert!(!self.outside.name().is_empty());
    }
}

fn addresses_of(node: &TestNode) -> BTreeSet<IpAddr> {
    let ip = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|it| IpAddr::from(it.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::from(it.ip())))
    };
    let of_link = |it: &IpAddr| matches!(it, IpAddr::V6(it) if it.is_unicast_link_local());
    let find = || {
        let all = nix::ifaddrs::getifaddrs().unwrap();
        all.filter_map(|found| ip(found.address?)).filter(|it| !of_link(it)).collect()
    };
    node.run(find).unwrap()
}

fn links_of(node: &TestNode) -> Vec<String> {
    let names = || nix::net::if_::if_nameindex().unwrap();
    let list = || names().iter().map(|i| i.name().to_string_lossy().into_owned()).collect();
    let all: Vec<String> = node.run(list).unwrap();
    all.into_iter().filter(|name| name.starts_with("link")).collect()
}

/// Drops cookies at the servers, since two echo servers would answer each other forever.
fn quiet(cluster: &TestCluster) {
    const RULES: &str = "table inet quiet {
        chain in {
            type filter hook input priority filter;
            meta l4proto udp @th,64,24 0x7b6e70 drop
        }
    }";
    let nodes = cluster.nodes.iter().map(|node| &**node as &Host);
    let all = (1..3).flat_map(|node| APPS.map(|app| &**cluster.pod(&format!("{app}{node}"))));
    for host in nodes.chain(all) {
        host.netns().nft(RULES).unwrap();
    }
}

/// Adds netfilter rules, Services and tunnels.
fn between(cluster: &mut TestCluster, kind: Kind) -> Vec<TestService> {
    if kind == Kind::Plain {
        return Vec::new();
    }
    let named = |number: u8, name: &str, pods: &[&str], cluster: &TestCluster| {
        TestService::new(number, name)
            .pods(cluster, pods)
            .node_port(NODE_PORT + u16::from(number) - 1)
    };
    let services = vec![
        named(1, "good", &["free1", "free2"], cluster),
        named(2, "mixed", &["free1", "free2", "part1", "part2", "deaf1", "bound2"], cluster),
        named(3, "bad", &["mute1", "mute2", "deaf2"], cluster),
    ];
    provide(cluster, Proxy::Nftables, &services);
    for (number, node) in cluster.nodes.iter().enumerate() {
        if kind == Kind::Translated {
            node.masquerade(&["10.1.0.0/16", "fd00:1::/32"]).unwrap();
        } else {
            for key in ["bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"] {
                let _ = node.netns().sysctl(key, "0");
            }
            cluster.tunnel(number);
        }
    }
    services
}

fn policies(cluster: &mut TestCluster) {
    let peer = |app: &str| json!([{ "podSelector": { "matchLabels": { "app": app } } }]);
    let ports = json!([{ "protocol": "UDP", "port": 4000 }, { "protocol": "TCP", "port": PORT }]);
    let part = json!({
        "podSelector": { "matchLabels": { "app": "part" } },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{ "from": peer("free"), "ports": ports }, { "from": peer("bound") },
                    { "from": peer("deaf") }],
        "egress": [{ "to": peer("free"), "ports": ports }, { "to": peer("deaf") }],
    });
    cluster.policy("mute", isolate("mute", &["Ingress", "Egress"]));
    cluster.policy("deaf", isolate("deaf", &["Ingress"]));
    cluster.policy("bound", isolate("bound", &["Egress"]));
    cluster.policy("part", part);
}

fn beside(cluster: &TestCluster) -> Vec<(&'static str, TestFlow)> {
    let mut flows = Vec::new();
    for (name, from, protocol, to) in BESIDE {
        for address in cluster.pod(to).addresses() {
            flows.push((name, cluster.flow(from, protocol, *address)));
        }
    }
    flows
}

fn pods(cluster: &TestCluster, oracle: &Oracle) -> Vec<Party> {
    let names = (0..2).flat_map(|node| APPS.map(|app| (node, format!("{app}{}", node + 1))));
    names
        .map(|(node, name)| {
            let pod = cluster.pod(&name);
            let key = Key::new(NAMESPACE, name.clone());
            for family in ["ipv4", "ipv6"] {
                for scope in ["all", "eth0"] {
                    let key = format!("{family}/conf/{scope}/accept_redirects");
                    pod.netns().sysctl(&key, "0").unwrap();
                }
            }
            Party {
                pod: oracle.pods.iter().find(|pod| pod.key == key).cloned(),
                name,
                node,
                addresses: [pod.addresses()[0], pod.addresses()[1]],
                mac: pod.mac(),
                gateway: pod.gateway_mac(),
                wire: pod.wire("eth0").unwrap(),
            }
        })
        .collect()
}

/// Ports of pods, Services and node ports.
pub(crate) const PORTS: [u16; 7] = [PORT, 4000, 4001, 5000, SERVICE_PORT, NODE_PORT, NODE_PORT + 1];
