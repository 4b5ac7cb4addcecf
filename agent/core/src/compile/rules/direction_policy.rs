//! What the policies that isolate a pod in one direction allow, as plain data: the input of a row.
//!
//! Without ClusterNetworkPolicies that is a union of grants. With them it is also a list of rules in the
//! order in which they are asked ([`Tiers`]); what sets and blocks are granted then includes marks of the
//! rules that name them. What an address is allowed is flattened from both when its column is filled
//! ([`super::evaluate`]), so a packet pays nothing for tiers.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::compile::sets::set::{NameId, SetId};
use crate::model::{Action, Tier};
use crate::ports::AllowedPorts;
use crate::ports::blocks::BlockMap;

/// The union of all rules of a direction: equal rules are equal values, whichever policies they
/// come from. An address is allowed the union of what `everyone`, each of its peer sets and the blocks
/// are granted that hold it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DirectionPolicy {
    /// Hash of all else, so that a large direction policy is looked up as fast as a small one.
    pub(super) digest: u64,
    pub(crate) everyone: AllowedPorts,
    pub(crate) peers: BTreeMap<SetId, AllowedPorts>,
    pub(crate) blocks: BlockMap,
    /// The port names that the grants ask for.
    pub(crate) names: BTreeSet<NameId>,
    /// What ClusterNetworkPolicies say before and after; `None`: nothing.
    pub(crate) tiers: Option<Arc<Tiers>>,
    /// By [`crate::compile::sets::set::PeerSet::HairpinService`], where the pod may reach itself: that is a
    /// matter of its backend, itself, whatever tiers say of the Service's address.
    pub(crate) served: BTreeMap<SetId, AllowedPorts>,
    /// The same, where a tier denies it to reach itself. Nothing tells a packet to itself from others
    /// behind the translation, so the port is closed in front of it.
    pub(crate) refused: BTreeMap<SetId, AllowedPorts>,
}

/// The rules of ClusterNetworkPolicies for a pod in a direction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tiers {
    /// In the order in which they are asked; a rule's mark is its place. None of Baseline if
    /// `isolated`, as they are not asked then.
    pub(crate) rules: Vec<TierRule>,
    /// Some NetworkPolicy isolates the pod: what its rules do not grant is denied.
    pub(crate) isolated: bool,
}

/// What a rule says of whom it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TierRule {
    pub(crate) tier: Tier,
    pub(crate) action: Action,
    /// Of these ports and protocols.
    pub(crate) ports: AllowedPorts,
}

impl Hash for DirectionPolicy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl DirectionPolicy {
    /// Isolated, and nothing allowed.
    pub(crate) fn nothing() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// All that is granted.
    pub(crate) fn grants(&self) -> impl Iterator<Item = &AllowedPorts> {
        let rules = self.tiers.iter().flat_map(|tiers| &tiers.rules).map(|rule| &rule.ports);
        let own = self.served.values().chain(self.refused.values());
        let peers = self.peers.values().chain([&self.everyone]);
        peers.chain(self.blocks.values()).chain(rules).chain(own)
    }
}
