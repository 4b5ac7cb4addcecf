//! Options of a compiler.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::cluster::SecondaryNetworks;
use crate::model::{Denial, Pod};
use crate::ops::Capacity;

/// Endpoints that drop packets with a foreign source address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckSource {
    /// No endpoints.
    Off,
    /// Endpoints isolated in a direction.
    Isolated,
    /// All endpoints.
    #[default]
    All,
}

/// Endpoints exempt from the source check: gateways, virtual machines. Set by the operator of the node: tenants could
/// otherwise exempt their own pods and impersonate any other.
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
    pub fn exempts(&self, pod: &Pod) -> bool {
        let within = |address| self.blocks.iter().any(|block| block.contains(address));
        pod.foreign_sources && self.namespaces.contains(&pod.key.namespace)
            || pod.addresses.iter().any(within)
    }
}

/// Secondary interfaces under policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecondaryInterfaces {
    /// All, except interfaces without known addresses in a namespace with [`SECONDARY_OPEN`]: these are open.
    #[default]
    Enforce,
    /// Same as `Enforce`, but enforced interfaces without known addresses send nothing.
    Strict,
    /// None: all secondary interfaces are open.
    Off,
}

/// Label of a namespace, with its value, that exempts secondary interfaces without known addresses from policy there.
pub const SECONDARY_OPEN: (&str, &str) = ("netpold.io/second-interfaces", "open");

/// Pods with records of their flows while no policy selects them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObserveFlows {
    /// No pods.
    None,
    /// Pods of namespaces with [`OBSERVE`].
    #[default]
    Labelled,
    /// All pods.
    All,
}

/// Label of a namespace, with its value, that enables records of its pods' flows.
pub const OBSERVE: (&str, &str) = ("netpold.io/observe", "flows");

/// Treatment of a new interface while its pod is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewPods {
    /// No restrictions.
    #[default]
    Allow,
    /// Only traffic with this node, until the pod is known.
    Deny,
}

/// Options of a compiler.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `metadata.name` of this node.
    pub node: String,
    /// Sizes of the tables.
    pub capacity: Capacity,
    /// Source address check.
    pub check_source: CheckSource,
    /// Exemptions from the source address check.
    pub source_exempt: SourceExempt,
    /// Treatment of interfaces with an unknown pod.
    pub new_pods: NewPods,
    /// Records of the flows of pods that no policy selects.
    pub observe_flows: ObserveFlows,
    /// Secondary interfaces of pods.
    pub secondary_interfaces: SecondaryInterfaces,
    /// Blocks in which addresses of secondary networks are accepted.
    pub secondary_networks: SecondaryNetworks,
    /// Treatment of packets that policies without an annotation deny.
    pub denial: Denial,
    /// Trusted resolvers besides the cluster's DNS Service.
    pub resolvers: BTreeSet<IpAddr>,
    /// Whether answers of resolvers over TCP are accepted too.
    pub names_over_tcp: bool,
    /// First endpoint number to assign; greater than any in the conntrack tables.
    pub first_endpoint_id: u32,
    /// Numbers of endpoints that an earlier agent installed, by interface index and `Endpoint::uid_hash`.
    pub known_endpoints: BTreeMap<(u32, u64), u32>,
    /// Slots of the endpoint table in which an earlier agent installed endpoints, by interface index.
    pub known_slots: BTreeMap<u32, u32>,
    /// Indexes of interfaces with programs of an earlier agent; `None`: there was none. With [`NewPods::Deny`] other
    /// interfaces are new.
    pub judged: Option<BTreeSet<u32>>,
}
