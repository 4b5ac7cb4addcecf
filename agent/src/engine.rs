//! From changes to an enforced revision: compile, write, attach; retry what failed.
//!
//! Nothing is written before every source is in sync. A failed write never leaves a mixture (the
//! operations are ordered so that any prefix of them is one), but what is installed is then no
//! longer known, so the next try is a new generation, with a growing pause between tries.

mod bypass;
mod denials;
mod enforcement;
mod flows;
mod health;
pub mod interfaces;
mod interference;
mod measure;
mod observed;
mod pace;
mod probe;
mod reconciler;
mod report;
mod room;
mod second;
mod successor;
mod traced;
mod unproven;
mod unsupported;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use aya::maps::{MapData, RingBuf};
use netpold_core::bindings::{Bindings, CniResult, Inherited};
use netpold_core::compile::{CompileError, Compiler, StateSnapshot};
use netpold_core::model::{Change, Pod};
use netpold_core::ops::Capacity;
use nix::net::if_::if_indextoname;

use crate::dataplane::Dataplane;
use crate::dataplane::attach::Hook;
use crate::dataplane::generation::GenerationError;
use crate::dataplane::tables::TableError;
use crate::endpoint::Event;
use crate::endpoint::newcomers;
use crate::events::{Dropped, Line};
use crate::rule_use::{News, Round, RuleUse};

use health::Health;
use interfaces::{NodeDevices, NodeInterfaces};
use interference::Interference;
use reconciler::Reconciler;

pub use denials::denials;
pub use enforcement::{Enforcement, PodEnforcement, PolicyEnforcement};
pub use flows::{flow_reader, name_remotes};
pub use observed::observed;
pub use report::{hindrances, to_tell_of_node};
pub use room::install;
pub use unsupported::unsupported_policies;

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
    reconciler: Reconciler,
    bindings: Bindings,
    interfaces: NodeInterfaces,
    health: Health,
    interference: Interference,
    /// Interfaces where a program was gone when that was looked at last.
    lost: BTreeSet<u32>,
    /// Which rules carried traffic.
    rule_use: RuleUse,
}

impl Engine {
    /// An engine that has written nothing yet.
    #[must_use]
    pub fn new(compiler: Compiler, dataplane: Dataplane, capacity: Capacity) -> Self {
        Self {
            reconciler: Reconciler::new(compiler, dataplane, capacity),
            bindings: Bindings::default(),
            interfaces: NodeInterfaces::new(),
            health: Health::default(),
            interference: Interference::default(),
            lost: BTreeSet::new(),
            rule_use: RuleUse::default(),
        }
    }

    /// Takes a change in; nothing is written before [`Engine::step`].
    pub fn ingest(&mut self, change: Change) {
        let cluster = self.reconciler.compiler.cluster();
        self.bindings.note(&change, cluster);
        self.rule_use.note(&change, cluster);
        self.reconciler.admit(change);
    }

    /// Before all else: pods that an earlier agent's tables have, by the index of interfaces that have
    /// been there since, and pods that it knew. What it recorded is to be relied on: its flows are known. At the
    /// interfaces in `judged` its programs judge.
    pub fn inherit(
        &mut self,
        judged: BTreeSet<u32>,
        bound: BTreeMap<u32, Inherited>,
        remembered: Vec<Pod>,
    ) {
        self.interfaces.inherit(judged);
        self.bindings.inherit(bound, remembered);
        self.reconciler.in_force.seeds = false;
    }

    /// Takes in what discovery tells; whose an interface is shows with the next [`Engine::step`].
    pub fn discovered(&mut self, event: Event) {
        match event {
            Event::Veth(veth) => {
                self.interfaces.veth_is(&veth, Instant::now());
                self.bindings.veth_is(veth);
            }
            Event::VethGone(index) => {
                self.interfaces.veth_gone(index);
                self.bindings.veth_gone(index);
            }
            Event::OwnAddresses(addresses) => self.ingest(Change::OwnAddresses(addresses)),
            Event::Devices(devices) => {
                self.interfaces.devices_are(devices);
                // Until then nothing that comes by a new one is handed on.
                self.tell_devices();
            }
            Event::Ports(ports) => {
                self.interfaces.ports_are(ports);
                // A new port is waited for by nobody: its packets lack the proof until its program is there.
                self.tell_bridges();
            }
            Event::InSync => self.interfaces.in_sync(),
        }
    }

    /// Says at which devices to judge.
    pub fn judge_at(&mut self, devices: NodeDevices) {
        self.interfaces.judge_at(devices);
    }

    /// Says which devices that lead to other namespaces are the node's own.
    pub fn trust(&mut self, devices: NodeDevices) {
        self.interfaces.trust(devices);
    }

    /// Takes in the CNI results, all that are kept now.
    pub fn cni_results_are(&mut self, results: Vec<CniResult>) {
        if !results.is_empty() {
            self.interfaces.has_results();
        }
        self.bindings.cni_results_are(results);
    }

    /// There is a directory for CNI results: new veths are closed until theirs is there, unless pods come without.
    pub fn expect_cni_results(&mut self) {
        self.interfaces.expect_results();
    }

    /// How far the source is to be believed: why [`Engine::step`] is not called (`None`: it is), and whether the
    /// last good state is in force and not what the source says.
    pub fn believe(&mut self, held: Option<String>, restored: bool) {
        self.health.hold(held);
        self.reconciler.restored = restored;
    }

    /// No packet is judged any more by what was read before the last update.
    pub fn grace_passed(&mut self) {
        self.reconciler.compiler.grace_passed();
    }

    /// How often something was enforced, and what it came from.
    #[must_use]
    pub fn last_good(&self, is_due: impl Fn(u64) -> bool) -> Option<(u64, StateSnapshot)> {
        let enforced = self.reconciler.revision.enforced;
        (self.is_settled() && is_due(enforced))
            .then(|| (enforced, self.reconciler.compiler.state_snapshot(self.bindings.deleted())))
    }

    /// Whether what was compiled last is in force.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.reconciler.installed && self.health.failure().is_none() && self.health.held.is_none()
    }

    /// Says why a boot would begin without policy.
    pub fn state_problem(&mut self, problem: Option<String>) {
        self.health.state_problem = problem;
    }

    /// The ring of drop events; once, and not before the first generation.
    pub fn events(&mut self) -> Option<RingBuf<MapData>> {
        self.reconciler.dataplane.active_mut().events()
    }

    /// Tidies flows away that have expired or whose endpoint is gone, and counts the others. Which are
    /// gone is known once everything is enforced.
    ///
    /// Returns which flows are new, and which policies on trial would deny.
    pub fn sweep(&mut self) -> News {
        let endpoints = self.is_settled().then(|| self.reconciler.compiler.endpoint_numbers());
        let Reconciler { compiler, dataplane, revision, restored, .. } = &mut self.reconciler;
        // What is not in force explains no flow.
        let mut round =
            endpoints.is_some().then(|| self.rule_use.begin(compiler, revision.desired, *restored));
        let swept = dataplane.active_mut().sweep(endpoints.as_ref(), |flow| {
            round.iter_mut().for_each(|round| round.meet(flow));
        });
        if let Some(met) = round.map(Round::done) {
            self.rule_use.end(compiler, met);
        }
        match swept {
            Ok(pass) => self.health.count_sweep(pass),
            Err(error) => tracing::warn!(%error, "conntrack cannot be swept; flows expire anyway"),
        }
        self.rule_use.take_news()
    }

    /// Records what policy denied, by endpoint number.
    pub fn record_denied(&mut self, dropped: &BTreeMap<u32, Vec<Line>>) {
        self.rule_use.denied(self.reconciler.compiler.cluster(), dropped);
    }

    /// The name of the pod of a drop or flow; a pod that has gone is known for some minutes.
    #[must_use]
    pub fn pod_name(&self, dropped: &Dropped) -> Option<String> {
        let pod = self.rule_use.pod_of(dropped.endpoint, dropped.ifindex);
        pod.map(|pod| pod.key.to_string())
    }

    /// What is known of the use of rules, and of flows.
    #[must_use]
    pub fn rule_use(&self) -> &RuleUse {
        &self.rule_use
    }

    /// The same, to go on where an earlier agent has ended.
    pub fn rule_use_mut(&mut self) -> &mut RuleUse {
        &mut self.rule_use
    }

    /// All objects, and what is compiled from them.
    #[must_use]
    pub fn compiler(&self) -> &Compiler {
        &self.reconciler.compiler
    }

    /// Puts back what somebody took away: programs that no longer run where they were attached. Says
    /// when to call [`Engine::step`] if that failed.
    pub fn repair(&mut self) -> Option<Instant> {
        self.report_lost();
        let dataplane = &mut self.reconciler.dataplane;
        self.health.repaired("programs", dataplane.reconcile_xdp());
        dataplane.reconcile_devices();
        self.health.pins(dataplane.reconcile_pins());
        match dataplane.missing() {
            Ok(missing) if missing.is_empty() => {}
            Ok(missing) => {
                self.attach();
                self.lost.extend(missing);
            }
            Err(error) => tracing::warn!(error, "cannot look whether programs are still attached"),
        }
        self.reopen();
        match self.reconciler.dataplane.reconcile_order() {
            Ok(moved) => {
                for Hook { ifindex, direction } in moved {
                    self.health.repaired("order", 1);
                    let interface = self.interfaces.veth(ifindex);
                    tracing::warn!(
                        ifindex, interface, %direction,
                        "another tool's program was put in front of netpold's: put behind it"
                    );
                }
            }
            Err(error) => tracing::warn!(error, "cannot look whether programs are still the first"),
        }
        self.interference.look(&self.reconciler, &self.interfaces);
        self.retry_at()
    }

    /// Reports programs that were found to be gone when this was called before. The kernel takes an interface that is
    /// being deleted apart step by step, and its programs with it: that is no repair, so only interfaces that are
    /// there still, as the kernel and discovery have it, are reported.
    fn report_lost(&mut self) {
        for ifindex in std::mem::take(&mut self.lost) {
            if self.interfaces.is_known(ifindex) && if_indextoname(ifindex).is_ok() {
                self.health.repaired("programs", 1);
                tracing::warn!(ifindex, "a program was gone from this interface: attached again");
            }
        }
    }

    /// Opens veths that were closed as new ones and whose other sides have come home before their pods were known.
    fn reopen(&mut self) {
        let leads_away = |ifindex| newcomers::outside().map_or(true, |all| all.contains(&ifindex));
        match self.reconciler.dataplane.reopen(&self.interfaces.inner(), leads_away) {
            Ok(opened) if opened.is_empty() => {}
            Ok(opened) => {
                tracing::info!(?opened, "closed interfaces are no pods' any more: opened");
            }
            Err(error) => {
                tracing::warn!(error, "cannot open interfaces that are no pods' any more");
            }
        }
    }

    /// Compares one of `slices` parts of the kernel's tables with what they must hold, and puts it
    /// right. Not while updates fail: what is installed is not known then. Says when to call
    /// [`Engine::step`] if there is something to do.
    pub fn readback(&mut self, slices: u32) -> Option<Instant> {
        for (table, entries) in self.reconciler.readback(slices) {
            tracing::warn!(table, entries, "somebody changed a table: put right");
            self.health.repaired("entries", entries);
        }
        self.retry_at()
    }

    /// Looks how full the flow tables are, which fill without any change of the cluster. Says when to call
    /// [`Engine::step`] if there is something to do: larger ones are made there.
    pub fn watch_room(&mut self) -> Option<Instant> {
        if self.reconciler.installed {
            self.reconciler.dataplane.active_mut().watch_room();
        }
        self.retry_at()
    }

    /// Brings the kernel to the desired state; `noticed` is when the first of the changes was seen.
    /// Says when to be called again if that failed.
    pub fn step(&mut self, noticed: Option<Instant>) -> Option<Instant> {
        self.health.noticed(noticed);
        if self.health.is_pausing() {
            // What waits for nothing but its attachment does not wait with the tables.
            self.attach();
            return self.retry_at();
        }
        // Decides whose the interfaces are.
        let bound = self.bindings.settle(self.reconciler.compiler.cluster());
        self.reconciler.ingest(bound);
        match self.reconciler.write_within_credit() {
            Ok(operations) => {
                self.rule_use.endpoints_are(&self.reconciler.compiler);
                self.attach();
                let (recovered, took) = self.health.succeeded();
                self.reconciler.enforced(operations, recovered, took);
                self.reconciler.begin_successor();
            }
            Err(error) => {
                self.reconciler.instruments.failed();
                self.health.failed(&error);
                self.attach();
            }
        }
        self.retry_at()
    }

    fn retry_at(&self) -> Option<Instant> {
        self.health
            .retry_at()
            .into_iter()
            .chain(self.reconciler.successor_due(Instant::now()))
            .chain(self.interfaces.due())
            .min()
    }

    /// Attaches the programs according to the interfaces' roles.
    fn attach(&mut self) {
        let now = Instant::now();
        if self.interfaces.have_changed(&self.reconciler.compiler, now) {
            self.tell_bridges();
            self.interfaces.assign_roles(&self.reconciler.compiler, now);
        }
        if let Some(roles) = self.interfaces.roles() {
            self.health.cannot_attach(self.reconciler.attach(roles));
        }
    }

    /// Tells the dataplane by which interfaces packets may come that have passed no program. Before the devices are
    /// listed nobody knows.
    fn tell_devices(&mut self) {
        if let Some(own) = self.interfaces.own() {
            self.reconciler.dataplane.devices_are(own);
        }
    }

    /// Tells the dataplane of the bridges, before anything is attached.
    fn tell_bridges(&mut self) {
        let bridges = self.interfaces.bridges(&self.reconciler.compiler);
        self.reconciler.dataplane.bridges_are(bridges);
    }
}
