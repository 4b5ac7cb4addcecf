//! The demo's cluster: two nodes, three namespaces, and an outside world.

use std::fmt::{Display, Formatter};

use anyhow::Result;
use netpold_testbed::{
    Cni, Manifests, PodSpec, ProbeProtocol, TestNode, TestPod, link_nodes, namespace,
};

/// A service on every pod, for probes to every pod. The letter heads its column.
pub(crate) struct DemoService {
    pub(crate) letter: char,
    pub(crate) protocol: ProbeProtocol,
    pub(crate) port: u16,
    pub(crate) what: &'static str,
}

pub(crate) const SERVICES: [DemoService; 5] = [
    DemoService { letter: 'H', protocol: ProbeProtocol::Tcp, port: HTTP, what: "named http" },
    DemoService { letter: 'M', protocol: ProbeProtocol::Tcp, port: 9105, what: "metrics" },
    DemoService { letter: 'U', protocol: ProbeProtocol::Udp, port: 5300, what: "lookup" },
    DemoService { letter: 'S', protocol: ProbeProtocol::Sctp, port: 3868, what: "signals" },
    DemoService { letter: 'P', protocol: ProbeProtocol::Icmp, port: 0, what: "ping" },
];
pub(crate) const HTTP: u16 = 8080;

impl Display for DemoService {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self.port {
            0 => self.protocol.fmt(f),
            port => write!(f, "{} {port}", self.protocol),
        }
    }
}

/// Namespace, name (also the `app` label), and node of each pod.
const PODS: [(&str, &str, usize); 6] = [
    ("shop", "web", 0),
    ("shop", "cart", 1),
    ("billing", "api", 1),
    ("billing", "db", 0),
    ("monitoring", "metrics", 0),
    ("monitoring", "logs", 1),
];

/// Fields are in the order of teardown.
pub(crate) struct DemoCluster {
    pub(crate) pods: Vec<TestPod>,
    /// Senders without manifests.
    pub(crate) outside: Vec<TestPod>,
    pub(crate) nodes: Vec<TestNode>,
    _world: TestNode,
}

impl DemoCluster {
    /// Makes namespaces, links, addresses and servers.
    pub(crate) fn build() -> Result<Self> {
        let nodes = vec![
            TestNode::new("oak", Cni::Ptp, "10.244.1.0/24", "fd00:10:244:1::/64")?,
            TestNode::new("elm", Cni::Bridge, "10.244.2.0/24", "fd00:10:244:2::/64")?,
        ];
        let world = TestNode::new("world", Cni::Ptp, "203.0.113.0/24", "2001:db8:113::/64")?;
        link_nodes(&nodes[0], &nodes[1])?;
        nodes.iter().try_for_each(|node| link_nodes(node, &world))?;
        let mut pods = Vec::new();
        for (namespace, name, node) in PODS {
            let spec = PodSpec::new(namespace, name).label("app", name);
            let pod = nodes[node].add_pod(&spec.port("http", ProbeProtocol::Tcp, HTTP))?;
            for service in SERVICES.iter().filter(|s| s.protocol != ProbeProtocol::Icmp) {
                pod.serve(service.protocol, service.port)?;
            }
            pods.push(pod);
        }
        let outside = [
            ("customer", ["203.0.113.10".parse()?, "2001:db8:113::10".parse()?]),
            ("scanner", ["203.0.113.66".parse()?, "2001:db8:113::42".parse()?]),
        ];
        let outside = outside.into_iter().map(|(name, addresses)| {
            world.add_pod(&PodSpec::new("outside", name).addresses(&addresses))
        });
        let outside = outside.collect::<Result<_>>()?;
        Ok(Self { pods, outside, nodes, _world: world })
    }

    /// Writes the manifests for the agents.
    pub(crate) fn write(&self, manifests: &Manifests) -> Result<()> {
        let namespaces =
            ["shop", "billing", "monitoring"].map(|name| namespace(name, &[("team", name)]));
        manifests.write_cluster(&namespaces, &self.nodes, &self.pods)
    }

    /// A pod by namespace and name.
    pub(crate) fn pod(&self, name: &str) -> Result<&TestPod> {
        let found = self.pods.iter().chain(&self.outside).find(|pod| pod.name() == name);
        found.ok_or_else(|| anyhow::anyhow!("the demo has no pod {name}"))
    }
}
