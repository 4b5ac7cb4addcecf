//! The load of agents on an API server, as a table.

use netpold_testbed::apiserver::VERSION;
use serde::Serialize;

use super::objects::{ClusterSize, PODS_PER_NODE};
use super::own_pods::OwnList;
use super::trimmed::Form;
use crate::figures::{say, table};

/// Results for one cluster. All figures are per agent.
#[derive(Debug, Serialize)]
pub(crate) struct ApiLoad {
    pub(super) cluster: ClusterSize,
    /// Number of agents that follow all Nodes, and of agents that follow only their own.
    pub(super) agents: u32,
    /// Wire bytes of an event of a running pod, and of a Node's heartbeat.
    pub(super) pod_event: f64,
    pub(super) node_event: f64,
    pub(super) stages: Vec<Stage>,
    pub(super) forms: Vec<Form>,
    pub(super) own_lists: Vec<OwnList>,
}

/// A stage and its cost.
#[derive(Debug, Serialize)]
pub(super) struct Stage {
    pub(super) stage: &'static str,
    pub(super) seconds: f64,
    /// Changes of pods and Nodes.
    pub(super) events: u32,
    /// Bytes received per agent: following all Nodes, and following only its own.
    pub(super) received: [f64; 2],
    /// Bytes sent.
    pub(super) sent: [f64; 2],
    /// Connections made.
    pub(super) connections: [f64; 2],
    /// Requests per agent of either kind.
    pub(super) requests: f64,
    /// Changes that reach the engine.
    pub(super) changes: [f64; 2],
    /// CPU seconds of the API server, for all agents.
    pub(super) server_seconds: f64,
}

/// Prints the results.
pub(crate) fn print(load: &ApiLoad) {
    let ApiLoad { cluster, agents, pod_event, node_event, stages, forms, own_lists } = load;
    let ClusterSize { nodes, pods, policies } = cluster;
    say(&format!(
        "\nAPI server {VERSION}, {nodes} nodes, {pods} pods ({PODS_PER_NODE} a node), {policies} policies; {agents} \
         agents that follow all Nodes and {agents} that follow their own; figures of one agent"
    ));
    let rows = stages.iter().map(|stage| {
        let rate = |bytes: f64| format!("{:.2}", bytes / stage.seconds / 1e3);
        vec![
            stage.stage.to_owned(),
            format!("{:.0}", stage.seconds),
            stage.events.to_string(),
            format!("{:.3}", stage.received[0] / 1e6),
            format!("{:.3}", stage.received[1] / 1e6),
            rate(stage.received[0]),
            rate(stage.received[1]),
            rate(stage.sent[0]),
            format!("{:.0}", stage.changes[0]),
            format!("{:.1}", stage.requests),
            format!("{:.3}", stage.requests / stage.seconds),
            format!("{:.1}", stage.connections[0]),
            format!("{:.1}", stage.server_seconds),
        ]
    });
    let header = [
        "stage",
        "seconds",
        "events",
        "MB received",
        "own Node only",
        "kB/s",
        "own Node only",
        "kB/s sent",
        "changes",
        "requests",
        "a second",
        "connections",
        "server, CPU s (all)",
    ];
    table(&header, rows);
    say(&format!(
        "\nan event of a pod has {pod_event:.0} bytes on the wire, a Node's heartbeat {node_event:.0}"
    ));
    table(
        &["form", "bytes"],
        forms.iter().map(|form| vec![form.form.to_owned(), format!("{:.0}", form.bytes)]),
    );
    say("\nlist of the pods of one node:");
    let lists = own_lists.iter().map(|list| {
        vec![
            list.form.to_owned(),
            format!("{:.1}", list.milliseconds),
            format!("{:.1}", list.server),
        ]
    });
    table(&["form", "ms", "server, CPU ms"], lists);
}
