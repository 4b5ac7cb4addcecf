//! Peer slices beside a watch of all pods: bytes, writes, and times until changes are in force.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netpold_core::model::Key;
use netpold_kube::cluster::{FollowedNodes, FollowedPeers, PeerTimes, Settings};
use netpold_testbed::apiserver::Meter;
use netpold_testbed::{Access as Proof, ApiServer, processor_time};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::follower::{Follower, InForce};
use super::objects::{Cluster, Phase, node_name};
use super::{PATIENCE, SILENCE, access, agents_token, fill, rollout};
use crate::agent;
use crate::control::percentile;
use crate::figures::{say, table};

/// Changes of pods whose times are measured, and the time between two.
const CHANGES: (u32, Duration) = (150, Duration::from_millis(400));
/// Workloads of a rollout of whole ones, and of a scattered one, of other workloads.
const WHOLE: u32 = 20;
const SCATTERED: u32 = 200;
/// Time without any write of slices after which all are written.
const CALM: Duration = Duration::from_secs(5);

/// Results for one cluster; of each pair, the first is of a watch of all pods.
#[derive(Debug, Serialize)]
pub(crate) struct SliceLoad {
    cluster: Cluster,
    /// Agents of either kind.
    agents: u32,
    /// Seconds until the controller had written all slices.
    packed_seconds: f64,
    controller_memory_mb: f64,
    /// Slices with pods; mean and greatest bytes, as JSON.
    slices: usize,
    slice_bytes: [f64; 2],
    stages: Vec<SliceStage>,
    /// Milliseconds from a change of a remote pod to the state in force: p50, p99.
    change_ms: [[f64; 2]; 2],
    /// Milliseconds from a policy that selects all pods to the state in force, by a label that other policies name and by
    /// one that none does.
    known_policy_ms: [f64; 2],
    new_policy_ms: [f64; 2],
}

/// Bytes and writes in a time.
#[derive(Debug, Serialize)]
struct SliceStage {
    stage: &'static str,
    seconds: f64,
    /// Bytes received by an agent.
    received: [f64; 2],
    /// Writes of slices.
    writes: usize,
    /// Processor time of the API server.
    server_seconds: f64,
}

/// Agents of one kind.
struct Group {
    meter: Meter,
    agents: Vec<Follower>,
}

struct World {
    cluster: Cluster,
    // Dropped first, so that nobody notices the end of the server.
    runtime: Runtime,
    groups: Vec<Group>,
    controller: Controller,
    server: ApiServer,
}

struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Counters at one time.
struct Mark {
    received: Vec<u64>,
    writes: usize,
    server: Duration,
    at: Instant,
}

/// Measures with this many agents of each kind.
pub(crate) fn measure(nodes: u32, agents: u32, progress: &dyn Fn(&str)) -> Result<SliceLoad> {
    let cluster = Cluster::of(nodes);
    let tell = |text: &str| progress(&format!("slices, {nodes} nodes: {text}"));
    tell("an API server and its objects");
    let mut server = ApiServer::start()?;
    fill(&mut server, cluster)?;
    let token = prepare(&server)?;
    tell("the controller writes slices");
    let begin = Instant::now();
    let controller = controller(&server)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut world = World { cluster, runtime, groups: Vec::new(), controller, server };
    world.wait_written()?;
    let packed_seconds = begin.elapsed().saturating_sub(CALM).as_secs_f64();
    let (slices, slice_bytes) = world.sizes()?;
    tell(&format!("{slices} slices of {:.0} bytes in {packed_seconds:.0} s", slice_bytes[0]));
    let mut stages = Vec::new();
    for (name, peers) in [
        ("start, a watch of all pods", FollowedPeers::Pods),
        ("start, slices", FollowedPeers::Slices(PeerTimes::default())),
    ] {
        tell(name);
        let begin = world.mark()?;
        world.start(&token, agents, peers)?;
        stages.push(world.stage(name, begin)?);
    }
    tell("pods change");
    let change_ms = world.changes()?;
    tell(&format!("p50 and p99 of all pods and of slices, in ms: {change_ms:.0?}"));
    tell("policies with all pods");
    let label = "app.kubernetes.io/managed-by";
    let known_policy_ms = world.policy("known", "tier")?;
    let new_policy_ms = world.policy("new", label)?;
    world.wait_written()?;
    for (name, is_whole) in
        [("rollout, 20 whole workloads", true), ("rollout, 5 of each of 200", false)]
    {
        tell(name);
        let begin = world.mark()?;
        world.rollout(is_whole)?;
        let stage = world.stage(name, begin)?;
        tell(&format!("bytes: {:.0?}, writes: {}", stage.received, stage.writes));
        stages.push(stage);
    }
    let controller_memory_mb = memory(world.controller.0.id())?;
    Ok(SliceLoad {
        cluster,
        agents,
        packed_seconds,
        controller_memory_mb,
        slices,
        slice_bytes,
        stages,
        change_ms,
        known_policy_ms,
        new_policy_ms,
    })
}

/// Defines netpold's kinds and the agents' rights; returns a token of theirs.
fn prepare(server: &ApiServer) -> Result<String> {
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base/crds.yaml");
    server.define(&std::fs::read_to_string(crds).context("cannot read netpold's kinds")?)?;
    let token = agents_token(server)?;
    let role = ["create", "clusterrole", "peer-slices", "--verb=list,watch"];
    server.kubectl(&[&role[..], &["--resource=peerslices.netpold.io"]].concat())?;
    let binding = ["create", "clusterrolebinding", "peer-slices", "--clusterrole=peer-slices"];
    let account = ["--serviceaccount=netpold-system:netpold"];
    server.kubectl(&[&binding[..], &account].concat())?;
    Ok(token)
}

fn controller(server: &ApiServer) -> Result<Controller> {
    let log = std::fs::File::create(server.directory().join("controller.log"))?;
    let child = Command::new(agent::binary()?)
        .args(["controller", "--peer-slices", "on", "--webhook-listen", "127.0.0.1:0"])
        .arg("--kubeconfig")
        .arg(server.admin())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .context("cannot start the controller")?;
    Ok(Controller(child))
}

/// Returns the resident memory of a process, in MB.
fn memory(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().split(' ').next()).context("no VmRSS")?;
    Ok(kilobytes.parse::<f64>()? / 1e3)
}

impl World {
    /// Starts agents of one kind, and waits until they are in sync.
    fn start(&mut self, token: &str, agents: u32, peers: FollowedPeers) -> Result<()> {
        let meter = self.server.meter()?;
        let name = format!("agents-{}.kubeconfig", self.groups.len());
        let kubeconfig =
            self.server.write_kubeconfig_to(&meter.url(), &name, &Proof::Token(token))?;
        let start = |number| {
            let (access, node) = (access(&kubeconfig), node_name(number));
            let nodes = FollowedNodes::Needed;
            let settings = Settings { access, node, nodes, peers, cluster_policies: true };
            Follower::start(&self.runtime, settings)
        };
        let agents: Vec<Follower> = (0..agents).map(start).collect::<Result<_>>()?;
        let deadline = Instant::now() + PATIENCE;
        while let Some(late) = agents.iter().find(|one| !one.status.borrow().in_sync) {
            let problems = || late.status.borrow().problems.clone();
            ensure!(Instant::now() < deadline, "the agents are not in sync: {:?}", problems());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.groups.push(Group { meter, agents });
        Ok(())
    }

    fn writes(&self) -> Result<usize> {
        let requests = self.server.requests("")?;
        let is_write = |verb: &str| ["create", "update", "delete"].contains(&verb);
        let slices = requests.iter().filter(|it| it.resource == "peerslices" && it.code < 300);
        let is_beat = |uri: &str| uri.contains("/heartbeat");
        Ok(slices.filter(|it| is_write(&it.verb) && !is_beat(&it.uri)).count())
    }

    fn mark(&self) -> Result<Mark> {
        Ok(Mark {
            received: self.groups.iter().map(|group| group.meter.passed().received).collect(),
            writes: self.writes()?,
            server: processor_time(self.server.pid())?,
            at: Instant::now(),
        })
    }

    fn stage(&self, stage: &'static str, before: Mark) -> Result<SliceStage> {
        let seconds = before.at.elapsed().as_secs_f64();
        let now = self.mark()?;
        let received = [0, 1].map(|n: usize| {
            let before = before.received.get(n).copied().unwrap_or_default();
            let bytes = now.received.get(n).copied().unwrap_or_default() - before;
            bytes as f64 / self.groups.get(n).map_or(1, |group| group.agents.len()) as f64
        });
        let server_seconds = now.server.saturating_sub(before.server).as_secs_f64();
        Ok(SliceStage {
            stage,
            seconds,
            received,
            writes: now.writes - before.writes,
            server_seconds,
        })
    }

    /// Waits until the controller has written everything: there is a heartbeat, and no other write.
    fn wait_written(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let (mut writes, mut since) = (0, Instant::now());
        while since.elapsed() < CALM || writes == 0 {
            ensure!(Instant::now() < deadline, "the controller does not finish its slices");
            std::thread::sleep(Duration::from_millis(500));
            let now = self.writes()?;
            if now != writes {
                (writes, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    /// Returns the number of slices with pods, and their mean and greatest size.
    fn sizes(&self) -> Result<(usize, [f64; 2])> {
        let all = self.server.kubectl(&["get", "--raw", "/apis/netpold.io/v1alpha1/peerslices"])?;
        let all: Value = serde_json::from_str(&all)?;
        let items = all["items"].as_array().context("no list of slices")?;
        let pods = items.iter().filter(|item| item["spec"]["pods"].is_string());
        let sizes: Vec<f64> = pods.map(|item| item.to_string().len() as f64).collect();
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
        Ok((sizes.len(), [mean, percentile(&sizes, 1.0)]))
    }

    /// Relabels pods of other nodes; returns the times until that is in force.
    fn changes(&mut self) -> Result<[[f64; 2]; 2]> {
        let mut times = [Vec::new(), Vec::new()];
        let (changes, pause) = CHANGES;
        for number in 0..changes {
            let pod = self.cluster.pods - 1 - number * 7;
            let (key, object) = self.cluster.pod(pod, Phase::Running, 0);
            let mut object: Value = serde_json::from_str(&object.unwrap_or_default())?;
            object["metadata"]["labels"]["tier"] = json!(format!("changed-{number}"));
            let name = key.rsplit('/').take(2).collect::<Vec<_>>();
            let [name, namespace] = name[..] else { continue };
            let changed = Key::new(namespace, name);
            let state = InForce::Pod(format!("changed-{number}"));
            let since = Instant::now();
            self.server.etcd().write(&[(key.clone(), Some(object.to_string()))])?;
            for (group, times) in self.groups.iter().zip(&mut times) {
                for agent in &group.agents {
                    let took = agent.wait((&changed, &state), since, PATIENCE)?;
                    times.push(took.as_secs_f64() * 1e3);
                }
            }
            std::thread::sleep(pause);
        }
        Ok(times.map(|times| [percentile(&times, 0.5), percentile(&times, 0.99)]))
    }

    /// Writes a policy that allows from all pods, by the presence of a label; returns the time until it is in force.
    fn policy(&mut self, name: &str, label: &str) -> Result<[f64; 2]> {
        let selector = json!({ "matchExpressions": [{ "key": label, "operator": "Exists" }] });
        let peer = json!({ "namespaceSelector": {}, "podSelector": selector });
        let object = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {
                "namespace": "team-0", "name": name, "creationTimestamp": "2026-11-23T10:00:00Z",
                "uid": format!("5f3c9a1e-7b2d-4c6f-eeee-{:012}", name.len()),
            },
            "spec": {
                "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "from": [peer] }],
            },
        });
        let key = format!("/registry/networkpolicies/team-0/{name}");
        let since = Instant::now();
        self.server.etcd().write(&[(key, Some(object.to_string()))])?;
        let (key, state) = (Key::new("team-0", name), InForce::Policy(true));
        let mut took = [0.0, 0.0];
        for (group, took) in self.groups.iter().zip(&mut took) {
            for agent in &group.agents {
                let time = agent.wait((&key, &state), since, PATIENCE)?;
                *took = f64::max(*took, time.as_secs_f64() * 1e3);
            }
        }
        Ok(took)
    }

    /// Replaces 1,000 pods of whole workloads, or of many.
    fn rollout(&mut self, is_whole: bool) -> Result<()> {
        let (services, cluster) = (self.cluster.services(), self.cluster);
        let (first, workloads) =
            if is_whole { (0, WHOLE) } else { (WHOLE, SCATTERED.min(services - WHOLE)) };
        let pod = |number: u32| first + number % workloads + number / workloads * services;
        rollout(&mut self.server, &cluster, pod)?;
        std::thread::sleep(SILENCE);
        self.wait_written()
    }
}

/// Prints the results.
pub(crate) fn print(load: &SliceLoad) {
    let Cluster { nodes, pods, policies } = load.cluster;
    let [mean, greatest] = load.slice_bytes;
    say(&format!(
        "\nPeer slices, {nodes} nodes, {pods} pods, {policies} policies; {} agents with a watch of all pods and as many \
         with slices; figures of one agent\n{} slices of {mean:.0} bytes on average, {greatest:.0} at most, written in \
         {:.0} s; the controller has {:.0} MB",
        load.agents, load.slices, load.packed_seconds, load.controller_memory_mb
    ));
    let rows = load.stages.iter().map(|stage| {
        vec![
            stage.stage.to_owned(),
            format!("{:.0}", stage.seconds),
            format!("{:.3}", stage.received[0] / 1e6),
            format!("{:.3}", stage.received[1] / 1e6),
            stage.writes.to_string(),
            format!("{:.1}", stage.writes as f64 / stage.seconds),
            format!("{:.1}", stage.server_seconds),
        ]
    });
    let header =
        ["stage", "seconds", "MB, all pods", "MB, slices", "writes", "a second", "server, CPU s"];
    table(&header, rows);
    let times = [
        ("a remote pod's label, p50", load.change_ms.map(|times| times[0])),
        ("a remote pod's label, p99", load.change_ms.map(|times| times[1])),
        ("policy with all pods by a known label", load.known_policy_ms),
        ("policy with all pods by a new label", load.new_policy_ms),
    ];
    let rows = times
        .into_iter()
        .map(|(name, ms)| vec![name.to_owned(), format!("{:.0}", ms[0]), format!("{:.0}", ms[1])]);
    table(&["until in force", "ms, all pods", "ms, slices"], rows);
}
