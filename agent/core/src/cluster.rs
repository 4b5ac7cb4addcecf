//! The current state of the cluster's objects: no history, and the indexes that compiling needs.

mod few;
mod kin;
pub(crate) mod services;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::budget::Weight;
use crate::model::{
    Change, Direction, EndpointSlice, Interface, Key, Labels, Namespace, Node, Owner, Pod, Policy,
    Service,
};

use few::Few;
pub(crate) use kin::Kin;
use kin::Kinship;
use services::Services;

/// The label that the API server puts on every namespace.
const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// What changed since the last update, in terms of what has to be looked at again.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// Addresses whose owner, or something of their owner that policy reads, changed.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Namespaces in which a policy changed.
    pub(crate) policies: BTreeSet<String>,
    /// Interfaces that changed, came or went.
    pub(crate) interfaces: BTreeSet<u32>,
    /// Some namespace's labels changed.
    pub(crate) namespaces: bool,
    /// Services that changed, or whose backends did.
    pub(crate) services: BTreeSet<Key>,
    /// Addresses that a Service or a Node got or lost, or whose ports changed.
    pub(crate) frontends: BTreeSet<IpAddr>,
    /// Addresses that may be backends of other Services' ports than before.
    pub(crate) backends: BTreeSet<IpAddr>,
}

/// Everything known about the cluster, as seen from one node.
#[derive(Debug, Default)]
pub struct Cluster {
    node: String,
    namespaces: BTreeMap<String, Namespace>,
    pods: BTreeMap<Key, Arc<Pod>>,
    /// The same pods, but for those that policy ignores.
    kinship: Kinship,
    policies: BTreeMap<Key, Arc<Policy>>,
    /// What each of them asks for.
    weights: BTreeMap<Key, Weight>,
    nodes: BTreeMap<String, Node>,
    services: Services,
    interfaces: BTreeMap<u32, Interface>,
    /// Pods that claim an address.
    claims: HashMap<IpAddr, Few<Arc<Pod>>>,
    /// Addresses that several pods claim.
    contested: BTreeSet<IpAddr>,
    /// The own node's addresses and how many objects say so.
    own: BTreeMap<IpAddr, u32>,
    /// What the own node's interfaces have, whether an object says so or not.
    found: BTreeSet<IpAddr>,
    /// Interfaces by the addresses behind them.
    links: BTreeMap<IpAddr, BTreeSet<u32>>,
}

impl Cluster {
    /// An empty cluster as seen from the node of this name.
    #[must_use]
    pub fn new(node: impl Into<String>) -> Self {
        Self { node: node.into(), ..Self::default() }
    }

    /// Name of the own node.
    #[must_use]
    pub fn node_name(&self) -> &str {
        &self.node
    }

    /// Namespaces by name.
    #[must_use]
    pub fn namespaces(&self) -> &BTreeMap<String, Namespace> {
        &self.namespaces
    }

    /// Pods by key, those that policy ignores included.
    #[must_use]
    pub fn pods(&self) -> &BTreeMap<Key, Arc<Pod>> {
        &self.pods
    }

    /// Policies by key.
    #[must_use]
    pub fn policies(&self) -> &BTreeMap<Key, Arc<Policy>> {
        &self.policies
    }

    /// Nodes by name.
    #[must_use]
    pub fn nodes(&self) -> &BTreeMap<String, Node> {
        &self.nodes
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

    /// The Services that packets to an address may be for, as its own or as a node's, and the slices
    /// of their backends.
    #[must_use]
    pub fn services_at(&self, address: IpAddr) -> (Vec<&Service>, Vec<&EndpointSlice>) {
        self.services.leading_from(address)
    }

    /// Where packets are translated, and to whom.
    pub(crate) fn translation(&self) -> &Services {
        &self.services
    }

    /// Interfaces by index.
    #[must_use]
    pub fn interfaces(&self) -> &BTreeMap<u32, Interface> {
        &self.interfaces
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

    /// The pods of a namespace, by name.
    pub fn pods_in<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a Arc<Pod>> {
        in_namespace(&self.pods, namespace)
    }

    /// The pods that policy does not ignore, by namespace and labels.
    pub(crate) fn kinship(&self) -> &Kinship {
        &self.kinship
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
        self.claims
            .get(&address)?
            .iter()
            .max_by_key(|pod| (Reverse(pod.terminating), pod.created, &pod.key))
    }

    /// Whether several pods claim an address: if not, whoever claims it is its owner.
    pub(crate) fn is_contested(&self, address: IpAddr) -> bool {
        self.contested.contains(&address)
    }

    /// Whether an address is one of the own node's: of its Node object, of a hostNetwork pod that
    /// runs here, or of one of its interfaces and neither a pod's nor a Service's cluster address
    /// (which NodeLocal DNS gives to an interface).
    #[must_use]
    pub fn is_own_node(&self, address: IpAddr) -> bool {
        self.own.contains_key(&address) || self.found.contains(&address) && self.is_free(address)
    }

    /// The own node's addresses.
    pub fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let found = self.found.iter().copied().filter(|address| !self.own.contains_key(address));
        self.own.keys().copied().chain(found.filter(|address| self.is_free(*address)))
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
                owners.into_iter().find(|pod| pod.node == self.node)
            }
        }
    }

    /// The pods of this node that claim an address, its owner first.
    pub(crate) fn local_claimants(&self, address: IpAddr) -> Vec<&Arc<Pod>> {
        let claimants = self.claims.get(&address).into_iter().flat_map(Few::iter);
        let mut local: Vec<_> = claimants.filter(|pod| pod.node == self.node).collect();
        local.sort_by_key(|pod| Reverse((Reverse(pod.terminating), pod.created, &pod.key)));
        local
    }

    /// The interfaces that have an address behind them.
    pub(crate) fn interfaces_with(&self, address: IpAddr) -> impl Iterator<Item = u32> {
        self.links.get(&address).into_iter().flatten().copied()
    }

    /// The interfaces of pods that claim an address, whichever of their addresses these have.
    pub(crate) fn interfaces_of_claimants(&self, address: IpAddr) -> impl Iterator<Item = u32> {
        let pods = self.claims.get(&address).into_iter().flat_map(Few::iter);
        let addresses = pods.flat_map(|pod| pod.addresses.iter().copied());
        addresses.flat_map(|address| self.interfaces_with(address))
    }

    /// Takes in a change; `dirty` grows by what has to be looked at again.
    pub(crate) fn apply(&mut self, change: Change, dirty: &mut Dirty) {
        match change {
            Change::Namespace(new) => self.namespace(&new.name.clone(), Some(new), dirty),
            Change::NamespaceGone(name) => self.namespace(&name, None, dirty),
            Change::Node(new) => self.set_node(&new.name.clone(), Some(new), dirty),
            Change::NodeGone(name) => self.set_node(&name, None, dirty),
            Change::Pod(new) => self.pod(&new.key.clone(), Some(new), dirty),
            Change::PodGone(key) => self.pod(&key, None, dirty),
            Change::Policy(new) => self.policy(&new.key.clone(), Some(new), dirty),
            Change::PolicyGone(key) => self.policy(&key, None, dirty),
            Change::Service(new) => self.service(&new.key.clone(), Some(new), dirty),
            Change::ServiceGone(key) => self.service(&key, None, dirty),
            Change::EndpointSlice(new) => {
                self.services.set_slice(&new.key.clone(), Some(new), dirty);
            }
            Change::EndpointSliceGone(key) => self.services.set_slice(&key, None, dirty),
            Change::Interface(new) => self.interface(new.index, Some(new), dirty),
            Change::InterfaceGone(index) => self.interface(index, None, dirty),
            Change::OwnAddresses(addresses) => {
                let found = addresses.into_iter().collect();
                let before = std::mem::replace(&mut self.found, found);
                dirty.addresses.extend(before.symmetric_difference(&self.found));
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

    fn service(&mut self, key: &Key, new: Option<Service>, dirty: &mut Dirty) {
        let old = self.services.services().get(key).map(|service| &service.cluster);
        let named = old.into_iter().chain(new.as_ref().map(|service| &service.cluster)).flatten();
        // What an interface has may become, or cease to be, the own node's.
        dirty.addresses.extend(named.filter(|address| self.found.contains(address)));
        self.services.set_service(key, new, dirty);
    }

    fn set_node(&mut self, name: &str, new: Option<Node>, dirty: &mut Dirty) {
        let after: Vec<IpAddr> = new.as_ref().map_or_else(Vec::new, |node| node.addresses.clone());
        let before = match new {
            Some(new) => self.nodes.insert(name.to_owned(), new),
            None => self.nodes.remove(name),
        };
        let before = before.as_ref().map_or(&[][..], |node| &node.addresses);
        self.services.set_node(before, &after, dirty);
        if name == self.node {
            self.own_changed(before, &after, dirty);
        }
    }

    /// Own addresses are counted, because a Node and several pods can name the same one.
    fn own_changed(&mut self, before: &[IpAddr], after: &[IpAddr], dirty: &mut Dirty) {
        for address in after {
            *self.own.entry(*address).or_default() += 1;
        }
        for address in before {
            if let Some(count) = self.own.get_mut(address) {
                *count -= 1;
                if *count == 0 {
                    self.own.remove(address);
                }
            }
        }
        dirty.addresses.extend(before.iter().chain(after));
    }

    fn pod(&mut self, key: &Key, new: Option<Pod>, dirty: &mut Dirty) {
        let old = self.pods.get(key).cloned();
        if old.as_deref() == new.as_ref() {
            return;
        }
        let new = new.map(Arc::new);
        for pod in old.iter().chain(new.as_ref()) {
            dirty.addresses.extend(&pod.addresses);
        }
        let is_own = |pod: &&Arc<Pod>| pod.host_network && !pod.finished && pod.node == self.node;
        let before = old.as_ref().filter(is_own).map_or_else(Vec::new, |p| p.addresses.clone());
        let after = new.as_ref().filter(is_own).map_or_else(Vec::new, |p| p.addresses.clone());
        self.own_changed(&before, &after, dirty);
        if let Some(pod) = old.filter(|pod| is_subject(pod)) {
            self.kinship.remove(&pod);
            self.unclaim(&pod);
        }
        match new {
            Some(pod) => {
                if is_subject(&pod) {
                    self.kinship.add(&pod);
                    for address in &pod.addresses {
                        let claims = self.claims.entry(*address);
                        let more = claims.and_modify(|pods| {
                            pods.push(pod.clone());
                            self.contested.insert(*address);
                        });
                        more.or_insert_with(|| Few::one(pod.clone()));
                    }
                }
                self.pods.insert(key.clone(), pod);
            }
            None => {
                self.pods.remove(key);
            }
        }
    }

    fn unclaim(&mut self, pod: &Pod) {
        for address in &pod.addresses {
            let Some(pods) = self.claims.get_mut(address) else { continue };
            if pods.remove(|claimant| claimant.key == pod.key) {
                self.claims.remove(address);
            } else if pods.is_one() {
                self.contested.remove(address);
            }
        }
    }

    fn policy(&mut self, key: &Key, new: Option<Policy>, dirty: &mut Dirty) {
        if self.policies.get(key).map(|policy| &**policy) == new.as_ref() {
            return;
        }
        match new {
            Some(new) => {
                self.weights.insert(key.clone(), Weight::of(&new));
                self.policies.insert(key.clone(), Arc::new(new));
            }
            None => {
                self.weights.remove(key);
                self.policies.remove(key);
            }
        }
        dirty.policies.insert(key.namespace.clone());
    }

    fn interface(&mut self, index: u32, new: Option<Interface>, dirty: &mut Dirty) {
        if self.interfaces.get(&index) == new.as_ref() {
            return;
        }
        for address in new.iter().flat_map(addresses_behind) {
            self.links.entry(*address).or_default().insert(index);
        }
        let old = match &new {
            Some(new) => self.interfaces.insert(index, new.clone()),
            None => self.interfaces.remove(&index),
        };
        let stays = |a: &IpAddr| new.as_ref().is_some_and(|new| addresses_behind(new).contains(a));
        for address in old.iter().flat_map(addresses_behind).filter(|a| !stays(a)) {
            if let Some(indexes) = self.links.get_mut(address) {
                indexes.remove(&index);
                if indexes.is_empty() {
                    self.links.remove(address);
                }
            }
        }
        dirty.interfaces.insert(index);
    }
}

/// The addresses whose pods an interface's endpoint depends on.
fn addresses_behind(interface: &Interface) -> &[IpAddr] {
    match &interface.owner {
        Owner::Pod(bound) => &bound.pod.addresses,
        Owner::Unbound => &interface.addresses,
        Owner::Denied => &[],
    }
}

/// Whether policy can select a pod or match it as a peer.
#[must_use]
pub fn is_subject(pod: &Pod) -> bool {
    !pod.host_network && !pod.finished
}

fn in_namespace<'a, T>(map: &'a BTreeMap<Key, T>, namespace: &str) -> impl Iterator<Item = &'a T> {
    let first = Key::new(namespace, "");
    let namespace = first.namespace.clone();
    map.range(first..)
        .take_while(move |(key, _)| key.namespace == namespace)
        .map(|(_, object)| object)
}
