//! What a compiler has to know beside the cluster's state.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::model::Pod;
use crate::ops::Capacity;

/// Which endpoints drop what they send from addresses that are not theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckSource {
    /// None.
    Off,
    /// Those that are isolated in a direction.
    Isolated,
    /// All.
    #[default]
    All,
}

/// Endpoints whose source is not checked all the same: gateways, virtual machines. Named by who runs
/// the node, since a tenant could exempt himself otherwise and pass for any other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceExempt {
    /// Namespaces in which a pod may ask for it, see [`crate::model::Pod::foreign_sources`].
    pub namespaces: BTreeSet<String>,
    /// Pods that have an address in one of these.
    pub blocks: Vec<IpNet>,
}

impl SourceExempt {
    /// Whether a pod is one of them.
    #[must_use]
    pub fn holds(&self, pod: &Pod) -> bool {
        let within = |address| self.blocks.iter().any(|block| block.contains(address));
        pod.foreign_sources && self.namespaces.contains(&pod.key.namespace)
            || pod.addresses.iter().any(within)
    }
}

/// What an interface gets that appears while its pod is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewPods {
    /// Nothing is in its way.
    #[default]
    Allow,
    /// Only the node itself reaches it and is reached by it, until its pod is known.
    Deny,
}

/// What a compiler has to know beside the cluster's state.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `metadata.name` of the own node.
    pub node: String,
    /// Sizes of the tables.
    pub capacity: Capacity,
    /// Source address check.
    pub check_source: CheckSource,
    /// Whom it leaves out.
    pub source_exempt: SourceExempt,
    /// Interfaces whose pod is not known.
    pub new_pods: NewPods,
    /// First endpoint number to hand out; greater than any that conntrack still knows.
    pub first_endpoint_id: u32,
    /// Numbers of endpoints that an earlier agent installed, by interface index and
    /// `Endpoint::uid_hash`.
    pub known_endpoints: BTreeMap<(u32, u64), u32>,
}
