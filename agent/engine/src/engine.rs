//! Turns cluster changes into an enforced revision: compile, write, attach, and retry after failures.
//!
//! The engine writes nothing before every source is in sync. A failed write never leaves a mixture, because the
//! operations are ordered so that every prefix is consistent. The installed content is unknown after a failed write, so
//! the next attempt builds a new generation, with a growing pause between attempts.

mod bypass;
mod counters;
pub(crate) mod denials;
pub(crate) mod enforcement;
pub(crate) mod error;
pub(crate) mod flows;
mod health;
pub mod interfaces;
mod interference;
mod measure;
mod pace;
mod probe;
mod reconciler;
pub(crate) mod report;
mod resolved;
pub(crate) mod room;
mod secondary;
mod succession;
mod successor;
mod traced;
mod unproven;
pub(crate) mod unsupported;
pub(crate) mod watched_events;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use aya::maps::{MapData, RingBuf};
use netpold_core::bindings::{Bindings, CniResult, Inherited};
use netpold_core::compile::{Compiler, StateSnapshot};
use netpold_core::model::{Change, Pod};
use netpold_core::ops::Capacity;
use netpold_dataplane::Dataplane;
use netpold_dataplane::attach::Hook;
use netpold_dataplane::conntrack::PassResult;
use netpold_discovery::{DiscoveryEvent, newcomers};
use nix::net::if_::if_indextoname;

use crate::events::{DropLogLine, Dropped};
use crate::rule_use::round::SweepRound;
use crate::rule_use::{NewFlows, RuleUse};
use counters::unrecorded;
use health::Health;
use interfaces::{NodeDevices, NodeInterfaces};
use interference::Interference;
use reconciler::Reconciler;

/// Keeps the dataplane equal to the cluster state.
pub struct Engine {
    reconciler: Reconciler,
    bindings: Bindings,
    interfaces: NodeInterfaces,
    health: Health,
    interference: Interference,
    /// Interfaces found without one of their programs by the last [`Engine::repair`].
    lost: BTreeSet<u32>,
    /// Use of policy rules by traffic.
    rule_use: RuleUse,
}

impl Engine {
    /// Creates an engine; it writes nothing yet.
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

    /// Ingests a change; nothing is written before [`Engine::step`].
    pub fn ingest(&mut self, change: Change) {
        let cluster = self.reconciler.compiler.cluster();
        self.bindings.mark_stale(&change, cluster);
        self.rule_use.record_change(&change, cluster);
        self.reconciler.admit(change);
    }

    /// Sets the state of an earlier agent: interfaces judged by its programs (`judged`), its pods by interface index
    /// (`bound`) and further pods that it recorded (`remembered`). The earlier agent has tracked their flows, so the
    /// first update imports none from the kernel's conntrack. Must be called before any other method.
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

    /// Sets the interfaces that existed before the guard, on a node without programs of netpold: any other veth is new.
    pub fn set_existing_interfaces(&mut self, existing: BTreeSet<u32>) {
        self.interfaces.inherit(existing);
    }

    /// Ingests an event of discovery; the next [`Engine::step`] binds interfaces to pods.
    pub fn ingest_discovery(&mut self, event: DiscoveryEvent) {
        match event {
            DiscoveryEvent::Veth(veth) => {
                self.interfaces.set_veth(&veth, Instant::now());
                self.bindings.set_veth(veth);
            }
            DiscoveryEvent::VethGone(index) => {
                self.interfaces.remove_veth(index);
                self.bindings.remove_veth(index);
            }
            DiscoveryEvent::OwnAddresses(addresses) => self.ingest(Change::OwnAddresses(addresses)),
            DiscoveryEvent::Devices(devices) => {
                self.interfaces.set_devices(devices);
                // The programs refuse packets of a new device until the dataplane lists it.
                self.pass_devices();
            }
            DiscoveryEvent::Ports(ports) => {
                self.interfaces.set_ports(ports);
                // An update does not wait for a new port: its packets lack the proof until its program is attached.
                self.pass_bridges();
            }
            DiscoveryEvent::InSync => self.interfaces.in_sync(),
        }
    }

    /// Sets the devices at which packets are judged.
    pub fn judge_at(&mut self, devices: NodeDevices) {
        self.interfaces.judge_at(devices);
    }

    /// Sets the devices that lead to other namespaces and belong to the node.
    pub fn trust(&mut self, devices: NodeDevices) {
        self.interfaces.trust(devices);
    }

    /// Replaces the CNI results by all current ones.
    pub fn set_cni_results(&mut self, results: Vec<CniResult>) {
        if !results.is_empty() {
            self.interfaces.has_results();
        }
        self.bindings.set_cni_results(results);
    }

    /// Expects CNI results, because their directory exists: new veths stay closed until their result arrives, unless
    /// pods come without results.
    pub fn expect_cni_results(&mut self) {
        self.interfaces.expect_results();
    }

    /// Sets the state of the source: `held` is the reason why [`Engine::step`] is not called, if it is not; `restored`:
    /// whether the last good state is enforced instead of the source's state.
    pub fn set_source_state(&mut self, held: Option<String>, restored: bool) {
        self.health.set_hold_reason(held);
        self.reconciler.restored = restored;
    }

    /// Frees retired numbers. Call when no packet in flight is judged by data read before the last update.
    pub fn grace_passed(&mut self) {
        self.reconciler.compiler.grace_passed();
    }

    /// Returns the enforced revision and a snapshot of its input, if everything is settled and the revision `is_due`.
    #[must_use]
    pub fn last_good(&self, is_due: impl Fn(u64) -> bool) -> Option<(u64, StateSnapshot)> {
        let enforced = self.reconciler.revision.enforced;
        (self.is_settled() && is_due(enforced))
            .then(|| (enforced, self.reconciler.compiler.state_snapshot(self.bindings.deleted())))
    }

    /// Returns whether the last compiled update is in force.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.reconciler.installed && self.health.failure().is_none() && self.health.held.is_none()
    }

    /// Sets the reason why the next boot would start without policy.
    pub fn state_problem(&mut self, problem: Option<String>) {
        self.health.state_problem = problem;
    }

    /// Returns the ring of drop events; `None` before the first generation and after the first call.
    pub fn events(&mut self) -> Option<RingBuf<MapData>> {
        self.reconciler.dataplane.active_mut().events()
    }

    /// Removes expired flows and flows of removed endpoints, and counts the others. The set of removed endpoints is
    /// known once everything is enforced.
    ///
    /// Returns new flows, and denials of audited policies.
    pub fn sweep(&mut self) -> NewFlows {
        let endpoints = self.is_settled().then(|| self.reconciler.compiler.endpoint_numbers());
        if let Some(endpoints) = &endpoints {
            self.reconciler.sweep_resolved(endpoints);
        }
        self.rule_use.set_resolved_names(self.reconciler.resolved_or_none());
        let Reconciler { compiler, dataplane, revision, restored, .. } = &mut self.reconciler;
        // A policy that is not in force explains no flow.
        let mut round =
            endpoints.is_some().then(|| self.rule_use.begin(compiler, revision.desired, *restored));
        let swept = dataplane.active_mut().sweep(endpoints.as_ref(), |flow| {
            round.iter_mut().for_each(|round| round.visit_flow(flow));
        });
        if let Some(met) = round.map(SweepRound::finish) {
            self.rule_use.end(compiler, met);
        }
        match swept {
            Ok(pass) => self.health.count_sweep(pass),
            Err(error) => tracing::warn!(%error, "cannot sweep conntrack; flows still expire"),
        }
        let unrecorded = unrecorded(dataplane);
        let mut round = self.rule_use.sweep_observed(unrecorded);
        let is_empty = self.health.observed.as_ref().is_some_and(PassResult::is_empty);
        if is_empty && !compiler.endpoints().any(|endpoint| endpoint.observed) {
            return self.rule_use.take_new_flows();
        }
        match dataplane.active().sweep_observed(endpoints.as_ref(), |flow| round.visit_record(flow))
        {
            Ok(pass) => self.health.observed = pass,
            Err(error) => tracing::warn!(%error, "cannot sweep the records of observed flows"),
        }
        self.rule_use.take_new_flows()
    }

    /// Records flows that policy denied, by endpoint number.
    pub fn record_denied(&mut self, dropped: &BTreeMap<u32, Vec<DropLogLine>>) {
        self.rule_use.denied(self.reconciler.compiler.cluster(), dropped);
    }

    /// Returns the pod's name for a drop or flow; the name of a deleted pod is kept for some minutes.
    #[must_use]
    pub fn pod_name(&self, dropped: &Dropped) -> Option<String> {
        let pod = self.rule_use.pod_of(dropped.endpoint, dropped.ifindex);
        pod.map(|pod| pod.key.to_string())
    }

    /// Returns the recorded use of rules and flows.
    #[must_use]
    pub fn rule_use(&self) -> &RuleUse {
        &self.rule_use
    }

    /// Returns the recorded use mutably, to continue an earlier agent's records.
    pub fn rule_use_mut(&mut self) -> &mut RuleUse {
        &mut self.rule_use
    }

    /// Returns the compiler, with all objects and their compiled state.
    #[must_use]
    pub fn compiler(&self) -> &Compiler {
        &self.reconciler.compiler
    }

    /// Restores programs that were detached or reordered by other tools, and pins that were removed. Returns the time
    /// of the next [`Engine::step`] if a repair failed.
    pub fn repair(&mut self) -> Option<Instant> {
        self.report_lost();
        let dataplane = &mut self.reconciler.dataplane;
        self.health.count_repairs("programs", dataplane.reconcile_xdp());
        dataplane.reconcile_devices();
        if dataplane.reconcile_fragments() {
            self.health.count_repairs("nftables", 1);
            tracing::warn!("restored the nftables rules for fragments: changed by another process");
        }
        self.health.pins(dataplane.reconcile_pins());
        match dataplane.missing() {
            Ok(missing) if missing.is_empty() => {}
            Ok(missing) => {
                self.attach();
                self.lost.extend(missing);
            }
            Err(error) => tracing::warn!(error, "cannot check whether programs are attached"),
        }
        self.reopen();
        match self.reconciler.dataplane.reconcile_order() {
            Ok(moved) => {
                for Hook { ifindex, direction } in moved {
                    self.health.count_repairs("order", 1);
                    let interface = self.interfaces.veth(ifindex);
                    tracing::warn!(
                        ifindex, interface, %direction,
                        "reordered programs: netpold's first"
                    );
                }
            }
            Err(error) => tracing::warn!(error, "cannot check the order of programs"),
        }
        self.interference.read_counters(&self.reconciler, &self.interfaces);
        self.retry_at()
    }

    /// Reports programs that the previous call found missing. The kernel removes a deleted interface step by step,
    /// including its programs; this needs no repair. So only interfaces that still exist, for the kernel and for
    /// discovery, are reported.
    fn report_lost(&mut self) {
        for ifindex in std::mem::take(&mut self.lost) {
            if self.interfaces.is_known(ifindex) && if_indextoname(ifindex).is_ok() {
                self.health.count_repairs("programs", 1);
                tracing::warn!(ifindex, "restored program: missing from interface");
            }
        }
    }

    /// Opens veths that were closed as new and returned to the node's namespace before their pods were known.
    fn reopen(&mut self) {
        let leads_away = |ifindex| newcomers::outside().map_or(true, |all| all.contains(&ifindex));
        match self.reconciler.dataplane.reopen(&self.interfaces.inner(), leads_away) {
            Ok(opened) if opened.is_empty() => {}
            Ok(opened) => {
                tracing::info!(?opened, "opened closed interfaces: no longer of a pod");
            }
            Err(error) => {
                tracing::warn!(error, "cannot open closed interfaces that are no longer of a pod");
            }
        }
    }

    /// Compares one of `slices` parts of the kernel's tables with their desired content and repairs it, except while
    /// updates fail: the installed content is unknown then. Returns the time of the next [`Engine::step`] if there is
    /// work.
    pub fn readback(&mut self, slices: u32) -> Option<Instant> {
        for (table, entries) in self.reconciler.readback(slices) {
            tracing::warn!(
                table,
                entries,
                "repaired table: contents differed from the desired state"
            );
            self.health.count_repairs("entries", entries);
        }
        self.retry_at()
    }

    /// Checks the fill of the flow tables, which fill without any change of the cluster. Returns the time of the next
    /// [`Engine::step`] if there is work: that step begins larger tables.
    pub fn check_room(&mut self) -> Option<Instant> {
        if self.reconciler.installed {
            self.reconciler.dataplane.active_mut().watch_room();
        }
        self.retry_at()
    }

    /// Brings the kernel to the desired state; `noticed` is the time when the oldest pending change was seen. Returns
    /// the time of the next call if work remains.
    pub fn step(&mut self, noticed: Option<Instant>) -> Option<Instant> {
        self.health.noticed(noticed);
        if self.health.is_pausing() {
            // Interfaces that lack only their programs do not wait for the tables.
            self.attach();
            return self.retry_at();
        }
        // Binds interfaces to pods.
        let bound = self.bindings.bind_veths(self.reconciler.compiler.cluster());
        self.reconciler.ingest(bound);
        match self.reconciler.write_within_credit() {
            Ok(operations) => {
                self.rule_use.set_endpoints(&self.reconciler.compiler);
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
            .chain(self.interfaces.next_change())
            .min()
    }

    /// Attaches the programs according to the roles of the interfaces.
    fn attach(&mut self) {
        let now = Instant::now();
        if self.interfaces.have_changed(&self.reconciler.compiler, now) {
            self.pass_bridges();
            let Reconciler { compiler, restored, .. } = &self.reconciler;
            self.interfaces.assign_roles(compiler, *restored, now);
        }
        if let Some(roles) = self.interfaces.roles() {
            self.health.cannot_attach(self.reconciler.attach(roles));
        }
    }

    /// Passes to the dataplane the interfaces from which packets arrive without having passed a program. Does nothing
    /// before the devices are listed.
    fn pass_devices(&mut self) {
        if let Some(own) = self.interfaces.trusted_interfaces() {
            self.reconciler.dataplane.set_devices(own);
        }
    }

    /// Passes the bridges to the dataplane; must precede any attachment.
    fn pass_bridges(&mut self) {
        let bridges = self.interfaces.bridges(&self.reconciler.compiler);
        self.reconciler.dataplane.set_bridges(bridges);
    }
}
