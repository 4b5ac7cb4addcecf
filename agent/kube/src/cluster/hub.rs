//! All kinds together: merges their updates into batches and one status.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use netpold_api::source::{KindStatus, SourceProblem, SourceStatus};
use netpold_core::model::{Change, ClusterPolicy, Pod};
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use super::node_use::{NodeUse, without_claims};
use super::outage::random_part;
use crate::Batch;
use crate::gathered::GatheredChanges;

/// Time after a batch in which changes are gathered for the next batch: in a burst, objects that belong together arrive
/// on several watches. No change waits longer, and a change after a pause does not wait.
const GATHER: Duration = Duration::from_millis(1);
/// Time over which agents spread their lists of all nodes, at least: one object of a tenant causes those of all agents.
const SPREAD: Duration = Duration::from_secs(5);

/// Update of a kind.
#[derive(Debug)]
pub(super) struct KindUpdate {
    /// Index of the kind.
    pub(super) kind: usize,
    /// Changes of objects.
    pub(super) changes: Vec<Change>,
    /// Time at which the changes arrived.
    pub(super) at: Instant,
    /// Status of following the kind.
    pub(super) status: KindStatus,
    /// Whether nothing waits for a list of the kind: it was listed, or the server does not serve or allow it.
    pub(super) is_settled: bool,
    /// Whether the last full list had all objects, not only a part that a narrower selector matches.
    pub(super) is_whole: bool,
    /// Problems with objects, if they changed.
    pub(super) problems: Option<Problems>,
    /// `resourceVersion` up to which the kind is known; 0: unknown.
    pub(super) version: u64,
}

/// Problems with the objects of a kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Problems {
    /// Texts in the order of object names.
    pub(super) texts: Vec<String>,
    /// Number of further problems.
    pub(super) more: usize,
}

/// Merges updates of all kinds.
pub(super) struct Hub {
    updates: mpsc::Receiver<KindUpdate>,
    batches: mpsc::Sender<Batch>,
    status: watch::Sender<SourceStatus>,
    origin: String,
    kinds: Vec<ReportedKind>,
    in_sync: bool,
    /// Decides whether all nodes are followed; absent if that is settled.
    nodes: Option<NodeScope>,
    /// Objects that could allow too much before all nodes are known.
    held: GatheredChanges,
    /// Version up to which the batches that were sent contain a kind, for receivers that need it.
    version: Option<KindVersion>,
}

/// `resourceVersion` up to which batches contain a kind.
pub(super) struct KindVersion {
    /// Index of the kind.
    pub(super) kind: usize,
    /// The version of the batches that were sent.
    pub(super) sent: watch::Sender<u64>,
    /// The version of the next batch.
    pub(super) known: u64,
}

/// Nodes that are followed: this node, until policy on this node depends on others.
pub(super) struct NodeScope {
    /// Index of the kind of nodes.
    pub(super) kind: usize,
    /// Objects that make other nodes matter.
    pub(super) node_use: NodeUse,
    /// Set to true once all nodes are needed; it stays so.
    pub(super) widen: watch::Sender<bool>,
    /// Time to set it.
    pub(super) due: Option<tokio::time::Instant>,
}

impl NodeScope {
    /// Returns whether all nodes are requested, or are needed; requests them when due. `spread` is the time over which
    /// agents do so.
    fn request(&mut self, spread: Duration) -> bool {
        if *self.widen.borrow() {
            return true;
        }
        if !self.node_use.needs_all() {
            self.due = None;
            return false;
        }
        let now = tokio::time::Instant::now();
        let due = *self.due.get_or_insert_with(|| now + random_part(spread));
        if due <= now || self.node_use.needs_all_at_once() {
            info!("policy depends on the addresses of other nodes; following all of them");
            self.due = None;
            self.widen.send_replace(true);
        }
        true
    }
}

/// Waits until a time, if there is one.
async fn until(due: Option<tokio::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Last reported state of a kind.
struct ReportedKind {
    status: KindStatus,
    is_settled: bool,
    is_whole: bool,
    problems: Problems,
}

impl Hub {
    pub(super) fn new(
        origin: String,
        kinds: Vec<KindStatus>,
        nodes: Option<NodeScope>,
        updates: mpsc::Receiver<KindUpdate>,
        batches: mpsc::Sender<Batch>,
    ) -> (Self, watch::Receiver<SourceStatus>) {
        let kinds = kinds
            .into_iter()
            .map(|status| ReportedKind {
                status,
                is_settled: false,
                is_whole: false,
                problems: Problems::default(),
            })
            .collect();
        let (status, seen) = watch::channel(SourceStatus::default());
        let held = GatheredChanges::default();
        let hub = Self {
            updates,
            batches,
            status,
            origin,
            kinds,
            in_sync: false,
            nodes,
            held,
            version: None,
        };
        hub.status.send_replace(hub.current());
        (hub, seen)
    }

    /// Publishes a version after each batch.
    pub(super) fn with_version(mut self, version: KindVersion) -> Self {
        self.version = Some(version);
        self
    }

    /// Merges until every kind has ended, or the receiver of batches is closed.
    pub(super) async fn run(mut self) {
        let mut calm = tokio::time::Instant::now();
        loop {
            let due = self.nodes.as_ref().and_then(|nodes| nodes.due);
            let first = tokio::select! {
                update = self.updates.recv() => update,
                () = self.batches.closed() => None,
                () = until(due) => {
                    self.lacks_nodes();
                    continue;
                }
            };
            let Some(first) = first else { return };
            let at = first.at;
            let mut gathered = GatheredChanges::default();
            self.merge_update(first, &mut gathered);
            if tokio::time::Instant::now() < calm {
                while let Ok(Some(update)) =
                    tokio::time::timeout_at(calm, self.updates.recv()).await
                {
                    self.merge_update(update, &mut gathered);
                }
            }
            while let Ok(update) = self.updates.try_recv() {
                self.merge_update(update, &mut gathered);
            }
            if !gathered.0.is_empty() {
                calm = tokio::time::Instant::now() + GATHER;
            }
            if self.publish(gathered, at).await.is_none() {
                return;
            }
        }
    }

    fn merge_update(&mut self, update: KindUpdate, gathered: &mut GatheredChanges) {
        if let Some(nodes) = &mut self.nodes {
            update.changes.iter().for_each(|change| nodes.node_use.apply_change(change));
        }
        gathered.add(update.changes);
        if let Some(version) = self.version.as_mut().filter(|of| of.kind == update.kind) {
            version.known = version.known.max(update.version);
        }
        let Some(known) = self.kinds.get_mut(update.kind) else { return };
        known.status = update.status;
        known.is_settled = update.is_settled;
        known.is_whole = update.is_whole;
        if let Some(problems) = update.problems {
            known.problems = problems;
        }
    }

    /// Sends the gathered changes; `None` if the receiver is closed.
    async fn publish(&mut self, gathered: GatheredChanges, at: Instant) -> Option<()> {
        let before = self.in_sync;
        let lacks_nodes = self.lacks_nodes();
        self.in_sync |= !lacks_nodes && self.kinds.iter().all(|known| known.is_settled);
        let changes = self.release(gathered, before && lacks_nodes);
        let status = self.current();
        self.status.send_if_modified(|current| {
            let modified = *current != status;
            if modified {
                report(current, &status);
                *current = status;
            }
            modified
        });
        if !changes.is_empty() || self.in_sync != before {
            self.batches.send(Batch { changes, in_sync: self.in_sync, at }).await.ok()?;
        }
        if let Some(KindVersion { sent, known, .. }) = &self.version {
            sent.send_if_modified(|version| std::mem::replace(version, *known) != *known);
        }
        Some(())
    }

    /// Returns whether policy depends on nodes that are not known yet; requests them.
    fn lacks_nodes(&mut self) -> bool {
        // An agent that starts needs them to begin.
        let spread = match self.in_sync {
            true => SPREAD,
            false => Duration::ZERO,
        };
        let Some(nodes) = &mut self.nodes else { return false };
        if !nodes.request(spread) {
            return false;
        }
        let lacks = !self.kinds.get(nodes.kind).is_some_and(|known| known.is_whole);
        if !lacks {
            self.nodes = None;
        }
        lacks
    }

    /// Returns the changes, with those that were held before. While nodes are missing, objects that could allow too
    /// much without them are held, and their last state stays in force; a pod loses its claims.
    fn release(&mut self, gathered: GatheredChanges, lacks_nodes: bool) -> Vec<Change> {
        if !lacks_nodes {
            let mut all = std::mem::take(&mut self.held);
            all.0.extend(gathered.0);
            return all.changes();
        }
        let mut ready = GatheredChanges::default();
        for (key, change) in gathered.0 {
            self.held.0.remove(&key);
            if self.nodes.as_ref().is_none_or(|nodes| nodes.node_use.holds(&change)) {
                ready.add(without_claims(&change));
                self.held.0.insert(key, change);
            } else {
                ready.0.insert(key, change);
            }
        }
        ready.changes()
    }

    fn current(&self) -> SourceStatus {
        let problem = |text: String| SourceProblem { file: String::new(), line: 0, text };
        let errors = self.kinds.iter().filter_map(|known| known.status.error.clone());
        let objects = self.kinds.iter().flat_map(|known| &known.problems.texts).cloned();
        let all = errors.chain(objects).chain(self.held.0.values().filter_map(waits_for_nodes));
        let mut problems: Vec<SourceProblem> = all.map(problem).collect();
        let more: usize = self.kinds.iter().map(|known| known.problems.more).sum();
        if more > 0 {
            problems.push(problem(format!("{more} more problems in objects")));
        }
        SourceStatus {
            origin: self.origin.clone(),
            in_sync: self.in_sync,
            kinds: self.kinds.iter().map(|known| known.status.clone()).collect(),
            problems,
            ..SourceStatus::default()
        }
    }
}

/// Returns the problem of an object that is held.
fn waits_for_nodes(change: &Change) -> Option<String> {
    let list = "the first list of all nodes";
    if let Change::ClusterPolicy(ClusterPolicy { name, .. }) = change {
        let state = "its last state stays in force";
        return Some(format!("ClusterNetworkPolicy {name} waits for {list}; {state}"));
    }
    let Change::Pod(Pod { key, .. }) = change else { return None };
    Some(format!("Pod {key}: its addresses on further networks wait for {list}"))
}

/// Logs new problems and problems that are settled. A server without connection is one problem, regardless of the kinds
/// that report it.
fn report(before: &SourceStatus, now: &SourceStatus) {
    let missed = [before, now].map(|status| status.kinds.iter().find(|kind| kind.unreachable));
    match missed {
        [None, Some(kind)] => warn!(
            "{}; the last known state stays in force; will retry",
            kind.error.as_deref().unwrap_or_default()
        ),
        [Some(_), None] => info!("{} is reachable again", now.origin),
        _ => {}
    }
    // For kinds without connection neither the current nor the former errors are logged.
    let lost: BTreeSet<&String> = before
        .kinds
        .iter()
        .zip(&now.kinds)
        .flat_map(|(was, is)| {
            let before = was.error.iter().filter(|_| was.unreachable || is.unreachable);
            before.chain(is.error.iter().filter(|_| is.unreachable))
        })
        .collect();
    for problem in now.problems.iter().filter(|it| !before.problems.contains(it)) {
        if !lost.contains(&problem.text) {
            warn!("{problem}");
        }
    }
    for problem in before.problems.iter().filter(|it| !now.problems.contains(it)) {
        if !lost.contains(&problem.text) {
            info!("resolved: {problem}");
        }
    }
    if now.in_sync && !before.in_sync {
        let objects: usize = now.kinds.iter().map(|kind| kind.objects).sum();
        info!(objects, "every kind is in sync");
    }
}
