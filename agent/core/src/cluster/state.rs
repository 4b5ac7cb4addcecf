//! The current state of the cluster's objects, without history, and the indexes for compiling.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::address_owner::AddressOwner;
use crate::cluster::cluster_policies::ClusterPolicies;
use crate::cluster::interfaces::Interfaces;
use crate::cluster::namespaces::Namespaces;
use crate::cluster::networks::SecondaryNetworks;
use crate::cluster::nodes::Nodes;
use crate::cluster::pod_policies::PodPolicies;
use crate::cluster::pods::Pods;
use crate::cluster::pods_by_name::PodsByName;
use crate::cluster::policies::Policies;
use crate::cluster::secondary::ClaimRefusal;
use crate::cluster::services::Services;
use crate::cluster::slice_limits::SliceSums;
use crate::model::{
    ClusterPolicy, Denial, Direction, EndpointSlice, Interface, InterfaceOwner, Key, Labels,
    Namespace, Node, Pod, Policy, Service,
};

/// All objects of the cluster, as seen from one node. Clones share the objects.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    pub(super) namespaces: Namespaces,
    pub(crate) pods: Pods,
    pub(crate) policies: Policies,
    pub(crate) cluster_policies: ClusterPolicies,
    pub(crate) nodes: Nodes,
    /// Service frontends and their backends.
    pub(crate) translation: Services,
    pub(crate) interfaces: Interfaces,
    /// Blocks in which addresses of secondary networks are accepted.
    pub(super) secondary_networks: SecondaryNetworks,
    /// Treatment of packets that policies without an annotation deny.
    denial: Denial,
}

impl Cluster {
    /// An empty cluster as seen from the node of this name.
    #[must_use]
    pub fn new(node: impl Into<String>) -> Self {
        Self { nodes: Nodes::new(node.into()), ..Self::default() }
    }

    /// Replaces the blocks in which addresses of secondary networks are accepted.
    #[must_use]
    pub fn with_secondary_networks(self, secondary_networks: SecondaryNetworks) -> Self {
        Self { secondary_networks, ..self }
    }

    /// Blocks in which addresses of secondary networks are accepted.
    pub(crate) fn secondary_networks(&self) -> &SecondaryNetworks {
        &self.secondary_networks
    }

    /// Replaces the treatment of packets that policies without an annotation deny.
    #[must_use]
    pub fn with_denial(self, denial: Denial) -> Self {
        Self { denial, ..self }
    }

    /// Name of this node.
    #[must_use]
    pub fn node_name(&self) -> &str {
        self.nodes.own_name()
    }

    /// Namespaces by name.
    #[must_use]
    pub fn namespaces(&self) -> &BTreeMap<String, Namespace> {
        self.namespaces.by_name()
    }

    /// Pods by key, including those that policy ignores.
    #[must_use]
    pub fn pods(&self) -> &PodsByName {
        self.pods.by_name()
    }

    /// Policies by key.
    #[must_use]
    pub fn policies(&self) -> &BTreeMap<Key, Arc<Policy>> {
        self.policies.by_key()
    }

    /// Nodes by name.
    #[must_use]
    pub fn nodes(&self) -> &BTreeMap<String, Node> {
        self.nodes.by_name()
    }

    /// Number of nodes of which an object is known: the Node, or a hostNetwork pod.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.count()
    }

    /// Services by key.
    #[must_use]
    pub fn services(&self) -> &BTreeMap<Key, Arc<Service>> {
        self.translation.services()
    }

    /// EndpointSlices by key.
    #[must_use]
    pub fn slices(&self) -> &BTreeMap<Key, Arc<EndpointSlice>> {
        self.translation.slices()
    }

    /// Returns the EndpointSlices of a Service.
    #[must_use]
    pub fn slices_of(&self, service: &Key) -> &[Arc<EndpointSlice>] {
        self.translation.slices_of(service)
    }

    /// Sums over the EndpointSlices of a Service.
    #[must_use]
    pub fn slice_sums(&self, service: &Key) -> SliceSums {
        self.translation.slice_sums(service)
    }

    /// Interfaces by index.
    #[must_use]
    pub fn interfaces(&self) -> &BTreeMap<u32, Interface> {
        self.interfaces.by_index()
    }

    /// Addresses of a Service.
    #[must_use]
    pub fn service_addresses(&self, key: &Key) -> &[IpAddr] {
        self.translation.services().get(key).map_or(&[], |service| &service.addresses)
    }

    /// The Service with this address; the first by name if there are several.
    #[must_use]
    pub fn service_at(&self, address: IpAddr) -> Option<&Key> {
        self.translation.at(address).iter().map(|service| &service.key).min()
    }

    /// Whether a Service, with the others of its namespace, exceeds the limit of addresses
    /// ([`NAMESPACE_FRONTENDS`](crate::budget::NAMESPACE_FRONTENDS)), so that whole networks count as translated.
    #[must_use]
    pub fn exceeds_frontends(&self, service: &Service) -> bool {
        self.translation.would_exceed(service)
    }

    /// Whether EndpointSlices of its namespace are, or would be, beyond the limits with this state of a slice
    /// ([`NAMESPACE_BACKENDS`](crate::budget::NAMESPACE_BACKENDS)).
    #[must_use]
    pub fn exceeds_backends(&self, slice: &EndpointSlice) -> bool {
        self.translation.would_exceed_backends(slice)
    }

    /// Message for a policy beyond its budget; such a policy isolates and grants nothing.
    #[must_use]
    pub fn excess(&self, policy: &Key) -> Option<&str> {
        self.policies.weight(policy)?.excess.as_deref()
    }

    /// Reasons why a policy, or parts of it, grant nothing.
    pub fn problems_of<'a>(&'a self, policy: &'a Policy) -> impl Iterator<Item = &'a str> {
        policy.problems.iter().map(String::as_str).chain(self.excess(&policy.key))
    }

    /// The policies of a namespace, by name.
    pub fn policies_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.in_namespace(namespace)
    }

    /// The ClusterNetworkPolicies in order of evaluation.
    pub fn cluster_policies(&self) -> impl Iterator<Item = &Arc<ClusterPolicy>> {
        self.cluster_policies.iter()
    }

    /// The ClusterNetworkPolicy of a name.
    #[must_use]
    pub fn cluster_policy(&self, name: &str) -> Option<&Arc<ClusterPolicy>> {
        self.cluster_policies.get(name)
    }

    /// The policies about a pod in a direction; `labelled` is whether the pod's labels are known.
    #[must_use]
    pub fn policies_about<'c, 'p>(
        &'c self,
        (pod, labelled): (&'p Pod, bool),
        direction: Direction,
    ) -> PodPolicies<'c, 'p> {
        let Self { policies, cluster_policies, namespaces, .. } = self;
        PodPolicies {
            policies,
            cluster_policies,
            namespaces,
            pod,
            labelled,
            direction,
            fallback: self.denial,
        }
    }

    /// The pods of a namespace, by name.
    pub fn pods_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.by_name().pods_in(namespace)
    }

    /// Labels of a namespace; for an unknown one, only the name label, which every namespace has.
    #[must_use]
    pub fn namespace_labels(&self, name: &str) -> Cow<'_, Labels> {
        self.namespaces.labels(name)
    }

    /// Returns the owner of an address: by status, see [`Pod::created`], else by a claim on a secondary network.
    /// Neither a hostNetwork pod nor a finished one owns an address.
    #[must_use]
    pub fn owner(&self, address: IpAddr) -> Option<&Arc<Pod>> {
        self.status_owner(address).or_else(|| self.secondary_owner(address))
    }

    /// Returns the owner of an address by pod status.
    #[must_use]
    pub(crate) fn status_owner(&self, address: IpAddr) -> Option<&Arc<Pod>> {
        self.pods.owner(address)
    }

    /// Returns the owner of an address on a secondary network: the only pod that claims it, if the address is in one of
    /// the blocks for such networks and belongs to no other object.
    fn secondary_owner(&self, address: IpAddr) -> Option<&Arc<Pod>> {
        let claimant = self.pods.secondary().only(address)?;
        self.refusal(address).is_none().then_some(claimant)
    }

    /// Returns the reason why no claim to an address on a secondary network is accepted, apart from competing claims.
    fn refusal(&self, address: IpAddr) -> Option<ClaimRefusal> {
        if !self.secondary_networks.contains(address) {
            return Some(ClaimRefusal::Elsewhere);
        }
        if let Some(pod) = self.status_owner(address) {
            return Some(ClaimRefusal::Held(AddressOwner::Pod(pod.key.clone())));
        }
        if self.nodes.is_any(address) {
            let name = self.nodes.with(address).unwrap_or(self.node_name()).to_owned();
            return Some(ClaimRefusal::Held(AddressOwner::Node { name }));
        }
        if let Some(service) = self.service_at(address) {
            return Some(ClaimRefusal::Held(AddressOwner::Service(service.clone())));
        }
        self.nodes.is_in_pod_range(address).then_some(ClaimRefusal::PodRange)
    }

    /// Returns the reason why a pod's claim to an address on a secondary network is not accepted; `None`: it is
    /// accepted, or the pod does not claim the address.
    #[must_use]
    pub fn refused(&self, pod: &Pod, address: IpAddr) -> Option<ClaimRefusal> {
        pod.secondary_with(address).next()?;
        if let Some(refusal) = self.refusal(address) {
            return Some(refusal);
        }
        // Pods of manifests may have no uid.
        let is_it = |other: &Pod| other.uid == pod.uid && other.key == pod.key;
        if self.pods.secondary().only(address).is_some_and(|owner| is_it(owner)) {
            return None;
        }
        let others = self.pods.secondary().pods_at(address).filter(|other| !is_it(other));
        Some(
            others
                .map(|other| &other.key)
                .min()
                .map_or(ClaimRefusal::Elsewhere, |key| ClaimRefusal::Contested(key.clone())),
        )
    }

    /// Returns the pods that claim an address on a secondary network that is accepted for none of them, by name; none
    /// if another object has the address. Terminating pods count only without a claimant that is not terminating.
    #[must_use]
    pub fn refused_claimants(&self, address: IpAddr) -> Vec<&Arc<Pod>> {
        let is_held = || matches!(self.refusal(address), Some(ClaimRefusal::Held(_)));
        let is_claimed = self.pods.is_claimed_second(address);
        if !is_claimed || is_held() || self.secondary_owner(address).is_some() {
            return Vec::new();
        }
        let claimants = || self.pods.secondary().pods_at(address);
        let is_leaving = claimants().all(|pod| pod.terminating);
        let mut all: Vec<_> = claimants().filter(|pod| is_leaving || !pod.terminating).collect();
        all.sort_by_key(|pod| &pod.key);
        all
    }

    /// Returns the permitted source addresses of a pod at an interface. On a secondary network a CNI result is proof,
    /// unless another object has the address; without a result the annotation counts, under the same conditions as for
    /// peers.
    #[must_use]
    pub fn addresses_at(&self, interface: &Interface) -> Vec<IpAddr> {
        let pod = self.pod_behind(interface);
        let of_pod = || pod.map(|pod| pod.addresses.clone()).unwrap_or_default();
        match (&interface.owner, pod) {
            (InterfaceOwner::Pod(bound), Some(pod)) if bound.is_secondary => self.secondary_at(pod),
            (InterfaceOwner::Pod(_) | InterfaceOwner::Unbound | InterfaceOwner::Denied, _) => {
                of_pod()
            }
        }
    }

    /// Returns the permitted source addresses at a secondary interface. The addresses of the bound `pod` are those of
    /// the CNI result, or empty.
    fn secondary_at(&self, pod: &Pod) -> Vec<IpAddr> {
        let is_others = |address: &IpAddr| {
            self.nodes.is_any(*address)
                || self.service_at(*address).is_some()
                || self.owner(*address).is_some_and(|owner| owner.uid != pod.uid)
        };
        let mut addresses: Vec<IpAddr> = match pod.addresses.is_empty() {
            true => self.secondary_addresses(pod).collect(),
            false => pod.addresses.iter().copied().filter(|address| !is_others(address)).collect(),
        };
        addresses.sort();
        addresses.dedup();
        addresses
    }

    /// Returns the accepted addresses of a pod on secondary networks.
    pub fn secondary_addresses<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = IpAddr> + 'a {
        let claimed = pod.secondary.iter().flat_map(|interface| pod.claimed_at(interface));
        claimed.filter(move |address| self.refused(pod, *address).is_none())
    }

    /// Returns the object with an address: a pod, else a node, else a Service.
    #[must_use]
    pub fn owner_of_address(&self, address: IpAddr) -> AddressOwner {
        if let Some(pod) = self.owner(address) {
            return AddressOwner::Pod(pod.key.clone());
        }
        let own = self.is_own_node(address).then_some(self.node_name());
        if let Some(name) = own.or_else(|| self.nodes.with(address)) {
            return AddressOwner::Node { name: name.to_owned() };
        }
        self.service_at(address)
            .map_or(AddressOwner::Outside, |key| AddressOwner::Service(key.clone()))
    }

    /// Whether an address belongs to this node: to its Node object, to a hostNetwork pod on it, or to one of its
    /// interfaces, unless it is a pod's or a Service's cluster address (which NodeLocal DNS puts on an interface).
    #[must_use]
    pub fn is_own_node(&self, address: IpAddr) -> bool {
        self.nodes.is_own(address) || self.nodes.found().contains(&address) && self.is_free(address)
    }

    /// Addresses of this node.
    pub fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let found = self.nodes.found().iter().copied();
        let found = found.filter(|address| !self.nodes.is_own(*address));
        self.nodes.own().chain(found.filter(|address| self.is_free(*address)))
    }

    /// Whether an address belongs to the node on which a pod runs.
    #[must_use]
    pub fn is_node_of(&self, pod: &Pod, address: IpAddr) -> bool {
        !pod.node.is_empty()
            && match pod.node == self.node_name() {
                true => self.is_own_node(address),
                false => self.nodes.is_others(&pod.node, address),
            }
    }

    /// Adds addresses of a node beyond those of its Node object, such as its bridge's.
    pub fn add_node_addresses(&mut self, node: &str, addresses: &[IpAddr]) {
        self.nodes.change(node, &[], addresses);
    }

    /// Whether any address of a node is known.
    #[must_use]
    pub fn has_addresses_of_node(&self, node: &str) -> bool {
        self.nodes.has_addresses_of(node)
    }

    /// Whether an address is a pod's, or in a node's range for its pods, where a former pod may have had it.
    #[must_use]
    pub fn is_pod_address(&self, address: IpAddr) -> bool {
        self.owner(address).is_some() || self.nodes.is_in_pod_range(address)
    }

    /// Whether an address is neither a pod's nor a Service's cluster address.
    fn is_free(&self, address: IpAddr) -> bool {
        self.status_owner(address).is_none() && !self.translation.is_cluster_address(address)
    }

    /// The local pod behind an interface: the bound pod, else the owner of one of the interface's addresses.
    #[must_use]
    pub fn pod_behind<'a>(&'a self, interface: &'a Interface) -> Option<&'a Arc<Pod>> {
        match &interface.owner {
            InterfaceOwner::Pod(bound) => Some(&bound.pod),
            InterfaceOwner::Denied => None,
            InterfaceOwner::Unbound => {
                let owners = interface.addresses.iter().filter_map(|a| self.status_owner(*a));
                owners.into_iter().find(|pod| pod.node == self.node_name())
            }
        }
    }
}
