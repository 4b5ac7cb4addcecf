//! The compiler: takes changes in, and gives out the operations that bring the tables up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cluster::{Cluster, Dirty, Intake, Object, ObjectKey};
use crate::compile::compiled::{CompileError, Compiled};
use crate::compile::image::Image;
use crate::compile::report::{self, EndpointInfo, Problem};
use crate::compile::snapshot::StateSnapshot;
use crate::compile::tables::DesiredTables;
use crate::compile::tables::endpoints::Given;
use crate::model::{Change, Direction, Key, Pod};
use crate::ops::{Capacity, Fill, Op};
use crate::options::Options;

/// What one compiler knows that another has to, see [`Compiler::follow`].
#[derive(Debug)]
pub struct News {
    objects: Vec<Object>,
    given: Given,
}

/// The cluster's state, what it compiles to, and what of it is installed.
#[derive(Debug)]
pub struct Compiler {
    options: Options,
    cluster: Cluster,
    dirty: Dirty,
    compiled: Compiled,
    /// The grace period of the last update's operations has passed.
    settled: bool,
    /// An update failed half-way: what is known of the tables is not what is installed.
    failed: Option<CompileError>,
}

impl Compiler {
    /// A compiler with nothing in the cluster and nothing installed.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            cluster: Cluster::new(options.node.clone())
                .with_second_networks(options.second_networks.clone()),
            dirty: Dirty::default(),
            compiled: Compiled::new(&options),
            settled: true,
            failed: None,
            options,
        }
    }

    /// Takes in a change. Cheap: the work is done by the next update, once for all changes.
    pub fn ingest(&mut self, change: Change) {
        Intake { cluster: &mut self.cluster, dirty: &mut self.dirty }.ingest(change);
    }

    /// The cluster's state.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The operations that lead from what is installed to what the cluster's state asks for, in the
    /// order in which they must be applied. They count as applied from here on.
    ///
    /// # Errors
    /// A table is too small. What is installed stays as it is; only [`Compiler::reinstall`] leads
    /// on, with a greater capacity or a smaller cluster.
    pub fn update(&mut self) -> Result<Vec<Op>, CompileError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let settled = self.settled;
        if !settled {
            // The update waits before its first write, so it may use what fell free before: updates
            // in close succession do not run out of numbers.
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
        self.conclude(ops)
    }

    /// The operations, if the tables have room for what they lead to.
    fn conclude(&mut self, ops: Vec<Op>) -> Result<Vec<Op>, CompileError> {
        if let Some(error) = self.compiled.overflow(&self.options.capacity) {
            self.failed = Some(error.clone());
            return Err(error);
        }
        self.compiled.rules.settled();
        Ok(ops)
    }

    /// Starts over with new, empty tables of this capacity: the operations that fill them.
    /// Endpoints keep their numbers. For as long as a table is too small, `grow` says what to have instead:
    /// everything is compiled once. [`Compiler::capacity`] is what the tables must have.
    ///
    /// # Errors
    /// As [`Compiler::update`], if `grow` knows no more.
    pub fn reinstall(
        &mut self,
        capacity: Capacity,
        grow: impl Fn(Capacity, &CompileError) -> Option<Capacity>,
    ) -> Result<Vec<Op>, CompileError> {
        self.options.capacity = capacity;
        self.compiled.forget();
        self.failed = None;
        // No packet reads new tables yet.
        self.settled = true;
        // What is in force may not be closed for having to be compiled again.
        let deferring = self.compiled.rules.limits.defer(None);
        self.cluster.policies.weigh_exactly();
        // Peer sets, and with them addresses, follow from the endpoints.
        self.dirty = Dirty::default();
        let interfaces = self.cluster.interfaces().keys().copied().collect();
        let all = Dirty { interfaces, ..Dirty::default() };
        let ops = self.compiled.update(&self.cluster, &self.options, &all);
        self.settled = ops.is_empty();
        self.compiled.rules.limits.defer(deferring);
        while let Some(error) = self.compiled.overflow(&self.options.capacity) {
            match grow(self.options.capacity, &error) {
                Some(larger) => self.options.capacity = larger,
                None => break,
            }
        }
        self.conclude(ops)
    }

    /// The sizes that the tables must have.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        self.options.capacity
    }

    /// Before the operations of a reinstallation are written: the tables will be at least this large.
    pub fn enlarge(&mut self, capacity: Capacity) {
        self.options.capacity = self.options.capacity.or_more(capacity);
    }

    /// From the next update on, leaves the policies that are large ([`crate::budget::ORDINARY_UNITS`]) to
    /// another compiler, so that no update takes long: pods have what they had before an edit of
    /// theirs, and pods that they isolate newly are closed. Of these namespaces also what is more than
    /// modest ([`crate::budget::MODEST_UNITS`]). `None`: compiles everything.
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

    /// The namespaces with policies that wait for another compiler.
    #[must_use]
    pub fn late(&self) -> BTreeSet<String> {
        self.compiled.tables.endpoints.late().map(|late| late.of.namespace().to_owned()).collect()
    }

    /// The namespaces with large policies that nobody uses any more, and that only new tables are
    /// without.
    #[must_use]
    pub fn lingering(&self) -> BTreeSet<String> {
        self.compiled.rules.direction_policies.lingering_of()
    }

    /// What was compiled since this was asked last and is more than modest: by namespace, how much it
    /// weighs.
    pub fn take_compiled(&mut self) -> BTreeMap<String, u64> {
        self.compiled.rules.limits.take_compiled()
    }

    /// Another compiler with the same options, that knows of no object.
    #[must_use]
    pub fn blank(&self) -> Self {
        Self::new(self.options.clone())
    }

    /// All objects, for another compiler. Cheap: they are shared.
    #[must_use]
    pub fn everything(&self) -> News {
        News {
            objects: Object::all(&self.cluster).collect(),
            given: self.compiled.tables.endpoints.given(),
        }
    }

    /// These objects as they are now, for another compiler.
    #[must_use]
    pub fn news(&self, of: impl IntoIterator<Item = ObjectKey>) -> News {
        let objects = of.into_iter().map(|key| Object::now(key, &self.cluster)).collect();
        News { objects, given: self.compiled.tables.endpoints.given() }
    }

    /// Takes in what another compiler knows, and gives endpoints the numbers that it gives.
    pub fn follow(&mut self, news: News) {
        let mut intake = Intake { cluster: &mut self.cluster, dirty: &mut self.dirty };
        news.objects.into_iter().for_each(|object| intake.take_in(object));
        if !self.compiled.rules.limits.is_deferring() {
            self.cluster.policies.weigh_exactly();
        }
        self.compiled.tables.endpoints.take_over(news.given);
    }

    /// The operations of the last update are applied and no packet that was judged before is still
    /// on its way: numbers that fell free may be used again.
    pub fn grace_passed(&mut self) {
        self.settled = true;
        self.compiled.grace_passed();
    }

    /// What an update was refused for is left out from now on: the largest combinations of policies, as
    /// far as the excess goes; the pods that they isolate are closed. False if there is none:
    /// nothing but [`Compiler::reinstall`] with a greater capacity helps then.
    pub fn leave_out(&mut self, error: &CompileError) -> bool {
        let CompileError::Full { table, needed, capacity } = error;
        self.compiled.rules.leave_out(*table, needed.saturating_sub(*capacity))
    }

    /// What updates have cost so far, in steps that depend on the cluster's state alone: prefixes,
    /// classes by row, nodes of sets of ports.
    #[must_use]
    pub fn work(&self) -> u64 {
        self.compiled.work()
    }

    /// The numbers of endpoints ([`EndpointInfo::id`]) as of the last update, and those that earlier
    /// endpoints may come back with. Flows of others belong to nobody any more.
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

    /// As long as this number stays, so do the [`Compiler::endpoints`].
    #[must_use]
    pub fn endpoints_version(&self) -> u64 {
        self.compiled.tables.endpoints.version
    }

    /// What the tables are to say as of the last update.
    #[must_use]
    pub fn image(&self) -> Image {
        self.compiled.image()
    }

    /// Everything that is not as it was asked for, as of the last update.
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

    /// The policies whose pods are closed in a direction where they select them together, and why.
    pub fn closed(&self) -> impl Iterator<Item = (&[Key], Direction, String)> {
        self.compiled.closed()
    }

    /// Used and available elements of every table.
    #[must_use]
    pub fn fill(&self) -> Vec<Fill> {
        self.compiled.fill(&self.options.capacity)
    }

    /// The objects that what is installed came from, see [`StateSnapshot`]. `deleted` are the local pods
    /// that the cluster has no more: kept as finished ones, which are nobody's peers.
    #[must_use]
    pub fn state_snapshot<'a>(&self, deleted: impl Iterator<Item = &'a Arc<Pod>>) -> StateSnapshot {
        StateSnapshot::new(&self.cluster, &self.compiled.tables.addresses, deleted)
    }

    /// What every element of the tables is to hold, or holds if the last update was written.
    #[must_use]
    pub fn desired(&self) -> DesiredTables<'_> {
        self.compiled.desired()
    }
}
