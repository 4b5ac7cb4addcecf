//! Says in the cluster's API what is in force on this node.
//!
//! ```text
//! Engine ──ring──► Observer ──Seen──┬─► pods.rs    a pod's condition, where it has the readiness gate
//!                                   ├─► node.rs    the Node's startup taint and condition ──uid──┐
//!                                   └─► report.rs  the NodePolicyStatus of the node ◄────────────┘
//! ```
//!
//! Enforcement waits for none of this. Each of the three writes what differs from what the API has, so nothing is kept
//! over a restart: an agent that starts writes no condition before it enforces what the source says, and until then
//! what its predecessor wrote stays. What passes within [`PASSING`] is written by nobody.

mod budget;
mod failing;
mod follow;
mod node;
mod pods;
mod report;
mod seen;
mod write;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use self::node::NodeWriter;
use self::pods::Readiness;
use self::report::Reporter;
use self::seen::{Observer, Seen};
use self::write::Writer;
use crate::engine::Enforcement;
use crate::source::cluster::EventRecorder;

/// Condition of a pod, and readiness gate, unless told otherwise.
pub const READINESS_GATE: &str = "netpold.io/network-ready";
/// Key of the taint that keeps pods off a node whose agent does not enforce yet.
pub const STARTUP_TAINT: &str = "netpold.io/agent-not-ready";
/// Condition of the Node.
pub const NODE_CONDITION: &str = "netpold.io/NetworkPolicyReady";

/// Longest message of a condition and of a report, in bytes. The CRD counts characters, which are never more.
const MESSAGE_MAX: usize = 1024;
/// What is not in force for less than this, as an update that is being written, makes no condition False.
const PASSING: Duration = Duration::from_secs(5);
/// Conditions are held against what is in force at least this often.
const TICK: Duration = Duration::from_secs(1);

/// What the agent knows of itself at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// What is in force.
    pub enforcement: Enforcement,
    /// What is wrong on the node, in sentences.
    pub problems: Vec<String>,
    /// Every object is known.
    pub in_sync: bool,
}

/// Of whom it is said, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the own node.
    pub node: String,
    /// Condition of pods that have a readiness gate of this name.
    pub readiness_gate: String,
}

/// Tells the API. Dropped, it says no more.
#[derive(Debug)]
pub struct Publisher {
    _tasks: JoinSet<()>,
}

impl Publisher {
    /// Starts with the connection of a source. `ring` wakes it after each step of the engine; `look` may block; it
    /// says for how long others had to wait for it. Needs a tokio runtime.
    pub fn start(
        of: &EventRecorder,
        settings: Settings,
        ring: Arc<Notify>,
        look: impl Fn() -> (Look, Duration) + Send + Sync + 'static,
    ) -> Self {
        let Settings { node, readiness_gate } = settings;
        let writer = Arc::new(Writer::new(of.connection()));
        let (sender, seen) = watch::channel(Arc::new(Seen::default()));
        let (uid, of_node) = watch::channel(None);
        let mut tasks = JoinSet::new();
        tasks.spawn(Observer::new(look, sender).run(ring));
        let readiness =
            Readiness::new(Arc::clone(&writer), node.clone(), readiness_gate, seen.clone());
        tasks.spawn(readiness.run());
        tasks.spawn(NodeWriter::new(Arc::clone(&writer), node.clone(), seen.clone(), uid).run());
        tasks.spawn(Reporter::new(writer, node, seen, of_node).run());
        Self { _tasks: tasks }
    }
}

/// The wall clock, in whole seconds as the API keeps times.
fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}
