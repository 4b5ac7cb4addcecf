//! Services of a [`TestCluster`] as objects and as translation, and the answers of their backends.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "helpers of tests fail as tests do"
)]

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};

use crate::ProbeProtocol;
use crate::cluster::{NAMESPACE, PORT, TestCluster};
use crate::host::Host;
use crate::probe::{ProbeResult, ReachProbe, probe_all};
use crate::translation::{Proxy, TranslatedPort};

/// Port of Services; their backends are at [`PORT`].
pub const SERVICE_PORT: u16 = 8080;
/// Port of Services at nodes.
pub const NODE_PORT: u16 = 30080;
/// The translated protocols.
pub const PROTOCOLS: [ProbeProtocol; 2] = [ProbeProtocol::Tcp, ProbeProtocol::Udp];
/// Number of tries after which each of four backends is hit with a probability near one.
const TRIES: usize = 12;
/// Time for answers; later ones count as dropped.
const LONG_ENOUGH: Duration = Duration::from_secs(2);

/// State of an endpoint: its conditions, and whether it gets new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointState {
    /// Ready, with new connections.
    Ready,
    /// Not ready, without new connections.
    NotReady,
    /// Not ready, in a Service with `publishNotReadyAddresses`, with new connections.
    Published,
    /// Terminating and serving while others are ready, without new connections.
    Leaving,
    /// Terminating and serving while no other is ready, with new connections.
    Last,
}

impl EndpointState {
    fn is_led_to(self) -> bool {
        matches!(self, Self::Ready | Self::Published | Self::Last)
    }

    fn conditions(self) -> Value {
        let (ready, serving, terminating) = match self {
            Self::Ready => (true, true, false),
            Self::NotReady => (false, false, false),
            Self::Published => (true, false, false),
            Self::Leaving | Self::Last => (false, true, true),
        };
        json!({ "ready": ready, "serving": serving, "terminating": terminating })
    }
}

/// A Service of TCP and UDP, with pods or addresses as backends.
#[derive(Clone, Debug)]
pub struct TestService {
    /// Name in the namespace of all pods.
    pub name: String,
    number: u8,
    /// Port at the Service's addresses.
    pub port: u16,
    /// Port at the nodes, if any.
    pub node_port: Option<u16>,
    /// Seconds of client affinity to a backend.
    pub affinity: Option<u32>,
    /// Without any address (`clusterIP: None`).
    pub headless: bool,
    endpoints: Vec<(IpAddr, EndpointState)>,
}

impl TestService {
    /// A Service without backends; the number is the last part of its addresses.
    #[must_use]
    pub fn new(number: u8, name: &str) -> Self {
        Self {
            name: name.into(),
            number,
            port: SERVICE_PORT,
            node_port: None,
            affinity: None,
            headless: false,
            endpoints: Vec::new(),
        }
    }

    /// Adds ready pods as backends.
    #[must_use]
    pub fn pods(self, cluster: &TestCluster, names: &[&str]) -> Self {
        names.iter().fold(self, |service, name| service.pod(cluster, name, EndpointState::Ready))
    }

    /// Adds a pod as a backend.
    #[must_use]
    pub fn pod(mut self, cluster: &TestCluster, name: &str, state: EndpointState) -> Self {
        self.endpoints.extend(cluster.pod(name).addresses().iter().map(|a| (*a, state)));
        self
    }

    /// Adds ready backends at any addresses.
    #[must_use]
    pub fn addresses(mut self, addresses: &[IpAddr]) -> Self {
        self.endpoints.extend(addresses.iter().map(|address| (*address, EndpointState::Ready)));
        self
    }

    /// Adds a pod that is not ready as a backend.
    #[must_use]
    pub fn not_ready(self, cluster: &TestCluster, name: &str) -> Self {
        self.pod(cluster, name, EndpointState::NotReady)
    }

    /// Sets a port at the nodes.
    #[must_use]
    pub fn node_port(mut self, port: u16) -> Self {
        self.node_port = Some(port);
        self
    }

    fn address(&self, v4: &str, v6: &str) -> [IpAddr; 2] {
        [format!("{v4}{}", self.number), format!("{v6}{}", self.number)]
            .map(|text| text.parse().unwrap())
    }

    /// Cluster IPs, one of each family.
    #[must_use]
    pub fn cluster_ips(&self) -> [IpAddr; 2] {
        self.address("10.96.0.", "fd00:96::")
    }

    /// External IPs, one of each family.
    #[must_use]
    pub fn external_ips(&self) -> [IpAddr; 2] {
        self.address("203.0.113.", "2001:db8:e::")
    }

    /// Addresses of the load balancer, one of each family.
    #[must_use]
    pub fn balancer_ips(&self) -> [IpAddr; 2] {
        self.address("198.51.100.", "2001:db8:b::")
    }

    /// Every address of the Service inside the cluster, with its port.
    #[must_use]
    pub fn sockets(&self) -> Vec<SocketAddr> {
        let all = [self.cluster_ips(), self.external_ips(), self.balancer_ips()];
        all.as_flattened().iter().map(|address| (*address, self.port).into()).collect()
    }

    fn translations(&self) -> Vec<TranslatedPort> {
        if self.headless {
            return Vec::new();
        }
        let led_to = self.endpoints.iter().filter(|(_, state)| state.is_led_to());
        let backends: Vec<SocketAddr> = led_to.map(|(a, _)| (*a, PORT).into()).collect();
        let of = |protocol: ProbeProtocol| TranslatedPort {
            cluster_ips: self.cluster_ips().into(),
            external_ips: [self.external_ips(), self.balancer_ips()].concat(),
            node_port: self.node_port,
            backends: backends.clone(),
            affinity: self.affinity,
            ..TranslatedPort::new(&format!("{}-{protocol}", self.name), protocol, self.port)
        };
        PROTOCOLS.map(of).into()
    }

    fn objects(&self) -> Vec<Value> {
        let port = |protocol: ProbeProtocol| {
            json!({ "name": protocol.to_string().to_lowercase(), "protocol": protocol.to_string(),
                    "port": self.port, "targetPort": PORT, "nodePort": self.node_port })
        };
        let ingress = self.balancer_ips().map(|address| json!({ "ip": address }));
        let mut service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "namespace": NAMESPACE, "name": self.name },
            "spec": {
                "type": "LoadBalancer",
                "clusterIP": self.cluster_ips()[0],
                "clusterIPs": self.cluster_ips(),
                "externalIPs": self.external_ips(),
                "ports": PROTOCOLS.map(port),
            },
            "status": { "loadBalancer": { "ingress": ingress } },
        });
        if self.headless {
            service["spec"] = json!({ "clusterIP": "None", "ports": PROTOCOLS.map(port) });
            service["status"] = json!({});
        }
        let mut objects = vec![service];
        objects.extend([false, true].map(|v6| self.slice(v6)));
        objects
    }

    fn slice(&self, v6: bool) -> Value {
        let kind = if v6 { "IPv6" } else { "IPv4" };
        let port = |protocol: ProbeProtocol| {
            json!({ "name": protocol.to_string().to_lowercase(), "protocol": protocol.to_string(),
                    "port": PORT })
        };
        let of_family = self.endpoints.iter().filter(|(address, _)| address.is_ipv6() == v6);
        let endpoints: Vec<Value> = of_family
            .map(|(address, state)| {
                json!({ "addresses": [address], "conditions": state.conditions() })
            })
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": NAMESPACE,
                "name": format!("{}-{}", self.name, kind.to_lowercase()),
                "labels": { "kubernetes.io/service-name": self.name },
            },
            "addressType": kind,
            "endpoints": endpoints,
            "ports": PROTOCOLS.map(port),
        })
    }
}

/// Installs the Services' rules on every node, and adds their objects to the next update.
pub fn provide(cluster: &mut TestCluster, proxy: Proxy, services: &[TestService]) {
    describe(cluster, services);
    let translations: Vec<TranslatedPort> =
        services.iter().flat_map(TestService::translations).collect();
    for node in &cluster.nodes {
        node.translate(proxy, &translations).unwrap();
    }
}

/// Adds only the objects of the Services to the next update, without translation.
pub fn describe(cluster: &mut TestCluster, services: &[TestService]) {
    cluster.objects = services.iter().flat_map(TestService::objects).collect();
}

/// A policy that allows egress of an app's pods to the pods of others, at [`PORT`] alone.
#[must_use]
pub fn may_reach(app: &str, others: &[&str]) -> Value {
    let peer = |other: &&str| json!({ "podSelector": { "matchLabels": { "app": other } } });
    let ports = PROTOCOLS.map(|p| json!({ "protocol": p.to_string(), "port": PORT }));
    json!({
        "podSelector": { "matchLabels": { "app": app } },
        "policyTypes": ["Egress"],
        "egress": [{ "to": others.iter().map(peer).collect::<Vec<_>>(), "ports": ports }],
    })
}

/// Number of answers by name of the answering host, and of dropped probes under the empty name.
pub fn outcomes(from: &Host, sockets: &[SocketAddr]) -> BTreeMap<String, usize> {
    let probe = |socket: &SocketAddr| {
        let (to, port) = (socket.ip(), socket.port());
        PROTOCOLS.map(|protocol| ReachProbe { from, protocol, to, port })
    };
    let probes: Vec<ReachProbe<'_>> = sockets.iter().flat_map(probe).collect();
    let probes = probes.repeat(TRIES);
    let mut outcomes = BTreeMap::new();
    for (probe, result) in probes.iter().zip(probe_all(&probes, LONG_ENOUGH)) {
        let who = match result {
            ProbeResult::Connected(name) => name,
            ProbeResult::Timeout => String::new(),
            other @ (ProbeResult::Refused | ProbeResult::Unreachable | ProbeResult::Failed(_)) => {
                let (from, to) = (from.name(), probe.to);
                panic!("{from} to {to} port {}, {}: {other}", probe.port, probe.protocol)
            }
        };
        *outcomes.entry(who).or_default() += 1;
    }
    outcomes
}

/// Asserts that exactly these hosts answer, each at least once; an empty name means dropped probes.
#[track_caller]
pub fn answer(from: &Host, sockets: &[SocketAddr], names: &[&str]) {
    let outcomes = outcomes(from, sockets);
    let mut expected: Vec<String> = names
        .iter()
        .map(|name| if name.is_empty() { String::new() } else { format!("{NAMESPACE}/{name}") })
        .collect();
    expected.sort_unstable();
    let seen: Vec<String> = outcomes.keys().cloned().collect();
    assert_eq!(seen, expected, "{} at {sockets:?}: {outcomes:?}", from.name());
}

/// Expectation of [`answer`] that all probes are dropped.
pub const NOBODY: &[&str] = &[""];

/// Number of packets that an agent's pods lost in egress for a reason.
#[must_use]
pub fn lost(cluster: &TestCluster, node: usize, reason: &str) -> u64 {
    let status = cluster.agents[node].status().unwrap();
    let drops = status["drops"].as_array().cloned().unwrap_or_default();
    let egress = |drop: &&Value| drop["direction"] == "egress" || drop["direction"] == "Egress";
    let of_reason = drops.iter().filter(egress).filter(|drop| drop["reason"] == reason);
    of_reason.filter_map(|drop| drop["packets"].as_u64()).sum()
}
