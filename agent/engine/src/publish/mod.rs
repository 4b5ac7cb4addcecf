//! Publishes the enforced state of this node in the cluster's API.
//!
//! ```text
//! Engine ──ring──► Observer ──Seen──┬─► pods.rs    a pod's condition, where it has the readiness gate
//!                                   ├─► node.rs    the Node's startup taint and condition ──uid──┐
//!                                   └─► report.rs  the NodePolicyStatus of the node ◄────────────┘
//! ```
//!
//! Enforcement never waits for these tasks. Each of the three writes the difference to the API's state, so nothing is
//! kept over a restart: a starting agent writes no condition before it enforces the source's state, and its
//! predecessor's conditions stay until then. A condition is not written for a cause shorter than [`PASSING`].

mod budget;
mod follow;
mod node;
mod observed_state;
mod pods;
mod report;
mod write;
mod write_retry;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use netpold_kube::cluster::EventRecorder;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use self::node::NodeWriter;
use self::observed_state::{ObservedState, StateObserver};
use self::pods::Readiness;
use self::report::Reporter;
use self::write::ObjectWriter;
use crate::engine::Enforcement;

/// Default readiness gate and condition of a pod.
pub const READINESS_GATE: &str = "netpold.io/network-ready";
/// Key of the taint that keeps pods off a node before its agent enforces.
pub const STARTUP_TAINT: &str = "netpold.io/agent-not-ready";
/// Condition of the Node.
pub const NODE_CONDITION: &str = "netpold.io/NetworkPolicyReady";

/// Longest message of a condition or report, in bytes. The CRD limits characters, which are never more.
const MESSAGE_MAX: usize = 1024;
/// Time for which an update may be out of force, as while it is being written, before a condition becomes False.
const PASSING: Duration = Duration::from_secs(5);
/// Longest interval between comparisons of conditions with the enforced state.
const TICK: Duration = Duration::from_secs(1);

/// State of the agent at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentState {
    /// Enforced state.
    pub enforcement: Enforcement,
    /// Problems on the node, in sentences.
    pub problems: Vec<String>,
    /// Whether every object is known.
    pub in_sync: bool,
}

/// Node and condition to publish.
#[derive(Clone, Debug)]
pub struct PublishSettings {
    /// Name of the own node.
    pub node: String,
    /// Condition of pods that have a readiness gate of this name.
    pub readiness_gate: String,
}

/// Tasks that publish; dropping it stops them.
#[derive(Debug)]
pub struct Publisher {
    _tasks: JoinSet<()>,
}

impl Publisher {
    /// Starts the tasks with the connection of a source. `ring` wakes them after each step of the engine. `state` may
    /// block; it returns the state and the time for which it made other callers wait. Requires a tokio runtime.
    pub fn start(
        of: &EventRecorder,
        settings: PublishSettings,
        ring: Arc<Notify>,
        state: impl Fn() -> (AgentState, Duration) + Send + Sync + 'static,
    ) -> Self {
        let PublishSettings { node, readiness_gate } = settings;
        let writer = Arc::new(ObjectWriter::new(of.connection()));
        let (sender, seen) = watch::channel(Arc::new(ObservedState::default()));
        let (uid, of_node) = watch::channel(None);
        let mut tasks = JoinSet::new();
        tasks.spawn(StateObserver::new(state, sender).run(ring));
        let readiness =
            Readiness::new(Arc::clone(&writer), node.clone(), readiness_gate, seen.clone());
        tasks.spawn(readiness.run());
        tasks.spawn(NodeWriter::new(Arc::clone(&writer), node.clone(), seen.clone(), uid).run());
        tasks.spawn(Reporter::new(writer, node, seen, of_node).run());
        Self { _tasks: tasks }
    }
}

/// Returns the wall clock in whole seconds, the resolution of times in the API.
fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}
