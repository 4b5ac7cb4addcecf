//! Labels that the objects lack: those of a Namespace that is not among them, and those that controllers set on pods.
//!
//! Policies compare such a label with the values that they name. So a probe is judged once for each combination of
//! these values, of another value, and for Namespaces of no value.

use std::collections::{BTreeMap, BTreeSet};

use netpold_client::details::Details;
use netpold_core::cluster::Cluster;
use netpold_core::explain::{Explanation, Verdict};
use netpold_core::labels::{NAMESPACE_NAME, OF_PODS, may_be_set_to};
use netpold_core::model::{
    Change, Direction, Key, Labels, NamedPort, Namespace, Peer, Pod, PortMatch, Protocol,
    Requirement, Rule, Selector,
};
use netpold_core::probe::Party;

use super::absent::is_absent;
use super::ends::pods_of_answer;

/// Value that no policy can name: it is not a valid label.
const OTHER: &str = "?";
/// Start of an unknown name of a port of an absent pod, beside its unknown labels; no label has a space.
const PORT: &str = "port ";
/// Most combinations that are judged.
const WORLDS: usize = 256;

/// Object without some of its labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LabelOwner {
    Namespace(String),
    /// Pod of a template.
    Pod(Key),
}

/// Label of a subject, with its possible values; `None`: absent.
struct UnknownLabel {
    subject: LabelOwner,
    label: String,
    values: Vec<Option<String>>,
}

/// Unknown labels on which the policies about a probe depend.
pub(crate) struct Hypotheses(Vec<UnknownLabel>);

/// Pods of one side of a probe.
struct ProbeSide<'c> {
    pods: Vec<&'c Pod>,
    /// Direction in which the policies of the other side judge it as a peer.
    direction: Direction,
}

/// Values that selectors name, by subject and label.
#[derive(Default)]
struct NamedValues(BTreeMap<(LabelOwner, String), BTreeSet<String>>);

/// Returns whether some object may lack a label: a pod of a template, or one of a Namespace that is not among them.
pub(crate) fn are_possible(objects: &[Change]) -> bool {
    let namespaces = objects.iter().filter_map(|object| {
        if let Change::Namespace(namespace) = object { Some(namespace.name.as_str()) } else { None }
    });
    let namespaces: BTreeSet<&str> = namespaces.collect();
    objects.iter().any(|object| {
        matches!(object, Change::Pod(pod)
            if pod.template().is_some() || !namespaces.contains(pod.key.namespace.as_str()))
    })
}

impl Hypotheses {
    /// Collects the unknown labels of the pods of an answer.
    pub(super) fn of_answer(cluster: &Cluster, details: &Details, answer: &Explanation) -> Self {
        let [from, mut to] = pods_of_answer(cluster, answer);
        let mut named = NamedValues::default();
        if let Party::Service(key) = &answer.probe.to {
            to.extend(named.selected(cluster, details, key));
        }
        let ends = [
            ProbeSide { pods: from, direction: Direction::Ingress },
            ProbeSide { pods: to, direction: Direction::Egress },
        ];
        let [from, to] = &ends;
        for (end, other) in [(from, to), (to, from)] {
            for pod in &end.pods {
                named.add_subject(cluster, pod);
                let others: BTreeSet<&str> =
                    other.pods.iter().map(|pod| pod.key.namespace.as_str()).collect();
                for namespace in others {
                    named.add_peer(cluster, pod, namespace, end.direction);
                }
            }
        }
        Self(named.into_unknown(&[cluster]))
    }

    /// Collects the unknown labels of all pods of two clusters, those of each Namespace and pod apart.
    pub(crate) fn of_clusters(clusters: [&Cluster; 2]) -> Vec<Self> {
        let mut named = NamedValues::default();
        for cluster in clusters {
            let policies = cluster.policies().keys().map(|key| key.namespace.as_str());
            let mut namespaces: BTreeSet<&str> = policies.collect();
            // Rules of ClusterNetworkPolicies are added with those of any namespace.
            namespaces.insert("");
            let lacks = |pod: &&Pod| {
                pod.template().is_some()
                    || clusters.iter().all(|it| !it.namespaces().contains_key(&pod.key.namespace))
            };
            for pod in cluster.pods().values().map(|pod| &**pod).filter(lacks) {
                named.add_subject(cluster, pod);
                for namespace in &namespaces {
                    for direction in Direction::BOTH {
                        named.add_peer(cluster, pod, namespace, direction);
                    }
                }
            }
        }
        let mut all: BTreeMap<LabelOwner, Vec<UnknownLabel>> = BTreeMap::new();
        for unknown in named.into_unknown(&clusters) {
            all.entry(unknown.subject.clone()).or_default().push(unknown);
        }
        all.into_values().map(Self).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn have_pods(&self) -> bool {
        self.0.iter().any(|it| matches!(it.subject, LabelOwner::Pod(_)))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().fold(1, |count, it| count.saturating_mul(it.values.len()))
    }

    pub(super) fn are_too_many(&self) -> bool {
        self.count() > WORLDS
    }

    /// Describes labels of which too many combinations are possible.
    pub(super) fn excess(&self) -> String {
        let labels: BTreeSet<&str> = self.0.iter().map(|it| it.label.as_str()).collect();
        let labels: Vec<&str> = labels.into_iter().collect();
        format!(
            "the objects lack labels with more than {WORLDS} combinations of values: {}",
            labels.join(", ")
        )
    }

    /// Returns the values of the labels in one world.
    fn values(&self, world: usize) -> impl Iterator<Item = (&UnknownLabel, Option<&String>)> {
        let mut rest = world;
        self.0.iter().map(move |it| {
            let value = it.values.get(rest % it.values.len()).and_then(Option::as_ref);
            rest /= it.values.len();
            (it, value)
        })
    }

    /// Returns the changes that lead to each world from any other one.
    pub(crate) fn worlds(&self, cluster: &Cluster) -> impl Iterator<Item = Vec<Change>> {
        (0..self.count()).map(|world| {
            let mut labels: BTreeMap<&LabelOwner, Labels> = BTreeMap::new();
            for (it, value) in self.values(world) {
                let of_subject = labels.entry(&it.subject).or_default();
                if let Some(value) = value {
                    of_subject.insert(it.label.clone(), value.clone());
                }
            }
            let change = |(subject, labels)| subject_with(cluster, subject, labels);
            labels.into_iter().filter_map(change).collect()
        })
    }

    /// Returns the changes that lead from any world to the given objects.
    pub(crate) fn undone(&self, cluster: &Cluster) -> Vec<Change> {
        let subjects: BTreeSet<&LabelOwner> = self.0.iter().map(|it| &it.subject).collect();
        let change = |subject: &LabelOwner| match subject {
            LabelOwner::Namespace(name) => Some(Change::NamespaceGone(name.clone())),
            LabelOwner::Pod(key) => Some(Change::Pod((**cluster.pods().get(key)?).clone())),
        };
        subjects.into_iter().filter_map(change).collect()
    }

    /// Describes the labels on which the verdicts of the worlds depend; `None` if they are equal.
    pub(super) fn deciding(&self, cluster: &Cluster, verdicts: &[Verdict]) -> Option<String> {
        self.describe(verdicts, |subject, labels| match subject {
            LabelOwner::Namespace(name) => format!(
                "Namespace {name} is not among the objects: the answer depends on its label {labels}"
            ),
            LabelOwner::Pod(key) if cluster.pods().get(key).is_some_and(|it| is_absent(it)) => format!(
                "pod {key}, an endpoint, is not among the objects: the answer depends on its {labels}"
            ),
            LabelOwner::Pod(key) => format!(
                "the answer depends on label {labels}, which a controller sets on the pods of {}",
                title(cluster, key)
            ),
        })
    }

    /// Describes the connections that depend on labels, given the comparisons of the worlds; `None` if these are equal.
    pub(crate) fn depending<T: PartialEq>(
        &self,
        cluster: &Cluster,
        worlds: &[T],
    ) -> Option<String> {
        self.describe(worlds, |subject, labels| match subject {
            LabelOwner::Namespace(name) => format!(
                "connections that depend on label {labels} of Namespace {name}, which is not among the objects"
            ),
            LabelOwner::Pod(key) => format!(
                "connections that depend on label {labels}, which a controller sets on the pods of {}",
                title(cluster, key)
            ),
        })
    }

    /// Joins the texts about each subject and the labels on which the results of the worlds depend; `None` if no label
    /// decides.
    fn describe<T: PartialEq>(
        &self,
        results: &[T],
        text: impl Fn(&LabelOwner, &str) -> String,
    ) -> Option<String> {
        let labels = self.deciding_labels(results).into_iter();
        let text: Vec<String> =
            labels.map(|(subject, labels)| text(subject, &labels.join(" and "))).collect();
        (!text.is_empty()).then(|| text.join("; "))
    }

    /// Returns the labels on which the results of the worlds depend.
    fn deciding_labels<T: PartialEq>(&self, results: &[T]) -> BTreeMap<&LabelOwner, Vec<&str>> {
        let mut labels: BTreeMap<&LabelOwner, Vec<&str>> = BTreeMap::new();
        let mut step = 1;
        for it in &self.0 {
            let decides = (0..results.len()).any(|world| {
                let is_first = (world / step) % it.values.len() == 0;
                is_first
                    && (1..it.values.len())
                        .any(|value| results.get(world) != results.get(world + value * step))
            });
            step *= it.values.len();
            if decides {
                labels.entry(&it.subject).or_default().push(&it.label);
            }
        }
        labels
    }
}

/// Returns the name of a pod, or of the workload of a template.
fn title(cluster: &Cluster, key: &Key) -> String {
    let title = cluster.pods().get(key).map(|pod| pod.title());
    title.unwrap_or_else(|| key.to_string())
}

/// Returns a subject with its unknown labels set.
fn subject_with(cluster: &Cluster, subject: &LabelOwner, mut labels: Labels) -> Option<Change> {
    Some(match subject {
        LabelOwner::Namespace(name) => {
            labels.insert(NAMESPACE_NAME.to_owned(), name.clone());
            Change::Namespace(Namespace { name: name.clone(), labels, denial: None })
        }
        LabelOwner::Pod(key) => {
            let mut pod = (**cluster.pods().get(key)?).clone();
            let named: Vec<(Protocol, u16)> =
                pod.ports.iter().map(|port| (port.protocol, port.port)).collect();
            for name in labels.keys().filter_map(|label| label.strip_prefix(PORT)) {
                pod.ports.extend(named.iter().map(|&(protocol, port)| NamedPort {
                    name: name.to_owned(),
                    protocol,
                    port,
                }));
            }
            let labels = labels.iter().filter(|(label, _)| !label.starts_with(PORT));
            let known = pod.labels.iter().chain(labels);
            pod.labels = known.map(|(label, value)| (label.clone(), value.clone())).collect();
            Change::Pod(pod)
        }
    })
}

impl NamedValues {
    /// Adds the selector of a Service. Returns the pods that it selects, apart from labels that controllers set.
    fn selected<'c>(&mut self, cluster: &'c Cluster, details: &Details, key: &Key) -> Vec<&'c Pod> {
        let Some(service) = details.services.get(key) else { return Vec::new() };
        let (unknown, known): (Vec<_>, Vec<_>) =
            service.selector.iter().partition(|(label, _)| OF_PODS.contains(&label.as_str()));
        if unknown.is_empty() {
            return Vec::new();
        }
        let is_selected = |pod: &&Pod| {
            let mut known = known.iter();
            pod.template().is_some()
                && known.all(|(label, value)| pod.labels.get(*label) == Some(*value))
        };
        let pods = cluster.pods_in(&key.namespace).map(|pod| &**pod);
        let pods: Vec<&Pod> = pods.filter(is_selected).collect();
        for pod in &pods {
            for (label, value) in &unknown {
                self.add(LabelOwner::Pod(pod.key.clone()), label, std::slice::from_ref(*value));
            }
        }
        pods
    }

    /// Adds the selectors of policies that may select a pod.
    fn add_subject(&mut self, cluster: &Cluster, pod: &Pod) {
        for policy in cluster.policies_in(&pod.key.namespace) {
            self.add_pod(&policy.pod_selector, pod);
            for rule in policy.rules(Direction::Ingress).into_iter().flatten() {
                self.add_ports(rule, pod);
            }
        }
        for policy in cluster.cluster_policies() {
            self.add_namespace(&policy.subject.namespaces, pod);
            self.add_pod(&policy.subject.pods, pod);
            for rule in policy.rules(Direction::Ingress) {
                self.add_ports(&rule.matches, pod);
            }
        }
    }

    /// Adds the names of ports in a rule that an absent pod may have.
    fn add_ports(&mut self, rule: &Rule, pod: &Pod) {
        for port in rule.ports.iter().flatten().filter(|_| is_absent(pod)) {
            if let PortMatch::Named(name) = &port.port
                && !pod.ports.iter().any(|known| known.name == *name)
            {
                let subject = LabelOwner::Pod(pod.key.clone());
                self.add(subject, &format!("{PORT}{name}"), &[OTHER.to_owned()]);
            }
        }
    }

    /// Adds the selectors of the policies of a namespace, and of the cluster, that may match a pod as a peer.
    fn add_peer(&mut self, cluster: &Cluster, pod: &Pod, namespace: &str, direction: Direction) {
        let policies = cluster.policies_in(namespace);
        let rules = policies.filter_map(|policy| policy.rules(direction)).flatten();
        let of_cluster = cluster.cluster_policies().flat_map(|policy| policy.rules(direction));
        let rules: Vec<&Rule> = rules.chain(of_cluster.map(|rule| &rule.matches)).collect();
        if direction == Direction::Egress {
            rules.iter().for_each(|rule| self.add_ports(rule, pod));
        }
        for peer in rules.into_iter().flat_map(|rule| rule.peers.iter().flatten()) {
            if let Peer::Pods { namespaces, pods } = peer {
                self.add_pod(pods, pod);
                if let Some(namespaces) = namespaces {
                    self.add_namespace(namespaces, pod);
                }
            }
        }
    }

    fn add_namespace(&mut self, selector: &Selector, pod: &Pod) {
        let subject = LabelOwner::Namespace(pod.key.namespace.clone());
        for (label, values) in selector.requirements.iter().map(parts) {
            self.add(subject.clone(), label, values);
        }
    }

    fn add_pod(&mut self, selector: &Selector, pod: &Pod) {
        let subject = LabelOwner::Pod(pod.key.clone());
        for (label, values) in selector.requirements.iter().map(parts) {
            if OF_PODS.contains(&label) || is_absent(pod) {
                self.add(subject.clone(), label, values);
            }
        }
    }

    fn add(&mut self, subject: LabelOwner, label: &str, values: &[String]) {
        let named = self.0.entry((subject, label.to_owned())).or_default();
        named.extend(values.iter().cloned());
    }

    /// Returns the unknown labels among the named ones.
    fn into_unknown(self, clusters: &[&Cluster]) -> Vec<UnknownLabel> {
        let named = self.0.into_iter();
        let unknown = named.filter_map(|((subject, label), named)| {
            let other = Some(OTHER.to_owned());
            let values: Vec<Option<String>> = match &subject {
                LabelOwner::Namespace(name) => {
                    let is_known = label == NAMESPACE_NAME
                        || clusters.iter().any(|it| it.namespaces().contains_key(name));
                    let values = [None, other].into_iter().chain(named.into_iter().map(Some));
                    if is_known { Vec::new() } else { values.collect() }
                }
                LabelOwner::Pod(key) => {
                    let pod = clusters.iter().find_map(|cluster| cluster.pods().get(key))?;
                    if is_absent(pod) {
                        if pod.labels.contains_key(&label) {
                            return None;
                        }
                        let other = other.filter(|_| !label.starts_with(PORT));
                        let values = named.into_iter().map(Some);
                        let values = [None].into_iter().chain(other.map(Some)).chain(values);
                        return Some(UnknownLabel { subject, label, values: values.collect() });
                    }
                    let named = named.into_iter().filter(|value| may_have(pod, &label, value));
                    let values = [other].into_iter().chain(named.map(Some));
                    if pod.is_set_later(&label) { values.collect() } else { Vec::new() }
                }
            };
            (!values.is_empty()).then_some(UnknownLabel { subject, label, values })
        });
        unknown.collect()
    }
}

/// Returns the label of a requirement, and the values that it names.
fn parts(requirement: &Requirement) -> (&str, &[String]) {
    let values = match requirement {
        Requirement::In(_, values) | Requirement::NotIn(_, values) => &values[..],
        Requirement::Exists(_) | Requirement::DoesNotExist(_) => &[],
    };
    (requirement.key(), values)
}

/// Returns whether the controller of a template's pods may give a label this value.
fn may_have(pod: &Pod, label: &str, value: &str) -> bool {
    pod.template().is_some_and(|workload| {
        may_be_set_to((workload.kind.as_str(), workload.name.as_str()), label, value)
    })
}
