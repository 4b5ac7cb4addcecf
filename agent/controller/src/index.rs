//! Index of policies, pods and node reports, reduced to the data behind a policy's status. Every change adds the
//! policies with a possibly different status to [`AffectedPolicies`].

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netpold_api::crd::NodeReport;
use netpold_core::budget;
use netpold_core::cluster::is_subject;
use netpold_core::model::{
    Change, ClusterPolicy, Enforcement, Key, Labels, NamespacedPods, Pod, Policy, PolicyVersion,
    Selector, SharedStr,
};

use crate::pod_addresses::PodAddresses;

/// An agent renews its report every minute. Without a renewal for this long, or without any report since the Node
/// appeared, the agent counts as gone or stuck.
pub(super) const SILENT: Duration = Duration::from_mins(3);
/// Maximum length of a stored message of a node, in bytes.
const MESSAGE_MAX: usize = 512;

/// One moment on the monotonic clock, and on the wall clock for comparison with times from other hosts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Monotonic time.
    pub(super) instant: Instant,
    /// Seconds since the epoch.
    pub(super) unix: i64,
}

impl Moment {
    /// Reads both clocks.
    pub(super) fn get() -> Self {
        let unix = k8s_openapi::jiff::Timestamp::now().as_second();
        Self { instant: Instant::now(), unix }
    }
}

/// Policies with a possibly different status. Keys of ClusterNetworkPolicies have no namespace, here and elsewhere.
pub(super) type AffectedPolicies = BTreeSet<Key>;

/// Nodes with a silent agent, with the renewal time of the agent's last report in seconds since the epoch.
pub(super) type SilentNodes = BTreeMap<Arc<str>, i64>;

/// State of the cluster as far as the statuses depend on it.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Addresses of subject pods, shared with the webhook.
    pub(super) addresses: Arc<PodAddresses>,
    /// Namespaces by name; the empty name holds the ClusterNetworkPolicies.
    namespaces: BTreeMap<String, NamespaceState>,
    nodes: BTreeMap<Arc<str>, NodeState>,
    by_uid: BTreeMap<Box<str>, Key>,
}

#[derive(Debug, Default)]
struct NamespaceState {
    /// Whether the Namespace object exists.
    exists: bool,
    /// Labels of the Namespace; none while it does not exist.
    labels: Labels,
    /// Scheduled subject pods.
    pods: BTreeMap<String, ScheduledPod>,
    /// Number of these pods per label set and node.
    groups: BTreeMap<Arc<Labels>, BTreeMap<Arc<str>, usize>>,
    policies: BTreeMap<String, KnownPolicy>,
}

/// Stored part of a pod.
#[derive(Debug)]
struct ScheduledPod {
    labels: Arc<Labels>,
    node: Arc<str>,
    addresses: Box<[IpAddr]>,
}

/// Stored part of a policy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KnownPolicy {
    /// UID and generation of the object.
    pub(super) version: PolicyVersion,
    /// The selected pods; those of the own namespace for a NetworkPolicy.
    subject: NamespacedPods,
    /// Parts of the policy that could not be decoded or are not supported.
    pub(super) problems: Vec<String>,
    /// Whether the policy is in audit mode and denies nothing.
    pub(super) on_trial: bool,
}

impl From<Policy> for KnownPolicy {
    fn from(policy: Policy) -> Self {
        // As agents keep it: a huge selector is not stored, and selects every pod of the namespace.
        let Policy { pod_selector, problems, version, enforcement, .. } =
            budget::reduced_to_budget(policy);
        let subject = NamespacedPods { namespaces: Selector::default(), pods: pod_selector };
        Self { version, subject, problems, on_trial: enforcement == Enforcement::Audit }
    }
}

impl From<ClusterPolicy> for KnownPolicy {
    fn from(policy: ClusterPolicy) -> Self {
        let ClusterPolicy { subject, problems, version, enforcement, .. } = policy;
        Self { version, subject, problems, on_trial: enforcement == Enforcement::Audit }
    }
}

#[derive(Debug, Default)]
struct NodeState {
    /// Time of the first sight of the Node object, while it exists.
    exists: Option<Instant>,
    report: Option<Report>,
    /// Number of the node's subject pods by namespace.
    pods: BTreeMap<String, usize>,
    /// State of the agent at the last [`Index::store_node_state`].
    agent: AgentPresence,
}

/// State of a node's agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AgentPresence {
    /// The agent renews its report.
    #[default]
    Reports,
    /// No report yet, for less than [`SILENT`].
    NotYet,
    /// No report, although the Node appeared more than [`SILENT`] ago.
    Absent,
    /// A report without a renewal for [`SILENT`].
    Silent,
}

/// Stored part of a node's report.
#[derive(Debug)]
struct Report {
    /// `renewTime` of the report, in seconds since the epoch.
    renewed: i64,
    /// Time at which this `renewTime` was first seen.
    seen: Instant,
    /// Whether the report replaced an older one. The agent is then alive, even if its clock is wrong.
    advanced: bool,
    /// Entries, sorted by UID.
    entries: Vec<PolicyState>,
    omits: bool,
}

/// State of a policy in a node's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PolicyState {
    uid: Box<str>,
    /// `metadata.generation` of the policy.
    pub(super) generation: i64,
    /// Whether the policy is in force for all of the node's pods.
    pub(super) enforced: bool,
    /// Reason why the policy is not in force, or its part that grants nothing.
    pub(super) message: Box<str>,
}

/// State of a policy on a node with a pod that the policy selects.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateOnNode<'a> {
    /// Name of the node.
    pub(super) node: &'a str,
    /// State of the node's agent.
    pub(super) agent: AgentPresence,
    /// Entry of the report about the policy.
    pub(super) entry: Option<&'a PolicyState>,
    /// Whether the report omits policies.
    pub(super) omits: bool,
}

impl Report {
    fn agent(&self, now: Moment) -> AgentPresence {
        let unchanged = now.instant.saturating_duration_since(self.seen) > SILENT;
        let old = now.unix.saturating_sub(self.renewed) > SILENT.as_secs() as i64;
        match unchanged || old && !self.advanced {
            true => AgentPresence::Silent,
            false => AgentPresence::Reports,
        }
    }

    fn entry(&self, uid: &str) -> Option<&PolicyState> {
        let place = self.entries.binary_search_by(|entry| (*entry.uid).cmp(uid)).ok()?;
        self.entries.get(place)
    }
}

impl NodeState {
    fn agent(&self, now: Moment) -> AgentPresence {
        match (&self.report, self.exists) {
            (Some(report), _) => report.agent(now),
            (None, Some(since)) if now.instant.saturating_duration_since(since) > SILENT => {
                AgentPresence::Absent
            }
            (None, _) => AgentPresence::NotYet,
        }
    }

    fn is_empty(&self) -> bool {
        self.exists.is_none() && self.report.is_none() && self.pods.is_empty()
    }
}

impl Index {
    /// Applies a change of a policy, a namespace, a pod or a node; other changes have no effect.
    pub(super) fn ingest(&mut self, change: Change, now: Moment, touched: &mut AffectedPolicies) {
        match change {
            Change::Policy(policy) => self.set_policy(policy.key.clone(), policy.into(), touched),
            Change::PolicyGone(key) => self.forget_policy(&key),
            Change::Pod(pod) => self.pod(pod, touched),
            Change::PodGone(key) => {
                self.place_pod(&key, None, touched);
                self.drop_if_empty(&key.namespace);
            }
            Change::Node(node) => self.node(&node.name, true, now, touched),
            Change::NodeGone(name) => self.node(&name, false, now, touched),
            Change::Namespace(namespace) => {
                self.label(&namespace.name, Some(namespace.labels), touched);
            }
            Change::NamespaceGone(name) => self.label(&name, None, touched),
            Change::ClusterPolicy(policy) => {
                self.set_policy(Key::new("", &*policy.name), policy.into(), touched);
            }
            Change::ClusterPolicyGone(name) => self.forget_policy(&Key::new("", name)),
            Change::Service(_)
            | Change::ServiceGone(_)
            | Change::EndpointSlice(_)
            | Change::EndpointSliceGone(_)
            | Change::Interface(_)
            | Change::InterfaceGone(_)
            | Change::OwnAddresses(_) => {}
        }
    }

    /// Returns a policy.
    pub(super) fn policy(&self, key: &Key) -> Option<&KnownPolicy> {
        self.namespaces.get(&key.namespace)?.policies.get(&key.name)
    }

    /// Returns the number of policies.
    pub(super) fn len(&self) -> usize {
        self.by_uid.len()
    }

    /// Returns the keys of all policies.
    pub(super) fn policies(&self) -> impl Iterator<Item = Key> {
        let all = self.namespaces.iter();
        all.flat_map(|(namespace, of)| {
            of.policies.keys().map(move |name| Key::new(namespace, name))
        })
    }

    /// Returns the ClusterNetworkPolicies, by name.
    fn cluster_policies(&self) -> impl Iterator<Item = (&String, &KnownPolicy)> {
        self.namespaces.get("").into_iter().flat_map(|of| &of.policies)
    }

    /// Returns the nodes with a pod that a policy selects, sorted by name.
    pub(super) fn on_nodes(&self, key: &Key, now: Moment) -> Vec<StateOnNode<'_>> {
        let Some(policy) = self.policy(key) else { return Vec::new() };
        let own = self.namespaces.get(&key.namespace).into_iter();
        let every = self.namespaces.values().filter(|_| key.namespace.is_empty());
        let every = every.filter(|of| policy.subject.namespaces.matches(&of.labels));
        let groups = own.chain(every).flat_map(|of| &of.groups);
        let selected = groups.filter(|(labels, _)| policy.subject.pods.matches(labels));
        let names: BTreeSet<&Arc<str>> = selected.flat_map(|(_, nodes)| nodes.keys()).collect();
        let nodes = names.into_iter().filter_map(|name| self.nodes.get_key_value(name));
        let there = nodes.filter(|(_, node)| node.exists.is_some());
        there
            .map(|(name, node)| StateOnNode {
                node: name,
                agent: node.agent(now),
                entry: node.report.as_ref().and_then(|report| report.entry(&policy.version.uid)),
                omits: node.report.as_ref().is_some_and(|report| report.omits),
            })
            .collect()
    }

    /// Stores the report of a node; `None`: the report is gone.
    pub(super) fn report(
        &mut self,
        name: &str,
        new: Option<&NodeReport>,
        now: Moment,
        touched: &mut AffectedPolicies,
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
        self.store_node_state(&name, whole, now, touched);
    }

    /// Returns the existing nodes with a silent agent, with the renewal time of its last report.
    pub(super) fn silent_nodes(&self) -> SilentNodes {
        let silent = self.nodes.iter().filter(|(_, node)| {
            node.exists.is_some() && matches!(node.agent, AgentPresence::Silent)
        });
        let of = |(name, node): (&Arc<str>, &NodeState)| {
            Some((Arc::clone(name), node.report.as_ref()?.renewed))
        };
        silent.filter_map(of).collect()
    }

    /// Updates the nodes with a changed state of the agent: an agent becomes silent by the mere passage of time.
    pub(super) fn update_presence(&mut self, now: Moment, touched: &mut AffectedPolicies) {
        let changed = self.nodes.iter().filter(|(_, node)| node.agent(now) != node.agent);
        let changed: Vec<_> = changed.map(|(name, _)| Arc::clone(name)).collect();
        for name in changed {
            self.store_node_state(&name, false, now, touched);
        }
    }

    /// Stores the current state of a node's agent. Touches all policies in the namespaces of the node's pods if that
    /// state changed or `whole` is set. Removes the node if nothing refers to it.
    fn store_node_state(
        &mut self,
        name: &Arc<str>,
        whole: bool,
        now: Moment,
        touched: &mut AffectedPolicies,
    ) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let agent = node.agent(now);
        if whole || agent != node.agent {
            node.agent = agent;
            for namespace in node.pods.keys().map(String::as_str).chain([""]) {
                touch_all(self.namespaces.get(namespace), namespace, touched);
            }
        }
        if node.is_empty() {
            self.nodes.remove(name);
        }
    }

    fn node(&mut self, name: &str, exists: bool, now: Moment, touched: &mut AffectedPolicies) {
        let name = self.node_name(name);
        let node = self.nodes.entry(Arc::clone(&name)).or_default();
        let changed = exists != node.exists.is_some();
        if changed {
            node.exists = exists.then_some(now.instant);
        }
        self.store_node_state(&name, changed, now, touched);
    }

    /// Returns the shared copy of a node's name.
    fn node_name(&self, name: &str) -> Arc<str> {
        self.nodes.get_key_value(name).map_or_else(|| name.into(), |(name, _)| Arc::clone(name))
    }

    fn set_policy(&mut self, key: Key, known: KnownPolicy, touched: &mut AffectedPolicies) {
        self.forget_policy(&key);
        self.by_uid.insert(known.version.uid.as_str().into(), key.clone());
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

    /// Stores the labels of a namespace; `None`: the Namespace is gone.
    fn label(&mut self, namespace: &str, labels: Option<Labels>, touched: &mut AffectedPolicies) {
        let of = self.namespaces.entry(namespace.to_owned()).or_default();
        of.exists = labels.is_some();
        let new = labels.unwrap_or_default();
        let old = std::mem::replace(&mut of.labels, new.clone());
        if !of.groups.is_empty() && old != new {
            let differs = |policy: &KnownPolicy| {
                let selector = &policy.subject.namespaces;
                selector.matches(&old) != selector.matches(&new)
            };
            let shifted = self.cluster_policies().filter(|(_, policy)| differs(policy));
            touched.extend(shifted.map(|(name, _)| Key::new("", name)));
        }
        self.drop_if_empty(namespace);
    }

    fn pod(&mut self, pod: Pod, touched: &mut AffectedPolicies) {
        let counts = is_subject(&pod) && !pod.node.is_empty();
        let place = counts.then_some((pod.labels, pod.node, pod.addresses.into()));
        self.place_pod(&pod.key, place, touched);
        self.drop_if_empty(&pod.key.namespace);
    }

    /// Stores a pod with its labels, node and addresses; `None`: the pod is gone, unscheduled or not subject to
    /// policies.
    fn place_pod(
        &mut self,
        key: &Key,
        new: Option<(Labels, SharedStr, Box<[IpAddr]>)>,
        touched: &mut AffectedPolicies,
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
        // A status depends on whether a node has such a pod, not on their number.
        let mut shifted = Vec::new();
        let before = old.as_ref().map_or(&[][..], |old| &old.addresses);
        self.addresses.change(before, new.as_ref().map_or(&[][..], |(.., addresses)| addresses));
        if let Some(ScheduledPod { labels, node, .. }) = old {
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
            of.pods.insert(key.name.clone(), ScheduledPod { labels, node, addresses });
        }
        let Some(of) = self.namespaces.get(&key.namespace) else { return };
        let is_shifted =
            |policy: &KnownPolicy| shifted.iter().any(|labels| policy.subject.pods.matches(labels));
        let own = of.policies.iter().filter(|(_, policy)| is_shifted(policy));
        touched.extend(own.map(|(name, _)| Key::new(&*key.namespace, name)));
        let every = self.cluster_policies().filter(|(_, policy)| {
            is_shifted(policy) && policy.subject.namespaces.matches(&of.labels)
        });
        touched.extend(every.map(|(name, _)| Key::new("", name)));
    }

    fn drop_if_empty(&mut self, namespace: &str) {
        let is_empty =
            |of: &NamespaceState| !of.exists && of.pods.is_empty() && of.policies.is_empty();
        if self.namespaces.get(namespace).is_some_and(is_empty) {
            self.namespaces.remove(namespace);
        }
    }
}

fn touch_all(of: Option<&NamespaceState>, namespace: &str, touched: &mut AffectedPolicies) {
    let names = of.into_iter().flat_map(|of| of.policies.keys());
    touched.extend(names.map(|name| Key::new(namespace, &**name)));
}

/// Decrements a count and removes it at zero. Returns whether it was removed.
fn uncount<K: Ord + Borrow<Q>, Q: Ord + ?Sized>(counts: &mut BTreeMap<K, usize>, key: &Q) -> bool {
    let Some(count) = counts.get_mut(key) else { return false };
    *count -= 1;
    let none = *count == 0;
    if none {
        counts.remove(key);
    }
    none
}

fn report(new: &NodeReport, old: Option<&Report>, now: Moment) -> Report {
    let renewed = new.renew_time.as_ref().map_or(0, |time| time.0.as_second());
    let unchanged = old.filter(|old| old.renewed == renewed);
    let mut entries: Vec<PolicyState> = new
        .policies
        .iter()
        .map(|policy| PolicyState {
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

/// Returns the UIDs of entries that differ between two lists sorted by UID, or are in only one of them.
fn differing<'a>(mut old: &'a [PolicyState], mut new: &'a [PolicyState]) -> Vec<&'a str> {
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

/// Returns the longest prefix of a text with at most `max` bytes that ends at a character boundary.
pub(super) fn clipped(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}
