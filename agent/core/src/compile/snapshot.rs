//! The objects behind the installed tables: enough to build them again.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::cluster::{Cluster, is_subject};
use crate::compile::tables::addresses::AddressTables;
use crate::model::{ClusterPolicy, EndpointSlice, Namespace, Node, Pod, Policy, Service};
use crate::prefix::Prefix;

/// Objects shared with the cluster's state; serialized as a list of `Change`s.
#[derive(Clone, Debug, Default)]
pub struct StateSnapshot {
    namespaces: Vec<Namespace>,
    nodes: Vec<Node>,
    pods: Vec<Arc<Pod>>,
    policies: Vec<Arc<Policy>>,
    cluster_policies: Vec<Arc<ClusterPolicy>>,
    services: Vec<Arc<Service>>,
    slices: Vec<Arc<EndpointSlice>>,
}

/// An object, serialized like the `Change` that sets it.
#[derive(Serialize)]
enum SnapshotObject<'a> {
    Namespace(&'a Namespace),
    Node(&'a Node),
    Pod(&'a Pod),
    Policy(&'a Policy),
    ClusterPolicy(&'a ClusterPolicy),
    Service(&'a Service),
    EndpointSlice(&'a EndpointSlice),
}

impl Serialize for StateSnapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let objects = self.namespaces.iter().map(SnapshotObject::Namespace);
        let objects = objects.chain(self.nodes.iter().map(SnapshotObject::Node));
        let objects = objects.chain(self.pods.iter().map(|pod| SnapshotObject::Pod(pod)));
        let objects =
            objects.chain(self.policies.iter().map(|policy| SnapshotObject::Policy(policy)));
        let of_cluster = self.cluster_policies.iter();
        let objects = objects.chain(of_cluster.map(|policy| SnapshotObject::ClusterPolicy(policy)));
        let objects = objects.chain(self.services.iter().map(|it| SnapshotObject::Service(it)));
        let objects = objects.chain(self.slices.iter().map(|it| SnapshotObject::EndpointSlice(it)));
        serializer.collect_seq(objects)
    }
}

impl StateSnapshot {
    /// The objects that affect the installed tables: the local pods, the policies of their namespaces, the pods that
    /// these policies match as peers, and all objects of rare kinds. Empty without policies, because then nothing is
    /// enforced. `deleted` are local pods that the API no longer lists; they are kept as finished pods, which are not
    /// peers.
    pub(super) fn new<'a>(
        cluster: &Cluster,
        installed: &AddressTables,
        deleted: impl Iterator<Item = &'a Arc<Pod>>,
    ) -> Self {
        let local = |pod: &Pod| pod.node == cluster.node_name() && is_subject(pod);
        let replaced = |pod: &Pod| cluster.pods().get(&pod.key).is_some_and(|pod| local(pod));
        let deleted: Vec<Arc<Pod>> = deleted
            .filter(|pod| !replaced(pod))
            .map(|pod| Arc::new(Pod { finished: true, ..pod.as_ref().clone() }))
            .collect();
        let locals = cluster.pods().values().filter(|pod| local(pod)).chain(&deleted);
        let guarded: BTreeSet<&str> = locals.map(|pod| pod.key.namespace.as_str()).collect();
        let policies: Vec<Arc<Policy>> = guarded
            .into_iter()
            .flat_map(|namespace| cluster.policies_in(namespace))
            .cloned()
            .collect();
        let cluster_policies: Vec<Arc<ClusterPolicy>> =
            cluster.cluster_policies().cloned().collect();
        if policies.is_empty() && cluster_policies.is_empty() {
            return Self::default();
        }
        let is_peer = |pod: &Pod| {
            pod.all_addresses().any(|address| installed.class_of(Prefix::host(address)).is_some())
        };
        let own = |pod: &Pod| pod.node == cluster.node_name();
        let pods = cluster.pods().values().filter(|pod| own(pod) || is_peer(pod));
        let pods: Vec<Arc<Pod>> = pods.chain(&deleted).cloned().collect();
        let named: BTreeSet<&str> = pods
            .iter()
            .map(|pod| pod.key.namespace.as_str())
            .chain(policies.iter().map(|policy| policy.key.namespace.as_str()))
            .collect();
        let namespaces =
            named.into_iter().filter_map(|name| cluster.namespaces().get(name).cloned()).collect();
        Self {
            namespaces,
            nodes: cluster.nodes().values().cloned().collect(),
            services: cluster.services().values().cloned().collect(),
            slices: cluster.slices().values().cloned().collect(),
            pods,
            policies,
            cluster_policies,
        }
    }
}
