//! Policies, pods and nodes' reports, cut down to what a policy's status follows from. Each change returns the
//! policies whose status may be another now.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netpold_core::cluster::is_subject;
use netpold_core::model::{
    Change, Enforcement, Key, Labels, Pod, Policy, PolicyVersion, Selector, SharedStr,
};

use super::webhook::PodAddresses;
use crate::api::NodeReport;

/// A report is renewed every minute; an agent that has not renewed its for this long is gone, or stuck. The same
/// for one that has not written any.
pub(super) const SILENT: Duration = Duration::from_mins(3);
/// Longest message of a node that is kept, in bytes.
const MESSAGE_MAX: usize = 512;

/// A moment, on the clock that only goes on and on the one that others' times are held against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// Only goes on.
    pub(super) instant: Instant,
    /// Seconds since the epoch.
    pub(super) unix: i64,
}

impl Now {
    /// Now.
    pub(super) fn get() -> Self {
        let unix = k8s_openapi::jiff::Timestamp::now().as_second();
        Self { instant: Instant::now(), unix }
    }
}

/// The policies that may have another status now.
pub(super) type Touched = BTreeSet<Key>;

/// Everything that is known.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Addresses of subject pods, for others.
    pub(super) addresses: Arc<PodAddresses>,
    namespaces: BTreeMap<String, Namespace>,
    nodes: BTreeMap<Arc<str>, Node>,
    by_uid: BTreeMap<Box<str>, Key>,
}

#[derive(Debug, Default)]
struct Namespace {
    /// Subject pods that are scheduled.
    pods: BTreeMap<String, Placed>,
    /// How many of them have equal labels, by node.
    groups: BTreeMap<Arc<Labels>, BTreeMap<Arc<str>, usize>>,
    policies: BTreeMap<String, KnownPolicy>,
}

/// What is kept of a pod.
#[derive(Debug)]
struct Placed {
    labels: Arc<Labels>,
    node: Arc<str>,
    addresses: Box<[IpAddr]>,
}

/// What is kept of a policy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KnownPolicy {
    /// Which state of the object this is.
    pub(super) version: PolicyVersion,
    selector: Selector,
    /// Parts that were not understood.
    pub(super) problems: Vec<String>,
    /// It denies nothing.
    pub(super) on_trial: bool,
}

#[derive(Debug, Default)]
struct Node {
    /// Since when the Node object is known.
    exists: Option<Instant>,
    report: Option<Report>,
    /// Subject pods on it, by namespace.
    pods: BTreeMap<String, usize>,
    /// What was said of its agent last.
    agent: Agent,
}

/// How a node's agent is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Agent {
    /// Its report is renewed.
    #[default]
    Reports,
    /// There is no report yet.
    NotYet,
    /// There has not been any for [`SILENT`].
    Absent,
    /// Its report has not been renewed for [`SILENT`].
    Silent,
}

/// What is kept of a node's report.
#[derive(Debug)]
struct Report {
    /// Its `renewTime`, in seconds since the epoch.
    renewed: i64,
    /// When this `renewTime` was first seen.
    seen: Instant,
    /// It came in place of an older one, so the agent lives, whatever its clock says.
    advanced: bool,
    /// In the order of uids.
    entries: Vec<Entry>,
    omits: bool,
}

/// What a node says of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    uid: Box<str>,
    /// `metadata.generation` of the policy.
    pub(super) generation: i64,
    /// It is in force for all of the node's pods.
    pub(super) enforced: bool,
    /// Why not, or which part grants nothing.
    pub(super) message: Box<str>,
}

/// What a node with a pod that the policy selects says of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnNode<'a> {
    /// Name of the node.
    pub(super) node: &'a str,
    /// How its agent is.
    pub(super) agent: Agent,
    /// Its word on the policy, if there is one.
    pub(super) entry: Option<&'a Entry>,
    /// It has no word on some policies.
    pub(super) omits: bool,
}

impl Report {
    fn agent(&self, now: Now) -> Agent {
        let unchanged = now.instant.saturating_duration_since(self.seen) > SILENT;
        let old = now.unix.saturating_sub(self.renewed) > SILENT.as_secs() as i64;
        match unchanged || old && !self.advanced {
            true => Agent::Silent,
            false => Agent::Reports,
        }
    }

    fn entry(&self, uid: &str) -> Option<&Entry> {
        let place = self.entries.binary_search_by(|entry| (*entry.uid).cmp(uid)).ok()?;
        self.entries.get(place)
    }
}

impl Node {
    fn agent(&self, now: Now) -> Agent {
        match (&self.report, self.exists) {
            (Some(report), _) => report.agent(now),
            (None, Some(since)) if now.instant.saturating_duration_since(since) > SILENT => {
                Agent::Absent
            }
            (None, _) => Agent::NotYet,
        }
    }

    fn is_empty(&self) -> bool {
        self.exists.is_none() && self.report.is_none() && self.pods.is_empty()
    }
}

impl Index {
    /// Takes in what an API server says of policies, pods and nodes.
    pub(super) fn ingest(&mut self, change: Change, now: Now, touched: &mut Touched) {
        match change {
            Change::Policy(policy) => self.policy(policy, touched),
            Change::PolicyGone(key) => self.forget_policy(&key),
            Change::Pod(pod) => self.pod(pod, touched),
            Change::PodGone(key) => {
                self.place_pod(&key, None, touched);
                self.drop_if_empty(&key.namespace);
            }
            Change::Node(node) => self.node(&node.name, true, now, touched),
            Change::NodeGone(name) => self.node(&name, false, now, touched),
            Change::Namespace(_)
            | Change::NamespaceGone(_)
            | Change::ClusterPolicy(_)
            | Change::ClusterPolicyGone(_)
            | Change::Service(_)
            | Change::ServiceGone(_)
            | Change::EndpointSlice(_)
            | Change::EndpointSliceGone(_)
            | Change::Interface(_)
            | Change::InterfaceGone(_)
            | Change::OwnAddresses(_) => {}
        }
    }

    /// A policy.
    pub(super) fn known(&self, key: &Key) -> Option<&KnownPolicy> {
        self.namespaces.get(&key.namespace)?.policies.get(&key.name)
    }

    /// How many policies there are.
    pub(super) fn len(&self) -> usize {
        self.by_uid.len()
    }

    /// Every policy.
    pub(super) fn policies(&self) -> impl Iterator<Item = Key> {
        let all = self.namespaces.iter();
        all.flat_map(|(namespace, of)| {
            of.policies.keys().map(move |name| Key::new(namespace, name))
        })
    }

    /// The nodes with a pod that a policy selects, by name.
    pub(super) fn on_nodes(&self, key: &Key, now: Now) -> Vec<OnNode<'_>> {
        let Some((of, policy)) = self
            .namespaces
            .get(&key.namespace)
            .and_then(|of| Some((of, of.policies.get(&key.name)?)))
        else {
            return Vec::new();
        };
        let selected = of.groups.iter().filter(|(labels, _)| policy.selector.matches(labels));
        let names: BTreeSet<&Arc<str>> = selected.flat_map(|(_, nodes)| nodes.keys()).collect();
        let nodes = names.into_iter().filter_map(|name| self.nodes.get_key_value(name));
        let there = nodes.filter(|(_, node)| node.exists.is_some());
        there
            .map(|(name, node)| OnNode {
                node: name,
                agent: node.agent(now),
                entry: node.report.as_ref().and_then(|report| report.entry(&policy.version.uid)),
                omits: node.report.as_ref().is_some_and(|report| report.omits),
            })
            .collect()
    }

    /// A node's agent says this now; `None`: its report is gone.
    pub(super) fn report(
        &mut self,
        name: &str,
        new: Option<&NodeReport>,
        now: Now,
        touched: &mut Touched,
    ) {
        let name = self.node_name(name);
        let node = self.nodes.entry(Arc::clone(&name)).or_default();
        let old = node.report.take();
        node.report = new.map(|new| report(new, old.as_ref(), now));
        let omits = |report: &Option<Report>| report.as_ref().is_some_and(|report| report.omits);
        let whole = omits(&old) != omits(&node.report);
        let entries =
            |report| Option::map_or(report, &[][..], |report: &Report| &report.entries[..]);
        for uid in differing(entries(old.as_ref()), entries(node.report.as_ref())) {
            touched.extend(self.by_uid.get(uid).cloned());
        }
        self.settle(&name, whole, now, touched);
    }

    /// Looks for agents that have fallen silent.
    pub(super) fn look_over(&mut self, now: Now, touched: &mut Touched) {
        let changed = self.nodes.iter().filter(|(_, node)| node.agent(now) != node.agent);
        let changed: Vec<_> = changed.map(|(name, _)| Arc::clone(name)).collect();
        for name in changed {
            self.settle(&name, false, now, touched);
        }
    }

    /// Remembers how a node's agent is, and touches the policies that it concerns if that, or whatever is said with
    /// `whole`, changed.
    fn settle(&mut self, name: &Arc<str>, whole: bool, now: Now, touched: &mut Touched) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let agent = node.agent(now);
        if whole || agent != node.agent {
            node.agent = agent;
            for namespace in node.pods.keys() {
                touch_all(self.namespaces.get(namespace), namespace, touched);
            }
        }
        if node.is_empty() {
            self.nodes.remove(name);
        }
    }

    fn node(&mut self, name: &str, exists: bool, now: Now, touched: &mut Touched) {
        let name = self.node_name(name);
        let node = self.nodes.entry(Arc::clone(&name)).or_default();
        let changed = exists != node.exists.is_some();
        if changed {
            node.exists = exists.then_some(now.instant);
        }
        self.settle(&name, changed, now, touched);
    }

    /// The one copy of a node's name.
    fn node_name(&self, name: &str) -> Arc<str> {
        self.nodes.get_key_value(name).map_or_else(|| name.into(), |(name, _)| Arc::clone(name))
    }

    fn policy(&mut self, policy: Policy, touched: &mut Touched) {
        let Policy { key, pod_selector, problems, version, enforcement, .. } = policy;
        let on_trial = enforcement == Enforcement::Audit;
        self.forget_policy(&key);
        self.by_uid.insert(version.uid.as_str().into(), key.clone());
        let known = KnownPolicy { version, selector: pod_selector, problems, on_trial };
        let namespace = self.namespaces.entry(key.namespace.clone()).or_default();
        namespace.policies.insert(key.name.clone(), known);
        touched.insert(key);
    }

    fn forget_policy(&mut self, key: &Key) {
        let Some(namespace) = self.namespaces.get_mut(&key.namespace) else { return };
        let Some(old) = namespace.policies.remove(&key.name) else { return };
        self.by_uid.remove(old.version.uid.as_str());
        self.drop_if_empty(&key.namespace);
    }

    fn pod(&mut self, pod: Pod, touched: &mut Touched) {
        let counts = is_subject(&pod) && !pod.node.is_empty();
        let place = counts.then_some((pod.labels, pod.node, pod.addresses.into()));
        self.place_pod(&pod.key, place, touched);
        self.drop_if_empty(&pod.key.namespace);
    }

    /// A pod has these labels and is on this node, or does not count.
    fn place_pod(
        &mut self,
        key: &Key,
        new: Option<(Labels, SharedStr, Box<[IpAddr]>)>,
        touched: &mut Touched,
    ) {
        let namespace = self.namespaces.get_mut(&key.namespace);
        let known = namespace.and_then(|of| of.pods.get_mut(&key.name));
        let same = match (known, &new) {
            (Some(known), Some((labels, node, addresses))) => {
                let same = *known.labels == *labels && *known.node == **node;
                if same && known.addresses != *addresses {
                    self.addresses.change(&known.addresses, addresses);
                    known.addresses.clone_from(addresses);
                }
                same
            }
            (known, new) => known.is_none() && new.is_none(),
        };
        if same {
            return;
        }
        let new = new.map(|(labels, node, at)| (labels, self.node_name(&node), at));
        let of = self.namespaces.entry(key.namespace.clone()).or_default();
        let old = of.pods.remove(&key.name);
        // Only whether there is such a pod on a node is of interest, not how many.
        let mut shifted = Vec::new();
        let before = old.as_ref().map_or(&[][..], |old| &old.addresses);
        self.addresses.change(before, new.as_ref().map_or(&[][..], |(.., addresses)| addresses));
        if let Some(Placed { labels, node, .. }) = old {
            let nodes = of.groups.get_mut(&labels);
            if nodes.is_some_and(|nodes| uncount(nodes, &node) && nodes.is_empty()) {
                of.groups.remove(&labels);
            }
            if let Some(known) = self.nodes.get_mut(&node) {
                uncount(&mut known.pods, &key.namespace);
                if known.is_empty() {
                    self.nodes.remove(&node);
                }
            }
            if !of.groups.get(&labels).is_some_and(|nodes| nodes.contains_key(&node)) {
                shifted.push(labels);
            }
        }
        if let Some((labels, node, addresses)) = new {
            let labels = of
                .groups
                .get_key_value(&labels)
                .map_or_else(|| Arc::new(labels.clone()), |(it, _)| it.clone());
            let count = of
                .groups
                .entry(Arc::clone(&labels))
                .or_default()
                .entry(Arc::clone(&node))
                .or_default();
            *count += 1;
            if *count == 1 {
                shifted.push(Arc::clone(&labels));
            }
            let known = self.nodes.entry(Arc::clone(&node)).or_default();
            *known.pods.entry(key.namespace.clone()).or_default() += 1;
            of.pods.insert(key.name.clone(), Placed { labels, node, addresses });
        }
        for (name, policy) in of.policies.iter().filter(|_| !shifted.is_empty()) {
            if shifted.iter().any(|labels| policy.selector.matches(labels)) {
                touched.insert(Key::new(&*key.namespace, &**name));
            }
        }
    }

    fn drop_if_empty(&mut self, namespace: &str) {
        let is_empty = |of: &Namespace| of.pods.is_empty() && of.policies.is_empty();
        if self.namespaces.get(namespace).is_some_and(is_empty) {
            self.namespaces.remove(namespace);
        }
    }
}

fn touch_all(of: Option<&Namespace>, namespace: &str, touched: &mut Touched) {
    let names = of.into_iter().flat_map(|of| of.policies.keys());
    touched.extend(names.map(|name| Key::new(namespace, &**name)));
}

/// Counts one less; whether there are none any more.
fn uncount<K: Ord + Borrow<Q>, Q: Ord + ?Sized>(counts: &mut BTreeMap<K, usize>, key: &Q) -> bool {
    let Some(count) = counts.get_mut(key) else { return false };
    *count -= 1;
    let none = *count == 0;
    if none {
        counts.remove(key);
    }
    none
}

fn report(new: &NodeReport, old: Option<&Report>, now: Now) -> Report {
    let renewed = new.renew_time.as_ref().map_or(0, |time| time.0.as_second());
    let unchanged = old.filter(|old| old.renewed == renewed);
    let mut entries: Vec<Entry> = new
        .policies
        .iter()
        .map(|policy| Entry {
            uid: policy.uid.as_str().into(),
            generation: policy.observed_generation,
            enforced: policy.enforced,
            message: clipped(&policy.message, MESSAGE_MAX).into(),
        })
        .collect();
    entries.sort_by(|a, b| a.uid.cmp(&b.uid));
    entries.dedup_by(|a, b| a.uid == b.uid);
    Report {
        renewed,
        seen: unchanged.map_or(now.instant, |old| old.seen),
        advanced: match unchanged {
            Some(old) => old.advanced,
            None => old.is_some_and(|old| old.renewed < renewed),
        },
        entries,
        omits: new.policies_omitted > 0,
    }
}

/// The uids of entries that are not in both, or not the same; both are in the order of uids.
fn differing<'a>(mut old: &'a [Entry], mut new: &'a [Entry]) -> Vec<&'a str> {
    let mut differing = Vec::new();
    loop {
        let (first, rest) = match (old.split_first(), new.split_first()) {
            (None, None) => return differing,
            (Some((a, old_rest)), Some((b, new_rest))) if a.uid == b.uid => {
                (old, new) = (old_rest, new_rest);
                if a != b {
                    differing.push(&*a.uid);
                }
                continue;
            }
            (Some((a, rest)), Some((b, _))) if a.uid < b.uid => (a, (rest, new)),
            (_, Some((b, rest))) => (b, (old, rest)),
            (Some((a, rest)), None) => (a, (rest, new)),
        };
        (old, new) = rest;
        differing.push(&*first.uid);
    }
}

/// The beginning of a text, of at most so many bytes.
pub(super) fn clipped(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}
