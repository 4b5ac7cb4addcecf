//! What the policies that isolate a pod in one direction allow, as plain data: the input of a row.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::compile::sets::set::{AtomId, NameId};
use crate::ports::Grant;
use crate::ports::blocks::BlockMap;

/// The union of all rules of a direction: equal rules are equal values, whichever policies they
/// come from. An address is allowed the union of what `everyone`, each of its atoms and the blocks
/// are granted that hold it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spec {
    /// Hash of all else, so that a large spec is looked up as fast as a small one.
    pub(super) digest: u64,
    pub(crate) everyone: Grant,
    pub(crate) peers: BTreeMap<AtomId, Grant>,
    pub(crate) blocks: BlockMap,
    /// The port names that the grants ask for.
    pub(crate) names: BTreeSet<NameId>,
}

impl Hash for Spec {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl Spec {
    /// Isolated, and nothing allowed.
    pub(crate) fn nothing() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// All that is granted.
    pub(crate) fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.peers.values().chain([&self.everyone]).chain(self.blocks.values())
    }
}
