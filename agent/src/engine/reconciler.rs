//! Compile → write → attach: brings the kernel's tables to the desired state, in new ones where the old are too
//! small or not known.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netpold_core::compile::{Compiler, Cursor, EndpointInfo};
use netpold_core::model::{Change, Direction};
use netpold_core::ops::Capacity;
use nix::time::{ClockId, clock_gettime};

use super::EngineError;
use super::pace::Pace;
use super::room::install;
use super::successor::Succession;
use crate::dataplane::Dataplane;
use crate::dataplane::attach::Hook;
use crate::dataplane::audit::Repaired;
use crate::dataplane::role::Role;
use crate::import_conntrack::Wanted;
use crate::metrics::Instruments;
use crate::status::Revision;

/// See the module.
pub(super) struct Reconciler {
    pub(super) compiler: Compiler,
    pub(super) dataplane: Dataplane,
    pub(super) capacity: Capacity,
    pub(super) pace: Pace,
    pub(super) revision: Revision,
    /// The tables hold what the compiler believes they hold.
    pub(super) installed: bool,
    /// What is enforced is the last good state, as far as the source has not spoken.
    pub(super) restored: bool,
    pub(super) in_force: InForce,
    /// What is compiled beside the rest.
    pub(super) succession: Succession,
    /// How far the comparison with the kernel's tables has come.
    cursor: Cursor,
    pub(super) instruments: Instruments,
}

/// The endpoints of the tables in force.
#[derive(Debug)]
pub(super) struct InForce {
    /// By interface index.
    endpoints: BTreeMap<u32, u32>,
    /// Whether they are isolated.
    isolated: BTreeMap<u32, bool>,
    /// [`Compiler::endpoints_version`] that both are of.
    version: Option<u64>,
    /// Flows of endpoints that become isolated are looked for in the kernel's conntrack.
    pub(super) seeds: bool,
}

impl Reconciler {
    /// Nothing was written yet.
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
            in_force: InForce { endpoints, isolated, version: None, seeds: true },
            succession: Succession::default(),
            cursor: Cursor::default(),
            instruments: Instruments::default(),
        }
    }

    /// Takes a change in, unless it has to wait.
    pub(super) fn admit(&mut self, change: Change) {
        let cluster = self.compiler.cluster();
        let change = if self.installed {
            self.pace.admit(change, cluster)
        } else {
            // What is there at first waits for nothing.
            self.pace.overtaken(&change, cluster);
            Some(change)
        };
        self.ingest(change);
    }

    /// Takes changes in.
    pub(super) fn ingest(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            self.succession.note(&change);
            self.compiler.ingest(change);
            self.revision.desired += 1;
        }
    }

    /// Writes the update, and charges what was more than modest in it to its namespaces.
    pub(super) fn write_within_credit(&mut self) -> Result<usize, EngineError> {
        let is_first = !self.installed;
        let begin = thread_time();
        self.compiler.defer(Some(self.pace.held(Instant::now())));
        let written = self.write();
        let compiled = self.compiler.take_compiled();
        let took = thread_time().saturating_sub(begin);
        // Nobody owes for what had to be compiled all over.
        if !is_first {
            self.pace.spent(took, compiled, Instant::now());
        }
        written
    }

    /// Writes the update; how many operations that took.
    fn write(&mut self) -> Result<usize, EngineError> {
        if !self.installed {
            return self.new_generation();
        }
        if let Some(operations) = self.succeed()? {
            return Ok(operations);
        }
        match self.instruments.compiling(|| self.compiler.update()) {
            Ok(ops) => {
                self.installed = false;
                self.import_conntrack();
                self.instruments.applying(|| self.dataplane.active_mut().write(&ops))?;
                self.installed = true;
                self.in_force.note(&self.compiler);
                Ok(ops.len())
            }
            Err(error) => {
                tracing::info!(%error, "the update needs larger tables: a new generation");
                self.new_generation()
            }
        }
    }

    /// Installs everything into new tables, grown until it fits.
    fn new_generation(&mut self) -> Result<usize, EngineError> {
        self.installed = false;
        let capacity = self.capacity;
        let ops = self.instruments.compiling(|| install(&mut self.compiler, capacity))?;
        self.capacity = self.compiler.capacity();
        self.close_restored();
        self.instruments.applying(|| self.dataplane.install(&self.capacity, &ops))?;
        self.instruments.new_generation();
        self.import_conntrack();
        self.installed = true;
        self.in_force.note(&self.compiler);
        Ok(ops.len())
    }

    /// After a boot, closes the pods that the last good state isolates until its programs are loaded:
    /// connections that it denies would be faster.
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

    /// An update of so many operations is in force: after a failure, or not, and so long after the first of its
    /// changes was noticed.
    pub(super) fn enforced(&mut self, operations: usize, recovered: bool, took: Option<Duration>) {
        let revision = &mut self.revision;
        if revision.enforced == revision.desired && operations == 0 && !recovered {
            return;
        }
        let first = revision.enforced == 0;
        revision.enforced = revision.desired;
        self.instruments.enforced(took);
        let (revision, took) = (revision.enforced, took.map(tracing::field::debug));
        // A busy cluster has two updates a second; only those after a start or a failure are news.
        if first || recovered {
            tracing::info!(revision, operations, took, recovered, "enforced");
        } else {
            tracing::debug!(revision, operations, took, "enforced");
        }
    }

    /// Looks for the flows of endpoints that are about to be isolated, before packets are judged by
    /// them. A pod that has just come has none. This goes through all flows of the node while everybody
    /// waits, so who has it done often goes without: those flows are guessed by their ports.
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
        let wanted = Wanted {
            endpoints: newly.iter().flat_map(addresses).collect(),
            own: self.compiler.cluster().own_addresses().collect(),
        };
        match self.dataplane.active().import_conntrack(&wanted) {
            Ok(flows) => tracing::debug!(endpoints = newly.len(), flows, "flows taken over"),
            Err(error) => tracing::info!(
                %error,
                "the kernel's conntrack does not tell who began open connections: guessed by ports"
            ),
        }
        // At the start nobody else waits.
        if self.in_force.version.is_some() {
            let shares = newly.into_iter().map(|endpoint| (endpoint.pod.namespace, 1)).collect();
            self.pace.spent(thread_time().saturating_sub(begin), shares, now);
        }
    }

    /// The addresses that an endpoint's pod may use there.
    pub(super) fn addresses_of(&self, endpoint: &EndpointInfo) -> Vec<IpAddr> {
        let cluster = self.compiler.cluster();
        let interface = cluster.interfaces().get(&endpoint.ifindex);
        interface.map(|interface| cluster.addresses_at(interface)).unwrap_or_default()
    }

    /// Attaches to endpoints and devices that are new and leaves those that are gone, once their
    /// tables are written. As long as updates fail, only attaches to endpoints that the tables held
    /// before, and takes none for a device. Gives the interfaces where that failed, with the reasons.
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

    /// Whether the programs judge a pod at an interface.
    pub(super) fn is_pod(&self, ifindex: u32) -> bool {
        matches!(self.dataplane.hooks().attached(ifindex), Some(Role::Pod(_)))
    }

    /// Compares one of `slices` parts of the kernel's tables with what they must hold, and puts it
    /// right; gives how many entries of which table. Not while updates fail: what is installed is not known then.
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
                tracing::error!(%error, "the tables cannot be compared: a new generation");
                self.installed = false;
                Repaired::new()
            }
        }
    }
}

impl InForce {
    /// Endpoints that policy begins to isolate with the update that is being made.
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

    /// The tables hold the endpoints.
    pub(super) fn note(&mut self, compiler: &Compiler) {
        self.seeds = true;
        let version = compiler.endpoints_version();
        if self.version.replace(version) == Some(version) {
            return;
        }
        self.endpoints = compiler.endpoints().map(|e| (e.ifindex, e.id)).collect();
        self.isolated = compiler.endpoints().map(|e| (e.id, e.ingress || e.egress)).collect();
    }
}

/// Processor time of this thread.
pub(super) fn thread_time() -> Duration {
    let clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}
