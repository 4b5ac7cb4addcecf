//! Which combinations of policies are closed because they ask for too much, so that no tenant can block
//! another tenant's update.
//!
//! There are two limits besides the budget of a single policy ([`crate::budget`]). The policies that
//! isolate pods of one namespace on this node share a budget; the largest combinations are closed
//! first. If a table cannot grow any more, the largest combinations of all namespaces are left out
//! until the rest fits. A closed combination isolates the pods that it selects and allows nothing.
//!
//! A third limit is one of time: a namespace that has just cost much gets no further large combination
//! compiled for its pods until [`Limits::hold_back`] releases it. Such a combination is closed meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;

use crate::budget::{Combination, NAMESPACE_UNITS, ORDINARY_UNITS, closed};
use crate::cluster::{Cluster, Dirty};
use crate::model::{Direction, Labels, NamedPort, Pod};
use crate::ops::Table;

/// The combinations that are closed.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// Namespaces that are over their budget here.
    over: BTreeMap<String, BTreeSet<Combination>>,
    /// What a table had no room for, and how large it was.
    left_out: BTreeMap<Combination, (usize, Table)>,
    /// Namespaces whose large combinations are not compiled for now.
    held: BTreeSet<String>,
    /// What was not compiled for that reason.
    deferred: BTreeSet<Combination>,
    /// Units of the large combinations that were compiled, by namespace.
    compiled: BTreeMap<String, u64>,
    /// It was left out for the update that is being made.
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

    /// What is closed, and why.
    pub(crate) fn closed(&self) -> impl Iterator<Item = (&Combination, String)> {
        let over = self.over.values().flatten().map(|combination| {
            let reason = format!(
                "with all that isolates pods of the namespace on this node it weighs more than the \
                 limit of {NAMESPACE_UNITS}, and it is among the largest"
            );
            (combination, reason)
        });
        let left_out = self.left_out.iter().map(|(combination, (size, table))| {
            let reason = format!(
                "the table of {table} has no room for it, and with {size} peers, prefixes and sets \
                 of ports it is among the largest"
            );
            (combination, reason)
        });
        let deferred = self.deferred.iter().map(|combination| {
            let reason = "it is large and pods of the namespace come under such policies faster than \
                          they can be compiled without delaying others: it is compiled later";
            (combination, reason.to_owned())
        });
        over.chain(left_out).chain(deferred)
    }

    /// Holds back the large combinations of these namespaces and of no others. Returns the namespaces
    /// in which something waits no longer.
    pub(crate) fn hold_back(&mut self, held: BTreeSet<String>) -> BTreeSet<String> {
        self.held = held;
        let due = |combination: &Combination| !self.held.contains(&namespace(combination));
        let due: Vec<Combination> = self.deferred.extract_if(.., due).collect();
        due.iter().map(namespace).collect()
    }

    /// The namespaces in which something waits.
    pub(crate) fn deferred(&self) -> BTreeSet<String> {
        self.deferred.iter().map(namespace).collect()
    }

    /// Compiles nothing later that is asked for now. Returns what [`Limits::hold_back`] said.
    pub(crate) fn hold_nothing(&mut self) -> BTreeSet<String> {
        self.deferred.clear();
        std::mem::take(&mut self.held)
    }

    /// Whether a combination that weighs so much may be compiled now.
    pub(crate) fn admits(&mut self, combination: Combination, units: u64) -> bool {
        if units <= ORDINARY_UNITS {
            return true;
        }
        let namespace = namespace(&combination);
        if self.held.contains(&namespace) {
            self.deferred.insert(combination);
            return false;
        }
        *self.compiled.entry(namespace).or_default() += units;
        true
    }

    /// The large combinations that were compiled since this was asked last: units by namespace.
    pub(crate) fn take_compiled(&mut self) -> BTreeMap<String, u64> {
        std::mem::take(&mut self.compiled)
    }

    /// Weighs a namespace's policies anew, by the pods that are here; whether something else is closed.
    pub(crate) fn weigh(&mut self, cluster: &Cluster, namespace: &str, pods: &[Arc<Pod>]) -> bool {
        let closed = over_budget(cluster, namespace, pods);
        let before = if closed.is_empty() {
            self.over.remove(namespace)
        } else {
            self.over.insert(namespace.to_owned(), closed.clone())
        };
        before.unwrap_or_default() != closed
    }

    /// Gives what was left out another chance, if something as large may have changed. Returns the
    /// namespaces that it is about.
    pub(crate) fn reconsider(
        &mut self,
        dirty: &Dirty,
        mut concerned: impl Iterator<Item = String>,
        sizes: impl FnOnce() -> BTreeMap<Combination, usize>,
    ) -> BTreeSet<String> {
        let least = self.left_out.values().map(|(size, _)| *size).min();
        let Some(least) = least.filter(|_| !self.is_new) else { return BTreeSet::new() };
        let mut large: BTreeSet<String> = self.left_out.keys().map(namespace).collect();
        let all = large.clone();
        let sizes = sizes().into_iter();
        large.extend(sizes.filter(|(_, size)| *size >= least).map(|(of, _)| namespace(&of)));
        if dirty.policies.iter().any(|of| large.contains(of))
            || concerned.any(|of| large.contains(&of))
        {
            self.left_out.clear();
            return all;
        }
        BTreeSet::new()
    }

    /// Leaves the largest out until so many elements of a table are free; false if there is none.
    pub(crate) fn leave_out(
        &mut self,
        table: Table,
        excess: u32,
        sizes: BTreeMap<Combination, usize>,
    ) -> bool {
        let mut sizes: Vec<(Combination, usize)> = sizes.into_iter().collect();
        sizes.retain(|(combination, size)| *size > 1 && !self.is_closed(combination));
        sizes.sort_by(|one, other| (other.1, &one.0).cmp(&(one.1, &other.0)));
        let mut freed = 0;
        for (combination, size) in sizes {
            if freed >= excess as usize {
                break;
            }
            freed += size;
            self.is_new = true;
            self.left_out.insert(combination, (size, table));
        }
        freed > 0
    }
}

fn namespace(combination: &Combination) -> String {
    combination.policies.first().map(|key| key.namespace.clone()).unwrap_or_default()
}

/// The combinations that a namespace cannot have.
fn over_budget(cluster: &Cluster, namespace: &str, pods: &[Arc<Pod>]) -> BTreeSet<Combination> {
    let weights = || cluster.policies_in(namespace).filter_map(|p| cluster.weight(&p.key));
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
            // A pod whose labels are not known is counted as if it had none.
            let of = |pod: &&Pod| cluster.isolating((pod, true), direction);
            let policies = pods.first().map_or_else(Vec::new, of);
            let weights = || policies.iter().filter_map(|p| cluster.weight(&p.key));
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
