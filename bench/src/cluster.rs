//! Clusters for measuring packets: one pod under policy, with one dimension made large.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use netpold_core::model::{
    Action, Change, ClusterPolicy, ClusterRule, EndpointSlice, Enforcement, Interface, IpBlock,
    Key, Labels, Namespace, NamespacedPods, Node, Peer, Pod, Policy, PolicyVersion, PortMatch,
    PortRule, Protocol, Requirement, Rule, Selector, Service, ServicePort, SlicePort, Tier,
};
use netpold_testkit::objects;
use serde::Serialize;

use crate::random::SplitMix64;

/// `metadata.name` of the measured node.
pub(crate) const NODE: &str = "node";
/// Port that clients may use; not in [`OTHER_PORTS`].
pub(crate) const PORT: u16 = 80;
/// Ports of the rules beyond the first: few numbers, as in real clusters.
const OTHER_PORTS: [u16; 10] = [443, 3306, 5432, 5671, 6379, 8081, 8443, 9090, 9100, 27017];
/// Ports of clients, above all ports allowed by a rule.
const CLIENT_PORTS: std::ops::Range<u32> = 32_768..65_536;

/// Size of a cluster. All objects concern the one pod under policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Size {
    /// Pods on other nodes: the even ones may connect, the odd ones not.
    pub(crate) pods: u32,
    /// Policies of one rule each, with different selectors.
    pub(crate) rules: u32,
    /// Number of random IPv4 blocks, and of random IPv6 blocks, that may connect. If there are any, the allowed flows
    /// come from blocks instead of pods.
    pub(crate) cidrs: u32,
    /// Port ranges of the first rule.
    pub(crate) ranges: u32,
    /// ClusterNetworkPolicies, alternately of the Admin and Baseline tier, that change no measured verdict.
    pub(crate) tiers: u32,
}

impl Size {
    /// Default size; one dimension at a time is varied.
    pub(crate) const BASE: Self = Self { pods: 1000, rules: 100, cidrs: 0, ranges: 1, tiers: 0 };
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pods, rules, cidrs, ranges, tiers } = self;
        write!(f, "{pods} pods, {rules} rules, {cidrs} CIDRs, {ranges} port ranges")?;
        if *tiers > 0 {
            write!(f, ", {tiers} ClusterNetworkPolicies")?;
        }
        Ok(())
    }
}

/// A local pod and its interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    /// Host side of the veth.
    pub(crate) ifindex: u32,
    number: u8,
    isolated: bool,
}

impl Local {
    /// The pod under policy in both directions.
    pub(crate) fn isolated(ifindex: u32) -> Self {
        Self { ifindex, number: 1, isolated: true }
    }

    /// A pod that no policy selects.
    pub(crate) fn open(ifindex: u32) -> Self {
        Self { ifindex, number: 2, isolated: false }
    }

    /// A second pod under the same policy.
    pub(crate) fn also_isolated(ifindex: u32) -> Self {
        Self { ifindex, number: 2, isolated: true }
    }

    /// The pod's address of a family.
    pub(crate) fn address(self, v6: bool) -> IpAddr {
        if v6 {
            IpAddr::V6(Ipv6Addr::new(0xfd00, 200, 0, 0, 0, 0, 0, self.number.into()))
        } else {
            IpAddr::V4(Ipv4Addr::new(10, 200, 0, self.number))
        }
    }

    fn addresses(self) -> Vec<IpAddr> {
        vec![self.address(false), self.address(true)]
    }
}

/// A cluster as changes, and its allowed and denied flows.
pub(crate) struct FlowCluster {
    size: Size,
    locals: [Local; 2],
    blocks: Vec<IpNet>,
}

impl FlowCluster {
    /// Generates a cluster of this size.
    pub(crate) fn new(size: Size, locals: [Local; 2]) -> Self {
        let mut random = SplitMix64::new(size.cidrs.into());
        let blocks = (0..size.cidrs)
            .flat_map(|_| [random_v4(&mut random), random_v6(&mut random)])
            .collect();
        Self { size, locals, blocks }
    }

    /// All objects.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let mut changes = vec![Change::Node(node()), Change::Namespace(namespace())];
        for local in self.locals {
            let name = format!("local{}", local.number);
            // Each local pod may be the other's client.
            let labels =
                [("role", "client"), ("isolated", if local.isolated { "yes" } else { "no" })];
            changes.push(Change::Pod(pod(&name, NODE, local.addresses(), &labels)));
            changes.push(Change::Interface(Interface {
                index: local.ifindex,
                incarnation: 1,
                addresses: local.addresses(),
                ..Interface::default()
            }));
        }
        changes.extend((0..self.size.pods).map(|n| Change::Pod(self.remote(n))));
        changes.extend(service_with_slices());
        changes.push(Change::Policy(self.first_policy()));
        changes.extend((1..self.size.rules).map(|n| Change::Policy(other_policy(n))));
        changes.extend((0..self.size.tiers).map(|n| Change::ClusterPolicy(cluster_policy(n))));
        changes
    }

    /// Distinct allowed flows to [`PORT`].
    pub(crate) fn allowed(&self, v6: bool, count: u32) -> Vec<(IpAddr, u16)> {
        let blocks: Vec<IpNet> =
            self.blocks.iter().filter(|b| b.addr().is_ipv6() == v6).copied().collect();
        distinct(count, |random| {
            if blocks.is_empty() {
                remote_address(random.below(self.size.pods.div_ceil(2)) * 2, v6)
            } else {
                inside(*random.one_of(&blocks), random)
            }
        })
    }

    /// Distinct flows that no rule allows.
    pub(crate) fn denied(&self, v6: bool, count: u32) -> Vec<(IpAddr, u16)> {
        distinct(count, |random| remote_address(random.below(self.size.pods / 2) * 2 + 1, v6))
    }

    /// Address and port of a Service that everyone may use.
    pub(crate) fn service(v6: bool) -> (IpAddr, u16) {
        let address = if v6 {
            IpAddr::V6(Ipv6Addr::new(0xfd00, 96, 0, 0, 0, 0, 0, 10))
        } else {
            IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10))
        };
        (address, 8080)
    }

    /// A backend of that Service, and a backend that no rule allows.
    pub(crate) fn backends(v6: bool) -> [(IpAddr, u16); 2] {
        [0, 1].map(|number| (remote_address(number, v6), PORT))
    }

    /// Distinct ports of a local pod that is a client.
    pub(crate) fn client_ports(address: IpAddr, count: u32) -> Vec<(IpAddr, u16)> {
        distinct(count, |_| address)
    }

    fn remote(&self, number: u32) -> Pod {
        let role = if number.is_multiple_of(2) { "client" } else { "stranger" };
        let app = app(number % self.size.rules.max(1));
        let addresses = vec![remote_address(number, false), remote_address(number, true)];
        pod(&format!("pod{number}"), "elsewhere", addresses, &[("role", role), ("app", &app)])
    }

    /// A policy that isolates both directions and allows clients and the blocks.
    fn first_policy(&self) -> Policy {
        let range = |protocol, n: u32| {
            let first = PORT + (n * 30) as u16;
            PortRule { protocol, port: PortMatch::Range(first, first + 9) }
        };
        let ranges = (0..self.size.ranges).map(|n| range(Protocol::Tcp, n));
        let ports = ranges.chain([range(Protocol::Udp, 0)]).collect();
        let blocks =
            self.blocks.iter().map(|cidr| Peer::Block(IpBlock { cidr: *cidr, except: Vec::new() }));
        let peers = std::iter::once(pods("role", "client")).chain(blocks).collect();
        policy(0, Rule { peers: Some(peers), ports: Some(ports) })
    }
}

/// The Service and its backend, for both families.
fn service_with_slices() -> Vec<Change> {
    let (name, both) = (Key::new("bench", "service"), [false, true]);
    let port =
        ServicePort { name: String::new(), protocol: Protocol::Tcp, port: 8080, node_port: None };
    let addresses = both.map(|v6| FlowCluster::service(v6).0).to_vec();
    let service = Service {
        key: name.clone(),
        cluster: addresses.clone(),
        addresses,
        ports: vec![port],
        networks: Vec::new(),
        beyond: Vec::new(),
        unserved: false,
    };
    let slices = both.map(|v6| {
        Change::EndpointSlice(EndpointSlice {
            key: Key::new("bench", format!("service-{v6}")),
            service: "service".into(),
            ports: vec![SlicePort { name: String::new(), protocol: Protocol::Tcp, port: PORT }],
            addresses: vec![FlowCluster::backends(v6)[0].0],
            not_ready: Vec::new(),
            terminating: Vec::new(),
        })
    });
    std::iter::once(Change::Service(service)).chain(slices).collect()
}

fn other_policy(number: u32) -> Policy {
    let port = OTHER_PORTS[number as usize % OTHER_PORTS.len()];
    let ports = vec![PortRule { protocol: Protocol::Tcp, port: PortMatch::Range(port, port) }];
    policy(number, Rule { peers: Some(vec![pods("app", &app(number))]), ports: Some(ports) })
}

/// A policy with this rule in both directions for the isolated pod.
fn policy(number: u32, rule: Rule) -> Policy {
    Policy {
        key: Key::new("bench", format!("policy{number}")),
        pod_selector: selector("isolated", "yes"),
        ingress: Some(vec![rule.clone()]),
        egress: Some(vec![rule]),
        problems: Vec::new(),
        version: PolicyVersion::default(),
        enforcement: Enforcement::Enforce,
        denial: None,
    }
}

/// A ClusterNetworkPolicy of the Admin tier that denies one port of one app and passes clients, or one of the Baseline
/// tier, which is not evaluated, that denies all others.
fn cluster_policy(number: u32) -> ClusterPolicy {
    let every = || Some(Selector::default());
    let port = OTHER_PORTS[number as usize % OTHER_PORTS.len()];
    let ports = vec![PortRule { protocol: Protocol::Tcp, port: PortMatch::Range(port, port) }];
    let rule = |action, pods: Selector, ports| {
        let peers = Some(vec![Peer::Pods { namespaces: every(), pods }]);
        ClusterRule { name: String::new(), action, matches: Rule { peers, ports } }
    };
    let denied = rule(Action::Deny, selector("app", &app(number)), Some(ports));
    let passed = rule(Action::Pass, selector("role", "client"), None);
    let others = rule(Action::Deny, Selector::default(), None);
    let (tier, rules) = match number % 2 {
        0 => (Tier::Admin, vec![denied, passed]),
        _ => (Tier::Baseline, vec![passed, others]),
    };
    ClusterPolicy {
        name: format!("tier{number}"),
        tier,
        priority: (number % 1001) as u16,
        subject: NamespacedPods {
            namespaces: Selector::default(),
            pods: selector("isolated", "yes"),
        },
        ingress: rules.clone(),
        egress: rules,
        problems: Vec::new(),
        version: PolicyVersion::default(),
        enforcement: Enforcement::Enforce,
        denial: None,
    }
}

fn app(number: u32) -> String {
    format!("app{number}")
}

fn pods(key: &str, value: &str) -> Peer {
    Peer::Pods { namespaces: None, pods: selector(key, value) }
}

/// A selector of one value of a label.
pub(crate) fn selector(key: &str, value: &str) -> Selector {
    Selector { requirements: vec![Requirement::In(key.into(), vec![value.into()])] }
}

fn node() -> Node {
    Node {
        name: NODE.into(),
        addresses: vec![IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))],
        ..Node::default()
    }
}

fn namespace() -> Namespace {
    Namespace { name: "bench".into(), labels: Labels::new(), denial: None }
}

fn pod(name: &str, node: &str, addresses: Vec<IpAddr>, labels: &[(&str, &str)]) -> Pod {
    Pod { node: node.into(), addresses, ..objects::pod("bench", name, labels, &[]) }
}

/// Address of remote pod `number`; consecutive, as assigned by nodes.
fn remote_address(number: u32, v6: bool) -> IpAddr {
    if v6 {
        IpAddr::V6(Ipv6Addr::from_bits(0xfd00_0001 << 96 | u128::from(number + 1)))
    } else {
        IpAddr::V4(Ipv4Addr::from_bits(0x0a40_0001 + number))
    }
}

/// A random block in 11.0.0.0 to 99.255.255.255, /16 to /28.
fn random_v4(random: &mut SplitMix64) -> IpNet {
    let address = (11 + random.below(89)) << 24 | random.below(1 << 24);
    let net = Ipv4Net::new_assert(Ipv4Addr::from_bits(address), 16 + random.below(13) as u8);
    IpNet::V4(net.trunc())
}

/// A random block in `2a00::/8`, /32 to /64.
fn random_v6(random: &mut SplitMix64) -> IpNet {
    let bits = 0x2a << 120 | u128::from(random.next() >> 8) << 64;
    let net = Ipv6Net::new_assert(Ipv6Addr::from_bits(bits), 32 + random.below(33) as u8);
    IpNet::V6(net.trunc())
}

fn inside(net: IpNet, random: &mut SplitMix64) -> IpAddr {
    let bits = random.next();
    match net {
        IpNet::V4(v4) => {
            let host = bits as u32 & v4.hostmask().to_bits();
            IpAddr::V4(Ipv4Addr::from_bits(v4.network().to_bits() | host))
        }
        IpNet::V6(v6) => {
            let host = (u128::from(bits) << 64 | u128::from(bits)) & v6.hostmask().to_bits();
            IpAddr::V6(Ipv6Addr::from_bits(v6.network().to_bits() | host))
        }
    }
}

fn distinct(count: u32, mut address: impl FnMut(&mut SplitMix64) -> IpAddr) -> Vec<(IpAddr, u16)> {
    let mut random = SplitMix64::new(1);
    let mut known = HashSet::new();
    let mut flows = Vec::new();
    while flows.len() < count as usize {
        let ports = CLIENT_PORTS.end - CLIENT_PORTS.start;
        let port = (CLIENT_PORTS.start + random.below(ports)) as u16;
        let flow = (address(&mut random), port);
        if known.insert(flow) {
            flows.push(flow);
        }
    }
    flows
}
