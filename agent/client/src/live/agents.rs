//! Agents of a cluster, and their answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use futures::stream::{Stream, StreamExt, unfold};
use kube::api::ListParams;
use kube::{Api, Client};
use netpold_core::model::Change;
use netpold_core::printable::printable;
use netpold_kube::cluster::failure::Failure;
use netpold_kube::cluster::{self, Lister, PAGE};
use netpold_kube::convert::Kind;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, mpsc};

use super::args::{ClusterArgs, SILENCE};
use super::exec::{CONTAINER, ExecTarget};
use super::node_error::{NodeError, report};
use super::read_pod::ReadPod;
use super::runtime::block_on;

/// Label of the agents' pods, as in `deploy/base/daemonset.yaml`.
const LABEL: &str = "app.kubernetes.io/name=netpold";
/// Agents asked concurrently.
const AT_ONCE: usize = 16;
/// Longest silence on a connection that carries lines as events occur.
const LINES_SILENCE: Duration = Duration::from_hours(24);
/// Capacity of the channel for the lines of all nodes.
const LINES: usize = 1024;
/// Most agents followed at once: each holds a connection.
const FOLLOWED: usize = 1000;

/// Agents' pods, by node.
pub struct Agents {
    shared: Arc<AgentAccess>,
    nodes: Vec<(String, Result<String, NodeError>)>,
}

struct AgentAccess {
    client: Client,
    namespace: String,
    server: String,
}

/// Answers of the agents, by node.
#[derive(Debug)]
pub struct AgentAnswers<T> {
    /// Answers by node.
    pub answers: Vec<(String, T)>,
    /// Errors of the nodes that did not answer.
    pub failures: Vec<(String, NodeError)>,
}

impl<T> AgentAnswers<T> {
    /// Returns the reason of each missing answer, by node, for JSON documents.
    #[must_use]
    pub fn unanswered(&self) -> BTreeMap<String, String> {
        self.failures.iter().map(|(node, error)| (node.clone(), error.to_string())).collect()
    }
}

/// Asks every agent, and reports on standard error the ones that do not answer.
///
/// # Errors
/// See [`Agents::find`].
pub fn request_all<T: DeserializeOwned>(
    cluster: &ClusterArgs,
    arguments: &[&str],
) -> Result<AgentAnswers<T>> {
    let all = block_on(async {
        let agents = Agents::find(cluster).await?;
        Ok(agents.answers(arguments).await)
    })?;
    report(&all.failures);
    Ok(all)
}

impl Agents {
    /// Finds the agents. Nodes without an agent are included if nodes may be listed. Standard error gets a report if
    /// nodes may not be listed, or if a node has two agents.
    ///
    /// # Errors
    /// The cluster cannot be reached, the agents' pods may not be listed, or there are none.
    pub async fn find(args: &ClusterArgs) -> Result<Self> {
        let client = cluster::client(&args.access(LINES_SILENCE)).await?;
        let lister = Lister::open(args.access(SILENCE)).await?;
        let namespace = args.agents_namespace.clone();
        let shared = AgentAccess { client, namespace, server: lister.server().to_owned() };
        let pods = shared.pods(&lister).await?;
        if pods.is_empty() {
            return Err(anyhow!(
                "no agent's pod in namespace {}: name another one with --agents-namespace, or install netpold",
                shared.namespace
            ));
        }
        let mut nodes = on_nodes(pods);
        match lister.list(Kind::Node, None).await {
            Ok(listed) => {
                let known = listed.objects.into_iter().filter_map(linux_node);
                let namespace = &shared.namespace;
                let without = || Err(NodeError::NoAgent { namespace: namespace.clone() });
                known.for_each(|node| _ = nodes.entry(node).or_insert_with(without));
            }
            Err(failure) => {
                let text = failure.text("list nodes", lister.server());
                let text = format!("nodes without an agent are not named: {text}");
                anstream::eprintln!("netpold: {}", printable(&text));
            }
        }
        Ok(Self { shared: Arc::new(shared), nodes: nodes.into_iter().collect() })
    }

    /// Keeps only the agents of these nodes.
    #[must_use]
    pub fn on_nodes(mut self, nodes: &BTreeSet<String>) -> Self {
        let mut known: BTreeMap<_, _> = self.nodes.into_iter().collect();
        let namespace = &self.shared.namespace;
        let without = || Err(NodeError::NoAgent { namespace: namespace.clone() });
        let of = |node: &String| (node.clone(), known.remove(node).unwrap_or_else(without));
        self.nodes = nodes.iter().map(of).collect();
        self
    }

    /// Runs `netpold ARGUMENTS --local` in every agent's pod. Returns its standard output by node, or the error.
    pub async fn run_in_pods(
        &self,
        arguments: &[&str],
    ) -> Vec<(String, Result<Vec<u8>, NodeError>)> {
        let asked = self.nodes.iter().map(|(node, pod)| async {
            let answer = match pod {
                Ok(pod) => self.shared.target(pod).request_answer(arguments).await,
                Err(error) => Err(error.clone()),
            };
            (node.clone(), answer)
        });
        futures::stream::iter(asked).buffered(AT_ONCE).collect().await
    }

    /// Runs the command as [`Agents::run_in_pods`] does, and parses each output as JSON.
    pub async fn answers<T: DeserializeOwned>(&self, arguments: &[&str]) -> AgentAnswers<T> {
        let mut all = AgentAnswers { answers: Vec::new(), failures: Vec::new() };
        for (node, answer) in self.run_in_pods(arguments).await {
            let parsed = answer.and_then(|json| {
                serde_json::from_slice(&json)
                    .map_err(|error| NodeError::NotUnderstood(error.to_string()))
            });
            match parsed {
                Ok(answer) => all.answers.push((node, answer)),
                Err(error) => all.failures.push((node, error)),
            }
        }
        all
    }

    /// Runs the command in every agent's pod and returns its output line by line. Dropping the stream closes the
    /// commands' standard input, at which they must end (see [`super::standard_input_ends`]).
    pub fn stream(
        &self,
        arguments: &[&str],
    ) -> impl Stream<Item = (String, Result<String, NodeError>)> + use<> {
        let (sender, receiver) = mpsc::channel(LINES);
        let beginning = Arc::new(Semaphore::new(AT_ONCE));
        let arguments: Arc<[String]> = arguments.iter().map(|&text| text.to_owned()).collect();
        let mut followed = 0;
        for (node, pod) in self.nodes.clone() {
            let (lines, shared) = (sender.clone(), Arc::clone(&self.shared));
            let (arguments, beginning) = (Arc::clone(&arguments), Arc::clone(&beginning));
            followed += usize::from(pod.is_ok());
            let pod = if followed > FOLLOWED { Err(NodeError::TooMany(FOLLOWED)) } else { pod };
            tokio::spawn(async move {
                let outcome = match pod {
                    Ok(pod) => shared.follow(&node, &pod, &arguments, &beginning, &lines).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = outcome {
                    // An error means that the receiver is gone.
                    let _ = lines.send((node, Err(error))).await;
                }
            });
        }
        unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|line| (line, receiver))
        })
    }
}

impl AgentAccess {
    fn target<'t>(&'t self, pod: &'t str) -> ExecTarget<'t> {
        let pods = Api::namespaced(self.client.clone(), &self.namespace);
        ExecTarget {
            pods,
            namespace: &self.namespace,
            pod,
            container: CONTAINER,
            server: &self.server,
            purpose: "ask the agent",
        }
    }

    async fn pods(&self, lister: &Lister) -> Result<Vec<ReadPod>> {
        let api = Api::<ReadPod>::namespaced(lister.client(), &self.namespace);
        let mut params = ListParams::default().labels(LABEL).limit(PAGE);
        let mut pods = Vec::new();
        loop {
            let page = api.list(&params).await.map_err(|error| self.not_listed(error))?;
            pods.extend(page.items);
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(pods);
            }
        }
    }

    fn not_listed(&self, error: kube::Error) -> anyhow::Error {
        let failure = Failure::from_error(error);
        let text = if let Failure::Forbidden(words) = failure {
            format!(
                "cannot query the agents: {words}; list on pods in namespace {} is required (deploy/access.yaml)",
                self.namespace
            )
        } else {
            failure.text("list the agents' pods", &self.server)
        };
        anyhow!(printable(&text).into_owned())
    }

    async fn follow(
        &self,
        node: &str,
        pod: &str,
        arguments: &[String],
        beginning: &Semaphore,
        lines: &mpsc::Sender<(String, Result<String, NodeError>)>,
    ) -> Result<(), NodeError> {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let target = self.target(pod);
        // The semaphore is never closed, so the permit is always granted.
        let turn = beginning.acquire().await;
        let started = target.start_lines(&arguments).await;
        drop(turn);
        let started = started?;
        tokio::select! {
            outcome = started.send(node, lines) => outcome,
            () = lines.closed() => Ok(()),
        }
    }
}

/// Returns the name of a node that can have an agent.
fn linux_node(change: Change) -> Option<String> {
    let Change::Node(node) = change else { return None };
    let system = node.labels.get("kubernetes.io/os").map(String::as_str);
    system.is_none_or(|system| system == "linux").then(|| node.name.clone())
}

/// Chooses the pod to ask on each node: prefers a running pod, then a ready one, then one that is not terminating, then
/// the newest. During a rollout a node has two: the waiting one is not ready.
fn on_nodes(pods: Vec<ReadPod>) -> BTreeMap<String, Result<String, NodeError>> {
    let mut nodes: BTreeMap<String, Vec<AgentPod>> = BTreeMap::new();
    for pod in pods {
        let Some(node) = pod.spec.node_name.clone() else {
            continue;
        };
        nodes.entry(node).or_default().push(AgentPod::from_read(pod));
    }
    let choose = |(node, mut found): (String, Vec<AgentPod>)| {
        found.sort_by_key(|pod| (pod.trouble.is_none(), pod.ready, !pod.terminating, pod.created));
        let ready = found.iter().filter(|pod| pod.ready).map(|pod| pod.name.as_str());
        if let [others @ .., asked] = &ready.collect::<Vec<_>>()[..]
            && !others.is_empty()
        {
            let others = others.join(", ");
            let text = format!("node {node} has several agents: querying {asked}, not {others}");
            anstream::eprintln!("netpold: {}", printable(&text));
        }
        let last = found.pop()?;
        Some((node, last.trouble.map_or(Ok(last.name), |why| Err(NodeError::NotRunning { why }))))
    };
    nodes.into_iter().filter_map(choose).collect()
}

/// Pod of an agent.
struct AgentPod {
    name: String,
    created: i64,
    terminating: bool,
    /// The kubelet reports the agent's container as ready: the agent judges the node's packets.
    ready: bool,
    /// Reason why the container does not run.
    trouble: Option<String>,
}

impl AgentPod {
    fn from_read(pod: ReadPod) -> Self {
        let trouble = trouble(&pod);
        let mut statuses = pod.status.container_statuses.iter().flatten();
        let ready = statuses.any(|it| it.name == CONTAINER && it.ready);
        let metadata = pod.metadata;
        Self {
            name: metadata.name.unwrap_or_default(),
            created: metadata.creation_timestamp.map_or(0, |time| time.0.as_second()),
            terminating: metadata.deletion_timestamp.is_some(),
            ready,
            trouble,
        }
    }
}

fn trouble(pod: &ReadPod) -> Option<String> {
    let status = pod.status.clone();
    let containers = status.container_statuses.unwrap_or_default();
    let own = containers.into_iter().find(|container| container.name == CONTAINER);
    let state = own.unwrap_or_default().state;
    if state.running.is_some() {
        return None;
    }
    let waiting = state.waiting.map(|waiting| (waiting.reason, waiting.message));
    let ended = state.terminated.map(|ended| (ended.reason, ended.message));
    let (reason, message) = waiting
        .or(ended)
        .unwrap_or((status.phase.map(|phase| format!("its pod is {phase}")), None));
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let why = reason.into_iter().chain(message).collect::<Vec<_>>().join(": ");
    Some(if why.is_empty() { format!("pod {name}") } else { format!("pod {name}: {why}") })
}
