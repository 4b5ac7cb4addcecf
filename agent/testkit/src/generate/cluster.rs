//! Generated clusters.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use netpold_core::model::{Change, EndpointSlice, Interface, Node, Pod, Policy, Service};

use super::choices::Choices;
use super::objects::{self, NODE};
use super::{services, tiers};

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
                1 => objects.push(changed(choices, object)),
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

/// A new object of the same name.
fn changed(choices: &mut Choices<'_>, object: &Change) -> Change {
    match object {
        Change::Namespace(old) => Change::Namespace(objects::namespace(choices, &old.name)),
        Change::Node(old) => {
            let new = objects::node(choices, &old.name);
            let keep = choices.chance(50);
            let addresses = if keep { old.addresses.clone() } else { new.addresses };
            Change::Node(Node { addresses, ..new })
        }
        Change::Pod(old) => {
            let new = objects::pod(choices, 0);
            // Labels change while a pod runs; other changes mean a new pod.
            if choices.chance(50) {
                return Change::Pod(Pod { labels: new.labels, ..old.clone() });
            }
            let uid = format!("{}+", old.uid);
            Change::Pod(Pod { key: old.key.clone(), uid, ..new })
        }
        Change::Policy(old) => {
            Change::Policy(Policy { key: old.key.clone(), ..objects::policy(choices, 0) })
        }
        Change::ClusterPolicy(old) => Change::ClusterPolicy(tiers::changed(choices, old)),
        Change::Service(old) => {
            Change::Service(Service { key: old.key.clone(), ..services::service(choices) })
        }
        Change::EndpointSlice(old) => {
            let mut new = services::slice(choices, 0, &[]);
            // Usually the backends change, not the Service.
            if choices.chance(80) {
                new.service.clone_from(&old.service);
            }
            if choices.chance(70) {
                new.ports.clone_from(&old.ports);
            }
            Change::EndpointSlice(EndpointSlice { key: old.key.clone(), ..new })
        }
        // Not API objects.
        Change::ClusterPolicyGone(_)
        | Change::NamespaceGone(_)
        | Change::NodeGone(_)
        | Change::PodGone(_)
        | Change::PolicyGone(_)
        | Change::ServiceGone(_)
        | Change::EndpointSliceGone(_)
        | Change::Interface(_)
        | Change::InterfaceGone(_)
        | Change::OwnAddresses(_) => object.clone(),
    }
}
