//! Publishes the enforced state of this node in the cluster's API.
//!
//! ```text
//! Engine ──wake──► StateObserver ──ObservedState──┬─► pods.rs    a pod's condition, where it has the readiness gate
//!                                                 ├─► node.rs    the Node's startup taint and condition ──uid──┐
//!                                                 └─► report.rs  the NodePolicyStatus of the node ◄────────────┘
//! ```
//!
//! Enforcement never waits for these tasks. Each of the three writes the difference to the API's state, so nothing is
//! kept over a restart: a starting agent writes no condition before it enforces the source's state, and its
//! predecessor's conditions stay until then. A condition is not written for a cause shorter than [`published::PASSING`].

mod budget;
mod enforced_state;
mod follow;
mod node;
mod pods;
mod published;
mod report;
mod write;
mod write_retry;

use std::sync::Arc;
use std::time::Duration;

use netpold_kube::cluster::EventRecorder;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use self::enforced_state::{ObservedState, StateObserver};
use self::node::NodeWriter;
use self::pods::Readiness;
pub use self::published::{AgentState, READINESS_GATE, STARTUP_TAINT};
use self::report::Reporter;
use self::write::ObjectWriter;

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
    /// Starts the tasks with the connection of a source. `wake` is notified after each step of the engine. `state` may
    /// block; it returns the state and the time for which it made other callers wait. Requires a tokio runtime.
    pub fn start(
        of: &EventRecorder,
        settings: PublishSettings,
        wake: Arc<Notify>,
        state: impl Fn() -> (AgentState, Duration) + Send + Sync + 'static,
    ) -> Self {
        let PublishSettings { node, readiness_gate } = settings;
        let writer = Arc::new(ObjectWriter::new(of.connection()));
        let (sender, seen) = watch::channel(Arc::new(ObservedState::default()));
        let (uid, of_node) = watch::channel(None);
        let mut tasks = JoinSet::new();
        tasks.spawn(StateObserver::new(state, sender).run(wake));
        let readiness =
            Readiness::new(Arc::clone(&writer), node.clone(), readiness_gate, seen.clone());
        tasks.spawn(readiness.run());
        tasks.spawn(NodeWriter::new(Arc::clone(&writer), node.clone(), seen.clone(), uid).run());
        tasks.spawn(Reporter::new(writer, node, seen, of_node).run());
        Self { _tasks: tasks }
    }
}
