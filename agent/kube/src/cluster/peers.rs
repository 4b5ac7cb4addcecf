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
//! renewed. One update of the hub contains each exchange, so no packet is judged by a mixture.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use netpold_api::peer_slice::{HEARTBEAT, INDEX, PeerSlice, PeerVocabulary, SLICE_PREFIX};
use netpold_api::source::KindStatus;
use netpold_core::model::{Change, Key};
use netpold_slices::{HeldPolicies, KnownNames, PeerOrigin, PeerView, decode};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use super::hub::{Problems, Update};
use super::outage::random_part;
use super::slice_follower::SliceEvent;
use super::slice_health::{PeerTimes, SliceHealth};

/// Interval of the look at times.
const LOOK: Duration = Duration::from_millis(500);
/// Most slices: a million pods.
const MAX_SLICES: usize = 20_000;
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
    /// Names in the slices, by the index; unknown before it.
    names: KnownNames,
    /// Slices that cannot be decoded, with the reason.
    broken: BTreeMap<String, String>,
    /// Number of slices by the last list and the events after it.
    known: BTreeMap<String, usize>,
    is_listed: bool,
    /// Whether the slices have the names of all policies, or cannot have more.
    is_covered: bool,
    /// Whether pods of other nodes were complete at some time.
    is_ready: bool,
    /// Start of the present time in which slices are not usable.
    unusable: Option<Instant>,
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
        times: PeerTimes,
        start_pods: StartPods,
    ) -> Self {
        Self {
            channels,
            kinds,
            start_pods,
            view: PeerView::default(),
            held: HeldPolicies::default(),
            health: SliceHealth::new(times, Instant::now()),
            names: KnownNames::Unknown,
            broken: BTreeMap::new(),
            known: BTreeMap::new(),
            is_listed: false,
            is_covered: false,
            is_ready: false,
            unusable: Some(Instant::now()),
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
                    let changes = self.take_event(event);
                    self.send(changes).await
                }
                _ = look.tick() => self.send(Vec::new()).await,
            };
            if sent.is_none() {
                return;
            }
        }
    }

    /// Takes in an update of a follower, and passes it on; `None`: the hub has ended.
    async fn take_update(&mut self, mut update: Update) -> Option<()> {
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
        if let Some(pods) = self.all_pods.as_mut().filter(|pods| pods.number == update.kind) {
            pods.version = pods.version.max(update.version);
            pods.status = update.status;
            if let Some(problems) = update.problems {
                pods.problems = problems;
            }
            let changes = all.into_iter().filter_map(|change| self.view.take_watched(change));
            let mut changes: Vec<Change> = changes.collect();
            if update.synced && self.view.origin() == PeerOrigin::Slices {
                changes.extend(self.follow_pods());
            }
            return self.send_at(changes, update.at).await;
        }
        if update.kind > self.kinds.slices {
            // A follower of all pods that has been ended.
            return Some(());
        }
        let has_changes = !all.is_empty();
        update.changes = all.into_iter().filter_map(|change| self.held.take(change)).collect();
        if has_changes {
            self.is_covered = self.held.are_covered_by(&self.names);
        }
        let at = update.at;
        self.channels.out.send(update).await.ok()?;
        self.send_at(Vec::new(), at).await
    }

    /// Takes in an event of slices; returns the changes that follow.
    fn take_event(&mut self, event: SliceEvent) -> Vec<Change> {
        let now = Instant::now();
        let status = &mut self.slice_status;
        if let SliceEvent::Failed { text, is_outage } = event {
            status.error = Some(format!("cannot follow peer slices: {text}"));
            status.restarts += 1;
            status.unreachable = is_outage;
            self.health.set_outage(is_outage, now);
            return Vec::new();
        }
        (status.error, status.unreachable, status.served) = (None, false, true);
        self.health.set_outage(false, now);
        match event {
            SliceEvent::Set(slice) => self.take_slice(*slice, now),
            SliceEvent::Gone(name) => {
                self.broken.remove(&name);
                self.known.remove(&name);
                if name == INDEX {
                    (self.names, self.is_covered) = (KnownNames::Unknown, false);
                }
                self.view.take_slice(&name, Vec::new())
            }
            SliceEvent::Listed(slices) => {
                self.slice_status.lists += 1;
                (self.is_listed, self.slice_status.in_sync) = (true, true);
                let names = slices.iter().filter_map(|slice| slice.metadata.name.clone());
                let names = names.take(MAX_SLICES);
                let known: BTreeMap<String, usize> = names.map(|name| (name, 0)).collect();
                self.broken.retain(|name, _| known.contains_key(name));
                let mut changes = self.view.retain_slices(|name| known.contains_key(name));
                if !known.contains_key(INDEX) {
                    (self.names, self.is_covered) = (KnownNames::Unknown, false);
                }
                self.known = known;
                changes.extend(slices.into_iter().flat_map(|slice| self.take_slice(slice, now)));
                changes
            }
            SliceEvent::Failed { .. } => Vec::new(),
        }
    }

    fn take_slice(&mut self, slice: PeerSlice, now: Instant) -> Vec<Change> {
        let name = slice.metadata.name.unwrap_or_default();
        if name == INDEX {
            return self.take_index(&slice.spec.vocabulary.unwrap_or_default());
        }
        if name == HEARTBEAT {
            let Some(heartbeat) = slice.spec.heartbeat else { return Vec::new() };
            if self.health.beat(heartbeat.number, now) {
                self.compare_own();
                return self.view.take_version(heartbeat.pods_version);
            }
            return Vec::new();
        }
        let is_numbered =
            name.strip_prefix(SLICE_PREFIX).is_some_and(|number| number.parse::<u32>().is_ok());
        let has_room = self.known.contains_key(&name) || self.known.len() < MAX_SLICES;
        let pods = match is_numbered && has_room {
            true => decode(&slice.spec).map_err(|error| error.to_string()),
            false => Err("no name of the controller's slices".to_owned()),
        };
        match pods {
            Ok(pods) => {
                self.broken.remove(&name);
                self.known.insert(name.clone(), pods.len());
                self.view.take_slice(&name, pods)
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

    fn take_index(&mut self, vocabulary: &PeerVocabulary) -> Vec<Change> {
        let is_full = vocabulary.is_full;
        self.names = KnownNames::Of { vocabulary: vocabulary.into(), is_full };
        self.is_covered = self.held.are_covered_by(&self.names);
        match self.is_ready && self.view.origin() == PeerOrigin::Slices {
            true => self.held.set_names(self.names.clone()),
            false => Vec::new(),
        }
    }

    /// Compares the own pods with their entries in slices: what differs at two heartbeats does not come from a slice that
    /// lags.
    fn compare_own(&mut self) {
        let KnownNames::Of { vocabulary, .. } = &self.names else { return };
        let differing = self.view.own_differences(vocabulary);
        let again = differing.iter().filter(|(key, hash)| self.differing.get(key) == Some(hash));
        self.forged = again.map(|(key, _)| key.clone()).collect();
        self.differing = differing;
    }

    /// Returns whether agents can judge by the slices.
    fn is_usable(&self, now: Instant) -> bool {
        self.is_listed
            && self.broken.is_empty()
            && self.forged.is_empty()
            && self.health.is_renewed(now)
            && self.is_covered
    }

    /// Decides about the origin of pods; returns the changes that follow.
    fn decide(&mut self, now: Instant) -> Vec<Change> {
        let is_usable = self.is_usable(now);
        let unusable = if is_usable { None } else { Some(self.unusable.unwrap_or(now)) };
        self.unusable = unusable;
        match self.view.origin() {
            PeerOrigin::Slices if is_usable => {
                if self.all_pods.take().is_some() {
                    info!("peer slices are renewed again; they stay in use");
                    self.view.forget_watched();
                }
                if self.is_ready {
                    return Vec::new();
                }
                self.is_ready = true;
                self.use_slices();
                let mut changes = self.view.start();
                changes.extend(self.held.set_names(self.names.clone()));
                changes
            }
            PeerOrigin::Slices => {
                let is_lost = unusable.is_some_and(|since| self.health.is_lost(since, now));
                if is_lost && self.all_pods.is_none() {
                    self.start_pods();
                }
                Vec::new()
            }
            PeerOrigin::Pods if is_usable && self.health.is_steady(now) => self.follow_slices(),
            PeerOrigin::Pods => Vec::new(),
        }
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
        });
    }

    /// Judges by the watch of all pods, whose list is complete.
    fn follow_pods(&mut self) -> Vec<Change> {
        info!("all pods are known by their own watch; peer slices are not in use");
        self.is_ready = true;
        let mut changes = self.view.follow_pods();
        changes.extend(self.held.set_names(KnownNames::All));
        changes
    }

    /// Judges by slices again.
    fn follow_slices(&mut self) -> Vec<Change> {
        let KnownNames::Of { vocabulary, .. } = &self.names else { return Vec::new() };
        info!("peer slices are renewed again, and in use instead of a watch of all pods");
        let version = self.all_pods.take().map_or(u64::MAX, |pods| pods.version);
        let mut changes = self.view.follow_slices(vocabulary, version);
        changes.extend(self.held.set_names(self.names.clone()));
        self.use_slices();
        changes
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
