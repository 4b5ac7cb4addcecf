//! Objects of a cluster in the form that checks use: pods in groups, and places in policies.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netpold_client::details::complete::is_stand_in;
use netpold_client::details::{Details, PodDetails, PolicyManifest, WrittenService, is_selected};
use netpold_core::cluster::{Cluster, is_subject};
use netpold_core::explain::{Explainer, Verdict};
use netpold_core::model::{
    Action, ClusterPolicy, Direction, Enforcement, Key, Labels, Pod, Policy, Rule, Selector,
};
use netpold_core::printable::cut;
use netpold_core::probe::IpProtocol;

use crate::backend_index::{BackendIndex, PortBackends};
use crate::finding::{Check, Severity};

/// Longest text before the file and line of a place, in bytes.
const WHAT_MAX: usize = 280;
/// Most nodes per group whose pods are judged.
const NODES_MAX: usize = 16;

/// Pods with equal labels in one namespace: policies distinguish them by their ports only.
pub(crate) struct PodGroup<'c> {
    pub(crate) namespace: &'c str,
    pub(crate) labels: &'c Labels,
    pub(crate) namespace_labels: Cow<'c, Labels>,
    pub(crate) pods: Vec<&'c Pod>,
    /// One pod of each node, for checks of reach: a pod and its own node always reach each other.
    pub(crate) by_node: Vec<&'c Pod>,
}

/// Cluster with its pods in groups.
pub(crate) struct GroupedObjects<'c> {
    pub(crate) cluster: &'c Cluster,
    pub(crate) explainer: Explainer<'c>,
    pub(crate) details: &'c Details,
    pub(crate) groups: Vec<PodGroup<'c>>,
    /// Whether there is neither a node nor a running pod: the objects are a chart's, not a cluster's.
    pub(crate) is_partial: bool,
    /// Addresses of nodes, and of pods on the host's network.
    pub(crate) node_addresses: BTreeSet<IpAddr>,
    pub(crate) leads: BackendIndex<'c>,
    templates: BTreeMap<PodGroupKey<'c>, &'c PodDetails>,
}

/// Policy of either kind, with its name as text.
pub(crate) struct NamedPolicy<'p> {
    /// `NetworkPolicy shop/web`
    pub(crate) text: String,
    /// Key; `None` for a ClusterNetworkPolicy.
    key: Option<&'p Key>,
    manifest: Option<&'p PolicyManifest>,
}

/// Rule of a policy, with its position.
pub(crate) struct RulePlace<'p> {
    pub(crate) policy: &'p NamedPolicy<'p>,
    pub(crate) direction: Direction,
    pub(crate) number: usize,
    /// Action of the rule: Accept for a NetworkPolicy.
    pub(crate) action: Action,
}

/// Namespace and labels.
type PodGroupKey<'c> = (&'c str, Vec<(&'c String, &'c String)>);

impl<'p> NamedPolicy<'p> {
    pub(crate) fn policy(policy: &'p Policy, details: &'p Details) -> Self {
        let manifest = details.policies.get(&policy.key);
        Self { text: format!("NetworkPolicy {}", policy.key), key: Some(&policy.key), manifest }
    }

    pub(crate) fn cluster_policy(policy: &'p ClusterPolicy, details: &'p Details) -> Self {
        let manifest = details.cluster_policies.get(&policy.name);
        Self { text: format!("ClusterNetworkPolicy {}", policy.name), key: None, manifest }
    }

    /// Returns the namespace; `None` for a ClusterNetworkPolicy.
    pub(crate) fn namespace(&self) -> Option<&'p str> {
        self.key.map(|key| key.namespace.as_str())
    }

    /// Returns whether this is the given NetworkPolicy.
    pub(crate) fn is_policy(&self, policy: &Policy) -> bool {
        self.key == Some(&policy.key)
    }

    /// Returns the paths of netpold's annotations and labels that a policy cannot have.
    pub(crate) fn unknown_keys(&self) -> impl Iterator<Item = String> {
        self.manifest.into_iter().flat_map(PolicyManifest::unknown_keys)
    }

    /// Returns every CIDR as written, with its path.
    pub(crate) fn cidrs(&self) -> impl Iterator<Item = (String, &'p str)> {
        self.manifest.into_iter().flat_map(PolicyManifest::cidrs)
    }

    /// Formats `NetworkPolicy shop/web: spec.podSelector: WHAT (FILE:LINE)`; empty parts are left out.
    pub(crate) fn at(&self, path: &str, what: &str) -> String {
        let mut text = self.text.clone();
        for part in [path, what].into_iter().filter(|part| !part.is_empty()) {
            text.push_str(": ");
            text.push_str(part);
        }
        self.with_source(text, path)
    }

    /// Appends file and line of a field of the policy to a text.
    pub(crate) fn with_source(&self, text: String, path: &str) -> String {
        let text = cut(text, WHAT_MAX);
        match self.manifest.and_then(|manifest| manifest.source(path)) {
            Some(source) => format!("{text} ({source})"),
            None => text,
        }
    }
}

impl RulePlace<'_> {
    /// Returns a path such as `spec.egress[0]`, followed by `below`.
    pub(crate) fn path(&self, below: &str) -> String {
        format!("spec.{}[{}]{below}", self.direction, self.number)
    }

    /// Returns the effect of the rule on matching traffic, as a verb.
    pub(crate) const fn effect(&self) -> &'static str {
        match self.action {
            Action::Accept => "allows",
            Action::Deny => "denies",
            Action::Pass => "passes",
        }
    }

    /// Returns the path of a port of the rule: `.ports[0]`, in a ClusterNetworkPolicy `.protocols[0]`.
    pub(crate) fn port(&self, number: usize) -> String {
        let field = if self.policy.namespace().is_some() { "ports" } else { "protocols" };
        format!(".{field}[{number}]")
    }

    /// Describes a problem of a part of the rule, such as `.ports[0]`.
    pub(crate) fn at(&self, below: &str, what: &str) -> String {
        self.policy.at(&self.path(below), what)
    }

    /// Returns the path of a peer of the rule, such as `.to[0]`.
    pub(crate) fn peer(&self, number: usize) -> String {
        let side = match self.direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        };
        format!(".{side}[{number}]")
    }
}

impl<'c> GroupedObjects<'c> {
    pub(crate) fn new(cluster: &'c Cluster, details: &'c Details) -> Self {
        let nodes = cluster.nodes().values().flat_map(|node| &node.addresses);
        let hosts = cluster.pods().values().filter(|pod| pod.host_network && !pod.finished);
        let noted = details.nodes.values().flatten().map(|noted| &noted.address);
        let hosts = hosts.flat_map(|pod| &pod.addresses);
        let mut pods = cluster.pods().values().flat_map(|pod| &pod.addresses);
        let is_partial = cluster.nodes().is_empty() && pods.all(|address| is_stand_in(*address));
        let templates = details.templates.iter().map(|template| {
            let key = (template.namespace.as_str(), template.labels.iter().collect());
            (key, &template.details)
        });
        Self {
            cluster,
            is_partial,
            explainer: Explainer::new(cluster),
            details,
            groups: groups(cluster),
            node_addresses: nodes.chain(hosts).chain(noted).copied().collect(),
            leads: BackendIndex::new(cluster),
            templates: templates.collect(),
        }
    }

    /// Returns the groups that a selector matches.
    pub(crate) fn select(
        &self,
        own: Option<&str>,
        namespaces: Option<&Selector>,
        pods: &Selector,
    ) -> Vec<&PodGroup<'c>> {
        self.groups.iter().filter(|group| group.is_in(own, namespaces, pods)).collect()
    }

    /// Returns whether a pod or node among the objects has an address.
    pub(crate) fn is_known(&self, address: IpAddr) -> bool {
        self.cluster.owner(address).is_some() || self.node_addresses.contains(&address)
    }

    /// Appends file and line of an object to a text.
    pub(crate) fn with_source(&self, (kind, key): (&'static str, &Key), text: String) -> String {
        match self.details.sources.get(&(kind, key.clone())) {
            Some(source) => format!("{} ({source})", cut(text, WHAT_MAX)),
            None => text,
        }
    }

    /// Returns the details of a pod; for a pod that does not run yet, those of a pod template with its namespace and
    /// labels.
    pub(crate) fn pod(&self, pod: &Pod) -> Option<&'c PodDetails> {
        let template = || {
            let is_planned = pod.addresses.iter().any(|address| is_stand_in(*address));
            let key = (pod.key.namespace.as_str(), pod.labels.iter().collect());
            is_planned.then(|| self.templates.get(&key).copied()).flatten()
        };
        self.details.pods.get(&pod.key).or_else(template)
    }

    /// Returns whether policies allow a pod to send to an address and port; true for a pod that is not known.
    pub(crate) fn may_send(&self, pod: &Pod, to: IpAddr, protocol: IpProtocol, port: u16) -> bool {
        let judged = self.explainer.judge(&pod.key, Direction::Egress, to, protocol, port);
        judged.is_none_or(|judged| judged.verdict == Verdict::Allow)
    }

    /// Returns the ClusterNetworkPolicy with the rule that denies this traffic at a pod, if there is one.
    pub(crate) fn denying(
        &self,
        pod: &Key,
        direction: Direction,
        remote: IpAddr,
        (protocol, port): (IpProtocol, u16),
    ) -> Option<&ClusterPolicy> {
        let judged = self.explainer.judge(pod, direction, remote, protocol, port)?;
        let rule = judged.tiers.decided_by.filter(|_| judged.verdict == Verdict::Deny)?;
        self.cluster.cluster_policy(&rule.policy.policy).map(|policy| &**policy)
    }

    /// Returns the place of policies that together cause a problem: a text of their names, with file and line of a field
    /// of the first.
    pub(crate) fn place_of<'p>(
        &'p self,
        policies: impl Iterator<Item = &'p Policy>,
        path: &str,
        text: impl FnOnce(&str) -> String,
    ) -> String {
        let named: Vec<NamedPolicy<'_>> =
            policies.map(|policy| NamedPolicy::policy(policy, self.details)).collect();
        let names: Vec<&str> = named.iter().map(|named| named.text.as_str()).collect();
        let place = text(&names.join(", "));
        match named.first() {
            Some(first) => first.with_source(place, path),
            None => place,
        }
    }

    /// Returns the NetworkPolicies that isolate a group in one direction, with their rules. Audited policies isolate
    /// nothing.
    pub(crate) fn isolating<'o>(
        &'o self,
        group: &PodGroup<'_>,
        direction: Direction,
    ) -> Vec<(&'o Policy, &'o [Rule])> {
        let policies = self.cluster.policies_in(group.namespace);
        let policies = policies.filter(|policy| {
            policy.enforcement == Enforcement::Enforce && policy.pod_selector.matches(group.labels)
        });
        policies.filter_map(|policy| Some((&**policy, policy.rules(direction)?))).collect()
    }

    /// Lowers the severity of a check for a chart: other charts may make the objects that are missing.
    pub(crate) fn check(&self, check: &Check) -> Check {
        let severity = if self.is_partial { Severity::Info } else { check.severity };
        Check { severity, ..*check }
    }
}

fn groups(cluster: &Cluster) -> Vec<PodGroup<'_>> {
    let mut groups: BTreeMap<PodGroupKey<'_>, PodGroup<'_>> = BTreeMap::new();
    for pod in cluster.pods().values().filter(|pod| is_subject(pod)) {
        let namespace = pod.key.namespace.as_str();
        let group = groups.entry((namespace, pod.labels.iter().collect()));
        let group = group.or_insert_with(|| PodGroup {
            namespace,
            labels: &pod.labels,
            namespace_labels: cluster.namespace_labels(namespace),
            pods: Vec::new(),
            by_node: Vec::new(),
        });
        group.pods.push(pod);
    }
    let mut groups: Vec<PodGroup<'_>> = groups.into_values().collect();
    for group in &mut groups {
        let mut nodes = BTreeSet::new();
        let pods = group.pods.iter().copied();
        group.by_node = pods.filter(|pod| nodes.insert(&*pod.node)).take(NODES_MAX).collect();
    }
    groups
}

impl PodGroup<'_> {
    /// Returns the pods on the nodes of these ones, which are of [`PodGroup::by_node`].
    pub(crate) fn beside(&self, some: &[&Pod]) -> Vec<&Pod> {
        let nodes: BTreeSet<&str> = some.iter().map(|pod| &*pod.node).collect();
        self.pods.iter().copied().filter(|pod| nodes.contains(&*pod.node)).collect()
    }

    /// Returns whether a peer or a subject matches the group; `own` is the policy's namespace, `namespaces` the
    /// namespace selector.
    pub(crate) fn is_in(
        &self,
        own: Option<&str>,
        namespaces: Option<&Selector>,
        pods: &Selector,
    ) -> bool {
        let namespace = match namespaces {
            Some(selector) => selector.matches(&self.namespace_labels),
            None => own == Some(self.namespace),
        };
        namespace && pods.matches(self.labels)
    }

    /// Returns whether a Service selects the group.
    pub(crate) fn is_behind(&self, key: &Key, service: &WrittenService) -> bool {
        self.namespace == key.namespace && is_selected(self.labels, &service.selector)
    }

    /// Returns whether the group is the subject of a ClusterNetworkPolicy.
    pub(crate) fn is_subject(&self, policy: &ClusterPolicy) -> bool {
        self.is_in(None, Some(&policy.subject.namespaces), &policy.subject.pods)
    }
}

/// Returns whether a pod has an address of this address's family.
pub(crate) fn has_family(pod: &Pod, address: IpAddr) -> bool {
    pod.addresses.iter().any(|own| own.is_ipv4() == address.is_ipv4())
}

/// Returns whether policy allows a pod to send to an address and port.
pub(crate) fn is_allowed(
    explainer: &Explainer<'_>,
    pod: &Key,
    protocol: IpProtocol,
    (address, port): (IpAddr, u16),
) -> bool {
    explainer.allows(pod, Direction::Egress, address, protocol, port) == Some(true)
}

/// Returns the backends of a Service port that are neither the pod nor its own node.
pub(crate) fn backends_elsewhere<'o>(
    objects: &'o GroupedObjects<'_>,
    led: &'o PortBackends<'_>,
    pod: &'o Pod,
) -> impl Iterator<Item = &'o (IpAddr, u16)> {
    led.backends.iter().filter(move |(address, _)| {
        !pod.addresses.contains(address) && !objects.cluster.is_node_of(pod, *address)
    })
}

/// Describes a group by its first pod and the number of the others.
pub(crate) fn pods_text(group: &PodGroup<'_>) -> String {
    some_pods_text(&group.pods)
}

/// Describes pods of a group by the first one and the number of the others.
pub(crate) fn some_pods_text(pods: &[&Pod]) -> String {
    match pods {
        [] => String::new(),
        [pod] => format!("Pod {}", pod.key),
        [first, others @ ..] => format!("Pod {} and {} like it", first.key, others.len()),
    }
}
