//! From changes to an enforced revision: compile, write, attach; retry what failed.
//!
//! Nothing is written before every source is in sync. A failed write never leaves a mixture (the
//! operations are ordered so that any prefix of them is one), but what is installed is then no
//! longer known, so the next try is a new generation, with a growing pause between tries.

mod bypass;
pub mod devices;
mod measure;
mod pace;
mod report;
mod room;
mod successor;
mod unhonoured;
mod unproven;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use aya::maps::{MapData, RingBuf};
use netpold_core::bindings::{Answer, Bindings, Veth};
use netpold_core::compile::{CompileError, Compiler, Cursor, EndpointInfo, Essentials};
use netpold_core::model::{Change, Direction, Interface, Pod};
use netpold_core::ops::Capacity;
use nix::net::if_::if_indextoname;
use nix::time::{ClockId, clock_gettime};

use crate::conntrack::Pass;
use crate::dataplane::Dataplane;
use crate::dataplane::attach::Hook;
use crate::dataplane::generation::GenerationError;
use crate::dataplane::role::Role;
use crate::dataplane::tables::TableError;
use crate::endpoint::{Device, InterfaceEvent};
use crate::metrics::Instruments;
use crate::seed::Wanted;

use bypass::Bypass;
use devices::NodeDevices;
use pace::Pace;
pub use room::grown;
use successor::{Succession, install};
use unproven::Missing;

/// Shortest and longest pause before a failed update is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// Why an update is not enforced yet.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The desired state does not fit or cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A new generation could not be made.
    #[error(transparent)]
    Generation(#[from] GenerationError),
    /// The kernel refused a write.
    #[error(transparent)]
    Table(#[from] TableError),
    /// There is no thread to compile on.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Keeps the dataplane equal to the cluster state.
pub struct Engine {
    compiler: Compiler,
    bindings: Bindings,
    dataplane: Dataplane,
    capacity: Capacity,
    /// Names of the veths whose other sides are in other namespaces.
    names: BTreeMap<u32, String>,
    /// The node's other devices.
    devices: BTreeMap<u32, Device>,
    /// Interfaces that are ports of bridges, with their bridge.
    ports: BTreeMap<u32, u32>,
    node_devices: NodeDevices,
    desired: u64,
    enforced: u64,
    /// The tables hold what the compiler believes they hold.
    installed: bool,
    failure: Option<Failure>,
    /// Why nothing is written at all.
    held: Option<String>,
    /// Endpoints that the tables in force hold, by interface index.
    written: BTreeMap<u32, u32>,
    attach_problems: BTreeMap<u32, String>,
    census: Option<Pass>,
    /// What was put right after somebody else had changed it, by kind.
    repaired: BTreeMap<&'static str, u64>,
    /// Why pins cannot be kept.
    pin_problem: Option<String>,
    /// Why the last good state cannot be kept.
    state_problem: Option<String>,
    /// What is enforced is the last good state, as far as the source has not spoken.
    restored: bool,
    /// Endpoints that had a record after the last update, and whether they were isolated.
    isolated: BTreeMap<u32, bool>,
    /// [`Compiler::endpoints_version`] that `written` and `isolated` are of.
    noted: Option<u64>,
    /// What every interface should be, and of which version; `None`: something else changed.
    roles: Option<(u64, BTreeMap<u32, Role>)>,
    /// Flows of endpoints that become isolated are looked for in the kernel's conntrack.
    seeds: bool,
    /// How far the comparison with the kernel's tables has come.
    cursor: Cursor,
    /// What went past the programs.
    bypass: Bypass,
    /// What exits missed of packets.
    missing: Missing,
    /// Flows removed by all sweeps.
    swept: Pass,
    /// When the first of the changes that are not enforced yet was seen.
    noticed: Option<Instant>,
    instruments: Instruments,
    pace: Pace,
    succession: Succession,
}

struct Failure {
    reason: String,
    pause: Duration,
    retry_at: Instant,
}

impl Engine {
    /// An engine that has written nothing yet.
    #[must_use]
    pub fn new(compiler: Compiler, dataplane: Dataplane, capacity: Capacity) -> Self {
        Self {
            compiler,
            bindings: Bindings::default(),
            dataplane,
            capacity,
            names: BTreeMap::new(),
            devices: BTreeMap::new(),
            ports: BTreeMap::new(),
            node_devices: NodeDevices::Auto,
            desired: 0,
            enforced: 0,
            installed: false,
            failure: None,
            held: None,
            written: BTreeMap::new(),
            attach_problems: BTreeMap::new(),
            census: None,
            repaired: BTreeMap::new(),
            pin_problem: None,
            state_problem: None,
            restored: false,
            isolated: BTreeMap::new(),
            noted: None,
            roles: None,
            seeds: true,
            cursor: Cursor::default(),
            bypass: Bypass::default(),
            missing: Missing::default(),
            swept: Pass::default(),
            noticed: None,
            instruments: Instruments::default(),
            pace: Pace::default(),
            succession: Succession::default(),
        }
    }

    /// Takes a change in; nothing is written before [`Engine::step`].
    pub fn apply(&mut self, change: Change) {
        self.bindings.note(&change, self.compiler.cluster());
        let cluster = self.compiler.cluster();
        let change = if self.installed {
            self.pace.admit(change, cluster)
        } else {
            // What is there at first waits for nothing.
            self.pace.overtaken(&change, cluster);
            Some(change)
        };
        if let Some(change) = change {
            self.take_in(change);
        }
    }

    fn take_in(&mut self, change: Change) {
        self.succession.note(&change);
        self.compiler.ingest(change);
        self.desired += 1;
    }

    /// Before all else: pods that an earlier agent's tables have, by the index of interfaces that have
    /// been there since and [`EndpointInfo::uid_hash`], and pods that it knew.
    pub fn inherit(&mut self, bound: BTreeMap<u32, u64>, remembered: Vec<Pod>) {
        self.bindings.inherit(bound, remembered);
    }

    /// Takes in what happened to an interface; whose it is shows with the next [`Engine::step`].
    pub fn apply_interface(&mut self, event: InterfaceEvent) {
        self.roles = None;
        let InterfaceEvent { change, name, namespace, routed } = event;
        match change {
            Change::Interface(Interface { index, incarnation, addresses: inside, .. }) => {
                self.names.insert(index, name.clone());
                let veth = Veth { index, incarnation, name, namespace, routed, inside };
                self.bindings.veth_is(veth);
            }
            Change::InterfaceGone(index) => {
                self.names.remove(&index);
                self.bindings.veth_gone(index);
            }
            other => self.apply(other),
        }
    }

    /// Takes in what CNI plugins answered, all that is kept now.
    pub fn answers_are(&mut self, answers: Vec<Answer>) {
        self.bindings.answers_are(answers);
    }

    /// Decides whose the interfaces are.
    fn settle(&mut self) {
        for change in self.bindings.settle(self.compiler.cluster()) {
            self.take_in(change);
        }
    }

    /// Says why [`Engine::step`] is not called; `None`: it is.
    pub fn hold(&mut self, reason: Option<String>) {
        if let Some(reason) = reason.as_ref().filter(|_| self.held != reason) {
            tracing::warn!(reason, "nothing is changed");
        }
        self.held = reason;
    }

    /// No packet is judged any more by what was read before the last update.
    pub fn grace_passed(&mut self) {
        self.compiler.grace_passed();
    }

    /// How often something was enforced, and what it came from.
    #[must_use]
    pub fn last_good(&self, is_due: impl Fn(u64) -> bool) -> Option<(u64, Essentials)> {
        (self.is_settled() && is_due(self.enforced))
            .then(|| (self.enforced, self.compiler.essentials(self.bindings.deleted())))
    }

    /// Whether what was compiled last is in force.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.installed && self.failure.is_none() && self.held.is_none()
    }

    /// Says why a boot would begin without policy.
    pub fn state_problem(&mut self, problem: Option<String>) {
        self.state_problem = problem;
    }

    /// Says that the last good state is in force and not what the source says.
    pub fn restored(&mut self, restored: bool) {
        self.restored = restored;
    }

    /// What an earlier agent recorded is to be relied on: its flows are known.
    pub fn inherits_flows(&mut self) {
        self.seeds = false;
    }

    /// The ring of drop events; once, and not before the first generation.
    pub fn events(&mut self) -> Option<RingBuf<MapData>> {
        self.dataplane.generation()?.events().ok()
    }

    /// Tidies flows away that have expired or whose endpoint is gone, and counts the others. Which are
    /// gone is known once everything is enforced.
    pub fn sweep(&mut self) {
        let endpoints = self.is_settled().then(|| self.compiler.endpoint_numbers());
        match self.dataplane.sweep(endpoints.as_ref()) {
            Ok(pass) => {
                pass.iter().for_each(|pass| self.count_swept(pass));
                self.census = pass;
            }
            Err(error) => tracing::warn!(%error, "conntrack cannot be swept; flows expire anyway"),
        }
    }

    /// Puts back what somebody took away: programs that no longer run where they were attached. Says
    /// when to call [`Engine::step`] if that failed.
    pub fn repair(&mut self) -> Option<Instant> {
        let restored = self.dataplane.tend_uplinks() + self.dataplane.repair_sent();
        self.repaired("programs", restored);
        match self.dataplane.keep_pins() {
            Ok(pinned) => {
                self.repaired("pins", pinned);
                self.pin_problem = None;
            }
            Err(reason) => self.cannot_keep_pins(reason),
        }
        match self.dataplane.missing() {
            Ok(missing) if missing.is_empty() => {}
            Ok(missing) => {
                self.attach();
                // An interface that has just gone is no repair; discovery will say so.
                let there = missing.iter().filter(|i| if_indextoname(**i).is_ok());
                for ifindex in there {
                    self.repaired("programs", 1);
                    tracing::warn!(
                        ifindex,
                        "a program was gone from this interface: attached again"
                    );
                }
            }
            Err(error) => tracing::warn!(error, "cannot look whether programs are still attached"),
        }
        self.keep_order();
        self.look_for_bypasses();
        self.look_for_unproven();
        self.retry_at()
    }

    fn keep_order(&mut self) {
        match self.dataplane.keep_order() {
            Ok(moved) => {
                for Hook { ifindex, direction } in moved {
                    self.repaired("order", 1);
                    let interface = self.names.get(&ifindex);
                    tracing::warn!(
                        ifindex, interface, %direction,
                        "another tool's program was put in front of netpold's: put behind it"
                    );
                }
            }
            Err(error) => tracing::warn!(error, "cannot look whether programs are still the first"),
        }
    }

    /// Compares one of `slices` parts of the kernel's tables with what they must hold, and puts it
    /// right. Not while updates fail: what is installed is not known then.
    pub fn readback(&mut self, slices: u32) {
        if !self.installed {
            return;
        }
        match self.dataplane.readback(&self.compiler, self.cursor, slices) {
            Ok((next, repaired)) => {
                self.cursor = next;
                for (table, entries) in repaired {
                    tracing::warn!(table, entries, "somebody changed a table: put right");
                    self.repaired("entries", entries);
                }
            }
            Err(error) => {
                tracing::error!(%error, "the tables cannot be compared: a new generation");
                self.installed = false;
            }
        }
    }

    fn repaired(&mut self, kind: &'static str, count: u64) {
        if count > 0 {
            *self.repaired.entry(kind).or_default() += count;
        }
    }

    fn cannot_keep_pins(&mut self, reason: String) {
        if self.pin_problem.as_ref() != Some(&reason) {
            tracing::error!(reason, "pins cannot be kept; tried again");
        }
        self.pin_problem = Some(reason);
    }

    /// Brings the kernel to the desired state; `noticed` is when the first of the changes was seen.
    /// Says when to be called again if that failed.
    pub fn step(&mut self, noticed: Option<Instant>) -> Option<Instant> {
        self.noticed = self.noticed.or(noticed);
        if self.failure.as_ref().is_some_and(|f| Instant::now() < f.retry_at) {
            // What waits for nothing but its attachment does not wait with the tables.
            self.attach();
            return self.retry_at();
        }
        match self.write_within_credit() {
            Ok(operations) => {
                self.attach();
                self.succeeded(operations);
                self.begin_successor();
            }
            Err(error) => {
                self.failed(&error);
                self.attach();
            }
        }
        self.retry_at()
    }

    fn retry_at(&self) -> Option<Instant> {
        let attach =
            || (!self.attach_problems.is_empty()).then(|| Instant::now() + Duration::from_secs(1));
        let retry = self.failure.as_ref().map(|f| f.retry_at).or_else(attach);
        retry.into_iter().chain(self.successor_due()).min()
    }

    /// Writes the update, and charges what was more than modest in it to its namespaces.
    fn write_within_credit(&mut self) -> Result<usize, EngineError> {
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
        self.settle();
        if !self.installed {
            return self.new_generation();
        }
        if let Some(operations) = self.succeed()? {
            return Ok(operations);
        }
        match self.instruments.compiling(|| self.compiler.update()) {
            Ok(ops) => {
                self.installed = false;
                self.seed();
                self.instruments.applying(|| self.dataplane.apply(&ops))?;
                self.installed = true;
                self.note_endpoints();
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
        self.seed();
        self.installed = true;
        self.note_endpoints();
        Ok(ops.len())
    }

    /// After a boot, closes the pods that the last good state isolates until its programs are loaded:
    /// connections that it denies would be faster.
    fn close_restored(&mut self) {
        if !self.restored || self.noted.is_some() {
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

    /// Looks for the flows of endpoints that are about to be isolated, before packets are judged by
    /// them. A pod that has just come has none.
    fn seed(&mut self) {
        if self.noted == Some(self.compiler.endpoints_version()) {
            return;
        }
        let begin = self.isolated.is_empty();
        let newly = |e: &EndpointInfo| {
            let before = self.isolated.get(&e.id);
            (e.ingress || e.egress) && !e.waiting && before.map_or(begin, |isolated| !isolated)
        };
        let newly: Vec<EndpointInfo> = self.compiler.endpoints().filter(newly).collect();
        if !self.seeds || newly.is_empty() {
            return;
        }
        let cluster = self.compiler.cluster();
        let addresses = |e: &EndpointInfo| {
            let id = e.id;
            self.addresses_of(e).into_iter().map(move |address| (address, id))
        };
        let wanted = Wanted {
            endpoints: newly.iter().flat_map(addresses).collect(),
            own: cluster.own_addresses().collect(),
        };
        match self.dataplane.seed(&wanted) {
            Ok(flows) => tracing::debug!(endpoints = newly.len(), flows, "flows taken over"),
            Err(error) => tracing::info!(
                %error,
                "the kernel's conntrack does not tell who began open connections: guessed by ports"
            ),
        }
    }

    /// The addresses that an endpoint's pod may use there.
    fn addresses_of(&self, endpoint: &EndpointInfo) -> Vec<IpAddr> {
        let cluster = self.compiler.cluster();
        let interface = cluster.interfaces().get(&endpoint.ifindex);
        let pod = interface.and_then(|interface| cluster.pod_behind(interface));
        pod.map(|pod| pod.addresses.clone()).unwrap_or_default()
    }

    /// The tables hold the endpoints.
    fn note_endpoints(&mut self) {
        self.seeds = true;
        let version = self.compiler.endpoints_version();
        if self.noted.replace(version) == Some(version) {
            return;
        }
        self.written = self.compiler.endpoints().map(|e| (e.ifindex, e.id)).collect();
        let isolated = self.compiler.endpoints().map(|e| (e.id, e.ingress || e.egress));
        self.isolated = isolated.collect();
    }

    /// Attaches to endpoints and devices that are new and leaves those that are gone, once their
    /// tables are written. As long as updates fail, only attaches to endpoints that the tables held
    /// before, and takes none for a device.
    fn attach(&mut self) {
        let version = self.compiler.endpoints_version();
        let known = self.roles.take().filter(|(of, _)| *of == version);
        let (_, roles) = known.unwrap_or_else(|| {
            self.tell_bridges();
            (version, self.roles())
        });
        let problems = if self.installed {
            self.dataplane.attach(&roles)
        } else {
            let mut wanted = roles.clone();
            wanted.retain(|ifindex, role| match role {
                Role::Pod(id) => self.written.get(ifindex) == Some(id),
                Role::Device(_) => !self.is_pod(*ifindex),
            });
            self.dataplane.attach_new(&wanted)
        };
        for (index, problem) in &problems {
            if self.attach_problems.get(index) != Some(problem) {
                tracing::error!(ifindex = index, problem, "an interface is not enforced");
            }
        }
        self.attach_problems = problems;
        self.roles = Some((version, roles));
    }

    /// Whether the programs judge a pod at an interface.
    pub(super) fn is_pod(&self, ifindex: u32) -> bool {
        matches!(self.dataplane.attached(ifindex), Some(Role::Pod(_)))
    }

    fn succeeded(&mut self, operations: usize) {
        let recovered = self.failure.take().is_some();
        let noticed = self.noticed.take();
        if self.enforced == self.desired && operations == 0 && !recovered {
            return;
        }
        let first = self.enforced == 0;
        self.enforced = self.desired;
        let took = noticed.map(|noticed| noticed.elapsed());
        self.instruments.enforced(took);
        let (revision, took) = (self.enforced, took.map(tracing::field::debug));
        // A busy cluster has two updates a second; only those after a start or a failure are news.
        if first || recovered {
            tracing::info!(revision, operations, took, recovered, "enforced");
        } else {
            tracing::debug!(revision, operations, took, "enforced");
        }
    }

    fn failed(&mut self, error: &EngineError) {
        let pause = self.failure.as_ref().map_or(RETRY.0, |f| (f.pause * 2).min(RETRY.1));
        let reason = error.to_string();
        self.instruments.failed();
        tracing::error!(%reason, retry_in = ?pause, "update not enforced; what was enforced stays");
        self.failure = Some(Failure { reason, pause, retry_at: Instant::now() + pause });
    }
}

/// Processor time of this thread.
fn thread_time() -> Duration {
    let clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}
