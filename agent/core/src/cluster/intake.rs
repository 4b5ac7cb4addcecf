//! Applies changes to the cluster's state.

use std::sync::Arc;

use crate::cluster::dirty::Dirty;
use crate::cluster::objects::Object;
use crate::cluster::state::Cluster;
use crate::model::{Change, Key, Namespace, Node, Pod, Service};

/// Applies changes, and marks in `dirty` the parts of the state that the next update must evaluate again.
pub(crate) struct Intake<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) dirty: &'a mut Dirty,
}

impl FromIterator<Change> for Cluster {
    /// A cluster seen from no node. Each change sets one object; the last change of an object wins.
    fn from_iter<I: IntoIterator<Item = Change>>(changes: I) -> Self {
        let mut cluster = Self::default();
        cluster.extend(changes);
        cluster
    }
}

impl Extend<Change> for Cluster {
    /// Applies changes to a cluster that no compiler follows.
    fn extend<I: IntoIterator<Item = Change>>(&mut self, changes: I) {
        let mut dirty = Dirty::default();
        let mut intake = Intake { cluster: self, dirty: &mut dirty };
        changes.into_iter().for_each(|change| intake.ingest(change));
    }
}

impl Intake<'_> {
    /// Applies a change.
    pub(crate) fn ingest(&mut self, change: Change) {
        if let Some(object) = Object::unless_known(change, &self.cluster.policies) {
            self.take_in(object);
        }
    }

    /// Sets an object to its current state.
    pub(crate) fn take_in(&mut self, object: Object) {
        let (cluster, dirty) = (&mut *self.cluster, &mut *self.dirty);
        match object {
            Object::Namespace(name, new) => self.namespace(&name, new),
            Object::Node(name, new) => self.node(&name, new),
            Object::Pod(key, new) => self.pod(&key, new),
            Object::Policy(key, new) => {
                let is_other = cluster.policies.set(&key, new);
                dirty.policies.extend(is_other.then_some(key.namespace));
            }
            Object::ClusterPolicy(name, new) => {
                dirty.cluster_policies |= cluster.cluster_policies.set(&name, new);
            }
            Object::Service(key, new) => self.service(&key, new),
            Object::EndpointSlice(key, new) => cluster.translation.set_slice(&key, new, dirty),
            Object::Interface(index, new) => {
                dirty.interfaces.extend(cluster.interfaces.set(index, new).then_some(index));
            }
            Object::OwnAddresses(addresses) => {
                dirty.addresses.extend(cluster.nodes.find(addresses.into_iter().collect()));
            }
        }
    }

    fn namespace(&mut self, name: &str, new: Option<Namespace>) {
        let denial = self.cluster.namespaces.denial(name);
        if new.as_ref().and_then(|new| new.denial) != denial {
            self.dirty.policies.insert(name.to_owned());
        }
        if self.cluster.namespaces.set(name, new) {
            self.dirty.namespaces = true;
            let pods = self.cluster.pods_in(name);
            self.dirty.addresses.extend(pods.flat_map(|pod| pod.all_addresses()));
        }
    }

    fn service(&mut self, key: &Key, new: Option<Arc<Service>>) {
        let Self { cluster, dirty } = self;
        let old = cluster.services().get(key).map(|service| &service.cluster);
        let named = old.into_iter().chain(new.as_ref().map(|service| &service.cluster)).flatten();
        // With the Service's cluster address, an interface address becomes, or ceases to be, an address of this node.
        dirty.addresses.extend(named.filter(|address| cluster.nodes.found().contains(address)));
        // A Service's address is not a pod's address on a secondary network.
        let all = [cluster.services().get(key), new.as_ref()]
            .map(|service| service.map_or(&[][..], |service| &service.addresses[..]).to_vec());
        let claimed = all.into_iter().flatten().filter(|it| cluster.pods.is_claimed_second(*it));
        dirty.addresses.extend(claimed);
        cluster.translation.set_service(key, new, dirty);
    }

    fn node(&mut self, name: &str, new: Option<Node>) {
        let Self { cluster, dirty } = self;
        let ranges =
            |node: Option<&Node>| node.map(|node| node.pod_ranges.clone()).unwrap_or_default();
        if ranges(cluster.nodes().get(name)) != ranges(new.as_ref()) {
            dirty.addresses.extend(cluster.pods.secondary().addresses());
        }
        let ([before, after], relabelled) = cluster.nodes.set(name, new);
        cluster.translation.set_node(&before, &after, dirty);
        if name == cluster.node_name() || relabelled || before != after {
            dirty.addresses.extend(before.iter().chain(&after));
        }
    }

    fn pod(&mut self, key: &Key, new: Option<Arc<Pod>>) {
        let Self { cluster, dirty } = self;
        if cluster.pods().get(key) == new.as_ref() {
            return;
        }
        let new = new.map(|pod| cluster.pods.shared(pod));
        let old = cluster.pods.set(key, new.clone());
        for pod in old.iter().chain(new.as_ref()) {
            dirty.addresses.extend(pod.all_addresses());
        }
        let is_node = |pod: &&Arc<Pod>| pod.host_network && !pod.finished;
        if let Some(pod) = new.as_ref().filter(is_node) {
            cluster.nodes.change(&pod.node, &[], &pod.addresses);
        }
        if let Some(pod) = old.as_ref().filter(is_node) {
            cluster.nodes.change(&pod.node, &pod.addresses, &[]);
        }
    }
}
