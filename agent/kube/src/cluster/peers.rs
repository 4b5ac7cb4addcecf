//! Pods of other nodes from slices instead of a watch of all pods.
//!
//! ```text
//! Follower<Pod> (own) ──┐
//! Follower<…> ──────────┤          ┌──────────────┐
//! slices ───────────────┼─────────►│ Peers        │──► Update ──► Hub
//! Follower<Pod> (all) ──┘          │ PeerView     │
//!   while slices are not renewed   │ HeldPolicies │
//!                                  └──────────────┘
//! ```
//!
//! The hub and the engine get the same changes as from a watch of all pods. While the controller does not renew the
//! slices, what is known stays in force; after half a minute all pods are followed, and slices again once they are
//! renewed. One update of the hub contains each exchange, so no packet is judged by a mixture. Before slices replace the
//! watch of all pods, its changes wait until the slices have those before, so that no pod's state is followed by an older one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netpold_api::peer_slice::{HEARTBEAT, INDEX, PeerSlice};
use netpold_api::source::KindStatus;
use netpold_core::model::{Change, Key};
use netpold_slices::{
    HeldPolicies, KnownNames, PeerOrigin, PeerView, Vocabulary, decode, slice_name, slice_number,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use super::hub::{Problems, Update};
use super::outage::{Outage, random_part};
use super::slice_follower::SliceEvent;
use super::slice_health::{PeerTimes, SliceHealth};
use crate::gathered::Gathered;

/// Interval of the look at times.
const LOOK: Duration = Duration::from_millis(500);
/// Most slices: more than a million pods.
const MAX_SLICES: usize = 100_000;
/// Shortest time over which the agents of a cluster begin to follow all pods; a millisecond more for each pod.
const SPREAD: Duration = Duration::from_secs(5);

/// Starts a follower of all pods with this number.
pub(super) type StartPods = Box<dyn Fn(usize) -> JoinHandle<()> + Send>;

/// Channels of [`Peers`].
pub(super) struct PeerChannels {
    /// Updates of followers.
    pub(super) updates: mpsc::Receiver<Update>,
    /// Updates for the hub.
    pub(super) out: mpsc::Sender<Update>,
    /// Events of slices.
    pub(super) slices: mpsc::Receiver<SliceEvent>,
}

/// Numbers of kinds at the hub.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerKinds {
    /// The own pods; at the hub all pods.
    pub(super) pods: usize,
    /// The slices.
    pub(super) slices: usize,
}

/// Follower of all pods.
struct AllPods {
    number: usize,
    task: JoinHandle<()>,
    version: u64,
    status: KindStatus,
    problems: Problems,
    /// Changes that wait until slices replace this watch, or until that fails, with their version; `None`: none wait.
    waiting: Option<(Gathered, u64)>,
}

impl Drop for AllPods {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Merges the followers' updates with slices.
pub(super) struct Peers {
    channels: PeerChannels,
    kinds: PeerKinds,
    start_pods: StartPods,
    view: PeerView,
    held: HeldPolicies,
    health: SliceHealth,
    outage: Arc<Outage>,
    /// Names in the slices, by the index; unknown before it.
    names: Option<Vocabulary>,
    /// Whether there is an index.
    has_index: bool,
    /// Slices that cannot be decoded, with the reason.
    broken: BTreeMap<String, String>,
    /// Number of slices by the last list and the events after it.
    known: BTreeMap<String, usize>,
    is_listed: bool,
    /// Whether the slices have the names of all policies that count; `None`: to be looked at.
    is_covered: Option<bool>,
    /// Whether pods of other nodes were complete at some time.
    is_ready: bool,
    all_pods: Option<AllPods>,
    /// Number of starts of followers of all pods.
    starts: usize,
    own_status: KindStatus,
    own_synced: bool,
    own_problems: Problems,
    slice_status: KindStatus,
    /// Own pods with another state in slices, by the last heartbeat and by the last two.
    differing: BTreeMap<Key, u64>,
    forged: Vec<Key>,
    /// Problems that were sent last.
    problems: Vec<String>,
}

impl Peers {
    pub(super) fn new(
        channels: PeerChannels,
        kinds: PeerKinds,
        (node, times): (&str, PeerTimes),
        outage: Arc<Outage>,
        start_pods: StartPods,
    ) -> Self {
        Self {
            channels,
            kinds,
            start_pods,
            view: PeerView::new(node.to_owned()),
            held: HeldPolicies::default(),
            health: SliceHealth::new(times, Instant::now()),
            outage,
            names: None,
            has_index: false,
            broken: BTreeMap::new(),
            known: BTreeMap::new(),
            is_listed: false,
            is_covered: None,
            is_ready: false,
            all_pods: None,
            starts: 0,
            own_status: KindStatus::default(),
            own_synced: false,
            own_problems: Problems::default(),
            slice_status: slice_status(),
            differing: BTreeMap::new(),
            forged: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Merges until the hub has ended.
    pub(super) async fn run(mut self) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let sent = tokio::select! {
                () = self.channels.out.closed() => return,
                Some(update) = self.channels.updates.recv() => self.take_update(update).await,
                Some(event) = self.channels.slices.recv() => {
                    let changes = self.take_event(event, Instant::now());
                    self.send(changes).await
                }
                _ = look.tick() => {
                    self.is_covered = None;
                    let changes = self.held.look(self.health.served(Instant::now()));
                    self.send(changes).await
                }
            };
            if sent.is_none() {
                return;
            }
        }
    }

    /// Takes in an update of a follower, and passes it on; `None`: the hub has ended.
    async fn take_update(&mut self, mut update: Update) -> Option<()> {
        if update.kind > self.kinds.slices {
            let at = update.at;
            let changes = self.take_pods(update);
            return self.send_at(changes, at).await;
        }
        let all = std::mem::take(&mut update.changes);
        if update.kind == self.kinds.pods {
            let changes = all.into_iter().filter_map(|change| self.view.take_own(change)).collect();
            self.own_status = update.status;
            self.own_synced = update.synced;
            if let Some(problems) = update.problems {
                self.own_problems = problems;
            }
            return self.send_at(changes, update.at).await;
        }
        if !all.is_empty() {
            self.is_covered = None;
        }
        let served = self.health.served(Instant::now());
        let comes = all.into_iter().flat_map(|change| self.held.take(change, served));
        update.changes = comes.collect();
        let at = update.at;
        self.channels.out.send(update).await.ok()?;
        self.send_at(Vec::new(), at).await
    }

    /// Takes in an update of a follower of all pods; returns the changes that follow.
    fn take_pods(&mut self, update: Update) -> Vec<Change> {
        // A follower that has been ended may have sent updates before.
        let Some(pods) = self.all_pods.as_mut().filter(|pods| pods.number == update.kind) else {
            return Vec::new();
        };
        pods.status = update.status;
        if let Some(problems) = update.problems {
            pods.problems = problems;
        }
        if let Some((waiting, version)) = &mut pods.waiting {
            waiting.add(update.changes);
            *version = update.version.max(*version);
            return Vec::new();
        }
        pods.version = pods.version.max(update.version);
        let mut changes = self.take_watched(update.changes);
        if update.synced && self.view.origin() == PeerOrigin::Slices {
            changes.extend(self.follow_pods());
        }
        changes
    }

    fn take_watched(&mut self, changes: impl IntoIterator<Item = Change>) -> Vec<Change> {
        changes.into_iter().filter_map(|change| self.view.take_watched(change)).collect()
    }

    /// Takes in an event of slices; returns the changes that follow.
    fn take_event(&mut self, event: SliceEvent, now: Instant) -> Vec<Change> {
        let status = &mut self.slice_status;
        if let SliceEvent::Failed { text, is_unreachable } = event {
            status.error = Some(format!("cannot follow peer slices: {text}"));
            status.restarts += 1;
            status.unreachable = is_unreachable;
            return Vec::new();
        }
        (status.error, status.unreachable, status.served) = (None, false, true);
        match event {
            SliceEvent::Set(slice) => self.take_slice(*slice, false, now),
            SliceEvent::Gone(name) => {
                self.broken.remove(&name);
                self.known.remove(&name);
                self.has_index &= name != INDEX;
                let number = slice_number(&name);
                number.map_or_else(Vec::new, |number| self.view.take_slice(number, 0, Vec::new()))
            }
            SliceEvent::Listed(slices) => {
                self.slice_status.lists += 1;
                (self.is_listed, self.slice_status.in_sync) = (true, true);
                let names = slices.iter().filter_map(|slice| slice.metadata.name.clone());
                let known: BTreeMap<String, usize> =
                    names.take(MAX_SLICES).map(|name| (name, 0)).collect();
                self.broken.retain(|name, _| known.contains_key(name));
                let is_there = |number| known.contains_key(&slice_name(number));
                let mut changes = self.view.retain_slices(is_there);
                self.has_index = known.contains_key(INDEX);
                self.known = known;
                let taken = slices.into_iter().flat_map(|slice| self.take_slice(slice, true, now));
                changes.extend(taken);
                changes
            }
            SliceEvent::Failed { .. } => Vec::new(),
        }
    }

    /// Takes in a slice, of a list or of a watch; returns the changes that follow.
    fn take_slice(&mut self, slice: PeerSlice, is_listed: bool, now: Instant) -> Vec<Change> {
        let name = slice.metadata.name.unwrap_or_default();
        if name == INDEX {
            let vocabulary = Vocabulary::from(&slice.spec.vocabulary.unwrap_or_default());
            return self.take_index(vocabulary, is_listed, now);
        }
        if name == HEARTBEAT {
            let heartbeat = slice.spec.heartbeat.unwrap_or_default();
            if self.health.beat(heartbeat.number, heartbeat.pods_version, now) {
                self.compare_own();
            }
            return Vec::new();
        }
        let has_room = self.known.contains_key(&name) || self.known.len() < MAX_SLICES;
        let pods = match slice_number(&name).filter(|_| has_room) {
            Some(number) => {
                decode(&slice.spec).map(|pods| (number, pods)).map_err(|error| error.to_string())
            }
            None => Err("no name of the controller's slices".to_owned()),
        };
        match pods {
            Ok((number, pods)) => {
                self.broken.remove(&name);
                self.known.insert(name, pods.len());
                let version = slice.metadata.resource_version.and_then(|text| text.parse().ok());
                self.view.take_slice(number, version.unwrap_or_default(), pods)
            }
            // Its last state stays, until all pods are followed.
            Err(error) => {
                if self.broken.len() < MAX_SLICES {
                    self.broken.insert(name, error);
                }
                Vec::new()
            }
        }
    }

    fn take_index(&mut self, names: Vocabulary, is_listed: bool, now: Instant) -> Vec<Change> {
        self.names = Some(names.clone());
        (self.has_index, self.is_covered) = (true, None);
        let served = self.health.served(now);
        let is_in_use = self.is_ready && self.view.origin() == PeerOrigin::Slices;
        match (is_in_use, is_listed) {
            (false, _) => Vec::new(),
            (true, false) => self.held.set_names(KnownNames::Of(names), served),
            // Names may have ended while nobody watched.
            (true, true) => self.held.set_other_names(KnownNames::Of(names), served),
        }
    }

    /// Compares the own pods with their entries in slices: what differs at two heartbeats does not come from a slice that
    /// lags.
    fn compare_own(&mut self) {
        let Some(vocabulary) = &self.names else { return };
        let differing = self.view.own_differences(vocabulary);
        let again = differing.iter().filter(|(key, hash)| self.differing.get(key) == Some(hash));
        self.forged = again.map(|(key, _)| key.clone()).collect();
        self.differing = differing;
    }

    /// Returns whether agents can judge by the slices.
    fn is_usable(&mut self, now: Instant) -> bool {
        self.is_listed
            && self.has_index
            && self.broken.is_empty()
            && self.forged.is_empty()
            && self.health.is_renewed(now)
            && self.is_covered(now)
    }

    fn is_covered(&mut self, now: Instant) -> bool {
        let Some(names) = &self.names else { return false };
        let look = || {
            let matters = |namespace: &str| self.view.has_own_in(namespace);
            self.held.are_covered_by(names, self.health.served(now), matters)
        };
        let is_covered = self.is_covered.unwrap_or_else(look);
        self.is_covered = Some(is_covered);
        is_covered
    }

    /// Decides about the origin of pods; returns the changes that follow.
    fn decide(&mut self, now: Instant) -> Vec<Change> {
        self.health.set_outage(self.outage.is_on(), now);
        let is_usable = self.is_usable(now);
        self.health.set_usable(is_usable, now);
        match self.view.origin() {
            PeerOrigin::Slices if is_usable => {
                if self.end_all_pods() {
                    info!("peer slices are renewed again; they stay in use");
                }
                if self.is_ready {
                    return Vec::new();
                }
                self.is_ready = true;
                // The random time depends on the number of pods.
                let mut changes = self.view.start();
                self.use_slices();
                changes.extend(self.set_names(now));
                changes
            }
            PeerOrigin::Slices => {
                if self.health.is_outage() {
                    // The controller has its patience again after the outage.
                    self.end_all_pods();
                } else if self.health.is_lost(now) && self.all_pods.is_none() {
                    self.start_pods();
                }
                Vec::new()
            }
            PeerOrigin::Pods if is_usable && self.health.is_steady(now) => self.leave_pods(now),
            PeerOrigin::Pods => self.return_to_pods(),
        }
    }

    /// Ends the watch of all pods before its list was complete; returns whether there was one.
    fn end_all_pods(&mut self) -> bool {
        self.view.forget_watched();
        self.all_pods.take().is_some()
    }

    fn start_pods(&mut self) {
        warn!("peer slices are not usable; following all pods");
        self.starts += 1;
        let number = self.kinds.slices + self.starts;
        self.all_pods = Some(AllPods {
            number,
            task: (self.start_pods)(number),
            version: 0,
            status: KindStatus::default(),
            problems: Problems::default(),
            waiting: None,
        });
    }

    /// Has slices replace the watch of all pods, once they have all of its changes.
    fn leave_pods(&mut self, now: Instant) -> Vec<Change> {
        if let Some(pods) = &mut self.all_pods {
            pods.waiting.get_or_insert_default();
            if !self.health.contain(pods.version) {
                return Vec::new();
            }
        }
        info!("peer slices are renewed again, and in use instead of a watch of all pods");
        self.all_pods = None;
        let mut changes = self.view.follow_slices();
        changes.extend(self.set_names(now));
        self.use_slices();
        changes
    }

    /// Takes in the changes of the watch of all pods that waited for slices.
    fn return_to_pods(&mut self) -> Vec<Change> {
        let pods = self.all_pods.as_mut();
        let Some((pods, (changes, version))) = pods.and_then(|pods| {
            let waiting = pods.waiting.take()?;
            Some((pods, waiting))
        }) else {
            return Vec::new();
        };
        pods.version = pods.version.max(version);
        self.take_watched(changes.changes())
    }

    /// Judges by the watch of all pods, whose list is complete.
    fn follow_pods(&mut self) -> Vec<Change> {
        info!("all pods are known by their own watch; peer slices are not in use");
        self.is_ready = true;
        let mut changes = self.view.follow_pods();
        let served = self.health.served(Instant::now());
        changes.extend(self.held.set_names(KnownNames::All, served));
        changes
    }

    /// Puts policies into force as far as slices have their names.
    fn set_names(&mut self, now: Instant) -> Vec<Change> {
        let Some(names) = self.names.clone() else { return Vec::new() };
        self.held.set_other_names(KnownNames::Of(names), self.health.served(now))
    }

    fn use_slices(&mut self) {
        let pods = u64::try_from(self.view.len()).unwrap_or(u64::MAX);
        self.health.used(random_part(SPREAD.max(Duration::from_millis(pods))));
    }

    async fn send(&mut self, changes: Vec<Change>) -> Option<()> {
        self.send_at(changes, Instant::now()).await
    }

    /// Sends changes, and the state of both kinds; `None`: the hub has ended.
    async fn send_at(&mut self, mut changes: Vec<Change>, at: Instant) -> Option<()> {
        let now = Instant::now();
        changes.extend(self.decide(now));
        let mut status = self.own_status.clone();
        let mut problems = self.own_problems.clone();
        status.objects = self.view.len();
        if let Some(pods) = &self.all_pods {
            status.error = status.error.or_else(|| pods.status.error.clone());
            status.undecoded += pods.status.undecoded;
            problems.texts.extend(pods.problems.texts.iter().cloned());
            problems.more += pods.problems.more;
        }
        let is_whole = self.own_synced && self.is_ready;
        let kind = self.kinds.pods;
        let version = 0;
        let problems = Some(problems);
        let update =
            Update { kind, changes, at, status, synced: is_whole, is_whole, problems, version };
        self.channels.out.send(update).await.ok()?;
        self.send_slices(now).await
    }

    /// Sends the state of slices, if it changed.
    async fn send_slices(&mut self, now: Instant) -> Option<()> {
        let problems = self.slice_problems(now);
        self.slice_status.objects = self.known.len();
        self.slice_status.undecoded = self.broken.len();
        let is_news = problems != self.problems;
        self.problems.clone_from(&problems);
        let update = Update {
            kind: self.kinds.slices,
            changes: Vec::new(),
            at: now,
            status: self.slice_status.clone(),
            // Without slices all pods are followed, so that nothing waits for slices.
            synced: true,
            is_whole: true,
            problems: is_news.then_some(Problems { texts: problems, more: 0 }),
            version: 0,
        };
        self.channels.out.send(update).await.ok()
    }

    fn slice_problems(&self, now: Instant) -> Vec<String> {
        let mut problems = Vec::new();
        if self.health.silence(now).is_some() {
            let outcome = match (self.view.origin(), self.is_ready) {
                (PeerOrigin::Pods, _) => "all pods are followed instead",
                (PeerOrigin::Slices, true) => {
                    "the last known pods of other nodes stay in force until all pods are followed"
                }
                (PeerOrigin::Slices, false) => "all pods will be followed instead",
            };
            problems.push(format!("peer slices: the controller does not renew them; {outcome}"));
        }
        let broken = self.broken.iter().take(10);
        problems.extend(broken.map(|(name, error)| {
            format!("PeerSlice {name}: {error}; its last state stays until all pods are followed")
        }));
        problems.extend(
            self.forged
                .iter()
                .take(10)
                .map(|key| format!("Pod {key} of this node differs from its entry in peer slices")),
        );
        if self.view.origin() == PeerOrigin::Slices {
            problems.extend(self.held.problems().take(100));
        }
        problems
    }
}

/// Returns the status of slices before any answer.
pub(super) fn slice_status() -> KindStatus {
    KindStatus { kind: "peerslices.netpold.io".into(), ..KindStatus::default() }
}

#[cfg(test)]
mod tests;
