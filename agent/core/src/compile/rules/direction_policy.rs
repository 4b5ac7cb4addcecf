//! Rules of the policies that isolate a pod in one direction, as plain data: the input of a row.
//!
//! Without ClusterNetworkPolicies, a direction policy is a union of grants. With them, it also has a list of rules in
//! order of evaluation ([`Tiers`]), and the grants of a set or block include the marks of the rules with this peer.
//! Filling the column of a class flattens both into allowed ports ([`super::evaluate`]), so tiers cost nothing per
//! packet.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::compile::sets::set::{NameId, OWN_NODE, SetId};
use crate::model::{Action, DomainName, Tier};
use crate::ports::AllowedPorts;
use crate::ports::blocks::BlockMap;

/// The union of all rules of a direction. Equal rules give equal values, regardless of the policies that they come
/// from. An address is allowed the union of the grants to `everyone`, to its peer sets and to the blocks that contain
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DirectionPolicy {
    /// Hash of all other fields, so that a large direction policy is looked up as fast as a small one.
    pub(super) digest: u64,
    pub(crate) everyone: AllowedPorts,
    pub(crate) peers: BTreeMap<SetId, AllowedPorts>,
    pub(crate) blocks: BlockMap,
    /// Port names in the grants.
    pub(crate) names: BTreeSet<NameId>,
    /// Rules of ClusterNetworkPolicies; `None` if there are none.
    pub(crate) tiers: Option<Arc<Tiers>>,
    /// Accept rules with domain names, in groups; `None` if there are none. The rules themselves match no address.
    pub(crate) domains: Option<Arc<Vec<NameGroup>>>,
    /// Ports by [`crate::compile::sets::set::PeerSet::HairpinService`] through which the pod may reach itself. The
    /// backend, which is the pod itself, decides; tiers about the Service's address do not matter.
    pub(crate) served: BTreeMap<SetId, AllowedPorts>,
    /// Ports by the same sets through which a tier denies the pod's traffic to itself. After translation such a packet
    /// looks like any other packet to the pod, so the port is closed before translation.
    pub(crate) refused: BTreeMap<SetId, AllowedPorts>,
}

/// The rules of ClusterNetworkPolicies for a pod in a direction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tiers {
    /// Rules in order of evaluation; the mark of a rule is its index. Without Baseline rules if `isolated`, because
    /// these do not apply then.
    pub(crate) rules: Vec<TierRule>,
    /// Whether a NetworkPolicy isolates the pod, so that traffic without a grant is denied.
    pub(crate) isolated: bool,
}

/// Consecutive rules with domain names and the same effect: an address that a name of the group resolved to matches one
/// of the rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NameGroup {
    /// Mark of the first of the rules.
    pub(crate) mark: AllowedPorts,
    pub(crate) names: BTreeSet<DomainName>,
}

/// Action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TierRule {
    pub(crate) tier: Tier,
    pub(crate) action: Action,
    /// Ports and protocols of the rule.
    pub(crate) ports: AllowedPorts,
}

impl Hash for DirectionPolicy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl DirectionPolicy {
    /// A direction policy that isolates the pod and allows nothing.
    pub(crate) fn nothing() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Whether it is the direction policy of closed combinations: it allows nothing but this node.
    pub(crate) fn is_closed(&self) -> bool {
        self.everyone.is_none()
            && self.peers.keys().all(|id| *id == OWN_NODE)
            && self.blocks.len() == 0
            && self.tiers.is_none()
    }

    /// All grants.
    pub(crate) fn grants(&self) -> impl Iterator<Item = &AllowedPorts> {
        let rules = self.tiers.iter().flat_map(|tiers| &tiers.rules).map(|rule| &rule.ports);
        let own = self.served.values().chain(self.refused.values());
        let groups = self.domains.iter().flat_map(|groups| groups.iter());
        let own = own.chain(groups.map(|group| &group.mark));
        let peers = self.peers.values().chain([&self.everyone]);
        peers.chain(self.blocks.values()).chain(rules).chain(own)
    }
}
