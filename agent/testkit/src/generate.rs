//! Generated clusters and packets, small and adversarial, for tests, fuzzing and benchmarks.
//!
//! All choices come from a [`Choices`], which is a seed or a fuzzer's bytes: a seed identifies a case and gives the
//! same result everywhere. There are few names, labels, values, addresses and ports, so that selectors match, blocks
//! overlap and claims collide.

mod choices;
mod objects;
mod packets;
mod services;
mod shrink;
mod tiers;

pub use choices::Choices;
pub use packets::{OpeningPacket, PacketSource};
pub use shrink::{shrink, shrink_all};

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use netpold_core::model::{Change, Interface, Node, Pod, Service};

/// The node from which generated clusters are seen.
pub const NODE: &str = "n1";

/// A generated cluster: one change per object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GeneratedCluster {
    /// Namespaces, nodes, pods, policies of both kinds, Services, their slices and the interfaces of [`NODE`]; each
    /// object once.
    pub objects: Vec<Change>,
}

impl GeneratedCluster {
    /// A cluster from choices.
    #[must_use]
    pub fn generate(choices: &mut Choices<'_>) -> Self {
        let mut objects = Vec::new();
        for name in objects::NAMESPACES {
            if choices.chance(93) {
                objects.push(Change::Namespace(objects::namespace(choices, name)));
            }
        }
        for name in objects::NODES {
            objects.push(Change::Node(objects::node(choices, name)));
        }
        let mut pods = Vec::new();
        for number in 0..2 + choices.below(8) {
            pods.push(objects::pod(choices, number));
        }
        // At least one pod is local and judged.
        if interfaces(&pods).is_empty() {
            pods.push(objects::local_pod(choices, 99));
        }
        objects.extend(interfaces(&pods).into_iter().map(Change::Interface));
        objects.extend(pods.into_iter().map(Change::Pod));
        for number in 0..choices.below(7) {
            objects.push(Change::Policy(objects::policy(choices, number)));
        }
        // Half of the clusters have no Services.
        if choices.chance(50) {
            let mut all: Vec<Service> = Vec::new();
            for _ in 0..=choices.below(4) {
                let service = services::service(choices);
                if all.iter().all(|other| other.key != service.key) {
                    all.push(service);
                }
            }
            for number in 0..=choices.below(7) {
                objects.push(Change::EndpointSlice(services::slice(choices, number, &all)));
            }
            objects.extend(all.into_iter().map(Change::Service));
        }
        // Half of the clusters have no ClusterNetworkPolicies.
        if choices.chance(50) {
            for number in 0..=choices.below(5) {
                let policy = tiers::cluster_policy(choices, number);
                objects.push(Change::ClusterPolicy(policy));
            }
        }
        Self { objects }
    }

    /// A cluster from a seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self::generate(&mut Choices::from_seed(seed))
    }

    /// A possible next state: some objects removed, changed or added.
    #[must_use]
    pub fn mutate(&self, choices: &mut Choices<'_>) -> Self {
        let mut objects = Vec::new();
        for object in &self.objects {
            match choices.below(10) {
                _ if matches!(object, Change::Interface(_)) => {}
                0 => {}
                1 => objects.push(objects::changed(choices, object)),
                _ => objects.push(object.clone()),
            }
        }
        let services: Vec<Service> = objects
            .iter()
            .filter_map(|object| {
                if let Change::Service(service) = object { Some(service.clone()) } else { None }
            })
            .collect();
        let mut number = self.largest_number();
        for _ in 0..choices.below(3) {
            number += 1;
            objects.push(match choices.below(6) {
                0 | 1 => Change::Pod(objects::pod(choices, number)),
                2 | 3 => Change::Policy(objects::policy(choices, number)),
                4 => Change::ClusterPolicy(tiers::cluster_policy(choices, number)),
                _ => Change::EndpointSlice(services::slice(choices, number, &services)),
            });
        }
        let mut next = Self { objects };
        if interfaces(&next.pods().cloned().collect::<Vec<_>>()).is_empty() {
            next.objects.push(Change::Pod(objects::local_pod(choices, number + 1)));
        }
        let pods: Vec<Pod> = next.pods().cloned().collect();
        next.objects.extend(interfaces(&pods).into_iter().map(Change::Interface));
        next
    }

    /// The largest number in the names of objects: a new object needs a unique name and interface index, even after
    /// many mutations.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "of the many kinds, those with numbers in their names"
    )]
    fn largest_number(&self) -> u32 {
        let number = |name: &str| {
            let digits: String = name.chars().filter(char::is_ascii_digit).collect();
            digits.parse().unwrap_or(0)
        };
        let names = self.objects.iter().filter_map(|object| match object {
            Change::Pod(pod) => Some(pod.key.name.as_str()),
            Change::Policy(policy) => Some(policy.key.name.as_str()),
            Change::ClusterPolicy(policy) => Some(policy.name.as_str()),
            Change::EndpointSlice(slice) => Some(slice.key.name.as_str()),
            _ => None,
        });
        names.map(number).max().unwrap_or(0)
    }

    /// The changes that lead from this cluster to another one.
    #[must_use]
    pub fn changes_to(&self, next: &Self) -> Vec<Change> {
        let gone = self.objects.iter().map(Change::removal);
        let gone = gone.filter(|gone| !next.objects.iter().any(|object| object.removal() == *gone));
        let new = next.objects.iter().filter(|object| !self.objects.contains(object));
        gone.chain(new.cloned()).collect()
    }

    /// All pods.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.objects
            .iter()
            .filter_map(|object| if let Change::Pod(pod) = object { Some(pod) } else { None })
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.objects
            .iter()
            .filter_map(|object| if let Change::Node(node) = object { Some(node) } else { None })
    }

    /// All interfaces.
    pub fn interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.objects.iter().filter_map(|object| {
            if let Change::Interface(interface) = object { Some(interface) } else { None }
        })
    }
}

/// One object per line, short enough to read in a failed test.
impl fmt::Display for GeneratedCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for object in &self.objects {
            writeln!(f, "- {object:?}")?;
        }
        Ok(())
    }
}

/// An interface for each pod of [`NODE`] that can have one, with the addresses that the pod owns.
fn interfaces(pods: &[Pod]) -> Vec<Interface> {
    let mut taken = BTreeSet::new();
    let mut order: Vec<usize> = (0..pods.len()).collect();
    order
        .sort_by_key(|&n| (pods[n].terminating, -pods[n].created, std::cmp::Reverse(&pods[n].key)));
    let mut interfaces = Vec::new();
    for n in order {
        let pod = &pods[n];
        if pod.host_network || pod.finished {
            continue;
        }
        let own: Vec<IpAddr> = pod.addresses.iter().copied().filter(|a| taken.insert(*a)).collect();
        if pod.node == NODE && !own.is_empty() {
            // Numbered like the pod, so that it stays as long as the pod.
            let number: String = pod.key.name.chars().filter(char::is_ascii_digit).collect();
            let index = 10 + number.parse::<u32>().unwrap_or(0);
            interfaces.push(Interface {
                index,
                incarnation: 1,
                addresses: own,
                ..Interface::default()
            });
        }
    }
    interfaces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Oracle;

    #[test]
    fn same_seed_same_cluster() {
        assert_eq!(GeneratedCluster::from_seed(7), GeneratedCluster::from_seed(7));
        assert_ne!(GeneratedCluster::from_seed(7), GeneratedCluster::from_seed(8));
    }

    #[test]
    fn changes_lead_from_one_cluster_to_the_other() {
        for seed in 0..200 {
            let before = GeneratedCluster::from_seed(seed);
            let after = before.mutate(&mut Choices::from_seed(!seed));
            let mut oracle: Oracle = before.objects.iter().cloned().collect();
            before.changes_to(&after).into_iter().for_each(|change| oracle.ingest(change));
            let sorted = |mut oracle: Oracle| {
                oracle.pods.sort_by(|a, b| a.key.cmp(&b.key));
                oracle.policies.sort_by(|a, b| a.key.cmp(&b.key));
                oracle.cluster_policies.sort_by(|a, b| a.name.cmp(&b.name));
                oracle.nodes.sort_by(|a, b| a.name.cmp(&b.name));
                oracle.namespaces.sort_by(|a, b| a.name.cmp(&b.name));
                oracle.services.sort_by(|a, b| a.key.cmp(&b.key));
                oracle.slices.sort_by(|a, b| a.key.cmp(&b.key));
                oracle
            };
            assert_eq!(sorted(oracle), sorted(after.objects.into_iter().collect()));
        }
    }

    #[test]
    fn no_bytes_still_make_a_cluster() {
        let mut none = Choices::from_bytes(&[]);
        let cluster = GeneratedCluster::generate(&mut none).mutate(&mut none);
        assert!(cluster.interfaces().count() >= 1 && !none.any_left());
    }

    #[test]
    fn shrinks_to_what_matters() {
        let big = (0..1000)
            .map(GeneratedCluster::from_seed)
            .find(|c| c.pods().any(|p| p.host_network))
            .unwrap();
        let small = shrink(&big, |c| c.pods().any(|p| p.host_network));
        assert_eq!(small.objects.len(), 1, "{small}");
        assert!(small.pods().all(|p| p.labels.is_empty() && p.addresses.is_empty()));
    }
}
