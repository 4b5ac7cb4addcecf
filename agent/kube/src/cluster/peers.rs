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
//! slices, the known state stays in force; after half a minute all pods are followed, and slices again once they are
//! renewed. One update of the hub contains each exchange, so no packet is judged by a mixture. Before slices replace
//! the watch of all pods, its new changes wait until the slices have the earlier ones, so that no pod's state is
//! followed by an older one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netpold_api::peer_slice::PeerHeartbeat;
use netpold_api::source::KindStatus;
use netpold_core::model::Change;
use netpold_slices::{HeldPolicies, KnownNames, PeerOrigin, PeerView};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use super::all_pods::{AllPods, StartPods};
use super::hub::{KindUpdate, Problems};
use super::outage::{Outage, random_part};
use super::own_entries::OwnEntries;
use super::slice_follower::SliceEvent;
use super::slice_health::{PeerTimes, SliceHealth};
use super::slice_set::{SliceChange, SliceSet};

/// Interval of checks of elapsed times.
const LOOK: Duration = Duration::from_millis(500);
/// Shortest time between two checks whether the API server answers.
const ASK: Duration = Duration::from_secs(2);
/// Shortest time over which the agents of a cluster begin to follow all pods; a millisecond more for each pod.
const SPREAD: Duration = Duration::from_secs(5);

/// Longest time for which policies that changed a moment ago delay the return to slices, until slices have their names.
const NAMES: Duration = Duration::from_mins(1);

/// Longest time for which missing names are no reason to follow all pods, while slices get them.
const COMING: Duration = Duration::from_mins(4);

/// Asks whether the API server answers.
pub(super) type AskServer = Box<dyn Fn() -> JoinHandle<()> + Send>;

/// Channels of [`Peers`].
pub(super) struct PeerChannels {
    /// Updates of followers.
    pub(super) updates: mpsc::Receiver<KindUpdate>,
    /// Updates for the hub.
    pub(super) out: mpsc::Sender<KindUpdate>,
    /// Events of slices.
    pub(super) slices: mpsc::Receiver<SliceEvent>,
}

/// Indexes of kinds at the hub.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerKinds {
    /// The pods of this node; at the hub all pods.
    pub(super) pods: usize,
    /// The slices.
    pub(super) slices: usize,
}

/// Merges the followers' updates with slices.
pub(super) struct Peers {
    channels: PeerChannels,
    kinds: PeerKinds,
    start_pods: StartPods,
    ask_server: AskServer,
    /// Last check whether the API server answers, with its time.
    asked: Option<(JoinHandle<()>, Instant)>,
    view: PeerView,
    held: HeldPolicies,
    health: SliceHealth,
    outage: Arc<Outage>,
    set: SliceSet,
    /// Names that slices get at present or next, each with the time of its announcement, without outages.
    coming: BTreeMap<(bool, String), Duration>,
    /// Whether the slices have the names of all policies that count; `None`: not checked yet.
    is_covered: Option<bool>,
    /// Whether pods of other nodes were complete at some time.
    is_ready: bool,
    all_pods: Option<AllPods>,
    /// Time since which slices could replace the watch of all pods.
    leaving: Option<Instant>,
    /// Number of starts of followers of all pods.
    starts: usize,
    own_status: KindStatus,
    own_settled: bool,
    own_problems: Problems,
    own_entries: OwnEntries,
    /// Problems that were sent last.
    problems: Vec<String>,
}

impl Peers {
    pub(super) fn new(
        channels: PeerChannels,
        kinds: PeerKinds,
        (node, times): (&str, PeerTimes),
        outage: Arc<Outage>,
        (start_pods, ask_server): (StartPods, AskServer),
    ) -> Self {
        Self {
            channels,
            kinds,
            start_pods,
            ask_server,
            asked: None,
            view: PeerView::new(node.to_owned()),
            held: HeldPolicies::default(),
            health: SliceHealth::new(times, Instant::now()),
            outage,
            set: SliceSet::new(),
            coming: BTreeMap::new(),
            is_covered: None,
            is_ready: false,
            all_pods: None,
            leaving: None,
            starts: 0,
            own_status: KindStatus::default(),
            own_settled: false,
            own_problems: Problems::default(),
            own_entries: OwnEntries::default(),
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
                    self.check_api_server(Instant::now());
                    let changes = self.held.release_due(self.health.served());
                    self.send(changes).await
                }
            };
            if sent.is_none() {
                return;
            }
        }
    }

    /// Takes in an update of a follower, and passes it on; `None`: the hub has ended.
    async fn take_update(&mut self, mut update: KindUpdate) -> Option<()> {
        if update.kind > self.kinds.slices {
            let at = update.at;
            let changes = self.take_pods(update);
            return self.send_at(changes, at).await;
        }
        let all = std::mem::take(&mut update.changes);
        if update.kind == self.kinds.pods {
            self.own_entries.apply_changes(&all, update.version);
            let changes = all.into_iter().filter_map(|change| self.view.take_own(change)).collect();
            self.own_status = update.status;
            self.own_settled = update.is_settled;
            if let Some(problems) = update.problems {
                self.own_problems = problems;
            }
            return self.send_at(changes, update.at).await;
        }
        if !all.is_empty() {
            self.is_covered = None;
        }
        let served = self.health.served();
        let comes = all.into_iter().flat_map(|change| self.held.apply_change(change, served));
        update.changes = comes.collect();
        let at = update.at;
        self.channels.out.send(update).await.ok()?;
        self.send_at(Vec::new(), at).await
    }

    /// Takes in an update of a follower of all pods; returns the changes that follow.
    fn take_pods(&mut self, update: KindUpdate) -> Vec<Change> {
        let is_settled = update.is_settled;
        let pods = self.all_pods.as_mut().filter(|pods| pods.has_number(update.kind));
        let Some(pods) = pods else { return Vec::new() };
        let (is_held, changes) = (pods.is_held(), pods.apply_update(update));
        let mut changes = self.take_watched(changes);
        if is_settled && !is_held && self.view.origin() == PeerOrigin::Slices {
            changes.extend(self.follow_pods());
        }
        changes
    }

    fn take_watched(&mut self, changes: impl IntoIterator<Item = Change>) -> Vec<Change> {
        changes.into_iter().filter_map(|change| self.view.take_watched(change)).collect()
    }

    /// Takes in an event of slices; returns the changes that follow.
    fn take_event(&mut self, event: SliceEvent, now: Instant) -> Vec<Change> {
        let changes = self.set.apply_event(event).into_iter();
        changes.flat_map(|change| self.take_slices(change, now)).collect()
    }

    fn take_slices(&mut self, change: SliceChange, now: Instant) -> Vec<Change> {
        match change {
            SliceChange::Pods(number, version, pods) => self.view.take_slice(number, version, pods),
            SliceChange::Only(numbers) => {
                self.view.retain_slices(|number| numbers.contains(&number))
            }
            SliceChange::Names { is_listed } => self.take_names(is_listed),
            SliceChange::Heartbeat { heartbeat, is_listed } => {
                let PeerHeartbeat { number, pods_version } = heartbeat;
                if self.health.beat(number, pods_version, is_listed, now)
                    && let Some(names) = self.set.names()
                {
                    self.own_entries.compare(&self.view, names, pods_version, now);
                }
                Vec::new()
            }
        }
    }

    fn take_names(&mut self, is_listed: bool) -> Vec<Change> {
        self.is_covered = None;
        let served = self.health.served();
        let before = std::mem::take(&mut self.coming);
        let names = self.set.coming().all().map(|(is_port, name)| (is_port, name.to_owned()));
        self.coming = names
            .map(|name| {
                let since = before.get(&name).copied().unwrap_or(served);
                (name, since)
            })
            .collect();
        let Some(names) = self.set.names().filter(|_| self.is_in_use()) else { return Vec::new() };
        let names = KnownNames::Of(names.clone());
        if is_listed {
            // Names may have been removed while no watch was running.
            self.held.set_other_names(names, served)
        } else {
            self.held.set_names(names, served)
        }
    }

    /// Whether the pods of other nodes are those of slices.
    fn is_in_use(&self) -> bool {
        self.is_ready && self.view.origin() == PeerOrigin::Slices
    }

    /// Returns whether agents can judge by the slices.
    fn is_usable(&mut self, now: Instant) -> bool {
        self.set.is_complete()
            && self.own_entries.are_right()
            && self.health.is_renewed(now)
            && self.is_covered()
    }

    fn is_covered(&mut self) -> bool {
        let Some(names) = self.set.names() else { return false };
        let look = || {
            let matters = |namespace: &str| self.matters(namespace);
            let served = self.health.served();
            let mut names = names.clone();
            if self.is_in_use() {
                let is_young =
                    |(_, since): &(_, &Duration)| served.saturating_sub(**since) < COMING;
                let coming = self.coming.iter().filter(is_young);
                let coming = coming.map(|((is_port, name), _)| (*is_port, name.as_str()));
                names.add_within(coming, usize::MAX);
            }
            self.held.are_covered_by(&names, served, matters)
        };
        let is_covered = self.is_covered.unwrap_or_else(look);
        self.is_covered = Some(is_covered);
        is_covered
    }

    /// Whether missing names of a namespace's policies count.
    fn matters(&self, namespace: &str) -> bool {
        self.view.has_own_in(namespace) && !self.set.is_crowded(namespace)
    }

    /// Returns whether slices have the names of the policies that changed a moment ago too, or have lacked them for long.
    fn have_new_names(&mut self, now: Instant) -> bool {
        let since = *self.leaving.get_or_insert(now);
        let Some(names) = self.set.names() else { return false };
        now.saturating_duration_since(since) >= NAMES
            || self.held.are_all_covered_by(names, |namespace| self.matters(namespace))
    }

    /// Decides about the origin of pods; returns the changes that follow.
    fn decide(&mut self, now: Instant) -> Vec<Change> {
        let is_failing = self.outage.is_on();
        // A watch of all pods may be silent for a minute.
        let is_quiet = self.view.origin() == PeerOrigin::Pods && !is_failing;
        let answered = if is_quiet { now } else { self.outage.answered() };
        self.health.set_answered(answered, is_failing, now);
        let is_usable = self.is_usable(now);
        self.health.set_usable(is_usable);
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
                changes.extend(self.set_names());
                changes
            }
            PeerOrigin::Slices => {
                if self.health.is_outage() {
                    // After the outage, the controller has the full time again.
                    self.end_all_pods();
                } else if self.health.is_lost(now) && self.all_pods.is_none() {
                    self.start_pods();
                }
                Vec::new()
            }
            PeerOrigin::Pods if is_usable && self.health.is_steady(now) => {
                // Without their names, policies that are in force would lose grants.
                if self.have_new_names(now) { self.leave_pods() } else { self.return_to_pods() }
            }
            PeerOrigin::Pods => {
                self.leaving = None;
                self.return_to_pods()
            }
        }
    }

    /// Asks whether the API server answers, if that matters and no request shows it.
    fn check_api_server(&mut self, now: Instant) {
        let matters = self.view.origin() == PeerOrigin::Slices && !self.outage.is_on();
        let is_due = self.asked.as_ref().is_none_or(|(asked, at)| {
            asked.is_finished() && now.saturating_duration_since(*at) >= ASK
        });
        if matters && is_due && self.health.wants_answer(now) {
            self.asked = Some(((self.ask_server)(), now));
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
        self.all_pods = Some(AllPods::start(number, &self.start_pods));
    }

    /// Replaces the watch of all pods by slices, once they have all of its changes.
    fn leave_pods(&mut self) -> Vec<Change> {
        if let Some(pods) = &mut self.all_pods
            && !self.health.contain(pods.hold_changes())
        {
            return Vec::new();
        }
        info!("peer slices are renewed again, and in use instead of a watch of all pods");
        (self.all_pods, self.leaving) = (None, None);
        let mut changes = self.view.follow_slices();
        changes.extend(self.set_names());
        self.use_slices();
        changes
    }

    /// Takes in the changes of the watch of all pods that waited for slices.
    fn return_to_pods(&mut self) -> Vec<Change> {
        let changes = self.all_pods.as_mut().map(AllPods::release_changes);
        self.take_watched(changes.into_iter().flatten())
    }

    /// Uses the watch of all pods; its list must be complete.
    fn follow_pods(&mut self) -> Vec<Change> {
        info!("all pods are known by their own watch; peer slices are not in use");
        self.is_ready = true;
        let mut changes = self.view.follow_pods();
        let served = self.health.served();
        changes.extend(self.held.set_names(KnownNames::All, served));
        changes
    }

    /// Puts policies into force as far as slices have their names.
    fn set_names(&mut self) -> Vec<Change> {
        let Some(names) = self.set.names().cloned() else { return Vec::new() };
        self.held.set_other_names(KnownNames::Of(names), self.health.served())
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
            pods.report(&mut status, &mut problems);
        }
        let is_whole = self.own_settled && self.is_ready;
        let kind = self.kinds.pods;
        let version = 0;
        let problems = Some(problems);
        let update = KindUpdate {
            kind,
            changes,
            at,
            status,
            is_settled: is_whole,
            is_whole,
            problems,
            version,
        };
        self.channels.out.send(update).await.ok()?;
        self.send_slices(now).await
    }

    /// Sends the state of slices, if it changed.
    async fn send_slices(&mut self, now: Instant) -> Option<()> {
        let problems = self.slice_problems();
        let is_news = problems != self.problems;
        self.problems.clone_from(&problems);
        let update = KindUpdate {
            kind: self.kinds.slices,
            changes: Vec::new(),
            at: now,
            status: self.set.status(),
            // Without slices all pods are followed, so that nothing waits for slices.
            is_settled: true,
            is_whole: true,
            problems: is_news.then_some(Problems { texts: problems, more: 0 }),
            version: 0,
        };
        self.channels.out.send(update).await.ok()
    }

    fn slice_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.health.silence().is_some() {
            let outcome = match (self.view.origin(), self.is_ready) {
                (PeerOrigin::Pods, _) => "all pods are followed instead",
                (PeerOrigin::Slices, true) => {
                    "the last known pods of other nodes stay in force until all pods are followed"
                }
                (PeerOrigin::Slices, false) => "all pods will be followed instead",
            };
            problems.push(format!("peer slices: the controller does not renew them; {outcome}"));
        }
        problems.extend(self.set.problems().take(10));
        problems.extend(self.own_entries.problems());
        if self.view.origin() == PeerOrigin::Slices {
            problems.extend(self.held.problems().take(100));
        }
        problems
    }
}

#[cfg(test)]
mod tests;
