//! The objects of the oracle, and the owners of addresses among them.

use std::net::IpAddr;

use netpold_core::model::{
    Change, ClusterPolicy, EndpointSlice, Key, Labels, Namespace, Node, Pod, Policy, Selector,
    Service,
};

use super::matching::selects;

/// Cluster state as plain lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Oracle {
    /// Every Namespace.
    pub namespaces: Vec<Namespace>,
    /// Every Node.
    pub nodes: Vec<Node>,
    /// Every Pod.
    pub pods: Vec<Pod>,
    /// Every NetworkPolicy.
    pub policies: Vec<Policy>,
    /// Every ClusterNetworkPolicy.
    pub cluster_policies: Vec<ClusterPolicy>,
    /// Every Service.
    pub services: Vec<Service>,
    /// Every EndpointSlice.
    pub slices: Vec<EndpointSlice>,
    /// Names that pods resolved, with the pod and the address, as long as they last.
    pub resolved: Vec<(Key, String, IpAddr)>,
}

/// Adds an object in place of the one it replaces.
fn replace<T>(all: &mut Vec<T>, new: T, is_same: fn(&T, &T) -> bool) {
    all.retain(|old| !is_same(old, &new));
    all.push(new);
}

impl FromIterator<Change> for Oracle {
    fn from_iter<I: IntoIterator<Item = Change>>(changes: I) -> Self {
        let mut oracle = Self::default();
        for change in changes {
            oracle.ingest(change);
        }
        oracle
    }
}

impl Oracle {
    /// Applies a change. Interfaces do not affect policy.
    pub fn ingest(&mut self, change: Change) {
        match change {
            Change::Namespace(new) => replace(&mut self.namespaces, new, |a, b| a.name == b.name),
            Change::NamespaceGone(name) => self.namespaces.retain(|n| n.name != name),
            Change::Node(new) => replace(&mut self.nodes, new, |a, b| a.name == b.name),
            Change::NodeGone(name) => self.nodes.retain(|n| n.name != name),
            Change::Pod(new) => replace(&mut self.pods, new, |a, b| a.key == b.key),
            Change::PodGone(key) => self.pods.retain(|p| p.key != key),
            Change::Policy(new) => replace(&mut self.policies, new, |a, b| a.key == b.key),
            Change::PolicyGone(key) => self.policies.retain(|p| p.key != key),
            Change::Service(new) => replace(&mut self.services, new, |a, b| a.key == b.key),
            Change::ServiceGone(key) => self.services.retain(|s| s.key != key),
            Change::EndpointSlice(new) => replace(&mut self.slices, new, |a, b| a.key == b.key),
            Change::EndpointSliceGone(key) => self.slices.retain(|s| s.key != key),
            Change::ClusterPolicy(new) => {
                replace(&mut self.cluster_policies, new, |a, b| a.name == b.name);
            }
            Change::ClusterPolicyGone(name) => self.cluster_policies.retain(|p| p.name != name),
            Change::Interface(_) | Change::InterfaceGone(_) | Change::OwnAddresses(_) => {}
        }
    }

    /// The pod that owns an address: neither a hostNetwork pod (which is its node) nor a finished one. Of several
    /// claimants, the one that is not terminating, then the younger, then the one with the greater key.
    #[must_use]
    pub fn pod_at(&self, address: IpAddr) -> Option<&Pod> {
        self.first_at(address).or_else(|| self.secondary_at(address))
    }

    /// Returns the owner of an address on a secondary network: the only pod with the address in its annotation (a
    /// terminating pod gives way), unless the address belongs to a node, a Service or a node's pod range. Only private
    /// addresses count.
    fn secondary_at(&self, address: IpAddr) -> Option<&Pod> {
        let private = match address {
            IpAddr::V4(v4) => {
                let [first, second, ..] = v4.octets();
                v4.is_private() || first == 100 && (64..128).contains(&second)
            }
            IpAddr::V6(v6) => v6.octets()[0] & 0xfe == 0xfc,
        };
        let has = |pod: &&Pod| pod.secondary_addresses().any(|claimed| claimed == address);
        let claimants: Vec<&Pod> =
            self.pods.iter().filter(|pod| !pod.host_network && !pod.finished).filter(has).collect();
        let staying: Vec<&Pod> = claimants.iter().copied().filter(|pod| !pod.terminating).collect();
        let counting = if staying.is_empty() { claimants } else { staying };
        let of_node = self.nodes.iter().any(|node| {
            node.addresses.contains(&address)
                || node.pod_ranges.iter().any(|range| range.contains(&address))
        });
        let of_host_pod = self
            .pods
            .iter()
            .any(|pod| pod.host_network && !pod.finished && pod.addresses.contains(&address));
        let of_service = self
            .services
            .iter()
            .any(|service| !service.unserved && service.addresses.contains(&address));
        match counting[..] {
            [pod] if private && !of_node && !of_host_pod && !of_service => Some(pod),
            _ => None,
        }
    }

    /// Returns the owner of an address by pod status.
    fn first_at(&self, address: IpAddr) -> Option<&Pod> {
        let mut best: Option<&Pod> = None;
        for pod in &self.pods {
            if pod.host_network || pod.finished || !pod.addresses.contains(&address) {
                continue;
            }
            let better = match best {
                None => true,
                Some(best) if best.terminating != pod.terminating => best.terminating,
                Some(best) if best.created != pod.created => best.created < pod.created,
                Some(best) => best.key < pod.key,
            };
            if better {
                best = Some(pod);
            }
        }
        best
    }

    /// Whether an address belongs to the pod's own node: to its Node object, or to a hostNetwork pod on it.
    pub(super) fn is_own_node(&self, pod: &Pod, address: IpAddr) -> bool {
        let on_node = self
            .nodes
            .iter()
            .any(|node| pod.node == node.name && node.addresses.contains(&address));
        let of_host_pod = self.pods.iter().any(|other| {
            other.host_network
                && !other.finished
                && other.node == pod.node
                && other.addresses.contains(&address)
        });
        !pod.node.is_empty() && (on_node || of_host_pod)
    }

    /// An unknown namespace has only the name label, which the API server sets on every namespace.
    pub(super) fn selects_namespace(&self, selector: &Selector, pod: &Pod) -> bool {
        let name = &pod.key.namespace;
        match self.namespaces.iter().find(|namespace| namespace.name == *name) {
            Some(namespace) => selects(selector, &namespace.labels),
            None => {
                let label = ("kubernetes.io/metadata.name".to_owned(), name.clone());
                selects(selector, &Labels::from_iter([label]))
            }
        }
    }
}
