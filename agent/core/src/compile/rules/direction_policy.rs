//! What the policies that isolate a pod in one direction allow, as plain data: the input of a row.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::compile::sets::set::{NameId, SetId};
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
        self.peers.values().chain([&self.everyone]).chain(self.blocks.values())
    }
}
