//! Two pods of a node with rules about domain names, and packets between the pods and resolvers.

use netpold_core::model::{
    Action, Change, ClusterRule, Direction, DomainName, Peer, PortRule, Selector, Tier,
};
use netpold_ebpf::judge::hook::PacketHook;
use netpold_ebpf::names::doubt::is_port_doubted;
use netpold_ebpf::packet::protocol::{TCP, TCP_SYN, UDP};
use netpold_ebpf::reason::Reason;
use netpold_testkit::flows::MemoryFlowTables;
use netpold_testkit::frames::{frame, ip_between, tcp as tcp_header, udp};
use netpold_testkit::names::{Record, answer, query, wire};
use netpold_testkit::node::NodeTables;
use netpold_testkit::objects::{
    self, NODE, block, cluster_policy, cluster_rule, interface, ip, namespace, node, pod, tcp,
};
use netpold_testkit::world::World;

pub(crate) const DNS: &str = "10.96.0.10";
pub(crate) const DNS6: &str = "fd96::10";
pub(crate) const BACKEND: &str = "10.0.5.5";
pub(crate) const API: &str = "api.example.com";
pub(crate) const FOUND: &str = "192.0.2.7";
pub(crate) const UPLINK: u32 = 9;

pub(crate) fn domain(name: &str) -> Peer {
    Peer::Domain(DomainName::try_from(name.to_owned()).unwrap())
}

/// Rules that allow the resolvers, then `rules`, and nothing else.
pub(crate) fn only(rules: Vec<ClusterRule>) -> Change {
    let resolvers = [DNS, DNS6, BACKEND].map(|at| block(&format!("{at}/{}", width(at)), &[]));
    let everything = vec![block("0.0.0.0/0", &[]), block("::/0", &[])];
    let mut egress = vec![cluster_rule(Action::Accept, resolvers.to_vec(), None)];
    egress.extend(rules);
    egress.push(cluster_rule(Action::Deny, everything, None));
    Change::ClusterPolicy(cluster_policy("names", (Tier::Admin, 10), vec![], egress))
}

pub(crate) fn width(address: &str) -> u8 {
    if address.contains(':') { 128 } else { 32 }
}

pub(crate) fn accept(peers: Vec<Peer>, ports: Option<Vec<PortRule>>) -> ClusterRule {
    cluster_rule(Action::Accept, peers, ports)
}

/// Pods a/p and a/q on interfaces 1 and 2, with all ingress denied; the cluster's DNS Service with one backend.
pub(crate) fn cluster() -> Vec<Change> {
    let dns = ("kube-system", "kube-dns");
    vec![
        Change::Node(node(NODE, &["192.168.0.1"])),
        Change::Namespace(namespace("a", &[])),
        Change::Namespace(namespace("kube-system", &[])),
        Change::Pod(pod("a", "p", &[("app", "p")], &["10.0.0.1", "fd00::1"])),
        Change::Pod(pod("a", "q", &[("app", "q")], &["10.0.0.2", "fd00::2"])),
        Change::Interface(interface(1, &["10.0.0.1", "fd00::1"])),
        Change::Interface(interface(2, &["10.0.0.2", "fd00::2"])),
        Change::Service(objects::service(dns, &[DNS, DNS6], &[("", 53, None)])),
        Change::EndpointSlice(objects::slice(
            ("kube-system", "dns-1"),
            "kube-dns",
            &[BACKEND],
            &[("", 53)],
        )),
        Change::Policy(objects::policy("a", "in", Selector::default(), Some(vec![]), None)),
    ]
}

/// A node with one ClusterNetworkPolicy, see [`only`].
pub(crate) struct Net {
    pub(crate) world: World,
    pub(crate) flows: MemoryFlowTables,
}

impl Net {
    pub(crate) fn new(rules: Vec<ClusterRule>) -> Self {
        let world = World::new(cluster().into_iter().chain([only(rules)]));
        Self { world, flows: MemoryFlowTables::new(64) }
    }

    /// A node with a rule that allows [`API`] at TCP 443.
    pub(crate) fn of_api() -> Self {
        Self::new(vec![accept(vec![domain(API)], Some(vec![tcp(443)]))])
    }

    /// Judges a packet between a pod and a remote address.
    pub(crate) fn packet(
        &self,
        ifindex: u32,
        direction: Direction,
        remote: &str,
        protocol: u8,
        data: &[u8],
    ) -> Reason {
        let own = match (remote.contains(':'), ifindex) {
            (false, n) => ip(&format!("10.0.0.{n}")),
            (true, n) => ip(&format!("fd00::{n}")),
        };
        let (from, to) = match direction {
            Direction::Egress => (own, ip(remote)),
            Direction::Ingress => (ip(remote), own),
        };
        self.judge(ifindex, direction, &ip_between(from, to, protocol, data)).0
    }

    /// Judges an IP packet; returns the reason, and whether the packet passes.
    pub(crate) fn judge(
        &self,
        ifindex: u32,
        direction: Direction,
        packet: &[u8],
    ) -> (Reason, bool) {
        let came_from = if direction == Direction::Egress { ifindex } else { UPLINK };
        let hook = PacketHook { ifindex, ingress_ifindex: came_from };
        let tables = NodeTables { policy: &self.world.tables, flows: &self.flows };
        tables.judge_by_names(direction, hook, &frame(packet))
    }

    /// Whether a port of an endpoint is doubted, see [`netpold_ebpf::names::doubt`].
    pub(crate) fn is_doubted(&self, endpoint: u32, port: u16) -> bool {
        let tables = NodeTables { policy: &self.world.tables, flows: &self.flows };
        is_port_doubted(&tables, u64::from(endpoint) << 32 | u64::from(port))
    }

    /// Sends a DNS message to a resolver.
    pub(crate) fn send(&self, ifindex: u32, resolver: &str, port: u16, message: &[u8]) -> Reason {
        self.packet(ifindex, Direction::Egress, resolver, UDP, &udp(port, 53, message))
    }

    /// Delivers a DNS message from a resolver.
    pub(crate) fn deliver(
        &self,
        ifindex: u32,
        resolver: &str,
        port: u16,
        message: &[u8],
    ) -> Reason {
        self.packet(ifindex, Direction::Ingress, resolver, UDP, &udp(53, port, message))
    }

    /// Sends a query of pod a/p for a name and delivers the answer; asserts that policy allows both.
    pub(crate) fn resolve(&self, name: &str, records: &[Record]) {
        assert!(!self.send(1, DNS, 5000, &query(7, &wire(name))).is_drop());
        assert!(!self.deliver(1, DNS, 5000, &answer(7, &wire(name), records)).is_drop());
    }

    /// Whether policy allows a SYN; then forgets all flows.
    pub(crate) fn reaches(&self, ifindex: u32, remote: &str, port: u16) -> bool {
        let syn = tcp_header(40_000, port, TCP_SYN);
        let reason = self.packet(ifindex, Direction::Egress, remote, TCP, &syn);
        self.flows.forget_flows();
        !reason.is_drop()
    }
}

/// Records of an answer with the address [`FOUND`].
pub(crate) fn found(name: &str, ttl: u32) -> Vec<Record> {
    vec![Record::address(wire(name), ip(FOUND), ttl)]
}

/// Pointer to the question's name.
pub(crate) fn pointer() -> Vec<u8> {
    vec![0xc0, 12]
}
