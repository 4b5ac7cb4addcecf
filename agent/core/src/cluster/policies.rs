//! NetworkPolicies and their weights.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::budget::{Weight, reduced_by_weight};
use crate::cluster::namespaces::in_namespace;
use crate::model::{Key, Policy};

/// Every NetworkPolicy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies {
    by_key: BTreeMap<Key, Arc<Policy>>,
    weights: BTreeMap<Key, Weight>,
    /// See [`Policies::weigh_hastily`].
    hasty: bool,
}

impl Policies {
    /// Policies by key.
    pub(super) fn by_key(&self) -> &BTreeMap<Key, Arc<Policy>> {
        &self.by_key
    }

    /// The policies of a namespace, by name.
    pub(super) fn in_namespace(&self, name: &str) -> impl Iterator<Item = &Arc<Policy>> {
        in_namespace(&self.by_key, name)
    }

    /// Weight of a policy.
    pub(crate) fn weight(&self, policy: &Key) -> Option<&Weight> {
        self.weights.get(policy)
    }

    /// The policy as it is kept, and its weight; `None` if it equals the known policy of its key.
    pub(super) fn weighed(&self, new: Policy) -> Option<(Arc<Policy>, Weight)> {
        if self.by_key.get(&new.key).is_some_and(|known| **known == new) {
            return None;
        }
        let weight = if self.hasty { Weight::estimate(&new) } else { Weight::weigh(&new) };
        Some((Arc::new(reduced_by_weight(new, &weight)), weight))
    }

    /// Sets whether slow parts of weighing new policies are left to [`Policies::weigh_exactly`].
    pub(crate) fn weigh_hastily(&mut self, hasty: bool) {
        self.hasty = hasty;
    }

    /// Weighs exactly the policies that were weighed hastily.
    pub(crate) fn weigh_exactly(&mut self) {
        for (key, weight) in &mut self.weights {
            if let Some(policy) = self.by_key.get(key).filter(|_| !weight.is_exact) {
                *weight = Weight::weigh(policy);
            }
        }
    }

    /// Sets or removes (`None`) the policy of a key; returns whether it changed.
    pub(super) fn set(&mut self, key: &Key, new: Option<(Arc<Policy>, Weight)>) -> bool {
        // A policy of the last good state may lack the content that exceeds its budget.
        let excess = |weight: Option<&Weight>| weight.and_then(|weight| weight.excess.clone());
        let new_excess = excess(new.as_ref().map(|(_, weight)| weight));
        if self.by_key.get(key) == new.as_ref().map(|(policy, _)| policy)
            && excess(self.weights.get(key)) == new_excess
        {
            return false;
        }
        match new {
            Some((policy, weight)) => {
                self.weights.insert(key.clone(), weight);
                self.by_key.insert(key.clone(), policy);
            }
            None => {
                self.weights.remove(key);
                self.by_key.remove(key);
            }
        }
        true
    }
}
