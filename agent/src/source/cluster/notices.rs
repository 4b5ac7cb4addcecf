//! Kubernetes Events on policies that cannot be honoured.
//!
//! Of thousands of agents only those with a pod that such a policy selects speak up, each once, and
//! again as long as it stays so, because Events are forgotten after an hour. Nothing waits for them:
//! an Event that cannot be written is tried again later.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use netpold_core::model::Key;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::connection::Connection;

/// Policies that select a local pod and cannot be honoured, with the reasons.
pub type Unhonoured = BTreeMap<Key, Vec<String>>;

/// Least time between two Events.
const PACE: Duration = Duration::from_secs(1);
/// An Event is repeated this often, as long as it is true.
const REPEAT: Duration = Duration::from_secs(1800);
/// Least time between attempts after one failed.
const RETRY: Duration = Duration::from_secs(60);
/// Longest note that the API takes, in bytes.
const NOTE_MAX: usize = 1024;
/// Longest name of a reporting instance that the API takes.
const INSTANCE_MAX: usize = 128;

/// Where to say which policies cannot be honoured. Dropped, it says no more.
#[derive(Debug)]
pub struct Notices(watch::Sender<Unhonoured>);

impl Notices {
    /// `troubled` has the uids of policies with problems.
    pub(super) fn start(
        connection: Arc<Connection>,
        node: String,
        troubled: watch::Receiver<BTreeMap<Key, String>>,
    ) -> Self {
        let (sender, unhonoured) = watch::channel(Unhonoured::new());
        let instance = node.chars().take(INSTANCE_MAX).collect();
        let writer = Writer { connection, node, instance, troubled, said: HashMap::new() };
        tokio::spawn(writer.run(unhonoured));
        Self(sender)
    }

    /// All there are now. Never waits.
    pub fn tell(&self, unhonoured: Unhonoured) {
        self.0.send_if_modified(|current| {
            let modified = *current != unhonoured;
            *current = unhonoured;
            modified
        });
    }
}

struct Writer {
    connection: Arc<Connection>,
    node: String,
    instance: String,
    troubled: watch::Receiver<BTreeMap<Key, String>>,
    /// What was said of a policy, by uid, and when.
    said: HashMap<String, (String, Instant)>,
}

impl Writer {
    async fn run(mut self, mut unhonoured: watch::Receiver<Unhonoured>) {
        loop {
            let all = unhonoured.borrow_and_update().clone();
            let pause = self.write(&all).await;
            tokio::select! {
                changed = unhonoured.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(pause) => {}
            }
            tokio::time::sleep(PACE).await;
        }
    }

    /// Writes what is due; returns when to look again.
    async fn write(&mut self, all: &Unhonoured) -> Duration {
        let uids = self.troubled.borrow().clone();
        self.said.retain(|uid, _| uids.values().any(|known| known == uid));
        for (policy, reasons) in all {
            let Some(uid) = uids.get(policy) else { continue };
            let note = note(&self.node, reasons);
            let due = self
                .said
                .get(uid)
                .is_none_or(|(said, when)| *said != note || when.elapsed() >= REPEAT);
            if !due {
                continue;
            }
            if let Err(error) = self.publish(policy, uid, &note).await {
                warn!(%policy, %error, "no Event can be written on a policy");
                return RETRY;
            }
            debug!(%policy, note, "Event written");
            self.said.insert(uid.clone(), (note, Instant::now()));
            tokio::time::sleep(PACE).await;
        }
        RETRY
    }

    async fn publish(&self, policy: &Key, uid: &str, note: &str) -> kube::Result<()> {
        let reporter =
            Reporter { controller: "netpold".into(), instance: Some(self.instance.clone()) };
        // A recorder would count repetitions up by changing the Event, which takes another right;
        // a new one each time only creates.
        let recorder = Recorder::new(self.connection.client(), reporter);
        let event = Event {
            type_: EventType::Warning,
            reason: "PolicyNotHonoured".into(),
            note: Some(note.to_owned()),
            action: "Enforce".into(),
            secondary: None,
        };
        let regarding = ObjectReference {
            api_version: Some("networking.k8s.io/v1".into()),
            kind: Some("NetworkPolicy".into()),
            namespace: Some(policy.namespace.clone()),
            name: Some(policy.name.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        recorder.publish(&event, &regarding).await
    }
}

fn note(node: &str, reasons: &[String]) -> String {
    let mut text =
        format!("On node {node} a part of this policy grants nothing: {}", reasons.join("; "));
    if text.len() > NOTE_MAX {
        let mut end = NOTE_MAX - 4;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(" ...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_fits() {
        assert_eq!(note("n", &["a".into(), "b".into()]).len(), 54);
        let long = note("n", &["\u{e9}".repeat(2000)]);
        assert!(long.len() <= NOTE_MAX && long.ends_with(" ..."));
    }
}
