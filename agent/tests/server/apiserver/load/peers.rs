//! Large clusters with peer slices and with a watch of all pods, for `deploy/scale.md`: an agent's start, rollouts, and
//! policies whose peers are all pods. `NETPOLD_SCALE` is the number of pods.
#![expect(clippy::print_stdout, reason = "measurements")]

use std::process::Stdio;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use netpold_testbed::apiserver::Meter;
use netpold_testbed::{Credential, KillOnDrop, ProbeProtocol, processor_time};
use serde_json::{Value, json};

use super::{AT_ONCE, NAMESPACES, namespace, resident};
use crate::apiserver::latency::client;
use crate::apiserver::world::{NAMESPACE, PORT, World, binary, isolated, kind};
use crate::controller::peers;

/// Pods of a workload.
const WORKLOAD: usize = 50;
/// Pods that a rollout replaces.
const REPLACED: usize = 1_000;
const ROLLOUT: Duration = Duration::from_secs(10);
/// Steps of a rollout.
const STEPS: usize = 100;
/// Deadline of each part.
const LONGEST: Duration = Duration::from_mins(10);
/// Time after which an agent has released the memory of its start.
const SETTLED: Duration = Duration::from_secs(20);
/// Keys under which the API server stores slices.
const SLICES: &str = "/registry/netpold.io/peerslices/";

/// Origin of an agent's peers.
#[derive(Clone, Copy, Debug)]
enum LoadedPeers {
    AllPods,
    Slices,
}

const BOTH: [LoadedPeers; 2] = [LoadedPeers::AllPods, LoadedPeers::Slices];

impl LoadedPeers {
    const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::AllPods => &["--peers", "pods"],
            Self::Slices => &["--peers", "slices"],
        }
    }
}

/// Pod on another node, in one of its lives: each rollout gives it another name and address.
#[derive(Clone, Copy)]
struct PeerPod {
    number: usize,
    life: usize,
    /// Number of all pods.
    pods: usize,
}

/// Stage of a pod's life.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum PodStage {
    Scheduled,
    Running,
    Ready,
    Terminating,
}

impl PeerPod {
    const fn workload(self) -> usize {
        self.number / WORKLOAD
    }

    fn name(self) -> String {
        format!("workload-{}-7d4b9c{:x}-{:06x}", self.workload(), self.life, self.number)
    }

    fn key(self) -> String {
        format!("/registry/pods/{}/{}", namespace(self.workload()), self.name())
    }

    fn address(self) -> String {
        let offset = self.number + self.life * self.pods;
        format!("10.{}.{}.{}", 128 + offset / 65_536, offset / 256 % 256, offset % 256)
    }

    fn status(self, stage: PodStage) -> Value {
        let mut conditions = vec![json!({ "type": "PodScheduled", "status": "True" })];
        if stage >= PodStage::Ready {
            conditions.push(json!({ "type": "Ready", "status": "True" }));
        }
        let mut status = json!({ "phase": "Pending", "conditions": conditions });
        if stage >= PodStage::Running {
            status["phase"] = json!("Running");
            status["podIP"] = json!(self.address());
            status["podIPs"] = json!([{ "ip": self.address() }]);
        }
        status
    }

    /// Returns the object with this many variables in its container's environment: 60 make it as large as the pod of a
    /// usual Deployment.
    fn object(self, stage: PodStage, variables: usize) -> Value {
        let env: Vec<Value> = (0..variables)
            .map(|n| json!({ "name": format!("VARIABLE_{n}"), "value": format!("a value of some length, {n:032}") }))
            .collect();
        let mut metadata = json!({
            "namespace": namespace(self.workload()), "name": self.name(),
            "uid": format!("5f3c9a1e-{:04x}-4c6f-8000-{:012x}", self.life, self.number),
            "creationTimestamp": "2026-11-01T00:00:00Z",
            "labels": {
                "app": format!("workload-{}", self.workload()), "tier": "web",
                "first-new": "1", "second-new": "1",
            },
        });
        if stage == PodStage::Terminating {
            metadata["deletionTimestamp"] = json!("2026-11-01T01:00:00Z");
            metadata["deletionGracePeriodSeconds"] = json!(30);
        }
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {
                "nodeName": format!("other{}", self.number % 1_000),
                "containers": [{ "name": "main", "image": "example/main", "env": env }],
            },
            "status": self.status(stage),
        })
    }

    fn entry(self, stage: PodStage, variables: usize) -> (String, Option<String>) {
        (self.key(), Some(self.object(stage, variables).to_string()))
    }
}

/// Costs of all processes since their start.
#[derive(Clone, Copy)]
struct ClusterCosts {
    at: Instant,
    received: u64,
    writes: usize,
    etcd_bytes: u64,
    agent: Duration,
    controller: Duration,
    apiserver: Duration,
    etcd: Duration,
}

/// Cluster with a controller, and with an agent whose traffic is counted.
struct LargeCluster {
    controller: Option<KillOnDrop>,
    meter: Meter,
    world: World,
    pods: usize,
}

impl LargeCluster {
    fn new(test: &str, pods: usize) -> Option<Self> {
        let scale = std::env::var("NETPOLD_SCALE").ok().and_then(|scale| scale.parse().ok());
        let mut world = World::new(test)?;
        for number in 0..NAMESPACES {
            world.server.create_namespace(&namespace(number)).unwrap();
        }
        for right in peers::rights() {
            world.server.apply(&right.to_string()).unwrap();
        }
        world.add("server");
        world.add_with("friend", |pod| {
            pod["metadata"]["labels"] =
                json!({ "app": "friend", "tier": "web", "first-new": "1", "second-new": "1" });
        });
        let meter = world.server.meter().unwrap();
        Some(Self { controller: None, meter, world, pods: scale.unwrap_or(pods) })
    }

    const fn pod(&self, number: usize, life: usize) -> PeerPod {
        PeerPod { number, life, pods: self.pods }
    }

    fn write(&mut self, entries: &[(String, Option<String>)]) {
        self.world.server.etcd().write(entries).unwrap();
    }

    /// Writes all pods to etcd.
    fn fill(&mut self, stage: PodStage, variables: usize) {
        for first in (0..self.pods).step_by(1_000) {
            let part = first..(first + 1_000).min(self.pods);
            let part: Vec<_> = part.map(|n| self.pod(n, 0).entry(stage, variables)).collect();
            self.write(&part);
        }
    }

    /// Writes the status of all pods by the API server, which then stores them in its own form.
    fn run_all(&self) {
        let write = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(self.write_statuses());
        };
        self.world.server.inside(write).unwrap();
    }

    async fn write_statuses(&self) {
        let client = client(&self.world).await;
        let pods = (0..self.pods).map(|number| self.pod(number, 0));
        let writes = stream::iter(pods).map(|pod| {
            let api = Api::<Pod>::namespaced(client.clone(), &namespace(pod.workload()));
            let status = json!({ "status": pod.status(PodStage::Ready) });
            async move {
                let params = PatchParams::default();
                api.patch_status(&pod.name(), &params, &Patch::Merge(&status)).await
            }
        });
        let written = writes.buffer_unordered(AT_ONCE).map_ok(drop);
        written.try_collect::<Vec<()>>().await.unwrap();
    }

    /// Starts a controller, with administrator rights, and waits until the index has a label.
    fn start_controller(&mut self, label: &str) {
        let begin = Instant::now();
        let log = self.world.server.directory().join("controller.log");
        let log = std::fs::File::create(log).unwrap();
        let mut command = self.world.control.command(binary()).unwrap();
        command.args(["controller", "--identity", "one", "--webhook-listen", "127.0.0.1:0"]);
        command.args(["--peer-slices", "on", "--kubeconfig"]).arg(self.world.server.admin());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.controller = Some(KillOnDrop(command.spawn().unwrap()));
        self.wait_index(label);
        let pid = self.controller.as_ref().unwrap().0.id();
        println!(
            "the controller has written {} slices with {label} after {:.1?}, {:.1?} of processor, {} MiB",
            self.writes(),
            begin.elapsed(),
            processor_time(pid).unwrap(),
            resident(pid) / 1024
        );
    }

    fn wait_index(&self, label: &str) {
        let begin = Instant::now();
        let get = [
            "get",
            "peerslice",
            "index",
            "--ignore-not-found",
            "-o",
            "jsonpath={.spec.vocabulary.labelKeys}",
        ];
        while !self
            .world
            .server
            .kubectl(&get)
            .is_ok_and(|keys| keys.contains(&format!("\"{label}\"")))
        {
            assert!(begin.elapsed() < LONGEST, "{label} is not in the index");
            std::thread::sleep(Duration::from_millis(250));
        }
    }

    fn writes(&self) -> usize {
        let requests = self.world.server.requests("admin").unwrap();
        let is_write = |verb: &str| ["create", "update", "delete"].contains(&verb);
        let slices = requests.iter().filter(|it| it.resource == "peerslices" && is_write(&it.verb));
        let has_pods = |uri: &str| !uri.contains("/heartbeat") && !uri.contains("/index");
        // The URI of a creation has no name.
        slices.filter(|it| it.code < 300 && has_pods(&it.uri)).count()
    }

    fn costs(&mut self) -> ClusterCosts {
        let of =
            |pid: Option<u32>| pid.and_then(|pid| processor_time(pid).ok()).unwrap_or_default();
        let etcd = self.world.server.etcd().pid();
        let io = std::fs::read_to_string(format!("/proc/{etcd}/io")).unwrap();
        let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap();
        ClusterCosts {
            at: Instant::now(),
            received: self.meter.passed().received,
            etcd_bytes: written.trim().parse().unwrap(),
            agent: of(self.world.agent.as_ref().map(netpold_testbed::Agent::pid)),
            controller: of(self.controller.as_ref().map(|controller| controller.0.id())),
            apiserver: of(Some(self.world.server.pid())),
            etcd: of(Some(etcd)),
            writes: self.writes(),
        }
    }

    fn print(&mut self, title: &str, before: ClusterCosts) {
        let now = self.costs();
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let load = std::fs::read_to_string("/proc/loadavg").unwrap();
        println!(
            "{title}: {:.1?}; {:.2} MB received; {} writes of slices; processor: agent {:.2?}, controller {:.2?}, API \
             server {:.2?}, etcd {:.2?}; etcd wrote {:.1} MB; agent {} MiB, controller {} MiB; load {}",
            now.at - before.at,
            megabytes(now.received - before.received),
            now.writes - before.writes,
            now.agent.saturating_sub(before.agent),
            now.controller.saturating_sub(before.controller),
            now.apiserver.saturating_sub(before.apiserver),
            now.etcd.saturating_sub(before.etcd),
            megabytes(now.etcd_bytes - before.etcd_bytes),
            self.world.agent.as_ref().map_or(0, |agent| resident(agent.pid()) / 1024),
            self.controller.as_ref().map_or(0, |controller| resident(controller.0.id()) / 1024),
            load.split_whitespace().next().unwrap(),
        );
    }

    /// Starts an agent without any state of a former one, and waits until it enforces.
    fn start_agent(&mut self, from: LoadedPeers) {
        self.world.agent = None;
        let idle = self.costs();
        std::thread::sleep(SETTLED);
        self.print("no agent", idle);
        let access = Credential::TokenFile(&self.world.token_file());
        let url = self.meter.url();
        let kubeconfig =
            self.world.server.write_kubeconfig_to(&url, "metered.kubeconfig", &access).unwrap();
        let kubeconfig = ["--kubeconfig", kubeconfig.to_str().unwrap(), "--api-timeout", "60"];
        let before = self.costs();
        let begin = Instant::now();
        self.world.start_agent_with(&[&kubeconfig[..], from.arguments()].concat(), binary().into());
        let expected = self.pods as u64 + 2;
        let is_there = |status: &Value| {
            netpold_testbed::Agent::enforces(status)
                && isolated(status, "server")
                && kind(status, "pods")["objects"] == expected
        };
        self.world.agent().wait_for("enforcing", LONGEST, is_there).unwrap();
        let enforced = begin.elapsed();
        std::thread::sleep(SETTLED.saturating_sub(enforced));
        self.print(&format!("start with {from:?}, enforced after {enforced:.1?}"), before);
        assert!(self.is_allowed(self.pod(self.pods - 1, 0)));
    }

    /// Returns the agent's verdict about connections of a pod of another node to the server.
    fn is_allowed(&self, pod: PeerPod) -> bool {
        let port = PORT.to_string();
        let to = format!("{NAMESPACE}/server");
        let from = pod.address();
        let agent = self.world.agent.as_ref().unwrap();
        let arguments = ["explain", "--from", &from, "--to", &to, "--port", &port];
        let output = agent.command(&arguments).output().unwrap();
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 1)), "{output:?}");
        code == Some(0)
    }

    /// Replaces pods in [`ROLLOUT`]: each new one is scheduled, runs, and is ready; then the old one terminates, and is
    /// deleted.
    fn roll_out(&mut self, title: &str, life: usize, replaced: impl Fn(usize) -> (usize, usize)) {
        const STAGES: usize = 5;
        // Half a second between two stages of a pod.
        const SPACING: usize = STEPS / 20;
        let before = self.costs();
        let begin = Instant::now();
        for step in 0..STEPS + STAGES * SPACING {
            let mut entries = Vec::new();
            for stage in 0..STAGES {
                let at = step.checked_sub(stage * SPACING).filter(|at| *at < STEPS);
                let Some(at) = at else { continue };
                let part = at * REPLACED / STEPS..(at + 1) * REPLACED / STEPS;
                for (number, before) in part.map(&replaced) {
                    let (new, old) = (self.pod(number, life), self.pod(number, before));
                    entries.push(match stage {
                        0 => new.entry(PodStage::Scheduled, 60),
                        1 => new.entry(PodStage::Running, 60),
                        2 => new.entry(PodStage::Ready, 60),
                        3 => old.entry(PodStage::Terminating, 60),
                        _ => (old.key(), None),
                    });
                }
            }
            self.write(&entries);
            let due = begin + ROLLOUT * (step as u32 + 1) / STEPS as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let took = begin.elapsed();
        let (number, old) = replaced(REPLACED - 1);
        while !self.is_allowed(self.pod(number, life)) || self.is_allowed(self.pod(number, old)) {
            assert!(begin.elapsed() < LONGEST, "the agent lacks the last change");
            std::thread::sleep(Duration::from_millis(200));
        }
        let known = begin.elapsed().saturating_sub(took);
        std::thread::sleep(Duration::from_secs(5));
        self.print(&format!("{title} in {took:.1?}, the last one known after {known:.1?}"), before);
    }

    /// Applies a policy for the server whose peers are the pods with a label in all namespaces, and waits until it is in
    /// force for the packets of a local pod.
    fn open(&mut self, from: LoadedPeers, label: &str) {
        let before = self.costs();
        let begin = Instant::now();
        self.world.policy("open", spec("server", &[label]));
        let applied = begin.elapsed();
        let to = self.world.pod("server").ip4().unwrap();
        let moment = Duration::from_millis(20);
        let friend = self.world.pod("friend");
        while !friend.probe(ProbeProtocol::Tcp, to, PORT, moment).connected() {
            assert!(begin.elapsed() < LONGEST, "{}", self.world.agent.as_ref().unwrap().log());
        }
        let took = begin.elapsed();
        assert!(self.is_allowed(self.pod(self.pods - 1, 0)));
        let title = format!(
            "{from:?}: a policy with all pods by {label}, applied after {applied:.3?}, in force after {took:.3?}"
        );
        self.print(&title, before);
        let log = self.world.agent().log();
        let origins = log.lines().filter(|line| line.contains("all pods"));
        origins.for_each(|line| println!("    {line}"));
    }

    /// Measures a time in which nothing changes, and the controller reads all slices once.
    fn rest(&mut self) {
        let before = self.costs();
        std::thread::sleep(Duration::from_secs(75));
        self.print("no change, agent with slices", before);
    }

    fn print_contents(&mut self) {
        let [count, bytes, longest] = self.world.server.etcd().contents(SLICES).unwrap();
        println!("{count} objects of slices in etcd have {bytes} bytes, the longest {longest}");
    }
}

/// Spec of a policy with the pods of all namespaces that have these labels as peers.
fn spec(app: &str, labels: &[&str]) -> Value {
    let expressions: Vec<Value> =
        labels.iter().map(|label| json!({ "key": label, "operator": "Exists" })).collect();
    let peer =
        json!({ "namespaceSelector": {}, "podSelector": { "matchExpressions": expressions } });
    json!({ "podSelector": { "matchLabels": { "app": app } }, "ingress": [{ "from": [peer] }] })
}

#[test]
#[ignore = "a measurement, not a test"]
fn starts_and_rollouts_of_a_large_cluster() {
    let test = "starts_and_rollouts_of_a_large_cluster";
    let Some(mut cluster) = LargeCluster::new(test, 20_000) else { return };
    cluster.world.policy("open", spec("server", &["app", "tier"]));
    let begin = Instant::now();
    cluster.fill(PodStage::Scheduled, 60);
    cluster.run_all();
    println!("{} pods after {:.0?}", cluster.pods, begin.elapsed());
    cluster.start_controller("tier");
    let workloads = cluster.pods / WORKLOAD;
    let mut lives = vec![0; cluster.pods];
    for (turn, from) in BOTH.into_iter().enumerate() {
        cluster.start_agent(from);
        let whole = |n: usize| turn * REPLACED + n;
        let scattered = |n: usize| {
            let workload = n % 200 * (workloads / 200);
            workload * WORKLOAD + n / 200 + 10 + 5 * turn
        };
        let life = 1 + 2 * turn;
        let before = lives.clone();
        cluster.roll_out(&format!("{from:?}: whole workloads"), life, |n| {
            (whole(n), before[whole(n)])
        });
        (0..REPLACED).for_each(|n| lives[whole(n)] = life);
        let (life, before) = (life + 1, lives.clone());
        cluster.roll_out(&format!("{from:?}: scattered pods"), life, |n| {
            (scattered(n), before[scattered(n)])
        });
        (0..REPLACED).for_each(|n| lives[scattered(n)] = life);
    }
    cluster.print_contents();
    cluster.rest();
}

#[test]
#[ignore = "a measurement, not a test"]
fn a_policy_with_all_pods_of_a_large_cluster() {
    let test = "a_policy_with_all_pods_of_a_large_cluster";
    let Some(mut cluster) = LargeCluster::new(test, 158_000) else { return };
    // A policy without a pod has both labels, so that slices have them.
    cluster.world.policy("nobody", spec("nobody", &["app", "tier"]));
    cluster.world.policy("open", spec("server", &["app"]));
    let begin = Instant::now();
    cluster.fill(PodStage::Ready, 0);
    println!("{} pods after {:.0?}", cluster.pods, begin.elapsed());
    cluster.start_controller("tier");
    for (from, new) in BOTH.into_iter().zip(["first-new", "second-new"]) {
        cluster.world.policy("open", spec("server", &["app"]));
        cluster.start_agent(from);
        for label in ["tier", new] {
            cluster
                .world
                .policy("open", json!({ "podSelector": { "matchLabels": { "app": "server" } } }));
            let to = cluster.world.pod("server").ip4().unwrap();
            let closed = || {
                let friend = cluster.world.pod("friend");
                friend.probe(ProbeProtocol::Tcp, to, PORT, Duration::from_millis(300)).dropped()
            };
            netpold_testbed::cluster::eventually(LONGEST, closed, || "not closed".into());
            std::thread::sleep(Duration::from_secs(3));
            cluster.open(from, label);
        }
    }
    cluster.print_contents();
    cluster.rest();
}
