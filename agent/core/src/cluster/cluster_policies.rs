//! ClusterNetworkPolicies in order of evaluation.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{ClusterPolicy, Tier};

/// Every ClusterNetworkPolicy.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterPolicies {
    by_name: BTreeMap<String, Arc<ClusterPolicy>>,
    /// By tier, priority and name.
    in_order: BTreeMap<(Tier, u16, String), Arc<ClusterPolicy>>,
}

impl ClusterPolicies {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// All policies in order of evaluation.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<ClusterPolicy>> {
        self.in_order.values()
    }

    pub(super) fn get(&self, name: &str) -> Option<&Arc<ClusterPolicy>> {
        self.by_name.get(name)
    }

    /// Sets or removes (`None`) the policy of a name; returns whether it changed.
    pub(super) fn set(&mut self, name: &str, new: Option<Arc<ClusterPolicy>>) -> bool {
        if self.by_name.get(name) == new.as_ref() {
            return false;
        }
        if let Some(old) = self.by_name.remove(name) {
            self.in_order.remove(&(old.tier, old.priority, old.name.clone()));
        }
        if let Some(new) = new {
            self.in_order.insert((new.tier, new.priority, new.name.clone()), new.clone());
            self.by_name.insert(name.to_owned(), new);
        }
        true
    }
}
