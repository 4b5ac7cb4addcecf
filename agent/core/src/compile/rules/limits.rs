//! Decides which combinations of policies are closed because they exceed a limit, so that no tenant can block the
//! update of another.
//!
//! Two limits apply besides the budget of a single policy ([`crate::budget`]). All policies that isolate pods of one
//! namespace on this node share a budget; the largest combinations are closed first. If a table cannot grow any
//! further, the largest combinations of the namespaces that use most of it are left out until the rest fits
//! ([`crate::compile::consumption`]). A closed combination isolates the pods that it selects and allows nothing.
//!
//! Combinations left out are opened by a compiler that starts over, so that no update has to find out whether they fit.
//! Once [`Limits::defer`] was called, this is another compiler's work. A namespace in debt that causes another full
//! compilation is barred: all its combinations are closed until another compiler starts over after its debt.
//!
//! A third limit bounds the time of an update. Once [`Limits::defer`] was called, a large combination is not compiled
//! here, nor are further ones once a namespace used up its share of the update. They wait for another compiler
//! ([`LateCombination`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;

use crate::budget::{
    Combination, MODEST_UNITS, NAMESPACE_UNITS, ORDINARY_UNITS, combinations_to_close,
};
use crate::cluster::{Cluster, Dirty};
use crate::compile::rules::causes::{Closing, FullCompilationCauses};
use crate::model::{Direction, Labels, NamedPort, Pod};
use crate::ops::Table;

/// Number of closed combinations up to which those of barred namespaces are recorded, for reports. Each change of a
/// pod's labels may create another one.
const BARRED_COMBINATIONS: usize = 1024;

/// A combination of policies that is not in force as last edited, because it is large and left to another compiler.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LateCombination {
    pub(crate) of: Combination,
    /// The pods are closed meanwhile; otherwise they keep the state before the last edit.
    pub(crate) is_closed: bool,
    /// Rules of ClusterNetworkPolicies for the pods have changed, too, so the delay must not depend on the namespace.
    pub(crate) has_outdated_tiers: bool,
}

impl LateCombination {
    /// Reason for the delay.
    pub(crate) const REASON: &'static str = "large policies are compiled in the background; in force soon, or later \
                                             if the namespace's large policies change often";
}

/// Closed combinations.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// Combinations over the budget of their namespace on this node.
    over: BTreeMap<String, BTreeSet<Combination>>,
    /// Combinations left out for a full table.
    left_out: BTreeMap<Combination, Table>,
    /// Elements in use of the tables of `left_out`, once the rest was compiled.
    filled: BTreeMap<Table, u32>,
    /// Namespaces of `left_out` with edited policies, which another compiler may find room for.
    postponed: BTreeSet<String>,
    /// Namespaces of which all combinations are closed, with the table that they filled again while in debt.
    barred: BTreeMap<String, Table>,
    /// Namespaces to charge for full compilations.
    causes: FullCompilationCauses,
    /// Set while large combinations are deferred; in these namespaces everything beyond modest size is.
    deferring: Option<BTreeSet<String>>,
    /// Whether deferral is suspended.
    is_suspended: bool,
    /// Units compiled in this update, by namespace.
    admitted: BTreeMap<String, u64>,
    /// Units of compiled combinations beyond modest size, by namespace.
    compiled: BTreeMap<String, u64>,
    /// `left_out` grew for the update in progress.
    is_new: bool,
}

impl Limits {
    /// Whether a combination is closed. Records the combinations of barred namespaces.
    pub(crate) fn is_closed(&mut self, combination: &Combination) -> bool {
        if let Some(table) = self.barred.get(combination.namespace()) {
            if self.left_out.len() < BARRED_COMBINATIONS {
                self.left_out.insert(combination.clone(), *table);
            }
            return true;
        }
        self.left_out.contains_key(combination)
            || self.over.values().any(|closed| closed.contains(combination))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.over.is_empty() && self.left_out.is_empty() && self.barred.is_empty()
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
            let reason = match self.barred.contains_key(combination.namespace()) {
                true => format!(
                    "its namespace filled the table of {table} again and again; all its policies are closed for some \
                     minutes"
                ),
                false => format!(
                    "the table of {table} has no room for it, and its namespace is among those that use most of it"
                ),
            };
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

    /// Suspends (true) or resumes (false) deferral.
    pub(crate) fn suspend(&mut self, is_suspended: bool) {
        self.is_suspended = is_suspended;
    }

    /// Namespaces with combinations left out for a full table.
    pub(crate) fn left_out(&self) -> impl Iterator<Item = &str> {
        self.left_out.keys().map(Combination::namespace)
    }

    /// Tables for which combinations are closed.
    pub(crate) fn full_tables(&self) -> impl Iterator<Item = Table> {
        self.left_out.values().chain(self.barred.values()).copied()
    }

    /// Namespaces for whose left out combinations another compiler may find room: those with edits, and barred ones.
    pub(crate) fn postponed(&self) -> impl Iterator<Item = &String> {
        self.postponed.iter().chain(self.barred.keys())
    }

    /// Whether large combinations are deferred.
    pub(crate) fn is_deferring(&self) -> bool {
        self.deferring.is_some()
    }

    fn is_held(&self, namespace: &str) -> bool {
        self.deferring.as_ref().is_some_and(|held| held.contains(namespace))
    }

    /// Begins an update.
    pub(crate) fn begin(&mut self) {
        self.admitted.clear();
        self.causes.begin();
    }

    /// Records that a table refused the update.
    pub(crate) fn refuse(&mut self) {
        self.causes.refuse();
    }

    /// Records that larger tables take the refused update.
    pub(crate) fn forgive(&mut self) {
        self.causes.forgive();
    }

    /// Takes the namespaces to charge for full compilations since the last call, with their shares. Bars a namespace
    /// that caused one while in debt by edits of an eighth of the table, and returns it too. `full`: the table that
    /// refused the update, and its size.
    pub(crate) fn take_causes(
        &mut self,
        full: Option<(Table, u32)>,
    ) -> (BTreeMap<String, u64>, Option<String>) {
        let (shares, editor) = self.causes.take_charges();
        let Some((table, capacity)) = full else { return (shares, None) };
        // Small edits only fill what others left free.
        let editor = editor.filter(|(_, units)| *units >= u64::from(capacity / 8));
        let barred = editor.map(|(namespace, _)| namespace).filter(|it| self.is_held(it));
        self.barred.extend(barred.iter().map(|namespace| (namespace.clone(), table)));
        (shares, barred)
    }

    /// The limits that another compiler starts with: barred namespaces that are still in debt stay barred.
    pub(crate) fn passed_on(&self) -> Self {
        Self { barred: self.barred(), causes: self.causes.passed_on(), ..Self::default() }
    }

    /// Whether a combination of this weight may be compiled in this update.
    pub(crate) fn admits(&mut self, combination: &Combination, units: u64) -> bool {
        let namespace = combination.namespace();
        if units <= MODEST_UNITS {
            self.causes.edit(namespace, units);
            return true;
        }
        if let Some(held) = self.deferring.as_ref().filter(|_| !self.is_suspended) {
            let admitted = self.admitted.entry(namespace.to_owned()).or_default();
            if held.contains(namespace) || *admitted + units > ORDINARY_UNITS {
                return false;
            }
            *admitted += units;
        }
        self.causes.edit(namespace, units);
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

    /// Forgets left-out combinations with a policy that no longer exists. If a namespace with combinations left out
    /// changed, clears `left_out`, or leaves it to another compiler to find room. Returns the namespaces of the cleared
    /// combinations.
    pub(crate) fn reconsider(
        &mut self,
        cluster: &Cluster,
        dirty: &Dirty,
        concerned: &BTreeSet<String>,
    ) -> BTreeSet<String> {
        if self.is_new || self.left_out.is_empty() {
            return BTreeSet::new();
        }
        let is_edited = |of: &Combination| dirty.policies.contains(of.namespace());
        let exists =
            |of: &Combination| of.policies.iter().all(|key| cluster.policies().contains_key(key));
        self.left_out.retain(|of, _| !is_edited(of) || exists(of));
        if self.deferring.is_some() {
            let edited = self.left_out.keys().filter(|of| is_edited(of));
            self.postponed.extend(edited.map(|of| of.namespace().to_owned()));
            return BTreeSet::new();
        }
        if !self.left_out().any(|it| dirty.policies.contains(it) || concerned.contains(it)) {
            return BTreeSet::new();
        }
        let cleared = std::mem::take(&mut self.left_out).into_keys();
        cleared.map(|combination| combination.namespace().to_owned()).collect()
    }

    /// Leaves out combinations for a full table; false if there are none.
    pub(crate) fn leave_out(&mut self, table: Table, closing: Closing) -> bool {
        if closing.combinations.iter().all(|of| self.left_out.contains_key(of)) {
            return false;
        }
        self.is_new = true;
        let most = self.causes.close(table, &closing, self.left_out.is_empty());
        let barred = most.filter(|most| self.is_held(most) && !self.barred.contains_key(most));
        let mut closed = closing.combinations;
        if let Some(barred) = barred {
            // Without it, the others may have room.
            closed.retain(|of| of.namespace() == barred);
            self.barred.insert(barred, table);
        }
        self.left_out.extend(closed.into_iter().map(|combination| (combination, table)));
        true
    }

    /// Namespaces that are barred and still in debt.
    pub(crate) fn barred(&self) -> BTreeMap<String, Table> {
        let barred = self.barred.iter().filter(|(namespace, _)| self.is_held(namespace));
        barred.map(|(namespace, table)| (namespace.clone(), *table)).collect()
    }

    /// Takes over barred namespaces of another compiler; returns the new ones.
    pub(crate) fn bar(&mut self, barred: BTreeMap<String, Table>) -> BTreeSet<String> {
        let new = barred
            .into_iter()
            .filter(|(name, table)| self.barred.insert(name.clone(), *table).is_none());
        new.map(|(name, _)| name).collect()
    }

    /// Tables whose use is compared, see [`Limits::compiled`].
    pub(crate) fn compared(&self) -> Vec<Table> {
        self.causes.tables()
    }

    /// Records the elements of a table in use by namespace, after a full compilation.
    pub(crate) fn compiled(&mut self, table: Table, uses: &BTreeMap<String, usize>) {
        let closed: BTreeSet<&str> = self.left_out.keys().map(Combination::namespace).collect();
        self.causes.compiled(table, uses, |name| closed.contains(name));
    }

    /// Ends an update that fits. `used`: elements in use, by table.
    pub(crate) fn settled(&mut self, used: impl Fn(Table) -> u32) {
        if std::mem::take(&mut self.is_new) {
            let former = std::mem::take(&mut self.filled);
            // A barred namespace made room for what was closed before it.
            let is_barred = |table: &Table| self.barred.values().any(|of| of == table);
            let filled = |table| {
                let former = former.get(&table).filter(|_| is_barred(&table)).copied();
                (table, former.unwrap_or_else(|| used(table)))
            };
            self.filled = self.full_tables().map(filled).collect();
        }
    }

    /// Whether a table for which combinations are closed is less full than after closing them.
    pub(crate) fn has_room_again(&self, used: impl Fn(Table) -> u32) -> bool {
        !self.left_out.is_empty()
            && self.filled.iter().any(|(table, filled)| used(*table) < *filled)
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
    combinations_to_close(&units.collect())
}
