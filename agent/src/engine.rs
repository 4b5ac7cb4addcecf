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
mod measure;
mod observed;
mod pace;
mod probe;
mod reconciler;
mod report;
mod room;
mod successor;
mod traced;
mod unproven;
mod unsupported;

use std::collections::BTreeMap;
use std::time::Instant;

use aya::maps::{MapData, RingBuf};
use netpold_core::bindings::{Bindings, CniResult};
use netpold_core::compile::{CompileError, Compiler, StateSnapshot};
use netpold_core::model::{Change, Pod};
use netpold_core::ops::Capacity;
use nix::net::if_::if_indextoname;

use crate::dataplane::Dataplane;
use crate::dataplane::attach::Hook;
use crate::dataplane::generation::GenerationError;
use crate::dataplane::tables::TableError;
use crate::endpoint::Event;
use crate::events::Line;
use crate::learn;
use crate::rule_use::{Answer, News, Round, RuleUse, Saved};

use bypass::Bypass;
use health::Health;
use interfaces::{NodeDevices, NodeInterfaces};
use reconciler::Reconciler;
use unproven::Missing;

pub use enforcement::{Enforcement, PodEnforcement, PolicyEnforcement};
pub use room::install;

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
    /// Packets that went past the programs.
    bypass: Bypass,
    /// Packets whose proof the exits miss.
    missing: Missing,
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
            bypass: Bypass::default(),
            missing: Missing::default(),
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
    /// been there since and [`EndpointInfo::uid_hash`], and pods that it knew.
    ///
    /// [`EndpointInfo::uid_hash`]: netpold_core::compile::EndpointInfo::uid_hash
    pub fn inherit(&mut self, bound: BTreeMap<u32, u64>, remembered: Vec<Pod>) {
        self.bindings.inherit(bound, remembered);
    }

    /// Takes in what discovery tells; whose an interface is shows with the next [`Engine::step`].
    pub fn discovered(&mut self, event: Event) {
        match event {
            Event::Veth(veth) => {
                self.interfaces.veth_is(veth.index, veth.name.clone());
                self.bindings.veth_is(veth);
            }
            Event::VethGone(index) => {
                self.interfaces.veth_gone(index);
                self.bindings.veth_gone(index);
            }
            Event::OwnAddresses(addresses) => self.ingest(Change::OwnAddresses(addresses)),
            Event::Devices(devices) => self.interfaces.devices_are(devices),
            Event::Ports(ports) => {
                self.interfaces.ports_are(ports);
                // A new port is waited for by nobody: its packets lack the proof until its program is there.
                self.tell_bridges();
            }
            Event::InSync => {}
        }
    }

    /// Says at which devices to judge.
    pub fn judge_at(&mut self, devices: NodeDevices) {
        self.interfaces.judge_at(devices);
    }

    /// Takes in the CNI results, all that are kept now.
    pub fn cni_results_are(&mut self, results: Vec<CniResult>) {
        self.bindings.cni_results_are(results);
    }

    /// Says why [`Engine::step`] is not called; `None`: it is.
    pub fn hold(&mut self, reason: Option<String>) {
        self.health.hold(reason);
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

    /// Says that the last good state is in force and not what the source says.
    pub fn restored(&mut self, restored: bool) {
        self.reconciler.restored = restored;
    }

    /// What an earlier agent recorded is to be relied on: its flows are known.
    pub fn inherits_flows(&mut self) {
        self.reconciler.inherits_flows();
    }

    /// The ring of drop events; once, and not before the first generation.
    pub fn events(&mut self) -> Option<RingBuf<MapData>> {
        self.reconciler.dataplane.events()
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
        let swept = dataplane.sweep(endpoints.as_ref(), |flow| {
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

    /// Goes on counting the use of rules where an earlier agent has ended.
    pub fn resume_rule_use(&mut self, saved: Saved) {
        self.rule_use.resume(saved);
    }

    /// What is known of the use of rules, to be kept.
    #[must_use]
    pub fn rule_use(&self) -> Saved {
        self.rule_use.saved()
    }

    /// Goes on recording flows where an earlier agent has ended.
    pub fn resume_flows(&mut self, saved: learn::Kept) {
        self.rule_use.resume_flows(saved.recorded);
    }

    /// The recorded flows, to be kept.
    #[must_use]
    pub fn kept_flows(&self) -> learn::Kept {
        learn::Kept { recorded: self.recorded_flows() }
    }

    /// Records what policy denied, by endpoint number.
    pub fn record_denied(&mut self, dropped: &BTreeMap<u32, Vec<Line>>) {
        self.rule_use.denied(self.reconciler.compiler.cluster(), dropped);
    }

    /// The flows of this node's pods that were seen, each kind once.
    #[must_use]
    pub fn recorded_flows(&self) -> learn::Answer {
        self.rule_use.flows(self.reconciler.compiler.cluster().node_name())
    }

    /// What each rule was used for, for people.
    #[must_use]
    pub fn rules(&self) -> Answer {
        self.rule_use.answer(self.reconciler.compiler.cluster().node_name())
    }

    /// Puts back what somebody took away: programs that no longer run where they were attached. Says
    /// when to call [`Engine::step`] if that failed.
    pub fn repair(&mut self) -> Option<Instant> {
        let dataplane = &mut self.reconciler.dataplane;
        self.health.repaired("programs", dataplane.reconcile_xdp());
        self.health.pins(dataplane.reconcile_pins());
        match dataplane.missing() {
            Ok(missing) if missing.is_empty() => {}
            Ok(missing) => {
                self.attach();
                // An interface that has just gone is no repair; discovery will say so.
                let there = missing.iter().filter(|i| if_indextoname(**i).is_ok());
                for ifindex in there {
                    self.health.repaired("programs", 1);
                    tracing::warn!(
                        ifindex,
                        "a program was gone from this interface: attached again"
                    );
                }
            }
            Err(error) => tracing::warn!(error, "cannot look whether programs are still attached"),
        }
        self.reconcile_order();
        let Reconciler { compiler, dataplane, .. } = &mut self.reconciler;
        self.bypass.look(compiler, &self.interfaces);
        if self.missing.look(compiler, dataplane) {
            for problem in self.unproven() {
                tracing::warn!(problem, "packets of pods miss their proof");
            }
        }
        self.retry_at()
    }

    fn reconcile_order(&mut self) {
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
    }

    /// Compares one of `slices` parts of the kernel's tables with what they must hold, and puts it
    /// right. Not while updates fail: what is installed is not known then.
    pub fn readback(&mut self, slices: u32) {
        for (table, entries) in self.reconciler.readback(slices) {
            tracing::warn!(table, entries, "somebody changed a table: put right");
            self.health.repaired("entries", entries);
        }
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
                self.succeeded(operations);
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
            .min()
    }

    /// Attaches the programs according to the interfaces' roles.
    fn attach(&mut self) {
        if self.interfaces.have_changed(&self.reconciler.compiler) {
            self.tell_bridges();
            self.interfaces.assign_roles(&self.reconciler.compiler);
        }
        if let Some(roles) = self.interfaces.roles() {
            self.health.cannot_attach(self.reconciler.attach(roles));
        }
    }

    /// Tells the dataplane of the bridges, before anything is attached.
    fn tell_bridges(&mut self) {
        let bridges = self.interfaces.bridges(&self.reconciler.compiler);
        self.reconciler.dataplane.bridges_are(bridges);
    }

    fn succeeded(&mut self, operations: usize) {
        let (recovered, took) = self.health.succeeded();
        let revision = &mut self.reconciler.revision;
        if revision.enforced == revision.desired && operations == 0 && !recovered {
            return;
        }
        let first = revision.enforced == 0;
        revision.enforced = revision.desired;
        self.reconciler.instruments.enforced(took);
        let (revision, took) = (revision.enforced, took.map(tracing::field::debug));
        // A busy cluster has two updates a second; only those after a start or a failure are news.
        if first || recovered {
            tracing::info!(revision, operations, took, recovered, "enforced");
        } else {
            tracing::debug!(revision, operations, took, "enforced");
        }
    }
}
