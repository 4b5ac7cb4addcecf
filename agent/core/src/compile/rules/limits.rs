//! Decides which combinations of policies are closed because they exceed a limit, so that no tenant can block the
//! update of another.
//!
//! Two limits apply besides the budget of a single policy ([`crate::budget`]). All policies that isolate pods of one
//! namespace on this node share a budget; the largest combinations are closed first. If a table cannot grow any
//! further, the largest combinations of the namespaces that use most of it are left out until the rest fits
//! ([`crate::compile::consumption`]). A closed combination isolates the pods that it selects and allows nothing.
//!
//! A third limit bounds the time of an update. Once [`Limits::defer`] was called, a large combination is not compiled
//! here, nor are further ones once a namespace used up its share of the update. They wait for another compiler
//! ([`Late`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;

use crate::budget::{Combination, MODEST_UNITS, NAMESPACE_UNITS, ORDINARY_UNITS, closed};
use crate::cluster::{Cluster, Dirty};
use crate::model::{Direction, Labels, NamedPort, Pod};
use crate::ops::Table;

/// A combination of policies that is not in force as last edited, because it is large and left to another compiler.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Late {
    pub(crate) of: Combination,
    /// The pods are closed meanwhile; otherwise they keep the state before the last edit.
    pub(crate) is_closed: bool,
}

impl Late {
    /// Reason for the delay.
    pub(crate) const REASON: &'static str = "large policies are compiled in the background; in force soon, or later \
                                             if the namespace's large policies change often";
}

/// Combinations to close for a full table.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    pub(crate) combinations: BTreeSet<Combination>,
    /// Namespaces that use at least as much of the table as one of them.
    pub(crate) large: BTreeSet<String>,
}

/// Closed combinations.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// Combinations over the budget of their namespace on this node.
    over: BTreeMap<String, BTreeSet<Combination>>,
    /// Combinations left out for a full table.
    left_out: BTreeMap<Combination, Table>,
    /// Namespaces that may make room for them: their own, and those that use as much of the table.
    large: BTreeSet<String>,
    /// Namespaces of `large` that changed while held.
    postponed: BTreeSet<String>,
    /// Set while large combinations are deferred; in these namespaces everything beyond modest size is.
    deferring: Option<BTreeSet<String>>,
    /// Units compiled in this update, by namespace.
    admitted: BTreeMap<String, u64>,
    /// Units of compiled combinations beyond modest size, by namespace.
    compiled: BTreeMap<String, u64>,
    /// `left_out` grew for the update in progress.
    pub(crate) is_new: bool,
}

impl Limits {
    pub(crate) fn is_closed(&self, combination: &Combination) -> bool {
        self.left_out.contains_key(combination)
            || self.over.values().any(|closed| closed.contains(combination))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.over.is_empty() && self.left_out.is_empty()
    }

    /// Closed combinations with the reason.
    pub(crate) fn closed(&self) -> impl Iterator<Item = (&Combination, String)> {
        let over = self.over.values().flatten().map(|combination| {
            let reason = format!(
                "the policies that isolate pods of the namespace on this node together exceed the limit of \
                 {NAMESPACE_UNITS}, and this one is among the largest"
            );
            (combination, reason)
        });
        let left_out = self.left_out.iter().map(|(combination, table)| {
            let reason = format!(
                "the table of {table} has no room for it, and its namespace is among those that use most of it"
            );
            (combination, reason)
        });
        over.chain(left_out)
    }

    /// From now on, defers large combinations to another compiler, and in the given namespaces everything beyond modest
    /// size; `None`: defers nothing. Returns the previous setting.
    pub(crate) fn defer(
        &mut self,
        deferring: Option<BTreeSet<String>>,
    ) -> Option<BTreeSet<String>> {
        std::mem::replace(&mut self.deferring, deferring)
    }

    /// Namespaces with combinations left out for a full table.
    pub(crate) fn left_out(&self) -> impl Iterator<Item = &str> {
        self.left_out.keys().map(Combination::namespace)
    }

    /// Namespaces that changed while held, so that the combinations left out are to be reconsidered later.
    pub(crate) fn postponed(&self) -> impl Iterator<Item = &String> {
        self.postponed.iter()
    }

    /// Whether large combinations are deferred.
    pub(crate) fn is_deferring(&self) -> bool {
        self.deferring.is_some()
    }

    /// Begins an update.
    pub(crate) fn begin(&mut self) {
        self.admitted.clear();
    }

    /// Whether a combination of this weight may be compiled in this update.
    pub(crate) fn admits(&mut self, combination: &Combination, units: u64) -> bool {
        if units <= MODEST_UNITS {
            return true;
        }
        let namespace = combination.namespace();
        if let Some(held) = &self.deferring {
            let admitted = self.admitted.entry(namespace.to_owned()).or_default();
            if held.contains(namespace) || *admitted + units > ORDINARY_UNITS {
                return false;
            }
            *admitted += units;
        }
        *self.compiled.entry(namespace.to_owned()).or_default() += units;
        true
    }

    /// Units of combinations beyond modest size compiled since the last call, by namespace.
    pub(crate) fn take_compiled(&mut self) -> BTreeMap<String, u64> {
        std::mem::take(&mut self.compiled)
    }

    /// Weighs a namespace's policies by its local pods; returns whether the closed combinations changed.
    pub(crate) fn weigh(&mut self, cluster: &Cluster, namespace: &str, pods: &[Arc<Pod>]) -> bool {
        let closed = over_budget(cluster, namespace, pods);
        let before = if closed.is_empty() {
            self.over.remove(namespace)
        } else {
            self.over.insert(namespace.to_owned(), closed.clone())
        };
        before.unwrap_or_default() != closed
    }

    /// Clears `left_out` if a namespace that may make room for it changed. Returns the namespaces of the cleared
    /// combinations. If the table is still full, all is compiled again, so this waits for a namespace in debt.
    pub(crate) fn reconsider(
        &mut self,
        dirty: &Dirty,
        concerned: impl Iterator<Item = String>,
    ) -> BTreeSet<String> {
        if self.is_new || self.large.is_empty() {
            return BTreeSet::new();
        }
        let changed = dirty.policies.iter().cloned().chain(concerned);
        let changed = changed.filter(|namespace| self.large.contains(namespace));
        let is_held = |namespace: &String| {
            self.deferring.as_ref().is_some_and(|held| held.contains(namespace))
        };
        let (held, due): (BTreeSet<String>, BTreeSet<String>) = changed.partition(is_held);
        self.postponed.extend(held);
        if due.is_empty() {
            return BTreeSet::new();
        }
        self.large.clear();
        self.postponed.clear();
        let cleared = std::mem::take(&mut self.left_out).into_keys();
        cleared.map(|combination| combination.namespace().to_owned()).collect()
    }

    /// Leaves out combinations for a full table; false if there are none.
    pub(crate) fn leave_out(&mut self, table: Table, closing: Closing) -> bool {
        let Closing { combinations, large } = closing;
        if combinations.is_empty() {
            return false;
        }
        self.is_new = true;
        self.large.extend(large);
        self.large.extend(combinations.iter().map(|of| of.namespace().to_owned()));
        self.left_out.extend(combinations.into_iter().map(|combination| (combination, table)));
        true
    }
}

/// The combinations of a namespace beyond its budget.
fn over_budget(cluster: &Cluster, namespace: &str, pods: &[Arc<Pod>]) -> BTreeSet<Combination> {
    let weights = || cluster.policies_in(namespace).filter_map(|p| cluster.policies.weight(&p.key));
    let all =
        weights().map(|weight| Direction::BOTH.map(|of| weight.units(of)).iter().sum::<u64>());
    if all.sum::<u64>() * pods.len() as u64 <= NAMESPACE_UNITS {
        return BTreeSet::new();
    }
    // Pods with equal labels are selected by the same policies.
    let mut by_labels: HashMap<&Labels, Vec<&Pod>> = HashMap::new();
    for pod in pods {
        by_labels.entry(&pod.labels).or_default().push(pod);
    }
    let mut used: BTreeMap<Combination, (u64, BTreeSet<&[NamedPort]>)> = BTreeMap::new();
    for pods in by_labels.into_values() {
        for direction in Direction::BOTH {
            // A pod with unknown labels counts as if it had none.
            let of = |pod: &&Pod| cluster.policies_about((pod, true), direction).isolating();
            let policies = pods.first().map_or_else(Vec::new, of);
            let weights = || policies.iter().filter_map(|p| cluster.policies.weight(&p.key));
            let units = weights().map(|weight| weight.units(direction)).sum();
            let named = direction == Direction::Ingress && weights().any(|w| w.names_ports);
            let policies = policies.iter().map(|policy| policy.key.clone()).collect();
            let entry = used.entry(Combination { direction, policies }).or_default();
            entry.0 = units;
            let ports = pods.iter().map(|pod| if named { pod.ports.as_slice() } else { &[] });
            entry.1.extend(ports);
        }
    }
    let units = used.into_iter().map(|(of, (units, times))| (of, units * times.len() as u64));
    closed(&units.collect())
}
