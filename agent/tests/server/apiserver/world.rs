//! Cluster of one node and a control plane, with an agent that has only its own rights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use netpold_testbed::cluster::{MOMENT, eventually};
pub(crate) use netpold_testbed::cluster::{NAMESPACE, PORT, allow_from, network_policy};
use netpold_testbed::{
    Agent, AgentOptions, ApiServer, Cni, Credential, PodSpec, ProbeProtocol, TestNode, TestPod,
    link_nodes, require_apiserver, require_root,
};
use serde_json::{Value, json};

/// Deadline of an expected change, long enough for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
/// Interval between two requests to the API server.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);
/// User name of the agent's service account.
pub(crate) const USER: &str = "system:serviceaccount:netpold-system:netpold";
/// Seconds of silence after which the agent drops a connection.
const API_TIMEOUT: &str = "4";

/// Test cluster. The order of the fields is the order of their drop.
pub(crate) struct World {
    pub(crate) agent: Option<Agent>,
    pub(crate) server: ApiServer,
    pods: BTreeMap<String, TestPod>,
    pub(crate) node: TestNode,
    pub(crate) control: TestNode,
}

/// Second node of the cluster. The order of the fields is the order of their drop.
pub(crate) struct Elsewhere {
    pub(crate) agent: Agent,
    pub(crate) pod: TestPod,
    _node: TestNode,
}

impl World {
    /// Creates a node and a control plane without an agent; `None` where the test cannot run.
    pub(crate) fn new(test: &str) -> Option<Self> {
        if !require_root(test) || !require_apiserver(test) {
            return None;
        }
        let control = TestNode::new("control", Cni::Ptp, "10.9.0.0/24", "fd00:9::/64").unwrap();
        let node = TestNode::new("n1", Cni::Ptp, "10.9.1.0/24", "fd00:9:1::/64").unwrap();
        link_nodes(&control, &node).unwrap();
        let server = ApiServer::start_on(&control).unwrap();
        let world = Self { agent: None, server, pods: BTreeMap::new(), node, control };
        world.server.create_namespace("netpold-system").unwrap();
        world.server.create_namespace(NAMESPACE).unwrap();
        world.server.apply(&std::fs::read_to_string(rbac_file()).unwrap()).unwrap();
        world.server.define(&std::fs::read_to_string(base("crds.yaml")).unwrap()).unwrap();
        world.create(world.node.manifest());
        world.rotate_token();
        Some(world)
    }

    /// Creates an object and writes its status, as two requests: the first ignores the status.
    pub(crate) fn create(&self, object: Value) {
        self.create_alone(&object);
        self.server.write_status(&object).unwrap();
    }

    fn create_alone(&self, object: &Value) {
        self.server.create(object).unwrap();
    }

    /// Creates a pod with the label `app=<name>`: its object, its namespace, its status.
    pub(crate) fn add(&mut self, name: &str) {
        self.add_with(name, |_| ());
    }

    /// Does the same as [`World::add`], with `change` applied to the object.
    pub(crate) fn add_with(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        let spec = PodSpec::new(NAMESPACE, name).label("app", name);
        let pod = self.node.add_pod(&spec).unwrap();
        pod.serve(ProbeProtocol::Tcp, PORT).unwrap();
        let mut object = pod.manifest();
        change(&mut object);
        self.create(object);
        self.pods.insert(name.to_owned(), pod);
    }

    /// Creates many pods, each with the label `app=<name>`, without a listener. Writes their objects to etcd, past
    /// the API server.
    pub(crate) fn add_all(&mut self, names: impl Iterator<Item = String>) {
        let mut objects = Vec::new();
        for name in names {
            let spec = PodSpec::new(NAMESPACE, &name).label("app", &name);
            let pod = self.node.add_pod(&spec).unwrap();
            let key = format!("/registry/pods/{NAMESPACE}/{name}");
            objects.push((key, Some(pod.manifest().to_string())));
            self.pods.insert(name, pod);
        }
        self.server.etcd().write(&objects).unwrap();
    }

    pub(crate) fn pod(&self, name: &str) -> &TestPod {
        &self.pods[name]
    }

    /// Removes a pod's object from the API server, then its namespace and interface.
    pub(crate) fn delete(&mut self, name: &str) {
        let now = ["delete", "pod", name, "-n", NAMESPACE, "--grace-period=0", "--force"];
        self.server.kubectl(&now).unwrap();
        self.pods.remove(name).unwrap().delete().unwrap();
    }

    /// Applies a policy for the pods with the label `app=<name>`.
    pub(crate) fn policy(&self, name: &str, spec: Value) {
        self.server.replace(&network_policy(name, &spec)).unwrap();
    }

    /// Stores policies as an API server of Kubernetes 1.20 does, past the one that runs: since 1.36 it refuses some CIDRs
    /// (IPv4-mapped ones) in new policies, and keeps those of earlier ones.
    pub(crate) fn store(&mut self, policies: &[Value]) {
        let object = |policy: &Value| {
            static STORED: AtomicU32 = AtomicU32::new(0);
            let (mut policy, number) = (policy.clone(), STORED.fetch_add(1, Ordering::Relaxed));
            policy["metadata"]["uid"] = json!(format!("00000000-0000-4000-8000-{number:012}"));
            policy["metadata"]["generation"] = json!(1);
            policy["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
            policy["spec"]["policyTypes"] = json!(["Ingress"]);
            let text = |field: &str| policy["metadata"][field].as_str().unwrap().to_owned();
            let key = format!("/registry/networkpolicies/{}/{}", text("namespace"), text("name"));
            (key, Some(policy.to_string()))
        };
        self.server.etcd().write(&policies.iter().map(object).collect::<Vec<_>>()).unwrap();
    }

    pub(crate) fn without_policy(&self, name: &str) {
        self.server.kubectl(&["delete", "networkpolicy", name, "-n", NAMESPACE]).unwrap();
    }

    /// Writes a new token to the agent's token file.
    pub(crate) fn rotate_token(&self) {
        let token = self.server.token("netpold-system", "netpold").unwrap();
        let new = self.token_file().with_extension("new");
        std::fs::write(&new, token).unwrap();
        std::fs::rename(new, self.token_file()).unwrap();
    }

    pub(crate) fn token_file(&self) -> PathBuf {
        self.server.directory().join("token")
    }

    /// Starts the agent; the API server may be unreachable.
    pub(crate) fn start_agent(&mut self) {
        self.start_agent_in_cluster(&[]);
    }

    /// Starts the agent with further arguments.
    pub(crate) fn start_agent_in_cluster(&mut self, more: &[&str]) {
        self.agent = Some(self.agent_in_cluster(&self.node, more));
    }

    /// Returns an agent of any node of this cluster.
    fn agent_in_cluster(&self, node: &TestNode, more: &[&str]) -> Agent {
        let access = Credential::TokenFile(&self.token_file());
        let kubeconfig = self.server.write_kubeconfig("agent.kubeconfig", &access).unwrap();
        let arguments = [&["--kubeconfig", kubeconfig.to_str().unwrap()], more].concat();
        self.agent_with(node, &arguments, binary().into())
    }

    pub(crate) fn start_agent_with(&mut self, arguments: &[&str], binary: PathBuf) {
        self.agent = Some(self.agent_with(&self.node, arguments, binary));
    }

    fn agent_with(&self, node: &TestNode, arguments: &[&str], binary: PathBuf) -> Agent {
        let results = self.results();
        let results = ["--cni-results", results.to_str().unwrap()];
        let has_timeout = arguments.contains(&"--api-timeout");
        let timeout = if has_timeout { &[][..] } else { &["--api-timeout", API_TIMEOUT] };
        let arguments = [arguments, timeout, &results[..]].concat();
        let options = AgentOptions {
            binary,
            manifests: PathBuf::new(),
            arguments: arguments.into_iter().map(str::to_owned).collect(),
        };
        Agent::start(node, options).unwrap()
    }

    /// Adds a node with an agent and a pod with the label `app`. `number` must differ between nodes.
    pub(crate) fn add_node(&self, number: u8, app: &str) -> Elsewhere {
        let name = format!("n{number}");
        let [v4, v6] = [format!("10.9.{number}.0/24"), format!("fd00:9:{number}::/64")];
        let node = TestNode::new(&name, Cni::Ptp, &v4, &v6).unwrap();
        link_nodes(&self.control, &node).unwrap();
        link_nodes(&self.node, &node).unwrap();
        self.create(node.manifest());
        let spec = PodSpec::new(NAMESPACE, &format!("{app}-{name}")).label("app", app);
        let pod = node.add_pod(&spec).unwrap();
        pod.serve(ProbeProtocol::Tcp, PORT).unwrap();
        self.create(pod.manifest());
        Elsewhere { agent: self.agent_in_cluster(&node, &[]), pod, _node: node }
    }

    /// Directory in which the agent looks for results of CNI plugins.
    fn results(&self) -> PathBuf {
        self.server.directory().join("results")
    }

    /// Creates the object of a pod scheduled to the node, without a sandbox. Returns its UID.
    pub(crate) fn schedule(&self, name: &str) -> String {
        let mut object = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "namespace": NAMESPACE, "name": name, "labels": { "app": name } },
        });
        object["spec"] = json!({
            "nodeName": self.node.name(),
            "containers": [{ "name": "main", "image": "example/main" }],
        });
        self.create_alone(&object);
        let pod = self.server.get("pod", NAMESPACE, name).unwrap().unwrap();
        pod["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Creates the sandbox of a scheduled pod as its runtime does, without a status at the API server.
    pub(crate) fn make_sandbox(&mut self, name: &str, uid: &str) {
        let spec = PodSpec::new(NAMESPACE, name).label("app", name);
        let pod = self.node.add_pod(&spec).unwrap();
        pod.serve(ProbeProtocol::Tcp, PORT).unwrap();
        std::fs::create_dir_all(self.results()).unwrap();
        let file = self.results().join(format!("testbed-{uid}-eth0"));
        std::fs::write(file, pod.cni_result(uid).to_string()).unwrap();
        self.pods.insert(name.to_owned(), pod);
    }

    pub(crate) fn agent(&mut self) -> &mut Agent {
        self.agent.as_mut().unwrap()
    }

    /// Waits until the agent enforces and its status fulfils a condition.
    pub(crate) fn wait(&mut self, what: &str, mut condition: impl FnMut(&Value) -> bool) -> Value {
        let both = |status: &Value| Agent::enforces(status) && condition(status);
        self.agent().wait_for(what, PATIENCE, both).unwrap()
    }

    /// Waits until `from` reaches `to`, or until it does not.
    #[track_caller]
    pub(crate) fn becomes(&self, from: &str, to: &str, reachable: bool) {
        let log = || self.agent.as_ref().map(Agent::log).unwrap_or_default();
        let failure = || format!("{from} to {to}: not {reachable}\n{}", log());
        eventually(PATIENCE, || self.reaches(from, to) == reachable, failure);
    }

    /// Returns whether the connection opens over both IP families.
    #[track_caller]
    pub(crate) fn reaches(&self, from: &str, to: &str) -> bool {
        self.reaches_pod(from, self.pod(to))
    }

    /// Returns whether the connection to a pod of any node opens over both IP families.
    pub(crate) fn reaches_pod(&self, from: &str, to: &TestPod) -> bool {
        let from = self.pod(from);
        let results =
            to.addresses().iter().map(|a| from.probe(ProbeProtocol::Tcp, *a, PORT, MOMENT));
        let connected: Vec<bool> = results.map(|result| result.connected()).collect();
        connected.iter().all(|one| *one)
    }

    /// Drops packets from the control plane to the node, or stops dropping them.
    pub(crate) fn partition(&self, apart: bool) {
        let [v4, _] = self.node.addresses();
        let verb = if apart { "add" } else { "del" };
        let rules = format!("rule {verb} pref 10 to {v4}/32 blackhole\n");
        self.control.netns().ip(&rules).unwrap();
    }
}

/// Path of the agent under test.
pub(crate) fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_netpold")
}

/// Path of a file of the installation.
fn base(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base").join(name)
}

pub(crate) fn rbac_file() -> PathBuf {
    base("rbac.yaml")
}

/// Returns whether an interface of the pod is hooked and isolated for ingress.
pub(crate) fn isolated(status: &Value, pod: &str) -> bool {
    status["endpoints"].as_array().is_some_and(|all| {
        all.iter().any(|e| {
            e["pod"]["name"] == pod && !e["hook"].is_null() && e["isolated"][0] == "ingress"
        })
    })
}

/// Returns the status of a watched kind.
pub(crate) fn kind<'s>(status: &'s Value, name: &str) -> &'s Value {
    let kinds = status["source"]["kinds"].as_array().unwrap();
    kinds.iter().find(|kind| kind["kind"] == name).unwrap()
}

/// Returns whether the status lists a problem with the given words.
pub(crate) fn complains(status: &Value, words: &str) -> bool {
    status["source"]["problems"].as_array().is_some_and(|all| {
        all.iter().any(|problem| problem["text"].as_str().is_some_and(|t| t.contains(words)))
    })
}
