//! Options of a compiler.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::cluster::SecondNetworks;
use crate::model::Pod;
use crate::ops::Capacity;

/// Endpoints that drop packets with a foreign source address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckSource {
    /// None.
    Off,
    /// Endpoints that are isolated in a direction.
    Isolated,
    /// All.
    #[default]
    All,
}

/// Endpoints exempt from the source check: gateways, virtual machines. Set by the operator of the node, because a
/// tenant could otherwise exempt his own pods and pretend to be any other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceExempt {
    /// Namespaces in which a pod may opt out, see [`crate::model::Pod::foreign_sources`].
    pub namespaces: BTreeSet<String>,
    /// Pods with an address in one of these blocks.
    pub blocks: Vec<IpNet>,
}

impl SourceExempt {
    /// Whether a pod is exempt.
    #[must_use]
    pub fn holds(&self, pod: &Pod) -> bool {
        let within = |address| self.blocks.iter().any(|block| block.contains(address));
        pod.foreign_sources && self.namespaces.contains(&pod.key.namespace)
            || pod.addresses.iter().any(within)
    }
}

/// Which further interfaces of pods are under policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecondInterfaces {
    /// All. In a namespace with [`SECOND_OPEN`] those with known addresses; the others are open there.
    #[default]
    Enforce,
    /// The same; but those whose addresses are not known send nothing.
    Strict,
    /// None: they are open.
    Off,
}

/// The label of a namespace, and its value, by which further interfaces whose addresses are not known are not under
/// policy there.
pub const SECOND_OPEN: (&str, &str) = ("netpold.io/second-interfaces", "open");

/// What an interface gets that appears while its pod is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewPods {
    /// No restrictions.
    #[default]
    Allow,
    /// Only the own node may reach it and be reached, until its pod is known.
    Deny,
}

/// Options of a compiler.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `metadata.name` of the own node.
    pub node: String,
    /// Sizes of the tables.
    pub capacity: Capacity,
    /// Source address check.
    pub check_source: CheckSource,
    /// Exemptions from the source address check.
    pub source_exempt: SourceExempt,
    /// Treatment of interfaces with an unknown pod.
    pub new_pods: NewPods,
    /// Further interfaces of pods.
    pub second_interfaces: SecondInterfaces,
    /// Where addresses of further networks count.
    pub second_networks: SecondNetworks,
    /// First endpoint number to hand out; greater than any that conntrack still knows.
    pub first_endpoint_id: u32,
    /// Numbers of endpoints that an earlier agent installed, by interface index and `Endpoint::uid_hash`.
    pub known_endpoints: BTreeMap<(u32, u64), u32>,
}
