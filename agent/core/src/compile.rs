//! From cluster state to table contents, incrementally.
//!
//! The rules of all policies that select a local endpoint in a direction make a [`spec::Spec`]; the
//! pods that specs name are atoms ([`peers`]), and what their blocks grant, summed up by a sweep
//! ([`blocks`]), divides the address space into groups ([`groups`]). The sets of atoms and groups that
//! addresses have ([`space`]) are their classes ([`classes`]); a row ([`rows`]) holds what its spec allows
//! each class. A change is followed along exactly these lines: an endpoint's new spec brings and drops
//! atoms and places, these touch addresses, these change class, and [`crate::delta`] orders the flips.
//! Sets of ports are tries ([`tries`]). What would be too much is closed ([`limits`]).
//!
//! Addresses of Services and node ports have an atom made of their backends'
//! ([`frontends`]), so they are settled after all others ([`services`]).

mod blocks;
pub(crate) mod classes;
mod endpoints;
mod essentials;
mod expected;
pub(crate) mod frontends;
pub(crate) mod groups;
pub(crate) mod ids;
mod limits;
pub(crate) mod peers;
pub(crate) mod ports;
pub(crate) mod prefix;
mod report;
pub(crate) mod rows;
mod services;
mod sets;
pub(crate) mod space;
pub(crate) mod spec;
mod specs;
pub(crate) mod tries;
mod update;

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::cluster::{Cluster, Dirty};
use crate::delta::AddressTables;
use crate::image::Table;
use crate::model::{Change, Direction, Peer, Pod, Policy};
use crate::ops::{Capacity, Op};
use classes::Classes;
use endpoints::Endpoints;
use peers::Atoms;
use rows::Rows;
use sets::Sets;
use space::Space;
use specs::Specs;

pub use endpoints::WAITING;
pub(crate) use endpoints::uid_hash;
pub use essentials::Essentials;
pub use expected::{Cursor, Expected};
pub use peers::{Atom, Frontend};
pub use ports::{Ports, Ranges};
pub use report::{EndpointInfo, Problem};

/// Which endpoints drop what they send from addresses that are not theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckSource {
    /// None.
    Off,
    /// Those that are isolated in a direction.
    Isolated,
    /// All.
    #[default]
    All,
}

/// Endpoints whose source is not checked all the same: gateways, virtual machines. Named by who runs
/// the node, since a tenant could exempt himself otherwise and pass for any other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceExempt {
    /// Namespaces in which a pod may ask for it, see [`crate::model::Pod::foreign_sources`].
    pub namespaces: BTreeSet<String>,
    /// Pods that have an address in one of these.
    pub blocks: Vec<IpNet>,
}

impl SourceExempt {
    /// Whether a pod is one of them.
    #[must_use]
    pub fn holds(&self, pod: &Pod) -> bool {
        let within = |address| self.blocks.iter().any(|block| block.contains(address));
        pod.foreign_sources && self.namespaces.contains(&pod.key.namespace)
            || pod.addresses.iter().any(within)
    }
}

/// What an interface gets that appears while its pod is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewPods {
    /// Nothing is in its way.
    #[default]
    Allow,
    /// Only the node itself reaches it and is reached by it, until its pod is known.
    Deny,
}

/// What a compiler has to know beside the cluster's state.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `metadata.name` of the own node.
    pub node: String,
    /// Sizes of the tables.
    pub capacity: Capacity,
    /// Source address check.
    pub check_source: CheckSource,
    /// Whom it leaves out.
    pub source_exempt: SourceExempt,
    /// Interfaces whose pod is not known.
    pub new_pods: NewPods,
    /// First endpoint number to hand out; greater than any that conntrack still knows.
    pub first_endpoint_id: u32,
    /// Numbers of endpoints that an earlier agent installed, by interface index and
    /// `Endpoint::uid_hash`.
    pub known_endpoints: BTreeMap<(u32, u64), u32>,
}

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

/// The cluster's state, what it compiles to, and what of it is installed.
#[derive(Debug)]
pub struct Compiler {
    options: Options,
    cluster: Cluster,
    dirty: Dirty,
    atoms: Atoms,
    specs: Specs,
    space: Space,
    classes: Classes,
    services: services::Services,
    sets: Sets,
    rows: Rows,
    endpoints: Endpoints,
    endpoints_version: u64,
    tables: AddressTables,
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
            atoms: Atoms::default(),
            specs: Specs::default(),
            space: Space::new(),
            classes: Classes::new(),
            services: services::Services::default(),
            sets: Sets::new(),
            rows: Rows::new(),
            endpoints: Endpoints::new(&options),
            endpoints_version: 0,
            tables: AddressTables::new(),
            settled: true,
            failed: None,
            options,
        }
    }

    /// Takes in a change. Cheap: the work is done by the next update, once for all changes.
    pub fn apply(&mut self, change: Change) {
        self.cluster.apply(change, &mut self.dirty);
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
        match self.overflow() {
            None => {
                self.specs.limits.is_new = false;
                Ok(ops)
            }
            Some(error) => {
                self.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Starts over with new, empty tables of this capacity: the operations that fill them.
    /// Endpoints keep their numbers.
    ///
    /// # Errors
    /// As [`Compiler::update`].
    pub fn reinstall(&mut self, capacity: Capacity) -> Result<Vec<Op>, CompileError> {
        self.options.capacity = capacity;
        self.atoms = Atoms::default();
        self.specs.clear();
        self.space = Space::new();
        self.classes = Classes::new();
        self.services = services::Services::default();
        self.sets = Sets::new();
        self.rows = Rows::new();
        self.tables = AddressTables::new();
        self.endpoints.forget();
        self.endpoints_version += 1;
        self.failed = None;
        // No packet reads new tables yet.
        self.settled = true;
        // What is in force may not be closed for having to be compiled again.
        let held = self.specs.limits.hold_nothing();
        // Atoms, and with them addresses, follow from the endpoints.
        self.dirty = Dirty::default();
        self.dirty.interfaces.extend(self.cluster.interfaces().keys());
        let ops = self.update();
        self.specs.limits.hold_back(held);
        ops
    }

    /// Pods of these namespaces get no further large combination of policies compiled, until a call
    /// without their namespace: those that no pod here has yet are closed so long. Takes effect with the
    /// next update; large is what weighs more than [`budget::ORDINARY_UNITS`].
    pub fn hold_back(&mut self, namespaces: BTreeSet<String>) {
        self.dirty.policies.extend(self.specs.limits.hold_back(namespaces));
    }

    /// The namespaces of which [`Compiler::hold_back`] holds something back.
    #[must_use]
    pub fn held_back(&self) -> BTreeSet<String> {
        self.specs.limits.deferred()
    }

    /// The large combinations of policies that were compiled since this was asked last: by namespace, how
    /// much they weigh.
    pub fn take_compiled(&mut self) -> BTreeMap<String, u64> {
        self.specs.limits.take_compiled()
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
        let mut limits = std::mem::take(&mut self.specs.limits);
        let found = limits.leave_out(*table, needed.saturating_sub(*capacity), &self.specs);
        self.specs.limits = limits;
        found
    }

    /// What updates have cost so far, in steps that depend on the cluster's state alone: prefixes,
    /// classes by row, nodes of sets of ports.
    #[must_use]
    pub fn work(&self) -> u64 {
        self.atoms.work + self.atoms.tries.work + self.atoms.groups.work
    }

    fn release(&mut self) {
        self.classes.ids.grace_passed();
        self.sets.ids.grace_passed();
        self.sets.bitmap_ids.grace_passed();
        self.rows.ids.grace_passed();
        self.rows.block_ids.grace_passed();
        self.tables.trie4.ids.grace_passed();
        self.endpoints.grace_passed();
    }
}

/// Whether a policy's blocks come to more different sets of ports than that in a direction.
pub(crate) fn exceeds_port_sets(policy: &Policy, direction: Direction, most: usize) -> bool {
    let mut tries = tries::Tries::default();
    let mut names = BTreeMap::new();
    let mut granted = Vec::new();
    for rule in policy.rules(direction).unwrap_or_default() {
        let Some(peers) = &rule.peers else { continue };
        let blocks = peers.iter().filter_map(|peer| match peer {
            Peer::Block(block) => Some(block),
            Peer::Pods { .. } => None,
        });
        let grant = spec::literal(rule, &mut names, &mut tries);
        granted.extend(blocks.map(|block| (block, grant)));
    }
    blocks::BlockMap::exceeds(&granted, &tries, most)
}
