//! The compiler: takes changes and returns the operations that bring the tables up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::budget::kept_change;
use crate::cluster::{Cluster, Dirty, Intake, Object, ObjectKey};
use crate::compile::compiled::{CompileError, Compiled};
use crate::compile::image::TableImage;
use crate::compile::report::{self, EndpointInfo, Problem};
use crate::compile::snapshot::StateSnapshot;
use crate::compile::tables::DesiredTables;
use crate::compile::tables::endpoints::ReservedNumbers;
use crate::model::{Change, Direction, DomainName, Key, Pod};
use crate::ops::{Capacity, Op, Table, TableUse};
use crate::options::Options;

/// State that one compiler passes to another, see [`Compiler::take_over`].
#[derive(Debug)]
pub struct CompilerInput {
    objects: Vec<Object>,
    given: ReservedNumbers,
    barred: BTreeMap<String, Table>,
}

/// The cluster's state, its compiled form, and the state of the installation.
#[derive(Debug)]
pub struct Compiler {
    options: Options,
    cluster: Cluster,
    dirty: Dirty,
    compiled: Compiled,
    /// The grace period of the last update's operations has passed.
    settled: bool,
    /// An update failed half-way, so the recorded tables differ from the installed ones.
    failed: Option<CompileError>,
}

impl Compiler {
    /// A compiler with nothing in the cluster and nothing installed.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            cluster: Cluster::new(options.node.clone())
                .with_secondary_networks(options.secondary_networks.clone())
                .with_denial(options.denial),
            dirty: Dirty::default(),
            compiled: Compiled::new(&options),
            settled: true,
            failed: None,
            options,
        }
    }

    /// Takes a change. Cheap: the next update does the work, once for all changes.
    pub fn ingest(&mut self, change: Change) {
        let change = kept_change(change);
        Intake { cluster: &mut self.cluster, dirty: &mut self.dirty }.ingest(change);
    }

    /// The cluster's state.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the operations that bring the installed tables to the cluster's state, in the order in which they must
    /// be applied. They count as applied from here on.
    ///
    /// # Errors
    /// A table is too small. The installed tables stay as they are, and only [`Compiler::recompile`] helps, with a
    /// greater capacity or a smaller cluster.
    pub fn update(&mut self) -> Result<Vec<Op>, CompileError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let settled = self.settled;
        if !settled {
            // The operations begin with a grace period, so this update may use numbers freed by the last one, and
            // updates in close succession do not run out of numbers.
            self.compiled.grace_passed();
        }
        let dirty = std::mem::take(&mut self.dirty);
        let mut ops = self.compiled.update(&self.cluster, &self.options, &dirty);
        if !ops.is_empty() {
            if !settled {
                ops.insert(0, Op::Grace);
            }
            self.settled = false;
        }
        let updated = self.conclude(ops);
        if updated.is_err() {
            self.compiled.rules.limits.refuse();
        }
        updated
    }

    /// Returns the operations if their result fits into the tables.
    fn conclude(&mut self, ops: Vec<Op>) -> Result<Vec<Op>, CompileError> {
        if let Some(error) = self.compiled.overflow(&self.options.capacity) {
            self.failed = Some(error.clone());
            return Err(error);
        }
        self.compiled.settled();
        Ok(ops)
    }

    /// Starts over with new, empty tables of this capacity; returns the operations that fill them. Endpoints keep their
    /// numbers. While a table is too small, `grow` returns the next capacity to try; everything is compiled once.
    /// [`Compiler::capacity`] is the final capacity.
    ///
    /// # Errors
    /// As for [`Compiler::update`], if `grow` returns `None`.
    pub fn recompile(
        &mut self,
        capacity: Capacity,
        grow: impl Fn(Capacity, &CompileError) -> Option<Capacity>,
    ) -> Result<Vec<Op>, CompileError> {
        self.options.capacity = capacity;
        self.compiled.forget();
        self.failed = None;
        // No packet reads new tables yet.
        self.settled = true;
        // Nothing is deferred here: recompiling must not close pods that are open now.
        self.compiled.rules.limits.suspend(true);
        self.cluster.policies.weigh_exactly();
        // Endpoints lead to all peer sets, and these to all addresses.
        self.dirty = Dirty::default();
        let interfaces = self.cluster.interfaces().keys().copied().collect();
        let all = Dirty { interfaces, ..Dirty::default() };
        let ops = self.compiled.update(&self.cluster, &self.options, &all);
        self.settled = ops.is_empty();
        self.compiled.rules.limits.suspend(false);
        while let Some(error) = self.compiled.overflow(&self.options.capacity) {
            match grow(self.options.capacity, &error) {
                Some(larger) => self.options.capacity = larger,
                None => break,
            }
        }
        if self.options.capacity != capacity {
            self.compiled.rules.limits.forgive();
        }
        self.conclude(ops)
    }

    /// Capacity that the tables must have.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        self.options.capacity
    }

    /// Raises the capacity to at least this one, before the operations of a reinstallation are written.
    pub fn enlarge(&mut self, capacity: Capacity) {
        self.options.capacity = self.options.capacity.or_more(capacity);
    }

    /// From the next update on, defers large policies ([`crate::budget::ORDINARY_UNITS`]) to another compiler, so that
    /// no update takes long: pods keep the state before an edit of these policies, and newly isolated pods are closed.
    /// In the given namespaces, defers everything beyond modest size ([`crate::budget::MODEST_UNITS`]). `None`: defers
    /// nothing.
    pub fn defer(&mut self, held: Option<BTreeSet<String>>) {
        self.cluster.policies.weigh_hastily(held.is_some());
        if held.is_none() {
            self.cluster.policies.weigh_exactly();
        }
        let before = self.compiled.rules.limits.defer(held.clone());
        let late = self.late();
        let due = late.into_iter().filter(|namespace| match &held {
            None => true,
            Some(held) => {
                !held.contains(namespace)
                    && before.as_ref().is_some_and(|before| before.contains(namespace))
            }
        });
        self.dirty.policies.extend(due);
    }

    /// Namespaces with deferred policies, and those for whose closed policies another compiler may find room.
    #[must_use]
    pub fn late(&self) -> BTreeSet<String> {
        let late = self.compiled.tables.endpoints.late();
        let late = late.map(|late| late.of.namespace().to_owned());
        late.chain(self.compiled.rules.limits.postponed().cloned()).collect()
    }

    /// Whether rules of ClusterNetworkPolicies are not in force for some pod, because its large policies are deferred.
    /// Whatever its namespace owes, they must not wait.
    #[must_use]
    pub fn has_outdated_tiers(&self) -> bool {
        self.compiled.tables.endpoints.late().any(|late| late.has_outdated_tiers)
    }

    /// Namespaces with policies closed for a full table.
    #[must_use]
    pub fn left_out(&self) -> BTreeSet<String> {
        self.compiled.rules.limits.left_out().map(str::to_owned).collect()
    }

    /// Namespaces with unused large policies that remain until tables are replaced.
    #[must_use]
    pub fn lingering(&self) -> BTreeSet<String> {
        self.compiled.rules.direction_policies.lingering_of()
    }

    /// Units of policies beyond modest size compiled since the last call, by namespace.
    pub fn take_compiled(&mut self) -> BTreeMap<String, u64> {
        self.compiled.rules.limits.take_compiled()
    }

    /// Tables for which policies are closed, and the one that refused the last update.
    #[must_use]
    pub fn full_tables(&self) -> BTreeSet<Table> {
        let refused = self.failed.iter().map(|CompileError::Full { table, .. }| *table);
        self.compiled.rules.limits.full_tables().chain(refused).collect()
    }

    /// Whether a table for which policies are closed is less full than after closing them, so that another compiler may
    /// find room for some.
    #[must_use]
    pub fn has_room_again(&self) -> bool {
        self.compiled.has_room_again()
    }

    /// Takes the namespaces to charge for full compilations since the last call, with their shares. A namespace in debt
    /// ([`Compiler::defer`]) whose edits of an eighth of the table caused one has all its policies closed from the next
    /// update on, until another compiler starts after its debt. `full`: the table that refused the update.
    pub fn take_causes(&mut self, full: Option<Table>) -> BTreeMap<String, u64> {
        let full = full.map(|table| (table, self.options.capacity.capacity_of(table)));
        let (shares, barred) = self.compiled.rules.limits.take_causes(full);
        self.dirty.policies.extend(barred);
        shares
    }

    /// Ends a full compilation that has room: later growth is compared with the use of the tables now.
    pub fn compare_later(&mut self) {
        self.compiled.compare_later();
    }

    /// An empty compiler with the same options. The policies of a namespace that filled a table again while in debt are
    /// closed there too, as long as the debt lasts.
    #[must_use]
    pub fn blank(&self) -> Self {
        let mut blank = Self::new(self.options.clone());
        blank.compiled.rules.limits = self.compiled.rules.limits.passed_on();
        blank
    }

    /// All objects, for another compiler. Cheap: they are shared.
    #[must_use]
    pub fn all_objects(&self) -> CompilerInput {
        CompilerInput {
            objects: Object::all(&self.cluster).collect(),
            given: self.compiled.tables.endpoints.given(),
            barred: BTreeMap::new(),
        }
    }

    /// Current state of these objects, for another compiler.
    #[must_use]
    pub fn changed_objects(&self, of: impl IntoIterator<Item = ObjectKey>) -> CompilerInput {
        let objects = of.into_iter().map(|key| Object::now(key, &self.cluster)).collect();
        let barred = self.compiled.rules.limits.barred();
        CompilerInput { objects, given: self.compiled.tables.endpoints.given(), barred }
    }

    /// Takes over objects and endpoint numbers of another compiler.
    pub fn take_over(&mut self, input: CompilerInput) {
        let mut intake = Intake { cluster: &mut self.cluster, dirty: &mut self.dirty };
        input.objects.into_iter().for_each(|object| intake.take_in(object));
        if !self.compiled.rules.limits.is_deferring() {
            self.cluster.policies.weigh_exactly();
        }
        self.compiled.tables.endpoints.take_over(input.given);
        self.dirty.policies.extend(self.compiled.rules.limits.bar(input.barred));
    }

    /// Frees retired numbers. To be called when the operations of the last update are applied and no packet is judged
    /// by the old tables any more.
    pub fn grace_passed(&mut self) {
        self.settled = true;
        self.compiled.grace_passed();
    }

    /// Closes combinations of policies until the table that refused the update has room: those of the namespace that uses
    /// most of it first. Returns false if there are none to close: then only [`Compiler::recompile`] with a greater
    /// capacity helps.
    pub fn leave_out(&mut self, error: &CompileError) -> bool {
        let CompileError::Full { table, needed, capacity } = error;
        // No NetworkPolicy has names.
        if *table == Table::Names {
            return false;
        }
        self.compiled.leave_out(*table, needed.saturating_sub(*capacity))
    }

    /// Closes combinations of policies until an eighth of a table is free, so that the next edits find room. Returns false
    /// if so much is free, or if policies of namespaces use less than half of the table.
    pub fn keep_reserve(&mut self, table: Table) -> bool {
        let capacity = self.options.capacity.capacity_of(table);
        self.compiled.keep_reserve(table, capacity)
    }

    /// Work of all updates so far, in steps that depend on the cluster's state alone: prefixes, classes by row and
    /// nodes of port sets.
    #[must_use]
    pub fn work(&self) -> u64 {
        self.compiled.work()
    }

    /// Endpoint numbers ([`EndpointInfo::id`]) in use as of the last update, and those reserved for earlier endpoints
    /// that may return. Conntrack entries of other numbers belong to no endpoint.
    #[must_use]
    pub fn endpoint_numbers(&self) -> BTreeSet<u32> {
        self.compiled.tables.endpoints.numbers().collect()
    }

    /// The endpoints as of the last update, by interface index.
    pub fn endpoints(&self) -> impl Iterator<Item = EndpointInfo> {
        self.compiled
            .tables
            .endpoints
            .live
            .iter()
            .map(|(ifindex, live)| EndpointInfo::new(*ifindex, live))
    }

    /// Interface indexes of the endpoints for which no slot was free, as of the last update.
    pub fn unplaced(&self) -> impl Iterator<Item = u32> {
        self.compiled.tables.endpoints.unplaced.iter().copied()
    }

    /// Changes whenever [`Compiler::endpoints`] changes.
    #[must_use]
    pub fn endpoints_version(&self) -> u64 {
        self.compiled.tables.endpoints.version
    }

    /// Domain names of the rules for this node's pods.
    #[must_use]
    pub fn domain_names(&self) -> BTreeSet<&DomainName> {
        self.compiled.tables.names.all()
    }

    /// Desired contents of the tables as of the last update.
    #[must_use]
    pub fn image(&self) -> TableImage {
        self.compiled.image()
    }

    /// All problems as of the last update.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let refused =
            self.failed.iter().map(|error| Problem::Refused { message: error.to_string() });
        refused
            .chain(report::problems(
                &self.cluster,
                &self.compiled.rules,
                &self.compiled.tables.endpoints,
            ))
            .collect()
    }

    /// Closed combinations of policies with their direction and the reason.
    pub fn closed(&self) -> impl Iterator<Item = (&[Key], Direction, String)> {
        self.compiled.closed()
    }

    /// Used and available elements of every table.
    #[must_use]
    pub fn fill(&self) -> Vec<TableUse> {
        self.compiled.fill(&self.options.capacity)
    }

    /// The objects behind the installed tables, see [`StateSnapshot`]. `deleted` are local pods that the API no longer
    /// lists; they are kept as finished pods, which are not peers.
    #[must_use]
    pub fn state_snapshot<'a>(&self, deleted: impl Iterator<Item = &'a Arc<Pod>>) -> StateSnapshot {
        StateSnapshot::new(&self.cluster, &self.compiled.tables.addresses, deleted)
    }

    /// Desired contents of every table element; the installed ones if the last update was written.
    #[must_use]
    pub fn desired(&self) -> DesiredTables<'_> {
        self.compiled.desired()
    }
}
