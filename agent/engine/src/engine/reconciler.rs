//! Compiles, writes and attaches: brings the kernel's tables to the desired state, in new tables where the old ones are
//! too small or their content is unknown.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netpold_api::status::Revision;
use netpold_core::compile::{CompileError, Compiler, Cursor, EndpointInfo};
use netpold_core::model::{Change, Direction};
use netpold_core::ops::Capacity;
use netpold_dataplane::Dataplane;
use netpold_dataplane::attach::Hook;
use netpold_dataplane::audit::Repaired;
use netpold_dataplane::import_conntrack::ImportRequest;
use netpold_dataplane::role::Role;

use super::error::EngineError;
use super::pace::Pace;
use super::room::compile_with_room;
use super::succession::{Succession, WrittenUpdate, thread_time};
use crate::metrics::Instruments;

/// The compiler, the dataplane and the state between them.
pub(super) struct Reconciler {
    pub(super) compiler: Compiler,
    pub(super) dataplane: Dataplane,
    pub(super) capacity: Capacity,
    pub(super) pace: Pace,
    pub(super) revision: Revision,
    /// Whether the tables hold the content that the compiler assumes.
    pub(super) installed: bool,
    /// Whether the last good state is enforced where the source has not reported yet.
    pub(super) restored: bool,
    pub(super) in_force: EndpointsInForce,
    /// Compilation of large objects on another thread.
    pub(super) succession: Succession,
    /// Position of the comparison with the kernel's tables.
    cursor: Cursor,
    pub(super) instruments: Instruments,
}

/// The endpoints of the tables in force.
#[derive(Debug)]
pub(super) struct EndpointsInForce {
    /// Endpoint numbers, by interface index.
    endpoints: BTreeMap<u32, u32>,
    /// Whether each endpoint is isolated, by endpoint number.
    isolated: BTreeMap<u32, bool>,
    /// [`Compiler::endpoints_version`] of both maps.
    version: Option<u64>,
    /// Whether to import flows of newly isolated endpoints from the kernel's conntrack.
    pub(super) seeds: bool,
}

impl Reconciler {
    /// Creates a reconciler; it writes nothing yet.
    pub(super) fn new(compiler: Compiler, dataplane: Dataplane, capacity: Capacity) -> Self {
        let (endpoints, isolated) = (BTreeMap::new(), BTreeMap::new());
        Self {
            compiler,
            dataplane,
            capacity,
            pace: Pace::default(),
            revision: Revision { desired: 0, enforced: 0 },
            installed: false,
            restored: false,
            in_force: EndpointsInForce { endpoints, isolated, version: None, seeds: true },
            succession: Succession::default(),
            cursor: Cursor::default(),
            instruments: Instruments::default(),
        }
    }

    /// Ingests a change, unless it has to wait.
    pub(super) fn admit(&mut self, change: Change) {
        let cluster = self.compiler.cluster();
        if self.installed {
            let change = self.pace.admit(change, cluster);
            self.ingest(change);
        } else {
            // Nothing waits before the first installation.
            let removal = self.pace.drop_overtaken(&change, cluster);
            self.ingest(removal.into_iter().chain([change]));
        }
    }

    /// Ingests changes.
    pub(super) fn ingest(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            self.succession.record_change(&change);
            self.compiler.ingest(change);
            self.revision.desired += 1;
        }
    }

    /// Writes the update, and charges its large objects to their namespaces. Returns the number of operations.
    pub(super) fn write_within_credit(&mut self) -> Result<usize, EngineError> {
        let is_first = !self.installed;
        let begin = thread_time();
        self.compiler.defer(Some(self.pace.namespaces_in_debt(Instant::now())));
        let WrittenUpdate { operations, shares } = self.write()?;
        let took = thread_time().saturating_sub(begin);
        // At the start no update waits.
        if !is_first {
            self.pace.charge_update(took, shares, Instant::now());
        }
        Ok(operations)
    }

    /// Writes the update.
    fn write(&mut self) -> Result<WrittenUpdate, EngineError> {
        if !self.installed {
            return self.new_generation(None);
        }
        if let Some(written) = self.succeed()? {
            return Ok(written);
        }
        match self.instruments.compiling(|| self.compiler.update()) {
            Ok(ops) => {
                self.installed = false;
                self.import_conntrack();
                self.close_unplaced();
                self.instruments.applying(|| self.dataplane.active_mut().write(&ops))?;
                self.installed = true;
                self.in_force.record_endpoints(&self.compiler);
                Ok(WrittenUpdate { operations: ops.len(), shares: self.compiler.take_compiled() })
            }
            Err(error) => {
                tracing::info!(%error, "update needs larger tables: creating a new generation");
                self.new_generation(Some(error))
            }
        }
    }

    /// Installs everything into new tables, grown until the state fits. The full compilation is charged to the
    /// namespaces that filled a table of the largest size ([`Compiler::take_causes`]), and to no other: most of the
    /// compiled policies have not changed.
    pub(super) fn new_generation(
        &mut self,
        refused: Option<CompileError>,
    ) -> Result<WrittenUpdate, EngineError> {
        self.installed = false;
        let (capacity, full) = (self.capacity, self.compiler.full_tables());
        let ops =
            self.instruments.compiling(|| compile_with_room(&mut self.compiler, capacity, &full));
        drop(self.compiler.take_compiled());
        let refused = refused.map(|CompileError::Full { table, .. }| table);
        let shares = self.compiler.take_causes(refused);
        let ops = ops?;
        self.capacity = self.compiler.capacity();
        self.close_restored();
        self.instruments.applying(|| self.dataplane.install(&self.capacity, &ops))?;
        self.instruments.new_generation();
        self.import_conntrack();
        self.installed = true;
        self.in_force.record_endpoints(&self.compiler);
        Ok(WrittenUpdate { operations: ops.len(), shares })
    }

    /// After a boot, closes the pods that the last good state isolates until the programs are loaded: the pods could
    /// otherwise open denied connections in between.
    fn close_restored(&mut self) {
        if !self.restored || self.in_force.version.is_some() {
            return;
        }
        let isolated = self.compiler.endpoints().flat_map(|e| {
            let [ingress, egress] =
                [(e.ingress, Direction::Ingress), (e.egress, Direction::Egress)];
            let closed = [ingress, egress].into_iter().filter(|(isolated, _)| *isolated);
            closed.map(move |(_, direction)| Hook { ifindex: e.ifindex, direction })
        });
        let hooks = self.dataplane.close(&isolated.collect::<Vec<_>>());
        tracing::info!(hooks, "isolated pods are closed until the programs are loaded");
    }

    /// Closes interfaces without a slot before their records are erased: programs pass the packets of an interface
    /// without a record, and the programs of the interface are replaced only after the update. Failures are reported by
    /// the next [`Reconciler::attach`], which tries again.
    fn close_unplaced(&mut self) {
        let hooks = self.dataplane.hooks();
        let open = |ifindex: &u32| hooks.attached(*ifindex) != Some(Role::Closed);
        let unplaced = self.compiler.unplaced().filter(open);
        let closed: BTreeMap<u32, Role> = unplaced.map(|ifindex| (ifindex, Role::Closed)).collect();
        if !closed.is_empty() {
            self.dataplane.attach_new(&closed);
        }
    }

    /// Records that an update of `operations` operations is in force, `took` after its oldest change was noticed;
    /// `recovered`: the previous update failed.
    pub(super) fn enforced(&mut self, operations: usize, recovered: bool, took: Option<Duration>) {
        let revision = &mut self.revision;
        if revision.enforced == revision.desired && operations == 0 && !recovered {
            return;
        }
        let first = revision.enforced == 0;
        revision.enforced = revision.desired;
        self.instruments.enforced(took);
        let (revision, took) = (revision.enforced, took.map(tracing::field::debug));
        // A busy cluster has two updates a second; only updates after a start or a failure are logged at info level.
        if first || recovered {
            tracing::info!(revision, operations, took, recovered, "enforced");
        } else {
            tracing::debug!(revision, operations, took, "enforced");
        }
    }

    /// Imports the flows of endpoints about to be isolated from the kernel's conntrack, before policy judges their
    /// packets. A new pod has none. The walk covers all flows of the node while other updates wait, so a namespace in
    /// debt gets no import: the initiators of its flows are guessed by the ports.
    pub(super) fn import_conntrack(&mut self) {
        let mut newly = self.in_force.newly_isolated(&self.compiler);
        let (begin, now) = (thread_time(), Instant::now());
        newly.retain(|endpoint| self.pace.is_ready(&endpoint.pod.namespace, now));
        if newly.is_empty() {
            return;
        }
        let addresses = |e: &EndpointInfo| {
            let id = e.id;
            self.addresses_of(e).into_iter().map(move |address| (address, id))
        };
        let wanted = ImportRequest {
            endpoints: newly.iter().flat_map(addresses).collect(),
            own: self.compiler.cluster().own_addresses().collect(),
        };
        let mut share = 1.0;
        match self.dataplane.active().import_conntrack(&wanted) {
            Ok(imported) => {
                tracing::debug!(endpoints = newly.len(), flows = imported.flows, "imported flows");
                share = imported.share();
            }
            Err(error) => tracing::info!(
                %error,
                "cannot read initiators of open connections from the kernel's conntrack: guessing by ports"
            ),
        }
        // At the start no update waits, so the import is not charged.
        if self.in_force.version.is_some() {
            let shares = newly.into_iter().map(|endpoint| (endpoint.pod.namespace, 1)).collect();
            let took = thread_time().saturating_sub(begin);
            self.pace.charge_walk(took, share, shares, now);
        }
    }

    /// Returns the addresses that an endpoint's pod may use at its interface.
    pub(super) fn addresses_of(&self, endpoint: &EndpointInfo) -> Vec<IpAddr> {
        let cluster = self.compiler.cluster();
        let interface = cluster.interfaces().get(&endpoint.ifindex);
        interface.map(|interface| cluster.addresses_at(interface)).unwrap_or_default()
    }

    /// Attaches programs to new endpoints and devices and detaches them from removed ones, once the tables are written.
    /// While updates fail, attaches only to endpoints that the former tables contain, and never turns a pod's interface
    /// into a device. Returns the interfaces with failures, with the reasons.
    pub(super) fn attach(&mut self, roles: &BTreeMap<u32, Role>) -> BTreeMap<u32, String> {
        if self.installed {
            return self.dataplane.attach(roles);
        }
        let mut wanted = roles.clone();
        wanted.retain(|ifindex, role| match role {
            Role::Pod(id) => self.in_force.endpoints.get(ifindex) == Some(id),
            Role::Device(_) | Role::Unjudged => !self.is_pod(*ifindex),
            Role::Closed => true,
        });
        self.dataplane.attach_new(&wanted)
    }

    /// Returns whether the programs at an interface judge a pod.
    pub(super) fn is_pod(&self, ifindex: u32) -> bool {
        matches!(self.dataplane.hooks().attached(ifindex), Some(Role::Pod(_)))
    }

    /// Compares one of `slices` parts of the kernel's tables with their desired content and repairs it, except while
    /// updates fail: the installed content is unknown then. Returns the number of repaired entries, by table.
    pub(super) fn readback(&mut self, slices: u32) -> Repaired {
        if !self.installed {
            return Repaired::new();
        }
        match self.dataplane.active_mut().audit(&self.compiler, self.cursor, slices) {
            Ok((next, repaired)) => {
                self.cursor = next;
                repaired
            }
            Err(error) => {
                tracing::error!(%error, "cannot compare tables: creating a new generation");
                self.installed = false;
                Repaired::new()
            }
        }
    }
}

impl EndpointsInForce {
    /// Returns the endpoints that the current update begins to isolate.
    fn newly_isolated(&self, compiler: &Compiler) -> Vec<EndpointInfo> {
        if !self.seeds || self.version == Some(compiler.endpoints_version()) {
            return Vec::new();
        }
        let begin = self.isolated.is_empty();
        let newly = |e: &EndpointInfo| {
            let before = self.isolated.get(&e.id);
            (e.ingress || e.egress) && !e.waiting && before.map_or(begin, |isolated| !isolated)
        };
        compiler.endpoints().filter(newly).collect()
    }

    /// Records the endpoints of the written tables.
    pub(super) fn record_endpoints(&mut self, compiler: &Compiler) {
        self.seeds = true;
        let version = compiler.endpoints_version();
        if self.version.replace(version) == Some(version) {
            return;
        }
        self.endpoints = compiler.endpoints().map(|e| (e.ifindex, e.id)).collect();
        self.isolated = compiler.endpoints().map(|e| (e.id, e.ingress || e.egress)).collect();
    }
}
