//! The compiler: takes changes in, and gives out the operations that bring the tables up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::sync::Arc;

use ipnet::Ipv6Net;
use netpold_ebpf::layout::ClassId;

use crate::cluster::{Cluster, Dirty, Intake, Object, ObjectKey};
use crate::compile::image::Image;
use crate::compile::report::{self, EndpointInfo, Problem};
use crate::compile::rules::{Late, Rules};
use crate::compile::sets::Sets;
use crate::compile::snapshot::StateSnapshot;
use crate::compile::tables::element::{Cursor, DesiredElement};
use crate::compile::tables::endpoints::Given;
use crate::compile::tables::lookup::Lookup;
use crate::compile::tables::{Elements, Tables};
use crate::compile::update::Update;
use crate::model::{Change, Direction, Key, Pod};
use crate::ops::{Capacity, Fill, Op, Table};
use crate::options::Options;

/// Why an update was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// A table is too small. Nothing was written; no update is possible before
    /// [`Compiler::reinstall`].
    #[error("{table}: {needed} needed, {capacity} available")]
    Full {
        /// The first table that is too small.
        table: Table,
        /// Elements it must have.
        needed: u32,
        /// Elements it has.
        capacity: u32,
    },
}

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
    sets: Sets,
    rules: Rules,
    tables: Tables,
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
            cluster: Cluster::new(options.node.clone()),
            dirty: Dirty::default(),
            sets: Sets::new(),
            rules: Rules::default(),
            tables: Tables::new(&options),
            settled: true,
            failed: None,
            options,
        }
    }

    /// Takes in a change. Cheap: the work is done by the next update, once for all changes.
    pub fn ingest(&mut self, change: Change) {
        self.intake().ingest(change);
    }

    fn intake(&mut self) -> Intake<'_> {
        Intake { cluster: &mut self.cluster, dirty: &mut self.dirty }
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
            self.release();
        }
        let mut ops = self.run();
        if !ops.is_empty() {
            if !settled {
                ops.insert(0, Op::Grace);
            }
            self.settled = false;
        }
        self.conclude(ops)
    }

    /// Brings everything but the kernel up to date, regardless of capacity.
    fn run(&mut self) -> Vec<Op> {
        let update = Update {
            cluster: &self.cluster,
            options: &self.options,
            sets: &mut self.sets,
            rules: &mut self.rules,
            tables: &mut self.tables,
        };
        update.run(&std::mem::take(&mut self.dirty))
    }

    /// The operations, if the tables have room for what they lead to.
    fn conclude(&mut self, ops: Vec<Op>) -> Result<Vec<Op>, CompileError> {
        if let Some(error) = self.overflow() {
            self.failed = Some(error.clone());
            return Err(error);
        }
        self.rules.settled();
        Ok(ops)
    }

    /// Starts over with new, empty tables of this capacity: the operations that fill them.
    /// Endpoints keep their numbers.
    ///
    /// # Errors
    /// As [`Compiler::update`].
    pub fn reinstall(&mut self, capacity: Capacity) -> Result<Vec<Op>, CompileError> {
        self.reinstall_grown(capacity, |_, _| None)
    }

    /// The same, but for as long as a table is too small, `grow` says what to have instead: everything is
    /// compiled once. [`Compiler::capacity`] is what the tables must have.
    ///
    /// # Errors
    /// As [`Compiler::update`], if `grow` knows no more.
    pub fn reinstall_grown(
        &mut self,
        capacity: Capacity,
        grow: impl Fn(Capacity, &CompileError) -> Option<Capacity>,
    ) -> Result<Vec<Op>, CompileError> {
        self.options.capacity = capacity;
        self.sets = Sets::new();
        self.rules.forget();
        self.tables.forget();
        self.failed = None;
        // No packet reads new tables yet.
        self.settled = true;
        // What is in force may not be closed for having to be compiled again.
        let deferring = self.rules.limits.defer(None);
        self.cluster.policies.weigh_exactly();
        // Peer sets, and with them addresses, follow from the endpoints.
        self.dirty = Dirty::default();
        self.dirty.interfaces.extend(self.cluster.interfaces().keys());
        let ops = self.run();
        self.settled = ops.is_empty();
        self.rules.limits.defer(deferring);
        while let Some(error) = self.overflow() {
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
        let before = self.rules.limits.defer(held.clone());
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
        self.tables.endpoints.late().map(|late| late.of.namespace().to_owned()).collect()
    }

    /// The namespaces with large policies that nobody uses any more, and that only new tables are
    /// without.
    #[must_use]
    pub fn lingering(&self) -> BTreeSet<String> {
        self.rules.direction_policies.lingering_of()
    }

    /// What was compiled since this was asked last and is more than modest: by namespace, how much it
    /// weighs.
    pub fn take_compiled(&mut self) -> BTreeMap<String, u64> {
        self.rules.limits.take_compiled()
    }

    /// Another compiler with the same options, that knows of no object.
    #[must_use]
    pub fn blank(&self) -> Self {
        Self::new(self.options.clone())
    }

    /// All objects, for another compiler. Cheap: they are shared.
    #[must_use]
    pub fn everything(&self) -> News {
        News { objects: Object::all(&self.cluster).collect(), given: self.tables.endpoints.given() }
    }

    /// These objects as they are now, for another compiler.
    #[must_use]
    pub fn news(&self, of: impl IntoIterator<Item = ObjectKey>) -> News {
        let objects = of.into_iter().map(|key| Object::now(key, &self.cluster)).collect();
        News { objects, given: self.tables.endpoints.given() }
    }

    /// Takes in what another compiler knows, and gives endpoints the numbers that it gives.
    pub fn follow(&mut self, news: News) {
        for object in news.objects {
            self.intake().take_in(object);
        }
        if !self.rules.limits.is_deferring() {
            self.cluster.policies.weigh_exactly();
        }
        self.tables.endpoints.take_over(news.given);
    }

    /// The operations of the last update are applied and no packet that was judged before is still
    /// on its way: numbers that fell free may be used again.
    pub fn grace_passed(&mut self) {
        self.settled = true;
        self.release();
    }

    /// What an update was refused for is left out from now on: the largest combinations of policies, as
    /// far as the excess goes; the pods that they isolate are closed. False if there is none:
    /// nothing but [`Compiler::reinstall`] with a greater capacity helps then.
    pub fn leave_out(&mut self, error: &CompileError) -> bool {
        let CompileError::Full { table, needed, capacity } = error;
        self.rules.leave_out(*table, needed.saturating_sub(*capacity))
    }

    /// What updates have cost so far, in steps that depend on the cluster's state alone: prefixes,
    /// classes by row, nodes of sets of ports.
    #[must_use]
    pub fn work(&self) -> u64 {
        self.rules.work() + self.sets.groups.work
    }

    fn release(&mut self) {
        self.sets.classes.slots.grace_passed();
        self.tables.grace_passed();
    }

    /// The table that the last update would have overflowed.
    fn overflow(&self) -> Option<CompileError> {
        Table::ALL.into_iter().find_map(|table| {
            let needed = self.tables.needed(table, &self.sets.classes);
            let capacity = self.options.capacity.of(table);
            (needed > capacity).then_some(CompileError::Full { table, needed, capacity })
        })
    }

    /// The numbers of endpoints ([`EndpointInfo::id`]) as of the last update, and those that earlier
    /// endpoints may come back with. Flows of others belong to nobody any more.
    #[must_use]
    pub fn endpoint_numbers(&self) -> BTreeSet<u32> {
        self.tables.endpoints.numbers().collect()
    }

    /// The endpoints as of the last update, by interface index.
    pub fn endpoints(&self) -> impl Iterator<Item = EndpointInfo> {
        self.tables.endpoints.live.iter().map(|(ifindex, live)| EndpointInfo::new(*ifindex, live))
    }

    /// As long as this number stays, so do the [`Compiler::endpoints`].
    #[must_use]
    pub fn endpoints_version(&self) -> u64 {
        self.tables.endpoints.version
    }

    /// What the tables are to say as of the last update.
    #[must_use]
    pub fn image(&self) -> Image {
        Image::new(&self.sets, &self.rules.tries, &self.tables.endpoints.live)
    }

    /// Everything that is not as it was asked for, as of the last update.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let refused =
            self.failed.iter().map(|error| Problem::Refused { message: error.to_string() });
        refused
            .chain(report::problems(&self.cluster, &self.rules, &self.tables.endpoints))
            .collect()
    }

    /// The policies whose pods are closed in a direction where they select them together, and why.
    pub fn closed(&self) -> impl Iterator<Item = (&[Key], Direction, String)> {
        let late: BTreeSet<_> = self.tables.endpoints.late().filter(|it| it.is_closed).collect();
        let late = late.into_iter();
        let late = late.map(|it| (&it.of.policies[..], it.of.direction, Late::REASON.to_owned()));
        self.rules.closed().chain(late)
    }

    /// Used and available elements of every table.
    #[must_use]
    pub fn fill(&self) -> Vec<Fill> {
        self.tables.fill(&self.sets.classes, &self.options.capacity)
    }

    /// The objects that what is installed came from, see [`StateSnapshot`]. `deleted` are the local pods
    /// that the cluster has no more: kept as finished ones, which are nobody's peers.
    #[must_use]
    pub fn state_snapshot<'a>(&self, deleted: impl Iterator<Item = &'a Arc<Pod>>) -> StateSnapshot {
        StateSnapshot::new(&self.cluster, &self.tables.addresses, deleted)
    }

    /// Elements that a pass of [`Compiler::desired_elements`] goes through.
    #[must_use]
    pub fn desired_count(&self) -> u32 {
        self.elements().count()
    }

    /// Tells what the next `budget` elements hold, and how far that is; after the last one the
    /// next pass begins. What is told is what the tables hold only if the last update was written.
    pub fn desired_elements(
        &self,
        cursor: Cursor,
        budget: u32,
        tell: &mut dyn FnMut(DesiredElement<'_>),
    ) -> Cursor {
        self.elements().tell(cursor, budget, tell)
    }

    /// The class that the exact IPv6 table has for an address.
    #[must_use]
    pub fn desired_host6(&self, address: Ipv6Addr) -> Option<ClassId> {
        self.elements().host6(address)
    }

    /// The class that the IPv6 prefix table has for a prefix.
    #[must_use]
    pub fn desired_cidr6(&self, net: Ipv6Net) -> Option<ClassId> {
        self.elements().cidr6(net)
    }

    /// The tables as the packet path reads them, if the last update was written.
    #[must_use]
    pub fn lookup(&self) -> Lookup<'_> {
        Lookup(self.elements())
    }

    fn elements(&self) -> Elements<'_> {
        Elements { tables: &self.tables, tries: &self.rules.tries }
    }
}
