//! The current state of the cluster's objects, without history, and the indexes for compiling.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::cluster_policies::ClusterPolicies;
use crate::cluster::interfaces::Interfaces;
use crate::cluster::namespaces::Namespaces;
use crate::cluster::nodes::Nodes;
use crate::cluster::pod_policies::PodPolicies;
use crate::cluster::pods::Pods;
use crate::cluster::pods_by_name::PodsByName;
use crate::cluster::policies::Policies;
use crate::cluster::services::Services;
use crate::cluster::whose::Whose;
use crate::model::{
    ClusterPolicy, Direction, EndpointSlice, Interface, Key, Labels, Namespace, Node, Owner, Pod,
    Policy, Service,
};

/// All objects of the cluster, as seen from one node.
#[derive(Debug, Default)]
pub struct Cluster {
    pub(super) namespaces: Namespaces,
    pub(crate) pods: Pods,
    pub(crate) policies: Policies,
    pub(crate) cluster_policies: ClusterPolicies,
    pub(crate) nodes: Nodes,
    /// Service frontends and their backends.
    pub(crate) translation: Services,
    pub(crate) interfaces: Interfaces,
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
        PodPolicies { policies, cluster_policies, namespaces, pod, labelled, direction }
    }

    /// The pods of a namespace, by name.
    pub fn pods_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.by_name().of(namespace)
    }

    /// Labels of a namespace; for an unknown one, only the name label, which every namespace has.
    #[must_use]
    pub fn namespace_labels(&self, name: &str) -> Cow<'_, Labels> {
        self.namespaces.labels(name)
    }

    /// The pod that owns an address, see [`Pod::created`]; never a hostNetwork or finished pod.
    #[must_use]
    pub fn owner(&self, address: IpAddr) -> Option<&Arc<Pod>> {
        self.pods.owner(address)
    }

    /// Owner of an address for display: a pod, else a node, else a Service.
    #[must_use]
    pub fn whose(&self, address: IpAddr) -> Whose {
        if let Some(pod) = self.owner(address) {
            return Whose::Pod(pod.key.clone());
        }
        let own = self.is_own_node(address).then_some(self.node_name());
        if let Some(name) = own.or_else(|| self.nodes.with(address)) {
            return Whose::Node { name: name.to_owned() };
        }
        self.service_at(address).map_or(Whose::Outside, |key| Whose::Service(key.clone()))
    }

    /// Whether an address belongs to the own node: to its Node object, to a hostNetwork pod on it, or to one of its
    /// interfaces, unless it is a pod's or a Service's cluster address (which NodeLocal DNS puts on an interface).
    #[must_use]
    pub fn is_own_node(&self, address: IpAddr) -> bool {
        self.nodes.is_own(address) || self.nodes.found().contains(&address) && self.is_free(address)
    }

    /// Addresses of the own node.
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

    /// Whether an address is neither a pod's nor a Service's cluster address.
    fn is_free(&self, address: IpAddr) -> bool {
        self.owner(address).is_none() && !self.translation.is_cluster_address(address)
    }

    /// The local pod behind an interface: the bound pod, else the owner of one of the interface's addresses.
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
}
