//! One update: from dirty state to ordered operations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use netpold_ebpf::layout::{ClassId, ROW_NOT_ISOLATED, RowNames, untranslated};

use crate::cluster::{Cluster, Dirty};
use crate::compile::ordering::MovePlan;
use crate::compile::rules::Rules;
use crate::compile::rules::direction_policy::DirectionPolicy;
use crate::compile::sets::set::Membership;
use crate::compile::sets::{Sets, UserChanges};
use crate::compile::tables::TableSet;
use crate::compile::tables::endpoints::Live;
use crate::compile::tables::resolvers::resolvers;
use crate::compile::tables::rows::RowPair;
use crate::ops::Op;
use crate::options::Options;
use crate::ports::AllowedPorts;

/// Endpoints of an update.
#[derive(Debug, Default)]
struct EndpointChanges {
    /// Endpoints that may have changed; all endpoints if a temporary class is needed.
    concerned: BTreeSet<u32>,
    /// Slots of removed endpoints.
    gone: Vec<u32>,
    /// Endpoints without a record.
    new: Vec<u32>,
}

/// State read and written by one update.
pub(super) struct Update<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) options: &'a Options,
    pub(super) sets: &'a mut Sets,
    pub(super) rules: &'a mut Rules,
    pub(super) tables: &'a mut TableSet,
}

impl Update<'_> {
    /// Updates all state except the kernel's, regardless of capacity; returns the operations for the kernel.
    pub(super) fn run(mut self, dirty: &Dirty) -> Vec<Op> {
        let mut ops = Vec::new();
        self.rules.limits.begin();
        self.tables.rows.begin(&mut ops);
        self.tables.names.begin(&mut ops);
        self.tables.endpoints.begin(self.cluster);
        self.tables.endpoints.free_given_up(&mut ops);
        if dirty.namespaces {
            self.sets.peers.namespaces_changed();
        }
        let (mut changes, usage) = self.refresh_endpoints(dirty);
        self.tables.endpoints.version += u64::from(!changes.concerned.is_empty());
        let touched = self
            .sets
            .assign_classes(self.cluster, dirty, &usage, || self.tables.endpoints.backed());
        self.fill_rows(&changes, &mut ops);

        let moves = self.tables.addresses.moves(&self.sets.partition, &touched);
        let words = self.changing_words(&changes);
        let (plan, via_temporary) =
            MovePlan::new(moves, &words, &self.tables.rows, &mut self.sets.classes);
        if !via_temporary.is_empty() {
            changes.concerned.extend(self.tables.endpoints.live.keys());
            self.separate_rows(&changes, &mut ops);
            self.fill_temporary(&via_temporary, &mut ops);
        }
        self.tables.rows.write(&self.tables.port_sets, &mut ops);
        self.tables.names.trust(resolvers(self.cluster, self.options), &mut ops);

        for slot in &changes.gone {
            self.tables.endpoints.free_slot(*slot, &mut ops);
        }
        if !changes.gone.is_empty() && !plan.is_empty() {
            ops.push(Op::Grace);
        }
        if !words.is_empty() {
            plan.before_rows(&mut self.tables.addresses, &mut ops);
        }
        self.flip_endpoints(&changes, &mut ops);
        if !words.is_empty() && plan.flips_after_rows() {
            ops.push(Op::Grace);
        }
        plan.after_rows(words.is_empty(), &mut self.tables.addresses, &mut ops);
        self.tables.endpoints.unplaced.clear();
        for ifindex in self.tables.endpoints.in_order_of_slots(std::mem::take(&mut changes.new)) {
            let rows = self.desired_rows(ifindex);
            self.tables.endpoints.fill_slot(ifindex, rows, &mut ops);
        }
        self.sweep(&changes);
        ops
    }

    /// Rebuilds the endpoints that may have changed, and counts the uses of direction policies.
    fn refresh_endpoints(&mut self, dirty: &Dirty) -> (EndpointChanges, UserChanges) {
        let mut indexes = dirty.interfaces.clone();
        indexes.extend(dirty.addresses.iter().flat_map(|a| self.cluster.interfaces.with(*a)));
        // A pod that claims a backend's address may be behind an interface by any other of its addresses.
        let claimants = dirty.backends.iter().flat_map(|(namespace, addresses)| {
            let all = addresses.iter().flat_map(|a| self.cluster.pods.claimants(*a));
            all.filter(move |pod| pod.key.namespace == *namespace)
        });
        let addresses = claimants.flat_map(|pod| &pod.addresses);
        indexes.extend(addresses.flat_map(|a| self.cluster.interfaces.with(*a)));
        let concerned = self.namespaces(&indexes);
        let reconsidered = self.rules.reconsider(self.cluster, dirty, concerned);
        indexes.extend(self.tables.endpoints.in_namespaces(&dirty.policies));
        indexes.extend(self.tables.endpoints.in_namespaces(&reconsidered));
        // Which pods a ClusterNetworkPolicy selects is known only after a comparison with each pod and its namespace's
        // labels.
        if dirty.cluster_policies || dirty.namespaces && !self.cluster.cluster_policies.is_empty() {
            indexes.extend(self.cluster.interfaces().keys());
        }
        if dirty.namespaces {
            // A namespace's label may open secondary interfaces.
            indexes.extend(self.cluster.interfaces.secondary());
        }
        // An interface without a slot may get one now.
        indexes.extend(&self.tables.endpoints.unplaced);
        let mut changes = EndpointChanges::default();
        let mut released: Vec<Arc<DirectionPolicy>> = Vec::new();
        let mut usage = UserChanges::default();
        for ifindex in &indexes {
            let new = self.cluster.interfaces().get(ifindex).and_then(|interface| {
                let (rules, registry) = (&mut *self.rules, &mut self.sets.peers.registry);
                let endpoints = &mut self.tables.endpoints;
                endpoints.build(interface, self.cluster, self.options, rules, registry)
            });
            for direction_policy in new.iter().flat_map(|live| live.rules.policies.iter().flatten())
            {
                self.acquire_policy(direction_policy, &mut usage);
            }
            let old = match new {
                Some(new) => self.tables.endpoints.live.insert(*ifindex, new),
                None => self.tables.endpoints.live.remove(ifindex),
            };
            changes.record(*ifindex, old.as_ref(), self.tables.endpoints.live.get(ifindex));
            released
                .extend(old.into_iter().flat_map(|live| live.rules.policies.into_iter().flatten()));
        }
        // Released last, so that a policy that moves between endpoints stays in use.
        for direction_policy in released {
            self.release_policy(&direction_policy, &mut usage);
        }
        changes.concerned = indexes;
        (changes, usage)
    }

    /// Namespaces of the pods behind these interfaces, now and before.
    fn namespaces(&self, indexes: &BTreeSet<u32>) -> BTreeSet<String> {
        let now = indexes.iter().filter_map(|index| {
            let pod = self.cluster.pod_behind(self.cluster.interfaces().get(index)?)?;
            Some(pod.key.namespace.clone())
        });
        let before = indexes.iter().filter_map(|index| {
            self.tables.endpoints.live.get(index).map(|live| live.identity.pod.namespace.clone())
        });
        now.chain(before).collect()
    }

    fn acquire_policy(&mut self, direction_policy: &Arc<DirectionPolicy>, usage: &mut UserChanges) {
        if let Some(id) = self.rules.direction_policies.acquire(direction_policy) {
            self.sets.groups.acquire(id, &direction_policy.blocks.changes);
            self.count_users(direction_policy, 1, usage);
        }
    }

    fn release_policy(&mut self, direction_policy: &Arc<DirectionPolicy>, usage: &mut UserChanges) {
        if let Some(id) = self.rules.release(direction_policy) {
            self.sets.groups.release(id, &direction_policy.blocks.changes);
            self.count_users(direction_policy, -1, usage);
        }
    }

    /// Adds or drops (`change` is 1 or -1) one user of a direction policy's peer sets and names.
    fn count_users(&mut self, of: &DirectionPolicy, change: i32, usage: &mut UserChanges) {
        let peers = &mut self.sets.peers;
        for id in of.peers.keys() {
            let is_turn = if change > 0 { peers.acquire(*id) } else { peers.release(*id) };
            if is_turn {
                *usage.peer_sets.entry(*id).or_default() += change;
            }
        }
        let names = &mut peers.registry;
        for id in &of.names {
            let is_turn =
                if change > 0 { names.acquire_name(*id) } else { names.release_name(*id) };
            if is_turn {
                *usage.names.entry(*id).or_default() += change;
            }
        }
    }

    /// Fills the columns of new classes in present rows, then the rows of new direction policies.
    fn fill_rows(&mut self, changes: &EndpointChanges, ops: &mut Vec<Op>) {
        let new = self.sets.classes.take_new();
        let rows = self.tables.rows.iter().filter(|_| !new.is_empty());
        let rows: Vec<_> =
            rows.map(|(id, direction_policy, mark)| (id, direction_policy.clone(), mark)).collect();
        for (row, direction_policy, mark) in &rows {
            self.fill_row(*row, (direction_policy, *mark), &new, ops);
        }
        let mut missing: Vec<Arc<DirectionPolicy>> = Vec::new();
        for live in changes.concerned.iter().filter_map(|i| self.tables.endpoints.live.get(i)) {
            for direction_policy in live.rules.policies.iter().flatten() {
                if self.tables.rows.of_policy(direction_policy).is_none()
                    && !missing.contains(direction_policy)
                {
                    missing.push(direction_policy.clone());
                }
            }
        }
        for direction_policy in &missing {
            self.create_row(direction_policy, ops);
        }
    }

    /// Creates a row with the columns of all classes, and a row for each group of rules with domain names.
    fn create_row(&mut self, direction_policy: &Arc<DirectionPolicy>, ops: &mut Vec<Op>) {
        let row = self.tables.rows.create(direction_policy);
        let all = self.sets.classes.iter().map(|(class, membership)| (class, membership.clone()));
        let all: Vec<_> = all.collect();
        self.fill_row(row, (direction_policy, AllowedPorts::default()), &all, ops);
        let Some(groups) = &direction_policy.domains else { return };
        let list = self.tables.names.acquire(groups, ops);
        let mut names = RowNames { list, ..RowNames::default() };
        for (place, group) in names.rows.iter_mut().zip(&**groups) {
            *place = self.tables.rows.create_for(direction_policy, group.mark);
            self.fill_row(*place, (direction_policy, group.mark), &all, ops);
        }
        self.tables.rows.set_names(row, names);
    }

    /// Fills columns of a direction policy's row.
    fn fill_row(
        &mut self,
        row: u32,
        (direction_policy, mark): (&Arc<DirectionPolicy>, AllowedPorts),
        classes: &[(ClassId, Membership)],
        ops: &mut Vec<Op>,
    ) {
        let id = self.rules.direction_policies.id(direction_policy);
        let (rows, sets) = (&mut self.tables.rows, &mut self.tables.port_sets);
        let mut evaluator = self.rules.evaluator(self.sets, mark);
        let mut columns = Vec::with_capacity(classes.len());
        for (class, membership) in classes {
            let allowed = evaluator.allowed(direction_policy, id, membership);
            columns.push((*class, sets.intern(&allowed, evaluator.tries, ops)));
            // A translated class has a second column for untranslated packets.
            if untranslated(*class) != *class {
                let allowed = evaluator.allowed_untranslated(direction_policy, id, membership);
                let set = sets.intern(&allowed, evaluator.tries, ops);
                columns.push((untranslated(*class), set));
            }
        }
        rows.set_columns(row, &columns, sets, ops);
    }

    /// Desired rows of an endpoint.
    fn desired_rows(&self, ifindex: u32) -> RowPair {
        let row = |direction_policy: &Option<Arc<DirectionPolicy>>| {
            direction_policy
                .as_ref()
                .and_then(|direction_policy| self.tables.rows.of_policy(direction_policy))
                .unwrap_or(ROW_NOT_ISOLATED)
        };
        self.tables
            .endpoints
            .live
            .get(&ifindex)
            .map_or((0, 0), |live| (row(&live.rules.policies[0]), row(&live.rules.policies[1])))
    }

    /// Old and new rows of the concerned endpoints that exist before and after the update.
    fn words(&self, changes: &EndpointChanges) -> BTreeMap<u32, (RowPair, RowPair)> {
        let stay = changes.concerned.iter().filter_map(|ifindex| {
            let live = self.tables.endpoints.live.get(ifindex)?;
            let before = live.installed_rows()?;
            Some((*ifindex, (before, self.desired_rows(*ifindex))))
        });
        stay.collect()
    }

    fn changing_words(&self, changes: &EndpointChanges) -> BTreeSet<(RowPair, RowPair)> {
        self.words(changes).into_values().filter(|(old, new)| old != new).collect()
    }

    /// With temporary classes, no row may be the old row of one endpoint and the new row of another. Creates a new row
    /// for every direction policy of an endpoint that changes rows, and moves the other endpoints with these direction
    /// policies along.
    fn separate_rows(&mut self, changes: &EndpointChanges, ops: &mut Vec<Op>) {
        loop {
            let changing = self.words(changes).into_iter().filter(|(_, (old, new))| old != new);
            let direction_policies = changing.flat_map(|(ifindex, _)| {
                let live = self.tables.endpoints.live.get(&ifindex);
                live.map(|live| live.rules.policies.clone()).into_iter().flatten().flatten()
            });
            let shared: Vec<_> = direction_policies
                .filter(|direction_policy| self.tables.rows.is_written(direction_policy))
                .collect();
            if shared.is_empty() {
                return;
            }
            for direction_policy in shared {
                if self.tables.rows.is_written(&direction_policy) {
                    self.create_row(&direction_policy, ops);
                }
            }
        }
    }

    /// Fills the columns of temporary classes: with the old class's ports in present rows, with the new class's ports
    /// in new rows.
    fn fill_temporary(&mut self, via_temporary: &[(ClassId, ClassId, ClassId)], ops: &mut Vec<Op>) {
        let rows: Vec<_> = self.tables.rows.iter().map(|(id, ..)| id).collect();
        for row in rows {
            let is_new = self.tables.rows.is_new(row);
            let columns = via_temporary.iter().flat_map(|(from, to, temporary)| {
                let like = if is_new { *to } else { *from };
                [(like, *temporary), (untranslated(like), untranslated(*temporary))]
            });
            let columns =
                columns.map(|(like, column)| (column, self.tables.rows.column(row, like)));
            let columns: Vec<_> = columns.collect();
            self.tables.rows.set_columns(row, &columns, &mut self.tables.port_sets, ops);
        }
    }

    /// Flips the records of endpoints that exist before and after the update.
    fn flip_endpoints(&mut self, changes: &EndpointChanges, ops: &mut Vec<Op>) {
        for (ifindex, (_, rows)) in self.words(changes) {
            self.tables.endpoints.flip(ifindex, rows, ops);
        }
    }

    /// Ends the update: retires rows, classes, port sets and direction policies without users.
    fn sweep(&mut self, changes: &EndpointChanges) {
        if !changes.concerned.is_empty() {
            let pairs = self.tables.endpoints.live.values().filter_map(Live::installed_rows);
            let lingering = self.rules.direction_policies.lingering();
            let lingering = lingering.filter_map(|it| self.tables.rows.of_policy(it));
            let used = pairs.flat_map(|(ingress, egress)| [ingress, egress]).chain(lingering);
            let used = used.collect();
            for list in self.tables.rows.retire_unused(&used, &mut self.tables.port_sets) {
                self.tables.names.release(list);
            }
        }
        let ended = self.sets.classes.sweep();
        self.tables.rows.classes_ended(&ended, &mut self.tables.port_sets);
        self.tables.port_sets.sweep();
        self.sets.sweep();
        let rows = self.tables.rows.iter().map(|(_, direction_policy, _)| direction_policy);
        self.rules.sweep(rows, self.tables.port_sets.tries());
    }
}

impl EndpointChanges {
    fn record(&mut self, ifindex: u32, old: Option<&Live>, new: Option<&Live>) {
        let slot = old.and_then(|old| Some(old.record?.0));
        match (slot, new) {
            (None, Some(_)) => self.new.push(ifindex),
            (Some(slot), None) => self.gone.push(slot),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }
}
