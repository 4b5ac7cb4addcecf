//! Whether policy on this node depends on the addresses of other nodes.

use std::collections::{BTreeMap, BTreeSet};

use netpold_core::cluster::{SecondaryNetworks, is_subject};
use netpold_core::model::{Change, Key, Pod, Policy, Service};

/// Objects that make other nodes' addresses matter on one node, updated by changes.
///
/// | objects | effect of another node's address |
/// |---|---|
/// | a ClusterNetworkPolicy with egress rules | its `nodes` peers are these addresses, and its Deny rules for pods apply to their node ports |
/// | a pod's claim to an address of [`SecondaryNetworks`] | a claim to a node's address does not count |
/// | a NetworkPolicy with egress rules in a namespace with a pod of this node, and a Service with a node port | the node port passes if every backend is allowed; while the node is unknown, its address is an ordinary one, and the port is denied unless a block allows it |
#[derive(Debug, Default)]
pub(super) struct NodeUse {
    /// Name of this node.
    node: String,
    /// Blocks in which claims count.
    secondary_networks: SecondaryNetworks,
    /// Pods of this node that policy can select.
    own_pods: NamesByNamespace,
    /// Pods of any node with such a claim.
    claimants: NamesByNamespace,
    /// NetworkPolicies with egress rules.
    policies: NamesByNamespace,
    /// ClusterNetworkPolicies with egress rules.
    cluster_policies: BTreeSet<String>,
    /// Services with a node port.
    node_ports: NamesByNamespace,
}

/// Names of objects by namespace; no set is empty.
type NamesByNamespace = BTreeMap<String, BTreeSet<String>>;

impl NodeUse {
    /// Returns the use of a node without objects.
    pub(super) fn of_node(node: String, secondary_networks: SecondaryNetworks) -> Self {
        Self { node, secondary_networks, ..Self::default() }
    }

    /// Takes in a change of an object.
    pub(super) fn apply_change(&mut self, change: &Change) {
        match change {
            Change::Pod(pod) => {
                let is_own = *pod.node == *self.node && is_subject(pod);
                set(&mut self.own_pods, &pod.key, is_own);
                let claims = self.holds(change);
                set(&mut self.claimants, &pod.key, claims);
            }
            Change::PodGone(key) => {
                set(&mut self.own_pods, key, false);
                set(&mut self.claimants, key, false);
            }
            Change::Policy(policy) => set(&mut self.policies, &policy.key, has_egress(policy)),
            Change::PolicyGone(key) => set(&mut self.policies, key, false),
            Change::Service(service) => {
                set(&mut self.node_ports, &service.key, has_node_port(service));
            }
            Change::ServiceGone(key) => set(&mut self.node_ports, key, false),
            Change::ClusterPolicy(policy) if self.holds(change) => {
                self.cluster_policies.insert(policy.name.clone());
            }
            Change::ClusterPolicy(policy) => drop(self.cluster_policies.remove(&policy.name)),
            Change::ClusterPolicyGone(name) => drop(self.cluster_policies.remove(name)),
            Change::Namespace(_)
            | Change::NamespaceGone(_)
            | Change::Node(_)
            | Change::NodeGone(_)
            | Change::EndpointSlice(_)
            | Change::EndpointSliceGone(_)
            | Change::Interface(_)
            | Change::InterfaceGone(_)
            | Change::OwnAddresses(_) => {}
        }
    }

    /// Returns whether a change is one that [`depends_on_nodes`].
    pub(super) fn holds(&self, change: &Change) -> bool {
        depends_on_nodes(change, &self.secondary_networks)
    }

    /// Returns whether other nodes' addresses matter to a ClusterNetworkPolicy, which no tenant can write.
    pub(super) fn needs_all_at_once(&self) -> bool {
        !self.cluster_policies.is_empty()
    }

    /// Returns whether other nodes' addresses matter.
    pub(super) fn needs_all(&self) -> bool {
        let mut namespaces = self.own_pods.keys();
        !self.claimants.is_empty()
            || !self.cluster_policies.is_empty()
            || !self.node_ports.is_empty()
                && namespaces.any(|namespace| self.policies.contains_key(namespace))
    }
}

/// Returns whether a change sets an object that could allow more while other nodes are unknown than it does with them:
/// a ClusterNetworkPolicy with egress rules, or a pod with a claim that may count. A NetworkPolicy only allows less.
pub(super) fn depends_on_nodes(change: &Change, secondary_networks: &SecondaryNetworks) -> bool {
    if let Change::Pod(pod) = change {
        let mut claimed = pod.secondary_addresses();
        return is_subject(pod) && claimed.any(|address| secondary_networks.contains(address));
    }
    matches!(change, Change::ClusterPolicy(policy) if !policy.egress.is_empty())
}

/// Returns the part of such a change that holds for any nodes: the pod without its claims.
pub(super) fn without_claims(change: &Change) -> Option<Change> {
    let Change::Pod(pod) = change else { return None };
    Some(Change::Pod(Pod { secondary: Vec::new(), ..pod.clone() }))
}

fn has_egress(policy: &Policy) -> bool {
    policy.egress.as_ref().is_some_and(|rules| !rules.is_empty())
}

fn has_node_port(service: &Service) -> bool {
    !service.unserved && service.ports.iter().any(|port| port.node_port.is_some())
}

/// Adds or removes an object.
fn set(objects: &mut NamesByNamespace, key: &Key, is_in: bool) {
    if is_in {
        objects.entry(key.namespace.clone()).or_default().insert(key.name.clone());
    } else if let Some(names) = objects.get_mut(&key.namespace) {
        names.remove(&key.name);
        if names.is_empty() {
            objects.remove(&key.namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use netpold_testkit::generate::{Choices, GeneratedCluster, NODE, OpeningPacket, PacketSource};
    use netpold_testkit::oracle::Oracle;
    use serde_json::{Value, json};

    use super::*;
    use crate::convert::{self, Kind};

    fn change(kind: Kind, name: &str, rest: Value) -> Change {
        let mut object = json!({ "metadata": { "namespace": "x", "name": name, "uid": name } });
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        convert::read(kind, object.to_string().as_bytes(), true).change.unwrap()
    }

    fn pod(name: &str, node: &str, host_network: bool) -> Change {
        let spec = json!({ "nodeName": node, "hostNetwork": host_network, "containers": [] });
        change(Kind::Pod, name, json!({ "spec": spec }))
    }

    fn service(name: &str, node_port: Option<u16>) -> Change {
        let port = json!({ "port": 80, "protocol": "TCP", "nodePort": node_port });
        let spec =
            json!({ "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ports": [port] });
        change(Kind::Service, name, json!({ "spec": spec }))
    }

    fn policy(name: &str, egress: Value) -> Change {
        let spec = json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": egress });
        change(Kind::NetworkPolicy, name, json!({ "spec": spec }))
    }

    fn cluster_policy(egress: Value) -> Change {
        let ingress = json!([{ "action": "Deny", "from": [{ "namespaces": {} }] }]);
        let subject = json!({ "namespaces": {} });
        let spec = json!({ "tier": "Admin", "priority": 1, "subject": subject,
            "ingress": ingress, "egress": egress });
        change(Kind::ClusterNetworkPolicy, "c", json!({ "spec": spec }))
    }

    #[test]
    fn node_ports_matter_beside_egress_rules_for_own_pods() {
        let own = pod("a", "n", false);
        let (ports, allows) = (service("s", Some(30_080)), policy("p", json!([{}])));
        let all = [own.clone(), ports.clone(), allows.clone()];
        let of = |changes: &[Change]| {
            let mut of_node = NodeUse::of_node("n".into(), SecondaryNetworks::default());
            changes.iter().for_each(|change| of_node.apply_change(change));
            of_node
        };
        assert!(of(&all).needs_all());
        for (place, less) in [
            (0, pod("a", "other", false)),
            (0, pod("a", "n", true)),
            (0, own.removal()),
            (1, service("s", None)),
            (1, ports.removal()),
            (2, policy("p", json!([]))),
            (2, allows.removal()),
        ] {
            let mut after = of(&all);
            after.apply_change(&less);
            assert!(!after.needs_all(), "after {less:?}");
            after.apply_change(&all[place]);
            assert!(after.needs_all(), "again after {less:?}");
            let mut without = all.to_vec();
            without[place] = less;
            assert!(!of(&without).needs_all(), "{without:?}");
        }
    }

    #[test]
    fn egress_rules_of_a_cluster_policy_suffice() {
        let mut of_node = NodeUse::of_node("n".into(), SecondaryNetworks::default());
        let nodes = json!([{ "action": "Deny", "to": [{ "nodes": {} }] }]);
        let pods = json!([{ "action": "Deny", "to": [{ "namespaces": {} }] }]);
        for egress in [nodes, pods] {
            of_node.apply_change(&cluster_policy(json!([])));
            assert!(!of_node.needs_all() && !of_node.holds(&cluster_policy(json!([]))));
            let change = cluster_policy(egress);
            of_node.apply_change(&change);
            assert!(of_node.needs_all() && of_node.holds(&change));
        }
        of_node.apply_change(&cluster_policy(json!([])).removal());
        assert!(!of_node.needs_all());
    }

    /// Any author of a pod may write its annotations: a claim that cannot count costs no agent a list of all nodes.
    #[test]
    fn claims_outside_of_the_blocks_need_no_nodes() {
        let claim = |address: &str| {
            let status = json!([{ "name": "x", "interface": "net1", "ips": [address] }]);
            let annotations = json!({ "k8s.v1.cni.cncf.io/network-status": status.to_string() });
            let metadata = json!({ "namespace": "x", "name": "a", "uid": "a",
                "annotations": annotations });
            let spec = json!({ "nodeName": "far", "containers": [] });
            let object = json!({ "metadata": metadata, "spec": spec });
            convert::read(Kind::Pod, object.to_string().as_bytes(), true).change.unwrap()
        };
        let none = SecondaryNetworks(Vec::new());
        for (networks, address, is_needed) in [
            (SecondaryNetworks::default(), "10.9.0.2", true),
            (SecondaryNetworks::default(), "8.8.8.8", false),
            (none, "10.9.0.2", false),
        ] {
            let mut of_node = NodeUse::of_node("n".into(), networks);
            let change = claim(address);
            of_node.apply_change(&change);
            assert_eq!(of_node.needs_all(), is_needed, "{address}");
            assert_eq!(of_node.holds(&change), is_needed, "{address}");
            assert!(!of_node.needs_all_at_once());
        }
    }

    /// Generated clusters, judged with all nodes and with this node only: without a need, no verdict differs; with one,
    /// no verdict is more permissive before all nodes are known, unless an object is held.
    #[test]
    fn other_nodes_change_no_verdict_without_a_need_and_open_nothing_with_one() {
        let (mut equal, mut stricter) = (0, 0);
        for seed in 0..600 {
            let cluster = GeneratedCluster::from_seed(seed);
            let mut of_node = NodeUse::of_node(NODE.into(), SecondaryNetworks::default());
            cluster.objects.iter().for_each(|change| of_node.apply_change(change));
            let is_other = |change: &&Change| matches!(change, Change::Node(n) if n.name != NODE);
            let own = cluster.objects.iter().filter(|change| !is_other(change)).cloned();
            let [all, own]: [Oracle; 2] =
                [cluster.objects.iter().cloned().collect(), own.collect()];
            let pods = cluster.pods().filter(|pod| *pod.node == *NODE && is_subject(pod));
            let pods: Vec<Key> = pods.map(|pod| pod.key.clone()).collect();
            let held = cluster.objects.iter().any(|change| of_node.holds(change));
            let (source, mut choices) = (PacketSource::new(&cluster), Choices::from_seed(seed));
            for _ in 0..if pods.is_empty() { 0 } else { 200 } {
                let packet = source.packet(&mut choices, &pods);
                let OpeningPacket { pod, direction, remote, protocol, port } = &packet;
                let verdict = |oracle: &Oracle| {
                    let pod = oracle.pods.iter().find(|it| it.key == *pod).unwrap();
                    oracle.judge(pod, *direction, *remote, *protocol, *port)
                };
                let verdicts = (verdict(&all), verdict(&own));
                if !of_node.needs_all() {
                    assert_eq!(verdicts.0, verdicts.1, "seed {seed}: {packet:?}");
                    equal += 1;
                } else if !held {
                    assert_ne!(verdicts, (false, true), "seed {seed}: {packet:?}");
                    stricter += usize::from(verdicts == (true, false));
                }
            }
        }
        assert!(equal > 1_000 && stricter > 0, "{equal} without a need, {stricter} stricter");
    }
}
