//! State while the ends of two clusters are grouped.

use std::collections::HashSet;
use std::net::IpAddr;

use netpold_core::cluster::Cluster;
use netpold_core::explain::Blocks;

use super::class::{Class, EndTraits, PartyEnd};
use super::party::DiffParty;
use super::rules::PolicyCriteria;

/// Builder of [`PartyEnds`](super::class::PartyEnds).
pub(super) struct PartyEndsBuilder<'c> {
    pub(super) clusters: [&'c Cluster; 2],
    pub(super) named: PolicyCriteria,
    pub(super) blocks: Blocks,
    /// Addresses that labels and blocks alone do not determine.
    pub(super) special: HashSet<IpAddr>,
    /// Every address of the objects.
    pub(super) known: HashSet<IpAddr>,
    /// Addresses of nodes, before and after.
    pub(super) of_nodes: [HashSet<IpAddr>; 2],
    /// Namespaces with changed labels.
    pub(super) relabelled: HashSet<&'c str>,
    pub(super) node_ports: bool,
    /// Sample addresses for pods without one, one of each set that policies distinguish.
    pub(super) places: Vec<IpAddr>,
    pub(super) parties: Vec<DiffParty>,
    pub(super) classes: Vec<Class<'c>>,
}

impl<'c> PartyEndsBuilder<'c> {
    /// Returns whether pods without an address are judged.
    pub(super) fn judges_unaddressed(&self) -> bool {
        !self.places.is_empty()
    }

    pub(super) fn traits(&self, end: PartyEnd<'c>) -> EndTraits<'c> {
        let address = end.address;
        let labels = end.pod.into_iter().flat_map(|pod| pod.labels.iter());
        let labels = labels.filter(|(key, _)| self.named.labels.contains(*key));
        EndTraits {
            labels: labels.map(|(key, value)| (key.as_str(), value.as_str())).collect(),
            ports: end.pod.map_or(&[], |pod| &pod.ports),
            block: self.blocks.around(address),
            special: self.special.contains(&address).then_some(address),
            node: (end.pod.is_none() && !self.special.is_empty()).then_some(end.node),
        }
    }
}
