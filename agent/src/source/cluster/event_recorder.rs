//! Kubernetes Events on policies that cannot be honoured, and on a node where packets go past the programs.
//!
//! Of thousands of agents a few speak up (`engine/unsupported.rs` says which), each once, and again as
//! long as it stays so, because Events are forgotten after an hour. Nothing waits for them: an Event
//! that cannot be written is tried again later.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use netpold_core::model::Key;
use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};

use super::connection::Connection;
use super::denials;
use crate::events::Denials;
use crate::printable::cut;

/// What is wrong on the node, by the reason of the Event that says so.
pub(super) type OfNode = BTreeMap<&'static str, Vec<String>>;
/// Policies that select a local pod and cannot be honoured, with their uids and the reasons. The key of a
/// ClusterNetworkPolicy has no namespace.
pub type Unsupported = BTreeMap<Key, (String, Vec<String>)>;

/// Least time between two Events.
const PACE: Duration = Duration::from_secs(1);
/// An Event is repeated this often, as long as it is true.
const REPEAT: Duration = Duration::from_mins(30);
/// Least time between attempts after one failed.
const RETRY: Duration = Duration::from_mins(1);
/// Longest note that the API takes, in bytes.
pub(super) const NOTE_MAX: usize = 1024;
/// Longest name of a reporting instance that the API takes.
const INSTANCE_MAX: usize = 128;

/// Where to say what is not enforced. Dropped, it says no more.
#[derive(Debug)]
pub struct EventRecorder {
    connection: Arc<Connection>,
    policies: watch::Sender<Unsupported>,
    node: watch::Sender<OfNode>,
    denials: mpsc::Sender<Denials>,
}

impl EventRecorder {
    pub(super) fn start(connection: Arc<Connection>, node: String) -> Self {
        let (policies, unsupported) = watch::channel(Unsupported::new());
        let (sender, of_node) = watch::channel(OfNode::new());
        let instance: String = node.chars().take(INSTANCE_MAX).collect();
        let (denials, denied) = mpsc::channel(1);
        tokio::spawn(denials::write(Arc::clone(&connection), instance.clone(), denied));
        let said = HashMap::new();
        let said_node = HashMap::new();
        let shared = Arc::clone(&connection);
        let writer = Writer { connection, node, instance, of_node, said, said_node };
        tokio::spawn(writer.run(unsupported));
        Self { connection: shared, policies, node: sender, denials }
    }

    /// The way to the API server that it writes to.
    pub(crate) fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.connection)
    }

    /// All that is wrong on this node now. Never waits.
    pub fn tell_of_node(&self, of_node: OfNode) {
        self.node.send_if_modified(|current| {
            let modified = *current != of_node;
            *current = of_node;
            modified
        });
    }

    /// Denials to tell the owners of pods of; not those that come while others are being told. Never waits.
    pub fn tell_of_denials(&self, denials: Denials) {
        if !denials.all.is_empty() {
            let _ = self.denials.try_send(denials);
        }
    }

    /// All there are now. Never waits.
    pub fn tell(&self, unsupported: Unsupported) {
        self.policies.send_if_modified(|current| {
            let modified = *current != unsupported;
            *current = unsupported;
            modified
        });
    }
}

struct Writer {
    connection: Arc<Connection>,
    node: String,
    instance: String,
    of_node: watch::Receiver<OfNode>,
    /// What was said of a policy, by uid, and when.
    said: HashMap<String, (String, Instant)>,
    /// When something was said of the node, by its reason.
    said_node: HashMap<&'static str, Instant>,
}

impl Writer {
    async fn run(mut self, mut unsupported: watch::Receiver<Unsupported>) {
        loop {
            let all = unsupported.borrow_and_update().clone();
            let pause = self.write(&all).await;
            tokio::select! {
                changed = unsupported.changed() => if changed.is_err() { return },
                changed = self.of_node.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(pause) => {}
            }
            tokio::time::sleep(PACE).await;
        }
    }

    /// Writes one Event that is due; returns when to look again, beside the pace.
    async fn write(&mut self, all: &Unsupported) -> Duration {
        let of_node = self.of_node.borrow_and_update().clone();
        for (reason, problems) in of_node {
            let said = self.said_node.get(reason);
            if problems.is_empty() || said.is_some_and(|when| when.elapsed() < REPEAT) {
                continue;
            }
            let note = cut(problems.join("; "), NOTE_MAX);
            if let Err(error) = self.publish(reason, &note, self.own_node()).await {
                warn!(%error, "no Event can be written on the node");
                return RETRY;
            }
            self.said_node.insert(reason, Instant::now());
            return Duration::ZERO;
        }
        self.said.retain(|uid, _| all.values().any(|(known, _)| known == uid));
        for (policy, (uid, reasons)) in all {
            let note = note(&self.node, reasons);
            let due = self
                .said
                .get(uid)
                .is_none_or(|(said, when)| *said != note || when.elapsed() >= REPEAT);
            if !due {
                continue;
            }
            let regarding = regarding(policy, uid);
            if let Err(error) = self.publish("PolicyNotHonoured", &note, regarding).await {
                warn!(%policy, %error, "no Event can be written on a policy");
                return RETRY;
            }
            debug!(%policy, note, "Event written");
            self.said.insert(uid.clone(), (note, Instant::now()));
            // One at a time: in the meantime another policy may have been mended.
            return Duration::ZERO;
        }
        RETRY
    }

    async fn publish(
        &self,
        reason: &str,
        note: &str,
        regarding: ObjectReference,
    ) -> kube::Result<()> {
        publish(&self.connection, &self.instance, (reason, "Enforce"), note, regarding).await
    }

    /// By its name, as the kubelet's Events on a node are; in the namespace where those are, since some
    /// servers (1.20) ask for the same one in both places.
    fn own_node(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            namespace: Some("default".into()),
            name: Some(self.node.clone()),
            uid: Some(self.node.clone()),
            ..ObjectReference::default()
        }
    }
}

/// Writes an Event of a reason and an action.
pub(super) async fn publish(
    connection: &Connection,
    instance: &str,
    (reason, action): (&str, &str),
    note: &str,
    regarding: ObjectReference,
) -> kube::Result<()> {
    let reporter = Reporter { controller: "netpold".into(), instance: Some(instance.to_owned()) };
    // A recorder would count repetitions up by changing the Event, which takes another right; a new one each time
    // only creates.
    let recorder = Recorder::new(connection.client(), reporter);
    let event = Event {
        type_: EventType::Warning,
        reason: reason.into(),
        note: Some(note.to_owned()),
        action: action.into(),
        secondary: None,
    };
    recorder.publish(&event, &regarding).await
}

/// Events on what has no namespace are in `default`, which [`Writer::own_node`] has in both places too.
fn regarding(policy: &Key, uid: &str) -> ObjectReference {
    let (version, kind, namespace) = match policy.namespace.as_str() {
        "" => ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy", "default"),
        namespace => ("networking.k8s.io/v1", "NetworkPolicy", namespace),
    };
    ObjectReference {
        api_version: Some(version.into()),
        kind: Some(kind.into()),
        namespace: Some(namespace.to_owned()),
        name: Some(policy.name.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

fn note(node: &str, reasons: &[String]) -> String {
    let reasons = reasons.join("; ");
    cut(format!("On node {node} a part of this policy is not as written: {reasons}"), NOTE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_fits() {
        let text = "On node n a part of this policy is not as written: a; b";
        assert_eq!(note("n", &["a".into(), "b".into()]), text);
        let long = note("n", &["\u{e9}".repeat(2000)]);
        assert!(long.len() <= NOTE_MAX && long.ends_with(" ..."));
    }
}
