//! One update: from what is dirty to ordered operations.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use netpold_ebpf::layout::{ClassId, Endpoint, ROW_NOT_ISOLATED, untranslated};

use crate::cluster::Dirty;
use crate::compile::Compiler;
use crate::compile::classes::Signature;
use crate::compile::endpoints::Live;
use crate::compile::peers::{Atom, AtomId, NameId, Serves};
use crate::compile::ports::Grant;
use crate::compile::prefix::Prefix;
use crate::compile::spec::Spec;
use crate::delta::{Plan, RowPair};
use crate::model::Pod;
use crate::ops::Op;

/// The endpoints that an update concerns.
#[derive(Debug, Default)]
struct EndpointChanges {
    /// All that may have changed. In the end also those that changed rows for others' sake.
    concerned: BTreeSet<u32>,
    /// There is no endpoint any more: slots to free.
    gone: Vec<u32>,
    /// No record so far.
    new: Vec<u32>,
}

/// Atoms and names whose use began or ended.
#[derive(Debug, Default)]
struct Usage {
    atoms: BTreeMap<AtomId, i32>,
    names: BTreeMap<NameId, i32>,
}

impl Compiler {
    /// Carries out an update on everything but the kernel, regardless of capacity.
    pub(super) fn run(&mut self) -> Vec<Op> {
        let mut ops = Vec::new();
        let dirty = std::mem::take(&mut self.dirty);
        self.rows.begin(&mut ops);
        self.endpoints.begin(&self.cluster);
        if dirty.namespaces {
            self.atoms.namespaces_changed();
        }
        let (mut changes, usage) = self.refresh_endpoints(&dirty);
        self.endpoints_version += u64::from(!changes.concerned.is_empty());
        let served = self.refresh_addresses(dirty.addresses.clone(), &usage);
        let touched = self.settle_space(&dirty, &served);
        self.fill_rows(&changes, &mut ops);

        let moves = self.tables.moves(&self.space, &touched);
        let words = self.changing_words(&changes);
        let (plan, through) = Plan::new(moves, &words, &self.rows, &mut self.classes);
        if !through.is_empty() {
            changes.concerned.extend(self.endpoints.live.keys());
            self.separate_rows(&changes, &mut ops);
            self.fill_temporary(&through, &mut ops);
        }
        self.rows.write(&self.sets, &mut ops);

        for slot in &changes.gone {
            self.endpoints.vanish(*slot, &mut ops);
        }
        if !changes.gone.is_empty() && !plan.is_empty() {
            ops.push(Op::Grace);
        }
        if !words.is_empty() {
            plan.before_rows(&mut self.tables, &mut ops);
        }
        self.flip_endpoints(&changes, &mut ops);
        if !words.is_empty() && plan.goes_on_after_rows() {
            ops.push(Op::Grace);
        }
        plan.after_rows(words.is_empty(), &mut self.tables, &mut ops);
        self.endpoints.unplaced.clear();
        for ifindex in &changes.new {
            let rows = self.desired_rows(*ifindex);
            self.endpoints.appear(*ifindex, pack(rows), &mut ops);
        }
        self.sweep(&changes);
        ops
    }

    /// Builds the endpoints that may have changed anew and counts the use of specs.
    fn refresh_endpoints(&mut self, dirty: &Dirty) -> (EndpointChanges, Usage) {
        let mut indexes = dirty.interfaces.clone();
        indexes.extend(dirty.addresses.iter().flat_map(|a| self.cluster.interfaces_with(*a)));
        let backends = dirty.backends.iter();
        indexes.extend(backends.flat_map(|a| self.cluster.interfaces_of_claimants(*a)));
        let reconsidered = self.refresh_limits(dirty, &indexes);
        indexes.extend(self.endpoints.in_namespaces(&dirty.policies));
        indexes.extend(self.endpoints.in_namespaces(&reconsidered));
        // Those that found no slot may find one now.
        indexes.extend(&self.endpoints.unplaced);
        let mut changes = EndpointChanges::default();
        let mut released: Vec<Arc<Spec>> = Vec::new();
        let mut usage = Usage::default();
        for ifindex in &indexes {
            let new = self.cluster.interfaces().get(ifindex).and_then(|interface| {
                let (specs, atoms) = (&mut self.specs, &mut self.atoms);
                self.endpoints.build(interface, &self.cluster, &self.options, specs, atoms)
            });
            for spec in new.iter().flat_map(|live| live.specs.iter().flatten()) {
                self.acquire_spec(spec, &mut usage);
            }
            let old = match new {
                Some(new) => self.endpoints.live.insert(*ifindex, new),
                None => self.endpoints.live.remove(ifindex),
            };
            changes.note(*ifindex, old.as_ref(), self.endpoints.live.get(ifindex));
            released.extend(old.into_iter().flat_map(|live| live.specs.into_iter().flatten()));
        }
        // Only now, so that what moves from one endpoint to another stays in use.
        for spec in released {
            self.release_spec(&spec, &mut usage);
        }
        changes.concerned = indexes;
        (changes, usage)
    }

    /// Weighs what the update is about. Returns the namespaces in which something else is closed.
    fn refresh_limits(&mut self, dirty: &Dirty, indexes: &BTreeSet<u32>) -> BTreeSet<String> {
        let cluster = &self.cluster;
        let pod = |index: &u32| cluster.pod_behind(cluster.interfaces().get(index)?).cloned();
        let before = |index: &u32| {
            self.endpoints.live.get(index).map(|live| live.identity.pod.namespace.clone())
        };
        let now = indexes.iter().filter_map(pod).map(|pod| pod.key.namespace.clone());
        let mut concerned: BTreeSet<String> =
            now.chain(indexes.iter().filter_map(before)).collect();
        let limits = &mut self.specs.limits;
        let mut limits = std::mem::take(limits);
        let mut changed = limits.reconsider(dirty, concerned.iter().cloned(), &self.specs);
        concerned.extend(dirty.policies.iter().cloned());
        let mut here: BTreeMap<&str, Vec<Arc<Pod>>> = BTreeMap::new();
        let pods: Vec<Arc<Pod>> = if concerned.is_empty() {
            Vec::new()
        } else {
            cluster.interfaces().keys().filter_map(pod).collect()
        };
        for pod in pods.iter().filter(|pod| concerned.contains(&pod.key.namespace)) {
            here.entry(&pod.key.namespace).or_default().push(pod.clone());
        }
        for namespace in &concerned {
            let pods = here.get(namespace.as_str()).map_or(&[][..], Vec::as_slice);
            if limits.weigh(cluster, namespace, pods) {
                changed.insert(namespace.clone());
            }
        }
        self.specs.limits = limits;
        changed
    }

    fn acquire_spec(&mut self, spec: &Arc<Spec>, usage: &mut Usage) {
        let Some(id) = self.specs.acquire(spec) else { return };
        self.atoms.groups.acquire(id, spec);
        for atom in spec.peers.keys().filter(|atom| self.atoms.acquire(**atom)) {
            *usage.atoms.entry(*atom).or_default() += 1;
        }
        for name in spec.names.iter().filter(|name| self.atoms.acquire_name(**name)) {
            *usage.names.entry(*name).or_default() += 1;
        }
    }

    fn release_spec(&mut self, spec: &Arc<Spec>, usage: &mut Usage) {
        let Some(id) = self.specs.release(spec) else { return };
        self.atoms.groups.release(id, spec);
        for atom in spec.peers.keys().filter(|atom| self.atoms.release(**atom)) {
            *usage.atoms.entry(*atom).or_default() -= 1;
        }
        for name in spec.names.iter().filter(|name| self.atoms.release_name(**name)) {
            *usage.names.entry(*name).or_default() -= 1;
        }
    }

    /// Brings the address space up to date: blocks that came or went, and the addresses that are
    /// dirty or may belong to an atom that came or went. Returns the frontends that local pods have
    /// begun or ceased to serve.
    fn refresh_addresses(&mut self, mut addresses: BTreeSet<IpAddr>, usage: &Usage) -> Vec<Serves> {
        let (mut of_pods, mut served) = (Vec::new(), Vec::new());
        for (id, _) in usage.atoms.iter().filter(|(_, change)| **change != 0) {
            match self.atoms.atom(*id) {
                Some(Atom::OwnNode) => addresses.extend(self.cluster.own_addresses()),
                Some(Atom::Serves(serves)) => served.push(serves.clone()),
                _ => of_pods.push(*id),
            }
        }
        self.space.set_groups(&self.atoms.groups.settle());
        let members = self.atoms.members(&self.cluster, &of_pods);
        let names = usage.names.iter().filter(|(_, change)| **change != 0);
        let names: Vec<NameId> = names.map(|(id, _)| *id).collect();
        addresses.extend(self.atoms.members_of_names(&self.cluster, &names));
        // Before addresses are looked at: what is not in use must not be found.
        let dropped = usage.names.values().chain(usage.atoms.values()).any(|change| *change <= 0);
        if dropped {
            self.atoms.sweep();
        }
        for address in addresses {
            let own = self.atoms.of_address(&self.cluster, address);
            self.space.set_host(Prefix::host(address), own);
        }
        for (kin, of_labels) in &members {
            for pod in kin.pods() {
                for address in &pod.addresses {
                    let own = self.atoms.of_member(&self.cluster, *address, of_labels);
                    self.space.set_host(Prefix::host(*address), own);
                }
            }
        }
        served
    }

    /// Fills the columns of new classes in the rows there are, then the rows of new specs.
    fn fill_rows(&mut self, changes: &EndpointChanges, ops: &mut Vec<Op>) {
        let new = self.classes.take_new();
        let rows = self.rows.iter().filter(|_| !new.is_empty());
        let rows: Vec<_> = rows.map(|(id, spec)| (id, spec.clone())).collect();
        for (row, spec) in &rows {
            self.fill_row(*row, spec, &new, ops);
        }
        let mut missing: Vec<Arc<Spec>> = Vec::new();
        for live in changes.concerned.iter().filter_map(|i| self.endpoints.live.get(i)) {
            for spec in live.specs.iter().flatten() {
                if self.rows.of_spec(spec).is_none() && !missing.contains(spec) {
                    missing.push(spec.clone());
                }
            }
        }
        for spec in &missing {
            self.create_row(spec, ops);
        }
    }

    /// A new row with the columns of all classes.
    fn create_row(&mut self, spec: &Arc<Spec>, ops: &mut Vec<Op>) {
        let row = self.rows.create(spec);
        let all = self.classes.iter().map(|(class, signature)| (class, signature.clone()));
        let all: Vec<_> = all.collect();
        self.fill_row(row, spec, &all, ops);
    }

    /// Fills columns of a spec's row.
    fn fill_row(
        &mut self,
        row: u32,
        spec: &Arc<Spec>,
        classes: &[(ClassId, Signature)],
        ops: &mut Vec<Op>,
    ) {
        let id = self.specs.id(spec);
        let mut columns = Vec::with_capacity(classes.len());
        for (class, signature) in classes {
            let allowed = spec.allowed(id, signature, &mut self.atoms);
            columns.push((*class, self.sets.intern(&allowed, &self.atoms.tries, ops)));
            // A class that is translated has a column for what was not, too.
            if untranslated(*class) != *class {
                let allowed = spec.allowed_untranslated(id, signature, &mut self.atoms);
                let set = self.sets.intern(&allowed, &self.atoms.tries, ops);
                columns.push((untranslated(*class), set));
            }
        }
        self.rows.set_columns(row, &columns, &mut self.sets, ops);
    }

    /// The rows that an endpoint is to have.
    fn desired_rows(&self, ifindex: u32) -> RowPair {
        let row = |spec: &Option<Arc<Spec>>| {
            spec.as_ref().and_then(|spec| self.rows.of_spec(spec)).unwrap_or(ROW_NOT_ISOLATED)
        };
        self.endpoints
            .live
            .get(&ifindex)
            .map_or((0, 0), |live| (row(&live.specs[0]), row(&live.specs[1])))
    }

    /// Rows before and after of the concerned endpoints that exist before and after.
    fn words(&self, changes: &EndpointChanges) -> BTreeMap<u32, (RowPair, RowPair)> {
        let stay = changes.concerned.iter().filter_map(|ifindex| {
            let live = self.endpoints.live.get(ifindex)?;
            let before = live.installed_rows()?;
            Some((*ifindex, (before, self.desired_rows(*ifindex))))
        });
        stay.collect()
    }

    fn changing_words(&self, changes: &EndpointChanges) -> BTreeSet<(RowPair, RowPair)> {
        self.words(changes).into_values().filter(|(old, new)| old != new).collect()
    }

    /// Where temporary classes are needed, a row must not be both an endpoint's old and an
    /// endpoint's new one: gives every spec of an endpoint that changes rows a new row, and the
    /// other endpoints with these specs along with it.
    fn separate_rows(&mut self, changes: &EndpointChanges, ops: &mut Vec<Op>) {
        loop {
            let changing = self.words(changes).into_iter().filter(|(_, (old, new))| old != new);
            let specs = changing.flat_map(|(ifindex, _)| {
                let live = self.endpoints.live.get(&ifindex);
                live.map(|live| live.specs.clone()).into_iter().flatten().flatten()
            });
            let shared: Vec<_> = specs.filter(|spec| self.rows.is_written(spec)).collect();
            if shared.is_empty() {
                return;
            }
            for spec in shared {
                if self.rows.is_written(&spec) {
                    self.create_row(&spec, ops);
                }
            }
        }
    }

    /// Fills the columns of temporary classes: as before in the rows that are in use, as after in
    /// the new ones.
    fn fill_temporary(&mut self, through: &[(ClassId, ClassId, ClassId)], ops: &mut Vec<Op>) {
        let rows: Vec<_> = self.rows.iter().map(|(id, _)| id).collect();
        for row in rows {
            let is_new = self.rows.is_new(row);
            let columns = through.iter().flat_map(|(from, to, temporary)| {
                let like = if is_new { *to } else { *from };
                [(like, *temporary), (untranslated(like), untranslated(*temporary))]
            });
            let columns = columns.map(|(like, column)| (column, self.rows.column(row, like)));
            let columns: Vec<_> = columns.collect();
            self.rows.set_columns(row, &columns, &mut self.sets, ops);
        }
    }

    /// Flips the endpoints that exist before and after.
    fn flip_endpoints(&mut self, changes: &EndpointChanges, ops: &mut Vec<Op>) {
        for (ifindex, (_, rows)) in self.words(changes) {
            self.endpoints.flip(ifindex, pack(rows), ops);
        }
    }

    /// Ends the update: retires what nothing uses any more.
    fn sweep(&mut self, changes: &EndpointChanges) {
        if !changes.concerned.is_empty() {
            let pairs = self.endpoints.live.values().filter_map(Live::installed_rows);
            let used = pairs.flat_map(|(ingress, egress)| [ingress, egress]).collect();
            self.rows.retire_unused(&used, &mut self.sets);
        }
        self.rows.classes_ended(&self.classes.sweep(), &mut self.sets);
        self.sets.sweep();
        self.atoms.frontends.sweep();
        self.atoms.groups.sweep();
        self.specs.sweep();
        if self.atoms.tries.is_large() {
            let grants = self.specs.iter().flat_map(|spec| spec.grants());
            let rows = self.rows.iter().flat_map(|(_, spec)| spec.grants());
            let specs = grants.chain(rows).flat_map(Grant::sets);
            self.atoms.tries.collect(specs.chain(self.sets.tries()));
        }
    }
}

impl EndpointChanges {
    fn note(&mut self, ifindex: u32, old: Option<&Live>, new: Option<&Live>) {
        let slot = old.and_then(|old| Some(old.record?.0));
        match (slot, new) {
            (None, Some(_)) => self.new.push(ifindex),
            (Some(slot), None) => self.gone.push(slot),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }
}

fn pack((ingress, egress): RowPair) -> u64 {
    Endpoint::pack_rows(ingress, egress)
}
