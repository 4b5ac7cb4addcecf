//! A small cluster for tests: one namespace of pods, policies, and an agent on each node.
//!
//! Functions return no errors: a step that fails, fails the test.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "helpers of tests fail as tests do"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ProbeProtocol;
use crate::agent::{Agent, AgentOptions};
use crate::flow::TestFlow;
use crate::host::Host;
use crate::manifests::{Manifests, marker, namespace};
use crate::node::{Cni, TestNode, link_nodes, mac_text};
use crate::pod::{PodSpec, TestPod};
use crate::probe::{ProbeResult, ReachProbe, probe_all};

/// Limit for allowed packets to arrive, for busy machines too.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Time after which an unanswered probe counts as denied.
pub const MOMENT: Duration = Duration::from_millis(300);
/// Limit for an agent to start, load its programs and enforce.
pub const ENFORCED: Duration = Duration::from_mins(1);
/// Port that every pod and node serves over TCP, UDP and SCTP.
pub const PORT: u16 = 80;
/// Namespace of all pods.
pub const NAMESPACE: &str = "shop";

const ALL: [ProbeProtocol; 4] =
    [ProbeProtocol::Icmp, ProbeProtocol::Tcp, ProbeProtocol::Udp, ProbeProtocol::Sctp];
const CIDRS: [(&str, &str); 2] =
    [("10.1.1.0/24", "fd00:1:1::/64"), ("10.1.2.0/24", "fd00:1:2::/64")];

/// Fields drop in this order: agents end before the pods and nodes that they observe.
pub struct TestCluster {
    /// One agent for each node, in the order of the nodes.
    pub agents: Vec<Agent>,
    pods: BTreeMap<String, (usize, TestPod)>,
    /// One or two nodes.
    pub nodes: Vec<TestNode>,
    policies: BTreeMap<String, Value>,
    /// Further objects.
    pub objects: Vec<Value>,
    /// The manifests of the agents.
    pub manifests: Manifests,
    /// Directory for files of a test.
    pub directory: TempDir,
    /// Pods without an address in their status.
    pub pending: BTreeSet<String>,
    /// Endpoints that the agents still enforce without a pod in `pods`, by name and interface.
    pub deleted: BTreeMap<String, u32>,
    /// Further arguments of the agents, set before the first [`TestCluster::enforce`].
    pub arguments: Vec<String>,
    /// Labels of [`NAMESPACE`].
    pub labels: Vec<(&'static str, &'static str)>,
    /// Annotations of [`NAMESPACE`].
    pub annotations: Vec<(&'static str, &'static str)>,
    /// Final change to the agents' commands, set before the first [`TestCluster::enforce`].
    pub prepare: fn(&mut Command),
    state: u32,
}

impl TestCluster {
    /// A cluster of one node.
    #[must_use]
    pub fn one(cni: Cni) -> Self {
        Self::of(&[cni])
    }

    /// A cluster of two linked nodes, the first ptp-style, the second bridge-style.
    #[must_use]
    pub fn two() -> Self {
        let cluster = Self::of(&[Cni::Ptp, Cni::Bridge]);
        link_nodes(&cluster.nodes[0], &cluster.nodes[1]).unwrap();
        cluster
    }

    fn of(kinds: &[Cni]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut nodes = Vec::new();
        for (cni, (cidr4, cidr6)) in kinds.iter().zip(CIDRS) {
            let node = TestNode::new(&format!("n{}", nodes.len() + 1), *cni, cidr4, cidr6).unwrap();
            serve(&node);
            nodes.push(node);
        }
        Self {
            agents: Vec::new(),
            pods: BTreeMap::new(),
            nodes,
            policies: BTreeMap::new(),
            objects: Vec::new(),
            manifests: Manifests::new(directory.path().join("manifests")).unwrap(),
            directory,
            pending: BTreeSet::new(),
            deleted: BTreeMap::new(),
            arguments: Vec::new(),
            labels: Vec::new(),
            annotations: Vec::new(),
            prepare: |_| (),
            state: 0,
        }
    }

    /// Adds pods to the first node, each with its name as label `app`.
    #[must_use]
    pub fn with_pods(mut self, names: &[&str]) -> Self {
        names.iter().for_each(|name| self.add(0, name));
        self
    }

    /// Adds a pod with its name as label `app`.
    pub fn add(&mut self, node: usize, name: &str) {
        self.add_as(node, PodSpec::new(NAMESPACE, name).label("app", name));
    }

    /// Adds a pod with any specification.
    pub fn add_as(&mut self, node: usize, spec: PodSpec) {
        let pod = self.nodes[node].add_pod(&spec).unwrap();
        serve(&pod);
        let former = self.pods.insert(pod.pod_name().to_owned(), (node, pod));
        assert!(former.is_none(), "a pod of that name is there");
    }

    /// The pod of that name.
    #[must_use]
    pub fn pod(&self, name: &str) -> &TestPod {
        &self.pods[name].1
    }

    /// Whether there is a pod of that name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.pods.contains_key(name)
    }

    /// The pod of that name, mutable.
    pub fn pod_mut(&mut self, name: &str) -> &mut TestPod {
        &mut self.pods.get_mut(name).unwrap().1
    }

    /// Removes a pod and returns it; dropping it deletes its namespace.
    pub fn take(&mut self, name: &str) -> TestPod {
        self.pods.remove(name).unwrap().1
    }

    /// Sets the policy of that name; in force with the next [`TestCluster::enforce`].
    pub fn policy(&mut self, name: &str, spec: Value) -> &mut Self {
        self.policies.insert(name.to_owned(), spec);
        self
    }

    /// Removes the policy of that name, with the next [`TestCluster::enforce`].
    pub fn without_policy(&mut self, name: &str) -> &mut Self {
        self.policies.remove(name).expect("a policy of that name");
        self
    }

    /// Writes all objects and waits until agents enforce them; starts the agents if needed.
    pub fn enforce(&mut self) -> &mut Self {
        self.write();
        if self.agents.is_empty() {
            self.start();
        }
        self.wait();
        self
    }

    /// Starts an agent on each node.
    pub fn start(&mut self) {
        self.agents = self.nodes.iter().map(|node| self.start_agent(node)).collect();
    }

    /// Writes all objects, in one step.
    pub fn write(&mut self) {
        self.state += 1;
        let mut own = namespace(NAMESPACE, &self.labels);
        let annotations = self.annotations.iter();
        let annotations = annotations.map(|(key, value)| ((*key).to_owned(), Value::from(*value)));
        own["metadata"]["annotations"] = Value::Object(annotations.collect());
        let mut objects = vec![own, namespace("netpold-marker", &[])];
        objects.extend(self.nodes.iter().map(TestNode::manifest));
        objects.extend(self.nodes.iter().map(|node| marker(node.name(), self.state)));
        objects.extend(self.pods.values().map(|(_, pod)| {
            let mut manifest = pod.manifest();
            if self.pending.contains(pod.pod_name()) {
                manifest["status"] = json!({ "phase": "Pending" });
            }
            manifest
        }));
        objects.extend(self.policies.iter().map(|(name, spec)| network_policy(name, spec)));
        objects.extend(self.objects.iter().cloned());
        self.manifests.write_objects("state.json", &objects).unwrap();
    }

    /// Waits until the agents enforce the state written last.
    pub fn wait(&mut self) {
        for (number, agent) in self.agents.iter_mut().enumerate() {
            let here = self.pods.values().filter(|(node, _)| *node == number);
            let here = here.map(|(_, pod)| (pod.name().to_owned(), pod.host_ifindex()));
            let here = here.chain(self.deleted.clone()).collect();
            agent.wait_marker(self.state, &here, ENFORCED).unwrap();
        }
    }

    fn start_agent(&self, node: &TestNode) -> Agent {
        let options = AgentOptions {
            binary: binary(),
            manifests: self.manifests.directory().to_owned(),
            arguments: self.arguments.clone(),
        };
        Agent::start_prepared(node, options, self.prepare).unwrap()
    }

    /// Starts an ended agent again, and waits until it enforces.
    pub fn restart(&mut self, node: usize) {
        self.agents[node].restart(&self.nodes[node]).unwrap();
        self.wait();
    }

    /// A flow between pods after its first answer.
    #[must_use]
    pub fn flow(&self, from: &str, protocol: ProbeProtocol, to: IpAddr) -> TestFlow {
        let mut flow = self.pod(from).open_flow(protocol, (to, PORT).into(), PATIENCE).unwrap();
        assert!(flow.ping(PATIENCE), "{protocol} from {from} to {to} is answered");
        flow
    }

    /// Makes the hardware address of `to` permanent at the senders on its link: `from` or the node. A closed pod, or
    /// one with a hidden address, answers no neighbour requests; after three seconds the kernel reports it unreachable,
    /// and on a slow machine a probe would see that report instead of the verdict.
    pub fn keep_neighbour(&self, from: &str, to: &str) {
        let (node, to) = &self.pods[to];
        let batch = |device: &str| -> String {
            let of =
                |own| format!("neigh replace {own} lladdr {} dev {device}\n", mac_text(to.mac()));
            to.addresses().iter().map(of).collect()
        };
        self.pod(from).netns().ip(&batch("eth0")).unwrap();
        self.nodes[*node].netns().ip(&batch(to.host_interface())).unwrap();
    }

    /// Name of the interface of one of two nodes that leads to the other.
    #[must_use]
    pub fn link(&self, node: usize) -> String {
        let names = || {
            let all = nix::net::if_::if_nameindex().unwrap();
            all.iter().map(|i| i.name().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let names = self.nodes[node].run(names).unwrap();
        names.into_iter().find(|name| name.starts_with("link")).expect("a link")
    }

    /// Routes the other node's pods through a VXLAN device `vxlan9`, as Flannel does.
    pub fn tunnel(&self, node: usize) {
        let (here, there) = (node + 1, 2 - node);
        let [[own, _], [far, _]] = [node, 1 - node].map(|node| self.nodes[node].addresses());
        self.nodes[node]
            .netns()
            .ip(&format!(
                "link add vxlan9 address 0a:58:09:00:00:0{here} type vxlan id 9 local {own} \
                 remote {far} dstport 8472\n\
                 link set vxlan9 up\n\
                 address add 172.31.9.{here}/24 dev vxlan9\n\
                 address add fd00:9::{here}/64 dev vxlan9 nodad\n\
                 route replace 10.1.{there}.0/24 via 172.31.9.{there} dev vxlan9\n\
                 route replace fd00:1:{there}::/64 via fd00:9::{there} dev vxlan9\n"
            ))
            .unwrap();
    }

    /// Asserts that `from` reaches `to` over every protocol and family.
    #[track_caller]
    pub fn reaches(&self, from: &str, to: &str) {
        let to = self.pod(to);
        all_pass(self.pod(from), to, to.addresses());
    }

    /// Asserts that `from` reaches `to` over no protocol and family.
    #[track_caller]
    pub fn denied(&self, from: &str, to: &str) {
        let to = self.pod(to);
        none_pass(self.pod(from), to, to.addresses());
    }
}

/// Path of the agent under test: cargo builds it with the integration tests of its package, one folder above them.
#[must_use]
pub fn binary() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let binary = test.parent().and_then(Path::parent).unwrap().join("netpold");
    assert!(
        binary.is_file(),
        "no agent at {}: only tests of its package have it",
        binary.display()
    );
    binary
}

/// Waits until a condition holds, and panics with the text of `failure` after `patience`.
#[track_caller]
pub fn eventually(
    patience: Duration,
    condition: impl FnMut() -> bool,
    failure: impl Fn() -> String,
) {
    eventually_at(Duration::from_millis(20), patience, condition, failure);
}

/// [`eventually`] with another interval between two checks, for conditions that cost an API server's time.
#[track_caller]
pub fn eventually_at(
    interval: Duration,
    patience: Duration,
    mut condition: impl FnMut() -> bool,
    failure: impl Fn() -> String,
) {
    let deadline = Instant::now() + patience;
    while !condition() {
        assert!(Instant::now() < deadline, "{}", failure());
        std::thread::sleep(interval);
    }
}

/// Makes a mounted file system read-only (`ro`) or writable (`rw`).
pub fn remount(path: &Path, how: &str) {
    let options = format!("remount,{how}");
    let done = Command::new("mount").args(["-o", &options]).arg(path).status().unwrap();
    assert!(done.success());
}

fn serve(host: &Host) {
    ProbeProtocol::WITH_PORTS.into_iter().for_each(|protocol| host.serve(protocol, PORT).unwrap());
}

fn probes<'a>(from: &'a Host, addresses: &[IpAddr]) -> Vec<ReachProbe<'a>> {
    let of = |to: &IpAddr| ALL.map(|protocol| ReachProbe { from, protocol, to: *to, port: PORT });
    addresses.iter().flat_map(of).collect()
}

/// Asserts that `to` answers every protocol at these addresses.
#[track_caller]
pub fn all_pass(from: &Host, to: &Host, addresses: &[IpAddr]) {
    let probes = probes(from, addresses);
    for (probe, result) in probes.iter().zip(probe_all(&probes, PATIENCE)) {
        let name = if probe.protocol == ProbeProtocol::Icmp { "" } else { to.name() };
        let expected = ProbeResult::Connected(name.into());
        assert_eq!(result, expected, "{} to {name} {}, {}", from.name(), probe.to, probe.protocol);
    }
}

/// Asserts that `to` answers no protocol at these addresses.
#[track_caller]
pub fn none_pass(from: &Host, to: &Host, addresses: &[IpAddr]) {
    let probes = probes(from, addresses);
    for (probe, result) in probes.iter().zip(probe_all(&probes, MOMENT)) {
        let (from, to) = (from.name(), to.name());
        assert!(result.dropped(), "{from} to {to} {}, {}: {result}", probe.to, probe.protocol);
    }
}

/// A NetworkPolicy of [`NAMESPACE`].
#[must_use]
pub fn network_policy(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "namespace": NAMESPACE, "name": name },
        "spec": spec,
    })
}

/// Spec of a policy that isolates pods of an app in these directions.
#[must_use]
pub fn isolate(app: &str, directions: &[&str]) -> Value {
    json!({ "podSelector": { "matchLabels": { "app": app } }, "policyTypes": directions })
}

/// Spec of a policy that allows ingress to an app from another one alone.
#[must_use]
pub fn allow_from(app: &str, peer: &str) -> Value {
    let peer = json!({ "podSelector": { "matchLabels": { "app": peer } } });
    json!({ "podSelector": { "matchLabels": { "app": app } }, "ingress": [{ "from": [peer] }] })
}

/// Spec of a policy that allows egress of an app to another one alone.
#[must_use]
pub fn allow_to(app: &str, peer: &str) -> Value {
    let peer = json!({ "podSelector": { "matchLabels": { "app": peer } } });
    json!({
        "podSelector": { "matchLabels": { "app": app } },
        "policyTypes": ["Egress"],
        "egress": [{ "to": [peer] }],
    })
}
