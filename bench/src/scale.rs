//! Load of agents on an API server: the agent's own followers, with real watches, in a simulated cluster.
//!
//! Objects are written as JSON directly to etcd; the API server serves them like any others. So a cluster is created
//! within a minute, and changes come at the requested rate, while the traffic to the agents stays realistic. It is
//! counted between agents and server.

mod objects;
mod own_pods;
mod report;
mod trimmed;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netpold_api::source::SourceStatus;
use netpold_core::cluster::SecondaryNetworks;
use netpold_kube::cluster::{Access, FollowedNodes, FollowedPeers, WatchSettings, client, watch};
use netpold_testbed::apiserver::{Meter, Passed};
use netpold_testbed::{ApiServer, Credential, processor_time};
use nix::sys::signal::Signal;
use tokio::runtime::Runtime;
use tokio::sync::watch::Receiver;

use crate::host;
use objects::{ClusterSize, Entry, PodPhase, node, node_name};
use own_pods::OwnList;
use report::Stage;
pub(crate) use report::{ApiLoad, print};
use trimmed::Form;

/// User of the agents at the API server.
const USER: &str = "system:serviceaccount:netpold-system:netpold";
/// A server without traffic for this time counts as unreachable; the agent's default.
const API_TIMEOUT: Duration = Duration::from_secs(100);
/// Timeout until all agents are in sync.
const PATIENCE: Duration = Duration::from_mins(20);
/// Time without traffic after which all events have arrived.
const SILENCE: Duration = Duration::from_secs(4);
/// Duration of the idle phase, and of the phase with the usual rate of changes.
const WINDOW: Duration = Duration::from_mins(1);
/// Pods of a rollout, and its duration.
const ROLLOUT: (u32, Duration) = (1000, Duration::from_secs(10));
/// Pods started per step of the rollout.
const STEP: u32 = 10;
const IDLE: &str = "idle";
/// Share of the pods that change per minute.
const CHANGING: f64 = 0.01;
/// Seconds between two reports of a kubelet about an unchanged Node.
const HEARTBEAT: f64 = 300.0;
/// Number of events from which the bytes per event are derived.
const EVENTS: u32 = 100;

/// Agents with the same settings.
struct AgentGroup {
    meter: Meter,
    status: Vec<Receiver<SourceStatus>>,
    /// Changes that reached the engines.
    changes: Arc<AtomicU64>,
}

struct ScaleRun {
    cluster: ClusterSize,
    agents: u32,
    // Dropped first, so that the agents do not notice the end of the server.
    runtime: Runtime,
    groups: [AgentGroup; 2],
    server: ApiServer,
    /// Number of Node reports so far, and of pod lives.
    reports: u32,
}

/// Counters at one time.
struct Mark {
    passed: [Passed; 2],
    changes: [u64; 2],
    requests: usize,
    server: f64,
    at: Instant,
}

/// Measures with this many agents of each kind.
pub(crate) fn measure(nodes: u32, agents: u32, progress: &dyn Fn(&str)) -> Result<ApiLoad> {
    let cluster = ClusterSize::of(nodes);
    let tell = |what: &str| progress(&format!("scale, {nodes} nodes: {what}"));
    host::ip(&["link set lo up"])?;
    tell("an API server and its objects");
    let mut server = ApiServer::start()?;
    fill(&mut server, cluster)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    tell("the agents start");
    let token = agents_token(&server)?;
    let group = |nodes| start(&runtime, &server, &token, agents, nodes);
    let groups = [group(FollowedNodes::All)?, group(FollowedNodes::Needed)?];
    let mut world = ScaleRun { cluster, agents, runtime, groups, server, reports: 0 };
    let mut stages = Vec::new();
    // The agents have just started, with all counters at zero.
    let begin = Mark {
        passed: [Passed::default(); 2],
        changes: [0; 2],
        requests: 0,
        server: 0.0,
        at: Instant::now(),
    };
    world.wait_in_sync()?;
    stages.push(world.stage("start", begin, 0)?);
    tell("sizes");
    let pod_event = world.bytes_of_one(|cluster, n| cluster.pod(n, PodPhase::Changed, 0))?;
    let node_event =
        world.bytes_of_one(|cluster, n| node(n % cluster.nodes, 1 + n / cluster.nodes))?;
    let forms = world.forms()?;
    let own_lists = world.own_lists()?;
    tell("nothing happens");
    let begin = world.mark()?;
    std::thread::sleep(WINDOW);
    stages.push(world.stage(IDLE, begin, 0)?);
    tell("pods change and kubelets report");
    let begin = world.mark()?;
    let events = world.usual(WINDOW)?;
    stages.push(world.stage("1 % of pods a minute, heartbeats", begin, events)?);
    tell("a rollout");
    let begin = world.mark()?;
    let events = world.rollout()?;
    stages.push(world.stage("rollout of 1,000 pods", begin, events)?);
    tell("the API server starts again");
    let begin = world.mark()?;
    world.restart()?;
    let mut stage = world.stage("restart of the API server", begin, 0)?;
    // The restarted server is another process.
    stage.server_seconds = processor_time(world.server.pid())?.as_secs_f64();
    stages.push(stage);
    Ok(ApiLoad { cluster, agents, pod_event, node_event, stages, forms, own_lists })
}

/// Writes the cluster and waits until the server serves it.
fn fill(server: &mut ApiServer, cluster: ClusterSize) -> Result<()> {
    let entries: Vec<Entry> = cluster.entries().collect();
    server.etcd().write(&entries)?;
    let last = format!("/api/v1/nodes/{}", node_name(cluster.nodes - 1));
    server.kubectl(&["get", "--raw", &last]).context("the server does not read its objects")?;
    Ok(())
}

/// A token of a service account with the permissions of the installation.
fn agents_token(server: &ApiServer) -> Result<String> {
    let rbac = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base/rbac.yaml");
    server.kubectl(&["create", "namespace", "netpold-system"])?;
    server.apply(&std::fs::read_to_string(rbac).context("cannot read the agents' rights")?)?;
    server.token("netpold-system", "netpold")
}

fn start(
    runtime: &Runtime,
    server: &ApiServer,
    token: &str,
    agents: u32,
    nodes: FollowedNodes,
) -> Result<AgentGroup> {
    let meter = server.meter()?;
    let name = if nodes == FollowedNodes::All { "all.kubeconfig" } else { "own.kubeconfig" };
    let kubeconfig = server.write_kubeconfig_to(&meter.url(), name, &Credential::Token(token))?;
    let changes = Arc::new(AtomicU64::new(0));
    let status = (0..agents).map(|number| -> Result<_> {
        let access = access(&kubeconfig);
        let peers = FollowedPeers::Pods;
        let node = node_name(number);
        let settings = WatchSettings {
            access,
            node,
            nodes,
            secondary_networks: SecondaryNetworks::default(),
            peers,
            cluster_policies: true,
        };
        let (mut source, _events) = runtime.block_on(watch(settings))?;
        let (status, changes) = (source.status.clone(), Arc::clone(&changes));
        runtime.spawn(async move {
            while let Some(batch) = source.batches.recv().await {
                changes.fetch_add(batch.changes.len() as u64, Ordering::Relaxed);
            }
        });
        Ok(status)
    });
    Ok(AgentGroup { meter, status: status.collect::<Result<_>>()?, changes })
}

fn access(kubeconfig: &Path) -> Access {
    Access {
        kubeconfig: Some(kubeconfig.to_owned()),
        as_kubectl: false,
        context: None,
        timeout: API_TIMEOUT,
    }
}

impl ScaleRun {
    fn mark(&self) -> Result<Mark> {
        Ok(Mark {
            passed: [0, 1].map(|n: usize| self.groups[n].meter.passed()),
            changes: [0, 1].map(|n: usize| self.groups[n].changes.load(Ordering::Relaxed)),
            requests: self.server.requests(USER)?.len(),
            server: processor_time(self.server.pid())?.as_secs_f64(),
            at: Instant::now(),
        })
    }

    /// Traffic since a mark.
    fn stage(&self, stage: &'static str, before: Mark, events: u32) -> Result<Stage> {
        let now = self.mark()?;
        // The wait for silence is not part of the stage.
        let silence =
            self.groups.iter().map(|group| group.meter.silence()).min().unwrap_or_default();
        let waited = if silence < SILENCE || stage == IDLE { Duration::ZERO } else { silence };
        let agents = f64::from(self.agents);
        let of = |field: fn(&Passed) -> u64| {
            [0, 1]
                .map(|n: usize| (field(&now.passed[n]) - field(&before.passed[n])) as f64 / agents)
        };
        Ok(Stage {
            stage,
            seconds: (now.at - before.at).saturating_sub(waited).as_secs_f64(),
            events,
            received: of(|passed| passed.received),
            sent: of(|passed| passed.sent),
            connections: of(|passed| passed.connections),
            requests: (now.requests - before.requests) as f64 / agents / 2.0,
            changes: [0, 1].map(|n: usize| (now.changes[n] - before.changes[n]) as f64 / agents),
            server_seconds: now.server - before.server,
        })
    }

    fn wait_in_sync(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let late =
            || self.groups.iter().flat_map(|group| &group.status).find(|one| !one.borrow().in_sync);
        while let Some(late) = late() {
            let problems = || late.borrow().problems.clone();
            ensure!(Instant::now() < deadline, "the agents are not in sync: {:?}", problems());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits until there is no more traffic.
    fn wait_silent(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.groups.iter().any(|group| group.meter.silence() < SILENCE) {
            ensure!(Instant::now() < deadline, "the server does not stop sending");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn write(&mut self, entries: &[Entry]) -> Result<()> {
        self.server.etcd().write(entries)
    }

    /// Bytes that an agent receives per event, from [`EVENTS`] simultaneous events.
    fn bytes_of_one(&mut self, event: impl Fn(&ClusterSize, u32) -> Entry) -> Result<f64> {
        self.wait_silent()?;
        let before = self.groups[0].meter.passed().received;
        let entries: Vec<Entry> = (0..EVENTS).map(|n| event(&self.cluster, n)).collect();
        self.write(&entries)?;
        // Events may arrive late.
        std::thread::sleep(SILENCE);
        self.wait_silent()?;
        let received = self.groups[0].meter.passed().received - before;
        Ok(received as f64 / f64::from(self.agents) / f64::from(EVENTS))
    }

    fn forms(&self) -> Result<Vec<Form>> {
        let access = access(&self.server.admin());
        self.runtime.block_on(async { trimmed::forms(&client(&access).await?).await })
    }

    fn own_lists(&self) -> Result<Vec<OwnList>> {
        let (access, server) = (access(&self.server.admin()), self.server.pid());
        self.runtime.block_on(async { own_pods::own_lists(&client(&access).await?, server).await })
    }

    /// Changes pods and reports Nodes at the usual rate; returns the number of events.
    fn usual(&mut self, time: Duration) -> Result<u32> {
        let begin = Instant::now();
        let rates = [
            f64::from(self.cluster.pods) * CHANGING / 60.0,
            f64::from(self.cluster.nodes) / HEARTBEAT,
        ];
        let mut done = [0, 0];
        self.reports += 1;
        while begin.elapsed() < time {
            let due = rates.map(|rate| (rate * begin.elapsed().as_secs_f64()) as u32);
            let phase =
                |n: u32| if n.is_multiple_of(2) { PodPhase::Changed } else { PodPhase::Running };
            // From the last pod backwards, because the first ones were used to measure sizes.
            let pods = (done[0]..due[0]).map(|n| {
                let last = self.cluster.pods - 1;
                self.cluster.pod(last - n % self.cluster.pods, phase(n), 0)
            });
            let reports = self.reports + 10;
            let nodes = (done[1]..due[1])
                .map(|n| node(n % self.cluster.nodes, reports + n / self.cluster.nodes));
            let entries: Vec<Entry> = pods.chain(nodes).collect();
            self.write(&entries)?;
            done = due;
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(done[0] + done[1])
    }

    /// Replaces pods, with six events each; returns the number of events.
    fn rollout(&mut self) -> Result<u32> {
        let begin = Instant::now();
        let (pods, time) = ROLLOUT;
        let steps = pods / STEP;
        /// Steps from a pod's creation to each phase, and to the end of the pod that it replaces.
        const LIFE: [(u32, PodPhase); 4] = [
            (0, PodPhase::Created),
            (1, PodPhase::Scheduled),
            (2, PodPhase::Starting),
            (10, PodPhase::Running),
        ];
        const GOING: u32 = 12;
        const GONE: u32 = 30;
        let mut events = 0;
        for step in 0..steps + GONE {
            let cluster = &self.cluster;
            // Pods that are at this age now.
            let pods_at = |age: u32| {
                let first = step.checked_sub(age).filter(|step| *step < steps);
                first.into_iter().flat_map(|step| step * STEP..(step + 1) * STEP)
            };
            let new = LIFE.iter().flat_map(|(age, phase)| {
                pods_at(*age).map(|number| cluster.pod(number, *phase, 1))
            });
            let going = pods_at(GOING).map(|number| cluster.pod(number, PodPhase::Terminating, 0));
            let gone = pods_at(GONE).map(|number| (cluster.pod_key(number, 0), None));
            let entries: Vec<Entry> = new.chain(going).chain(gone).collect();
            events += entries.len() as u32;
            self.write(&entries)?;
            let due = begin + time * (step + 1) / steps;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        std::thread::sleep(SILENCE);
        self.wait_silent()?;
        Ok(events)
    }

    /// Kills the API server after the renewal of a Lease, as in any cluster, and restarts it.
    fn restart(&mut self) -> Result<()> {
        let lease = serde_json::json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "namespace": "kube-node-lease", "name": "a", "uid": "5f3c9a1e-7b2d-4c6f-ffff-000000000001" },
            "spec": { "holderIdentity": "a", "leaseDurationSeconds": 40 },
        });
        let key = "/registry/leases/kube-node-lease/a".to_owned();
        self.write(&[(key, Some(lease.to_string()))])?;
        self.server.end(Signal::SIGKILL);
        std::thread::sleep(Duration::from_secs(1));
        // The server reads all objects before it is ready, while agents already list.
        let deadline = Instant::now() + PATIENCE;
        let mut ready = self.server.restart();
        while ready.is_err() && Instant::now() < deadline {
            ready = self.server.wait_ready();
        }
        ready?;
        // All agents reconnect within this time, and then list.
        std::thread::sleep(Duration::from_secs(15));
        self.wait_silent()?;
        self.wait_in_sync()
    }
}
