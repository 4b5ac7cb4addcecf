//! Kubernetes Events on policies that cannot be honoured, and on a node where packets bypass the programs.
//!
//! Only a few of thousands of agents write (`engine/unsupported.rs` chooses them), each once, and again while the
//! problem lasts, because Events expire after an hour. Nothing waits for Events: a failed write is repeated later.
//!
//! Namespaces take turns. An Event that the API server refuses delays its object alone; only an outage stops all
//! Events.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use netpold_core::model::Key;
use netpold_core::printable::cut;
use netpold_core::turns::in_turns;
use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};

use super::connection::Connection;
use super::denials::{self, Denials};
use super::event::{EventError, NOTE_MAX, publish};

/// Problems of the node, by the reason of their Event.
pub(super) type NodeProblems = BTreeMap<&'static str, Vec<String>>;
/// Policies that select a local pod and cannot be honoured, with UID and reasons. The key of a ClusterNetworkPolicy has
/// no namespace.
pub type Unsupported = BTreeMap<Key, (String, Vec<String>)>;

/// Shortest time between two Events.
const PACE: Duration = Duration::from_secs(1);
/// Time after which an Event is repeated while its problem lasts.
const REPEAT: Duration = Duration::from_mins(30);
/// Shortest time between two Events on the same policy: its editors can change the Event's note at will.
const PAUSE: Duration = Duration::from_mins(1);
/// Shortest time between attempts in an outage, and after a refusal by the server; the latter doubles with each refusal
/// in a row, up to [`REPEAT`].
const RETRY: Duration = Duration::from_mins(1);
/// Number of attempts in a row without an answer that count as an outage.
const OUTAGE: u32 = 3;
/// Longest name of a reporting instance that the API accepts.
const INSTANCE_MAX: usize = 128;
/// Prefix of the subjects of the node's own Events; no UID has it.
const OF_NODE: &str = "node/";

/// Recorder of Events; when it is dropped, no more are written.
#[derive(Debug)]
pub struct EventRecorder {
    connection: Arc<Connection>,
    policies: watch::Sender<Unsupported>,
    node: watch::Sender<NodeProblems>,
    denials: mpsc::Sender<Denials>,
}

impl EventRecorder {
    pub(super) fn start(connection: Arc<Connection>, node: String) -> Self {
        let (policies, unsupported) = watch::channel(Unsupported::new());
        let (sender, of_node) = watch::channel(NodeProblems::new());
        let instance: String = node.chars().take(INSTANCE_MAX).collect();
        let (denials, denied) = mpsc::channel(1);
        tokio::spawn(denials::write(Arc::clone(&connection), instance.clone(), denied));
        let shared = Arc::clone(&connection);
        let writer = Writer { connection, instance, of_node, agenda: EventSchedule::new(node) };
        tokio::spawn(writer.run(unsupported));
        Self { connection: shared, policies, node: sender, denials }
    }

    /// Returns the recorder's connection to the API server.
    #[must_use]
    pub fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.connection)
    }

    /// Sets all current problems of this node. Never waits.
    pub fn tell_of_node(&self, of_node: NodeProblems) {
        self.node.send_if_modified(|current| {
            let modified = *current != of_node;
            *current = of_node;
            modified
        });
    }

    /// Reports denials to the owners of the pods. Drops denials that arrive while others are written. Never waits.
    pub fn tell_of_denials(&self, denials: Denials) {
        if !denials.all.is_empty() {
            let _ = self.denials.try_send(denials);
        }
    }

    /// Sets all current unsupported policies. Never waits.
    pub fn set_unsupported(&self, unsupported: Unsupported) {
        self.policies.send_if_modified(|current| {
            let modified = *current != unsupported;
            *current = unsupported;
            modified
        });
    }
}

struct Writer {
    connection: Arc<Connection>,
    instance: String,
    of_node: watch::Receiver<NodeProblems>,
    agenda: EventSchedule,
}

/// Schedule of Events.
struct EventSchedule {
    node: String,
    /// Reported state of each policy, by UID, and of the node, by [`OF_NODE`] and the reason.
    subjects: HashMap<String, EventSubject>,
    /// Namespace of the policy that had an Event last.
    served: String,
    /// Number of attempts in a row that failed as in an outage.
    unanswered: u32,
}

/// Reported state of an object.
#[derive(Default)]
struct EventSubject {
    /// Last note, and the time at which it was written.
    reported: Option<(String, Instant)>,
    /// Number of refusals in a row.
    refusals: u32,
    rests_until: Option<Instant>,
}

impl EventSubject {
    fn is_due(&self, note: &str, now: Instant) -> bool {
        let due = self.reported.as_ref().is_none_or(|(reported, at)| {
            let pause = if reported == note { REPEAT } else { PAUSE };
            now.saturating_duration_since(*at) >= pause
        });
        due && self.rests_until.is_none_or(|until| until <= now)
    }

    fn refused(&mut self, now: Instant) {
        let pause = RETRY.saturating_mul(1 << self.refusals.min(6)).min(REPEAT);
        self.refusals += 1;
        self.rests_until = Some(now + pause);
    }
}

/// An Event to write.
struct DueEvent {
    subject: String,
    reason: &'static str,
    note: String,
    regarding: ObjectReference,
}

impl Writer {
    async fn run(mut self, mut unsupported: watch::Receiver<Unsupported>) {
        loop {
            let all = unsupported.borrow_and_update().clone();
            let of_node = self.of_node.borrow_and_update().clone();
            let pause = match self.agenda.next(&all, &of_node, Instant::now()) {
                Some(due) => self.write(due).await,
                None => RETRY,
            };
            tokio::select! {
                changed = unsupported.changed() => if changed.is_err() { return },
                changed = self.of_node.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(pause) => {}
            }
            tokio::time::sleep(PACE).await;
        }
    }

    /// Writes an Event; returns the pause before the next attempt, in addition to the pace.
    async fn write(&mut self, due: DueEvent) -> Duration {
        let DueEvent { reason, note, regarding, .. } = &due;
        let action = (*reason, "Enforce");
        let written =
            publish(&self.connection, &self.instance, action, note, regarding.clone()).await;
        self.agenda.record_outcome(due, written, Instant::now())
    }
}

impl EventSchedule {
    fn new(node: String) -> Self {
        Self { node, subjects: HashMap::new(), served: String::new(), unanswered: 0 }
    }

    /// Returns the Event that is due: the node's first, then the namespaces' in turns, starting after the namespace
    /// that had the last Event. One at a time: another policy may be corrected in the meantime.
    fn next(
        &mut self,
        all: &Unsupported,
        of_node: &NodeProblems,
        now: Instant,
    ) -> Option<DueEvent> {
        let known: HashSet<&str> = all.values().map(|(uid, _)| uid.as_str()).collect();
        self.subjects
            .retain(|subject, _| subject.starts_with(OF_NODE) || known.contains(subject.as_str()));
        let is_due = |subject: &str, note: &str| {
            self.subjects.get(subject).is_none_or(|it| it.is_due(note, now))
        };
        for (&reason, problems) in of_node {
            let (subject, note) =
                (format!("{OF_NODE}{reason}"), cut(problems.join("; "), NOTE_MAX));
            // The note varies with counts: a changed note does not make the Event due before `REPEAT`.
            let reported =
                self.subjects.get(&subject).and_then(|it| Some(it.reported.as_ref()?.0.clone()));
            if !problems.is_empty() && is_due(&subject, reported.as_deref().unwrap_or(&note)) {
                return Some(DueEvent { subject, reason, note, regarding: self.own_node() });
            }
        }
        let notes = all
            .iter()
            .map(|(policy, (uid, reasons))| (policy, uid, event_note(&self.node, reasons)));
        let mut due: Vec<_> = notes.filter(|(_, uid, note)| is_due(uid, note)).collect();
        due.sort_by_key(|(_, uid, _)| {
            self.subjects.get(*uid).and_then(|it| Some(it.reported.as_ref()?.1))
        });
        let served = self.served.as_str();
        let turns =
            in_turns(due, |(policy, ..)| (&*policy.namespace <= served, &*policy.namespace));
        let (policy, uid, note) = turns.into_iter().next()?;
        let due = DueEvent {
            subject: uid.clone(),
            reason: "PolicyNotHonoured",
            note,
            regarding: regarding(policy, uid),
        };
        self.served.clone_from(&policy.namespace);
        Some(due)
    }

    /// Records the outcome of a write; returns the pause before the next attempt, in addition to the pace.
    fn record_outcome(
        &mut self,
        due: DueEvent,
        written: Result<(), EventError>,
        now: Instant,
    ) -> Duration {
        let DueEvent { subject, reason, note, regarding } = due;
        let name = regarding.name.unwrap_or_default();
        let it = self.subjects.entry(subject).or_default();
        let Err(error) = written else {
            debug!(name, reason, note, "Event written");
            self.unanswered = 0;
            *it = EventSubject { reported: Some((note, now)), ..EventSubject::default() };
            return Duration::ZERO;
        };
        // One namespace's Events may time out; as namespaces take turns, only timeouts in a row count as an outage.
        self.unanswered = if error.is_outage { self.unanswered + 1 } else { 0 };
        let is_outage = self.unanswered >= OUTAGE;
        if error.is_terminating {
            debug!(name, reason, "no Event: the namespace is being deleted");
        } else if is_outage || it.refusals == 0 {
            warn!(name, reason, %error, "cannot write Event");
        }
        if is_outage {
            return RETRY;
        }
        it.refused(now);
        Duration::ZERO
    }

    /// Refers to the node by its name, as the kubelet's Events on a node do, and in the same namespace, since some
    /// servers (1.20) require the same namespace in both places.
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

/// Refers to a policy. Events on objects without a namespace are in `default`, as are those on this node.
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

fn event_note(node: &str, reasons: &[String]) -> String {
    let reasons = reasons.join("; ");
    cut(
        format!("On node {node} part of this policy is not enforced as written: {reasons}"),
        NOTE_MAX,
    )
}

#[cfg(test)]
mod tests {
    use netpold_testkit::random::Random;

    use super::*;

    #[test]
    fn a_note_fits() {
        let text = "On node n part of this policy is not enforced as written: a; b";
        assert_eq!(event_note("n", &["a".into(), "b".into()]), text);
        let long = event_note("n", &["\u{e9}".repeat(2000)]);
        assert!(long.len() <= NOTE_MAX && long.ends_with(" ..."));
    }

    /// A hundred policies of one tenant, sorted before another tenant's single one.
    fn troubled() -> Unsupported {
        let crowd = (0..100).map(|n| ("crowd", format!("p{n:02}")));
        let all = crowd.chain([("shop", "web".to_owned())]);
        all.map(|(namespace, name)| {
            let key = Key::new(namespace, &*name);
            (key, (format!("{namespace}/{name}"), vec!["is wrong".to_owned()]))
        })
        .collect()
    }

    fn refusal() -> Result<(), EventError> {
        Err(EventError { text: "422".into(), is_outage: false, is_terminating: false })
    }

    #[test]
    fn namespaces_take_turns_whatever_is_refused_or_changes() {
        let (mut all, none) = (troubled(), NodeProblems::new());
        for refused in [false, true] {
            let (mut agenda, mut now) = (EventSchedule::new("n1".into()), Instant::now());
            let mut turns = Vec::new();
            for turn in 0..6 {
                // The crowd's notes change all the time.
                all.values_mut().for_each(|(_, reasons)| reasons[0] = format!("is wrong {turn}"));
                let due = agenda.next(&all, &none, now).unwrap();
                turns.push(due.subject.clone());
                let is_crowd = due.subject.starts_with("crowd");
                let written = if refused && is_crowd { refusal() } else { Ok(()) };
                assert_eq!(agenda.record_outcome(due, written, now), Duration::ZERO);
                now += PACE;
            }
            let expected =
                ["crowd/p00", "shop/web", "crowd/p01", "crowd/p02", "crowd/p03", "crowd/p04"];
            assert_eq!(turns, expected, "refused: {refused}");
            // Refused Events are tried again after all others.
            let due = agenda.next(&all, &none, now + 2 * RETRY).unwrap();
            assert!(!turns.contains(&due.subject) || due.subject == "shop/web", "{}", due.subject);
        }
    }

    fn silence() -> Result<(), EventError> {
        Err(EventError { text: "no answer".into(), is_outage: true, is_terminating: false })
    }

    #[test]
    fn an_outage_stops_all_and_what_looks_like_one_does_not() {
        let (all, none) = (troubled(), NodeProblems::new());
        let (mut agenda, mut now) = (EventSchedule::new("n1".into()), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..OUTAGE {
            let due = agenda.next(&all, &none, now).unwrap();
            pauses.push(agenda.record_outcome(due, silence(), now));
        }
        assert_eq!(pauses, [Duration::ZERO, Duration::ZERO, RETRY], "nobody answers");
        now += RETRY;
        // Every other one of the crowd's Events is not answered.
        let mut number = 0;
        while let Some(due) = agenda.next(&all, &none, now) {
            number += 1;
            now += PACE;
            let pause =
                agenda.record_outcome(due, if number % 2 == 0 { silence() } else { Ok(()) }, now);
            assert_eq!(pause, Duration::ZERO, "others' Events are written");
            if number > 60 {
                break;
            }
        }
    }

    /// A tenant's policies come, go, change and have long names; their Events are refused, time out or are written.
    /// Each change of the other tenant's policy is reported within the pause after its last Event, plus three turns.
    #[test]
    fn whatever_becomes_of_a_tenants_events_the_others_are_written() {
        for seed in 1..=10 {
            let mut random = Random(seed);
            let (mut agenda, mut now) = (EventSchedule::new("n1".into()), Instant::now());
            let (mut all, none) = (Unsupported::new(), NodeProblems::new());
            let (mut edited_at, mut waits) = (None, 0);
            for step in 0..600 {
                for _ in 0..random.below(4) {
                    let name = "n".repeat(1 + random.below(253));
                    let key = Key::new("a-hostile", &*name);
                    match random.below(4) {
                        0 => drop(all.remove(&key)),
                        _ => drop(all.insert(key, (name, vec![format!("is wrong {step}")]))),
                    }
                }
                let other = Key::new("shop", "web");
                if step % 100 == 7 {
                    all.insert(other, ("other".into(), vec![format!("is wrong {step}")]));
                    edited_at = Some(now);
                }
                now += PACE;
                let Some(due) = agenda.next(&all, &none, now) else { continue };
                let is_other = due.subject == "other";
                let outcome = match random.below(3) {
                    _ if is_other => Ok(()),
                    0 => Ok(()),
                    1 => refusal(),
                    _ => silence(),
                };
                now += agenda.record_outcome(due, outcome, now);
                if is_other && let Some(edited_at) = edited_at.take() {
                    let waited = now - edited_at;
                    assert!(waited <= PAUSE + 5 * PACE, "seed {seed}: {waited:?}");
                    waits += 1;
                }
            }
            assert!(waits >= 5, "seed {seed}: {waits} Events of the other");
        }
    }
}
