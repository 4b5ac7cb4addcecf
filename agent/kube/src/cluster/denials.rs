//! Kubernetes Events on pods with denied traffic, in namespaces that request them.
//!
//! Anyone who can send packets can cause denials, so the Events are bounded: a few per pod, one at a time per node, at
//! a pace that slows with the number of nodes. A pod's denials above its limit are counted in its next Event.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use netpold_core::model::{Direction, Key};
use netpold_core::printable::cut;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::connection::Connection;
use super::event::{NOTE_MAX, publish};

/// Period in which a pod has at most [`OF_POD`] Events, and each denial at most one.
const PERIOD: Duration = Duration::from_mins(10);
/// Maximum number of Events of a pod within [`PERIOD`].
const OF_POD: usize = 5;
/// Shortest time between two Events of a node.
const PACE: Duration = Duration::from_secs(1);
/// Shortest time between two Events of a node, per node of the cluster: a large cluster writes 10 a second in total.
const PACE_OF_NODES: Duration = Duration::from_millis(100);
/// Shortest time between attempts in an outage.
const RETRY: Duration = Duration::from_mins(1);

/// Key of drops that are the same to a reader: endpoint, direction, reason, remote address, protocol, port of the service.
pub type DropKey = (u32, Direction, &'static str, Option<IpAddr>, Option<u8>, u16);

/// A denial to report to a pod's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenialReport {
    /// Key of the pod.
    pub pod: Key,
    /// Value of `metadata.uid` of the pod.
    pub uid: String,
    /// Key of denials that are the same to the owner.
    pub key: DropKey,
    /// Description of the denial and its reason, in a sentence.
    pub text: String,
}

/// Denials, and the number of nodes that share the rate of Events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denials {
    /// Denials of as many pods as possible.
    pub all: Vec<DenialReport>,
    /// Number of the cluster's nodes, with an agent each that writes Events.
    pub nodes: usize,
}

/// Writes Events on denials until the channel is closed.
pub(super) async fn write(
    connection: Arc<Connection>,
    instance: String,
    mut denials: mpsc::Receiver<Denials>,
) {
    let mut told = RecentEvents::default();
    while let Some(Denials { all, nodes }) = denials.recv().await {
        let pace = pace(nodes);
        for denial in all {
            let Some(note) = told.event_note(&denial, Instant::now()) else { continue };
            let regarding = regarding(&denial);
            let reason = ("NetworkPolicyDenied", "Deny");
            let written = publish(&connection, &instance, reason, &note, regarding).await;
            let pause = match written {
                Ok(()) => {
                    debug!(pod = %denial.pod, note, "Event written");
                    pace
                }
                Err(error) => {
                    if error.is_terminating {
                        debug!(pod = %denial.pod, "no Event: the namespace is being deleted");
                    } else {
                        warn!(pod = %denial.pod, %error, "cannot write Event on a pod");
                    }
                    // A refusal concerns this pod alone.
                    if error.is_outage { RETRY } else { pace }
                }
            };
            tokio::time::sleep(pause).await;
        }
    }
}

fn pace(nodes: usize) -> Duration {
    PACE.max(PACE_OF_NODES * u32::try_from(nodes).unwrap_or(u32::MAX))
}

fn regarding(denial: &DenialReport) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(denial.pod.namespace.clone()),
        name: Some(denial.pod.name.clone()),
        uid: Some(denial.uid.clone()),
        ..ObjectReference::default()
    }
}

/// Recent Events of each pod, by its UID. The node's pace and [`PERIOD`] bound the number of pods.
#[derive(Default)]
struct RecentEvents(HashMap<String, PodEvents>);

#[derive(Default)]
struct PodEvents {
    events: Vec<(DropKey, Instant)>,
    /// Number of denials above the limit since the last Event.
    untold: u64,
}

impl RecentEvents {
    /// Returns the note of an Event to write for a denial now; `None` for no Event.
    fn event_note(&mut self, denial: &DenialReport, now: Instant) -> Option<String> {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < PERIOD;
        self.0.retain(|_, pod| {
            pod.events.retain(|(_, at)| is_recent(at));
            !pod.events.is_empty()
        });
        let pod = self.0.entry(denial.uid.clone()).or_default();
        if pod.events.iter().any(|(key, _)| *key == denial.key) {
            return None;
        }
        if pod.events.len() >= OF_POD {
            pod.untold += 1;
            return None;
        }
        pod.events.push((denial.key, now));
        let more = match std::mem::take(&mut pod.untold) {
            0 => String::new(),
            untold => format!(" (and {untold} other denials before)"),
        };
        Some(cut(format!("{}{more}", denial.text), NOTE_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(pod: &str, port: u16) -> DenialReport {
        let key = (1, Direction::Ingress, "policy", None, Some(6), port);
        DenialReport { pod: Key::new("x", pod), uid: pod.into(), key, text: format!("port {port}") }
    }

    #[test]
    fn a_pod_has_five_events_in_ten_minutes_and_none_twice() {
        let (mut told, start) = (RecentEvents::default(), Instant::now());
        let ports = (0..1000).map(|n| n % 100);
        let notes: Vec<_> = ports.filter_map(|n| told.event_note(&denial("a", n), start)).collect();
        assert_eq!(notes, ["port 0", "port 1", "port 2", "port 3", "port 4"]);
        assert!(told.event_note(&denial("b", 0), start).is_some(), "another pod has its own");
        let later = start + PERIOD;
        assert!(told.event_note(&denial("b", 7), later).is_some());
        assert_eq!(told.0.len(), 1, "what is long ago is forgotten");
        assert_eq!(told.event_note(&denial("a", 0), later).as_deref(), Some("port 0"));
    }

    #[test]
    fn an_event_says_that_others_were_not_told() {
        let (mut told, start) = (RecentEvents::default(), Instant::now());
        let first = start + PERIOD / 2;
        assert!(told.event_note(&denial("a", 0), start).is_some());
        let notes = (1..20).filter_map(|n| told.event_note(&denial("a", n), first)).count();
        assert_eq!(notes, OF_POD - 1);
        let note = told.event_note(&denial("a", 0), start + PERIOD);
        assert_eq!(note.as_deref(), Some("port 0 (and 15 other denials before)"));
    }

    #[test]
    fn a_large_cluster_writes_ten_events_a_second() {
        assert_eq!(pace(0), PACE);
        assert_eq!(pace(3), PACE);
        assert_eq!(pace(5000), Duration::from_secs(500));
    }
}
