//! The current state of the cluster's objects: no history, and the indexes that compiling needs.

mod cluster_policies;
mod dirty;
mod interfaces;
mod label_groups;
mod nodes;
mod objects;
mod pods;
pub(crate) mod services;
mod small_vec;
mod whose;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::budget::Weight;
use crate::model::{
    Change, ClusterPolicy, Direction, EndpointSlice, Enforcement, Interface, Key, Labels,
    Namespace, Node, Owner, Pod, Policy, Selector, Service,
};
use cluster_policies::ClusterPolicies;
pub(crate) use dirty::Dirty;
use interfaces::Interfaces;
pub(crate) use label_groups::LabelGroup;
use label_groups::PodsByLabels;
use nodes::Nodes;
pub(crate) use objects::Object;
pub use objects::ObjectKey;
use pods::Pods;
pub use pods::is_subject;
use services::Services;
pub use whose::Whose;

/// The label that the API server puts on every namespace.
const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Everything known about the cluster, as seen from one node.
#[derive(Debug, Default)]
pub struct Cluster {
    namespaces: BTreeMap<String, Namespace>,
    pods: Pods,
    policies: BTreeMap<Key, Arc<Policy>>,
    /// What each of them asks for.
    weights: BTreeMap<Key, Weight>,
    cluster_policies: ClusterPolicies,
    nodes: Nodes,
    services: Services,
    interfaces: Interfaces,
    /// See [`Cluster::weigh_hastily`].
    hasty: bool,
}

impl FromIterator<Change> for Cluster {
    /// A cluster seen from no node, given as one change for each object; of several for one object the
    /// last counts.
    fn from_iter<I: IntoIterator<Item = Change>>(changes: I) -> Self {
        let mut cluster = Self::default();
        let mut dirty = Dirty::default();
        changes.into_iter().for_each(|change| cluster.ingest(change, &mut dirty));
        cluster
    }
}

impl Cluster {
    /// An empty cluster as seen from the node of this name.
    #[must_use]
    pub fn new(node: impl Into<String>) -> Self {
        Self { nodes: Nodes::new(node.into()), ..Self::default() }
    }

    /// Name of the own node.
    #[must_use]
    pub fn node_name(&self) -> &str {
        self.nodes.own_name()
    }

    /// Namespaces by name.
    #[must_use]
    pub fn namespaces(&self) -> &BTreeMap<String, Namespace> {
        &self.namespaces
    }

    /// Pods by key, those that policy ignores included.
    #[must_use]
    pub fn pods(&self) -> &BTreeMap<Key, Arc<Pod>> {
        self.pods.by_key()
    }

    /// Policies by key.
    #[must_use]
    pub fn policies(&self) -> &BTreeMap<Key, Arc<Policy>> {
        &self.policies
    }

    /// Nodes by name.
    #[must_use]
    pub fn nodes(&self) -> &BTreeMap<String, Node> {
        self.nodes.by_name()
    }

    /// Services by key.
    #[must_use]
    pub fn services(&self) -> &BTreeMap<Key, Arc<Service>> {
        self.services.services()
    }

    /// EndpointSlices by key.
    #[must_use]
    pub fn slices(&self) -> &BTreeMap<Key, Arc<EndpointSlice>> {
        self.services.slices()
    }

    /// The addresses that are translated for a Service.
    #[must_use]
    pub fn service_addresses(&self, key: &Key) -> &[IpAddr] {
        self.services.services().get(key).map_or(&[], |service| &service.addresses)
    }

    /// A Service that has an address; the first by name if several have it.
    #[must_use]
    pub fn service_at(&self, address: IpAddr) -> Option<&Key> {
        self.services.at(address).iter().map(|service| &service.key).min()
    }

    /// Where packets are translated, and to whom.
    pub(crate) fn translation(&self) -> &Services {
        &self.services
    }

    /// Interfaces by index.
    #[must_use]
    pub fn interfaces(&self) -> &BTreeMap<u32, Interface> {
        self.interfaces.by_index()
    }

    /// What a policy asks for.
    pub(crate) fn weight(&self, policy: &Key) -> Option<&Weight> {
        self.weights.get(policy)
    }

    /// What the policies of a namespace weigh together, as [`crate::budget`] has it; those that are over
    /// their budget weigh next to nothing.
    #[must_use]
    pub fn units_in(&self, namespace: &str) -> u64 {
        let weights = in_namespace(&self.weights, namespace);
        weights.flat_map(|weight| Direction::BOTH.map(|direction| weight.units(direction))).sum()
    }

    /// What a policy asks for beyond its budget; such a policy isolates and grants nothing.
    #[must_use]
    pub fn excess(&self, policy: &Key) -> Option<&str> {
        self.weight(policy)?.excess.as_deref()
    }

    /// Why parts of a policy, or all of it, grant nothing.
    pub fn problems_of<'a>(&'a self, policy: &'a Policy) -> impl Iterator<Item = &'a str> {
        policy.problems.iter().map(String::as_str).chain(self.excess(&policy.key))
    }

    /// The policies of a namespace, by name.
    pub fn policies_in<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a Arc<Policy>> {
        in_namespace(&self.policies, namespace)
    }

    /// The policies that isolate a pod in a direction: all of its namespace's, if its labels are not
    /// known. Those on trial do not.
    pub(crate) fn isolating(&self, pod: (&Pod, bool), direction: Direction) -> Vec<Arc<Policy>> {
        let policies = self.selecting(pod, direction);
        policies.filter(|policy| policy.enforcement == Enforcement::Enforce).cloned().collect()
    }

    /// Those that isolate a pod, or would if they were not on trial.
    pub(crate) fn selecting(
        &self,
        (pod, labelled): (&Pod, bool),
        direction: Direction,
    ) -> impl Iterator<Item = &Arc<Policy>> {
        let policies = self.policies_in(&pod.key.namespace);
        policies.filter(move |policy| {
            let selects = !labelled || policy.pod_selector.matches(&pod.labels);
            selects && policy.rules(direction).is_some()
        })
    }

    /// The policies on trial that would isolate a pod in a direction, and the ClusterNetworkPolicies on
    /// trial with rules for it.
    pub(crate) fn on_trial(
        &self,
        pod: (&Pod, bool),
        direction: Direction,
    ) -> (impl Iterator<Item = &Arc<Policy>>, impl Iterator<Item = &Arc<ClusterPolicy>>) {
        let policies = self.selecting(pod, direction);
        let tiers = self.tiers_about(pod, direction);
        (
            policies.filter(|policy| policy.enforcement == Enforcement::Audit),
            tiers.filter(|policy| policy.enforcement == Enforcement::Audit),
        )
    }

    /// Whether a policy on trial has something to say of a pod in a direction.
    #[must_use]
    pub fn is_on_trial(&self, pod: (&Pod, bool), direction: Direction) -> bool {
        let (mut policies, mut tiers) = self.on_trial(pod, direction);
        policies.next().is_some() || tiers.next().is_some()
    }

    /// The ClusterNetworkPolicies, in the order in which they are asked.
    pub fn cluster_policies(&self) -> impl Iterator<Item = &Arc<ClusterPolicy>> {
        self.cluster_policies.iter()
    }

    /// Whether there is a ClusterNetworkPolicy.
    pub(crate) fn has_cluster_policies(&self) -> bool {
        !self.cluster_policies.is_empty()
    }

    /// The ClusterNetworkPolicy of a name.
    #[must_use]
    pub fn cluster_policy(&self, name: &str) -> Option<&Arc<ClusterPolicy>> {
        self.cluster_policies.get(name)
    }

    /// The ClusterNetworkPolicies with rules for a pod in a direction, in the order in which they are
    /// asked: all that speak of its namespace, if its labels are not known. Those on trial are not asked.
    pub(crate) fn tiers_of(
        &self,
        pod: (&Pod, bool),
        direction: Direction,
    ) -> Vec<Arc<ClusterPolicy>> {
        let policies = self.tiers_about(pod, direction);
        policies.filter(|policy| policy.enforcement == Enforcement::Enforce).cloned().collect()
    }

    /// Those that are asked, or would be if they were not on trial.
    pub(crate) fn tiers_about(
        &self,
        (pod, labelled): (&Pod, bool),
        direction: Direction,
    ) -> impl Iterator<Item = &Arc<ClusterPolicy>> {
        let namespace =
            self.has_cluster_policies().then(|| self.namespace_labels(&pod.key.namespace));
        self.cluster_policies().filter(move |policy| {
            let subject = &policy.subject;
            !policy.rules(direction).is_empty()
                && namespace.as_ref().is_some_and(|labels| subject.namespaces.matches(labels))
                && (!labelled || subject.pods.matches(&pod.labels))
        })
    }

    /// The pods of a namespace, by name.
    pub fn pods_in<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a Arc<Pod>> {
        in_namespace(self.pods.by_key(), namespace)
    }

    /// The pods that policy does not ignore, by namespace and labels.
    pub(crate) fn pods_by_labels(&self) -> &PodsByLabels {
        self.pods.by_labels()
    }

    /// Labels of a namespace. Pods and namespaces arrive on different watches, so a pod can be
    /// known before its namespace; until then the namespace has the one label that every namespace
    /// has. A selector that asks for any other label fails to match, which grants nothing.
    #[must_use]
    pub fn namespace_labels(&self, name: &str) -> Cow<'_, Labels> {
        self.namespaces.get(name).map_or_else(
            || Cow::Owned(Labels::from_iter([(NAMESPACE_NAME_LABEL.to_owned(), name.to_owned())])),
            |namespace| Cow::Borrowed(&namespace.labels),
        )
    }

    /// The pod that has an address, as [`Pod::created`] says; never one that is hostNetwork or
    /// finished.
    #[must_use]
    pub fn owner(&self, address: IpAddr) -> Option<&Arc<Pod>> {
        self.pods.owner(address)
    }

    /// Whose an address is: a pod's, a node's, a Service's, in this order.
    #[must_use]
    pub fn whose(&self, address: IpAddr) -> Whose {
        if let Some(pod) = self.owner(address) {
            return Whose::Pod(pod.key.clone());
        }
        let own = self.is_own_node(address).then_some(self.node_name());
        if let Some(name) = own.or_else(|| self.nodes.with(address)) {
            return Whose::Node { name: name.to_owned() };
        }
        let services = self.services.at(address).iter().map(|service| &service.key);
        services.min().map_or(Whose::Outside, |key| Whose::Service(key.clone()))
    }

    /// Whether several pods claim an address: if not, whoever claims it is its owner.
    pub(crate) fn is_contested(&self, address: IpAddr) -> bool {
        self.pods.is_contested(address)
    }

    /// Whether an address is one of the own node's: of its Node object, of a hostNetwork pod that
    /// runs here, or of one of its interfaces and neither a pod's nor a Service's cluster address
    /// (which NodeLocal DNS gives to an interface).
    #[must_use]
    pub fn is_own_node(&self, address: IpAddr) -> bool {
        self.nodes.is_own(address) || self.nodes.found().contains(&address) && self.is_free(address)
    }

    /// The own node's addresses.
    pub fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let found = self.nodes.found().iter().copied();
        let found = found.filter(|address| !self.nodes.is_own(*address));
        self.nodes.own().chain(found.filter(|address| self.is_free(*address)))
    }

    /// Whether an address is one of a node's, the own one's included.
    pub(crate) fn is_of_node(&self, node: &str, address: IpAddr) -> bool {
        match node == self.node_name() {
            true => self.is_own_node(address),
            false => self.nodes.is_others(node, address),
        }
    }

    /// Whether an address is one of the node's that a pod is on.
    #[must_use]
    pub fn is_node_of(&self, pod: &Pod, address: IpAddr) -> bool {
        !pod.node.is_empty() && self.is_of_node(&pod.node, address)
    }

    /// Whether a Node object that the selector matches has an address.
    #[must_use]
    pub fn is_of_nodes(&self, selector: &Selector, address: IpAddr) -> bool {
        self.nodes.listing(address).any(|node| selector.matches(&node.labels))
    }

    /// Whether some Node object lists an address.
    pub(crate) fn is_listed(&self, address: IpAddr) -> bool {
        self.nodes.listing(address).next().is_some()
    }

    /// The node of which an object says that it has an address.
    pub(crate) fn node_of(&self, address: IpAddr) -> Option<&str> {
        self.nodes.with(address)
    }

    /// Whether an address is no pod's and no Service's cluster address.
    fn is_free(&self, address: IpAddr) -> bool {
        self.owner(address).is_none() && !self.services.is_cluster_address(address)
    }

    /// The local pod behind an interface: the one it is bound to, else the one that has one of its
    /// addresses.
    #[must_use]
    pub fn pod_behind<'a>(&'a self, interface: &'a Interface) -> Option<&'a Arc<Pod>> {
        match &interface.owner {
            Owner::Pod(bound) => Some(&bound.pod),
            Owner::Denied => None,
            Owner::Unbound => {
                let owners = interface.addresses.iter().filter_map(|a| self.owner(*a));
                owners.into_iter().find(|pod| pod.node == self.node_name())
            }
        }
    }

    /// The pods of this node that claim an address, its owner first.
    pub(crate) fn local_claimants(&self, address: IpAddr) -> Vec<&Arc<Pod>> {
        let claimants = self.pods.claimants(address);
        let mut local: Vec<_> = claimants.filter(|pod| pod.node == self.node_name()).collect();
        local.sort_by_key(|pod| Reverse((Reverse(pod.terminating), pod.created, &pod.key)));
        local
    }

    /// The interfaces that have an address behind them.
    pub(crate) fn interfaces_with(&self, address: IpAddr) -> impl Iterator<Item = u32> {
        self.interfaces.with(address)
    }

    /// The interfaces of pods that claim an address, whichever of their addresses these have.
    pub(crate) fn interfaces_of_claimants(&self, address: IpAddr) -> impl Iterator<Item = u32> {
        let pods = self.pods.claimants(address);
        let addresses = pods.flat_map(|pod| pod.addresses.iter().copied());
        addresses.flat_map(|address| self.interfaces_with(address))
    }

    /// Takes in a change; `dirty` grows by what has to be looked at again.
    pub(crate) fn ingest(&mut self, change: Change, dirty: &mut Dirty) {
        // A policy that is no other is not weighed again.
        if let Change::Policy(new) = &change
            && self.policies.get(&new.key).is_some_and(|known| **known == *new)
        {
            return;
        }
        let hasty = self.hasty;
        let weigh = |new: &Policy| if hasty { Weight::hasty(new) } else { Weight::of(new) };
        self.take_in(Object::of(change, weigh), dirty);
    }

    /// Whether what takes long to weigh of new policies is left for [`Cluster::weigh_exactly`].
    pub(crate) fn weigh_hastily(&mut self, hasty: bool) {
        self.hasty = hasty;
    }

    /// Weighs what was weighed hastily.
    pub(crate) fn weigh_exactly(&mut self) {
        for (key, weight) in &mut self.weights {
            if let Some(policy) = self.policies.get(key).filter(|_| !weight.is_exact) {
                *weight = Weight::of(policy);
            }
        }
    }

    /// An object as it is here.
    pub(crate) fn object(&self, key: ObjectKey) -> Object {
        match key {
            ObjectKey::Namespace(name) => {
                let namespace = self.namespaces.get(&name).cloned();
                Object::Namespace(name, namespace)
            }
            ObjectKey::Node(name) => {
                let node = self.nodes.by_name().get(&name).cloned();
                Object::Node(name, node)
            }
            ObjectKey::Pod(key) => {
                let pod = self.pods.by_key().get(&key).cloned();
                Object::Pod(key, pod)
            }
            ObjectKey::Policy(key) => {
                let policy = self.policies.get(&key).cloned().zip(self.weights.get(&key).cloned());
                Object::Policy(key, policy)
            }
            ObjectKey::ClusterPolicy(name) => {
                let policy = self.cluster_policy(&name).cloned();
                Object::ClusterPolicy(name, policy)
            }
            ObjectKey::Service(key) => {
                let service = self.services.service(&key);
                Object::Service(key, service)
            }
            ObjectKey::EndpointSlice(key) => {
                let slice = self.services.slices().get(&key).cloned();
                Object::EndpointSlice(key, slice)
            }
            ObjectKey::Interface(index) => {
                let interface = self.interfaces.by_index().get(&index).cloned();
                Object::Interface(index, interface)
            }
            ObjectKey::OwnAddresses => {
                Object::OwnAddresses(self.nodes.found().iter().copied().collect())
            }
        }
    }

    /// Every object that is here.
    pub(crate) fn objects(&self) -> impl Iterator<Item = Object> {
        let namespaces = self.namespaces.keys().cloned().map(ObjectKey::Namespace);
        let nodes = self.nodes.by_name().keys().cloned().map(ObjectKey::Node);
        let policies = self.policies.keys().cloned().map(ObjectKey::Policy);
        let of_cluster = self.cluster_policies();
        let of_cluster = of_cluster.map(|policy| ObjectKey::ClusterPolicy(policy.name.clone()));
        let services = self.services.all_services().cloned().map(ObjectKey::Service);
        let slices = self.services.slices().keys().cloned().map(ObjectKey::EndpointSlice);
        let interfaces = self.interfaces.by_index().keys().copied().map(ObjectKey::Interface);
        let few = namespaces.chain(nodes).chain(policies).chain(services).chain(slices);
        let few = few.chain(of_cluster).chain(interfaces).chain([ObjectKey::OwnAddresses]);
        // Pods are the most.
        let pods = self.pods.by_key();
        let pods = pods.iter().map(|(key, pod)| Object::Pod(key.clone(), Some(pod.clone())));
        few.map(|key| self.object(key)).chain(pods)
    }

    /// Takes an object in as it is now; `dirty` grows by what has to be looked at again.
    pub(crate) fn take_in(&mut self, object: Object, dirty: &mut Dirty) {
        match object {
            Object::Namespace(name, new) => self.namespace(&name, new, dirty),
            Object::Node(name, new) => self.set_node(&name, new, dirty),
            Object::Pod(key, new) => self.pod(&key, new, dirty),
            Object::Policy(key, new) => self.policy(&key, new, dirty),
            Object::ClusterPolicy(name, new) => {
                dirty.cluster_policies |= self.cluster_policies.set(&name, new);
            }
            Object::Service(key, new) => self.service(&key, new, dirty),
            Object::EndpointSlice(key, new) => self.services.set_slice(&key, new, dirty),
            Object::Interface(index, new) => {
                dirty.interfaces.extend(self.interfaces.set(index, new).then_some(index));
            }
            Object::OwnAddresses(addresses) => {
                dirty.addresses.extend(self.nodes.find(addresses.into_iter().collect()));
            }
        }
    }

    fn namespace(&mut self, name: &str, new: Option<Namespace>, dirty: &mut Dirty) {
        let before = self.namespace_labels(name).into_owned();
        match new {
            Some(new) => self.namespaces.insert(name.to_owned(), new),
            None => self.namespaces.remove(name),
        };
        if *self.namespace_labels(name) != before {
            dirty.namespaces = true;
            for pod in self.pods_in(name) {
                dirty.addresses.extend(&pod.addresses);
            }
        }
    }

    fn service(&mut self, key: &Key, new: Option<Arc<Service>>, dirty: &mut Dirty) {
        let old = self.services.services().get(key).map(|service| &service.cluster);
        let named = old.into_iter().chain(new.as_ref().map(|service| &service.cluster)).flatten();
        // What an interface has may become, or cease to be, the own node's.
        dirty.addresses.extend(named.filter(|address| self.nodes.found().contains(address)));
        self.services.set_service(key, new, dirty);
    }

    fn set_node(&mut self, name: &str, new: Option<Node>, dirty: &mut Dirty) {
        let ([before, after], relabelled) = self.nodes.set(name, new);
        self.services.set_node(&before, &after, dirty);
        if name == self.node_name() || relabelled || before != after {
            dirty.addresses.extend(before.iter().chain(&after));
        }
    }

    fn pod(&mut self, key: &Key, new: Option<Arc<Pod>>, dirty: &mut Dirty) {
        if self.pods.by_key().get(key) == new.as_ref() {
            return;
        }
        let old = self.pods.set(key, new.as_ref());
        for pod in old.iter().chain(new.as_ref()) {
            dirty.addresses.extend(&pod.addresses);
        }
        let is_node = |pod: &&Arc<Pod>| pod.host_network && !pod.finished;
        if let Some(pod) = new.as_ref().filter(is_node) {
            self.nodes.change(&pod.node, &[], &pod.addresses);
        }
        if let Some(pod) = old.as_ref().filter(is_node) {
            self.nodes.change(&pod.node, &pod.addresses, &[]);
        }
    }

    fn policy(&mut self, key: &Key, new: Option<(Arc<Policy>, Weight)>, dirty: &mut Dirty) {
        if self.policies.get(key) == new.as_ref().map(|(policy, _)| policy) {
            return;
        }
        match new {
            Some((policy, weight)) => {
                self.weights.insert(key.clone(), weight);
                self.policies.insert(key.clone(), policy);
            }
            None => {
                self.weights.remove(key);
                self.policies.remove(key);
            }
        }
        dirty.policies.insert(key.namespace.clone());
    }
}

fn in_namespace<'a, T>(map: &'a BTreeMap<Key, T>, namespace: &str) -> impl Iterator<Item = &'a T> {
    let first = Key::new(namespace, "");
    let namespace = first.namespace.clone();
    map.range(first..)
        .take_while(move |(key, _)| key.namespace == namespace)
        .map(|(_, object)| object)
}
