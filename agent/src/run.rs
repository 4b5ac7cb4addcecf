//! `netpold run`: passes sources and discovery to the engine, and serves requests.
//!
//! The agent detaches nothing at its end: enforcement outlives it.

mod records;
mod reports;
mod routes;
mod start;
mod telemetry;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use netpold_controller::listen::{Heartbeat, Listener};
use netpold_core::lock::lock;
use netpold_dataplane::attach::{AttachMode, Attacher};
use netpold_dataplane::bpffs::{PinRoot, PinRootOffer, TakesFrom};
use netpold_dataplane::generation;
use netpold_dataplane::object::object;
use netpold_dataplane::pinned_state::PinnedState;
use netpold_dataplane::quiescence::grace_period;
use netpold_discovery::Discovery;
use netpold_discovery::newcomers::{NewcomerGuard, VethWatcher};
use netpold_engine::Engine;
use netpold_engine::admin::{Admin, requests};
use netpold_engine::events::{self, DropLog, Dropped};
use netpold_engine::interfaces::NodeDevices;
use netpold_engine::publish;
use netpold_engine::rule_use::NewFlows;
use netpold_engine::trace::Tracing;
use netpold_export::Exporter;
use netpold_kube::cni_results::cache;
use netpold_kube::cni_results::static_pods::StaticPods;
use netpold_kube::inputs::{Input, Inputs};
use netpold_kube::opened::OpenedSource;
use netpold_kube::pause::pause_until;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use records::RecordWriters;
use reports::Reports;
use routes::routes;
use telemetry::Telemetry;

use crate::config::RunConfig;
use crate::{memory, requirements, service_manager, standby};

/// Number of parts in which the kernel's tables are compared per `--readback` interval.
const SLICES: u32 = 40;
/// Interval at which an agent checks for another one: the successor that claims its node, or the predecessor that offers
/// one.
const OFFERED: Duration = Duration::from_millis(100);
/// Time that an agent has to begin its offer of a takeover.
const OFFER_PATIENCE: Duration = Duration::from_mins(1);
/// Interval of checks of the flow tables, independent of `--readback`. Larger tables take a second to make. If more
/// flows begin within that second and this interval than three quarters of a table hold (20,000 a second in the
/// smallest), the rest finds no room.
const ROOM: Duration = Duration::from_secs(1);
/// Longest wait for tasks that still run at the end.
const LAST_TASKS: Duration = Duration::from_millis(500);
/// Capacity of the channel of interface events.
const EVENTS: usize = 4096;

/// Enforces policy until a signal or a successor ends the agent.
///
/// # Errors
/// A requirement of the agent is missing; nothing was changed then.
pub fn run(mut config: RunConfig) -> Result<()> {
    memory::keep_little_freed();
    config.start_log()?;
    if standby::is_handed_over() {
        return standby::wait_behind(&config.files.bpffs);
    }
    object()?;
    requirements::check()?;
    generation::prepare();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let exporter = config.export.clone().map(Exporter::new);
    let result = runtime.block_on(async {
        let opened = if config.files.state.exists() {
            // The kept state is enforced with or without a source.
            OpenedSource::later(config.origin.clone())
        } else {
            // Opened first, because a failure here changes nothing.
            OpenedSource::now(&config.origin).await?
        };
        let opened = complete_before_takeover(opened, &config).await;
        RunningAgent::start(&config, opened, exporter.clone())?.serve(config.readback).await
    });
    // The next agent waits for the pin root, which the last task releases. A credential plugin may still run.
    runtime.shutdown_timeout(LAST_TASKS);
    let ended = result?;
    exporter.iter().for_each(Exporter::finish);
    match ended {
        EndReason::Stopped => Ok(()),
        EndReason::HandedOver => standby::hand_over().map(|never| match never {}),
    }
}

/// Waits, where another agent offers its node, until all objects are known: the other judges new pods until then. An agent
/// that has just begun makes no offer yet, so a busy pin root is asked again.
async fn complete_before_takeover(opened: OpenedSource, config: &RunConfig) -> OpenedSource {
    let (root, from) = (&config.files.bpffs, config.takes_from);
    let end = Instant::now() + OFFER_PATIENCE;
    while !config.give_way && Instant::now() < end {
        if PinRoot::is_kept_for_another(root, from) {
            info!(
                "waiting until all objects are known: another agent enforces on this node until then"
            );
            return opened.complete().await;
        }
        if from != TakesFrom::Predecessor || !PinRoot::is_busy(root) {
            break;
        }
        tokio::time::sleep(OFFERED).await;
    }
    opened
}

/// Reason for the end of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndReason {
    /// By a signal, or because another agent claimed the pin root from an agent that gives way.
    Stopped,
    /// In favour of its successor.
    HandedOver,
}

/// The running agent.
struct RunningAgent {
    engine: Arc<Mutex<Engine>>,
    drops: Arc<Mutex<DropLog>>,
    telemetry: Telemetry,
    inputs: Inputs,
    opening: Option<JoinHandle<Result<()>>>,
    reports: Reports,
    records: RecordWriters,
    interfaces: mpsc::Receiver<netpold_discovery::DiscoveryEvent>,
    /// Whether all interfaces of the start are known.
    interfaces_in_sync: bool,
    reading_events: bool,
    /// Number of sweeps with the source's state in force.
    settled_sweeps: u32,
    /// Whether tables or programs of an earlier agent were there at the start.
    inherited: bool,
    /// Offer of the pin root to another agent, which takes it by asking.
    offer: Option<PinRootOffer>,
    /// Pin root to offer to a successor once this agent is at work.
    hands_over: Option<PathBuf>,
    heartbeat: Heartbeat,
    /// Services that end with the agent.
    _running: (NewcomerGuard, Discovery, Admin, Option<Listener>),
}

impl RunningAgent {
    fn start(config: &RunConfig, opened: OpenedSource, exporter: Option<Exporter>) -> Result<Self> {
        let OpenedSource { source, event_recorder, opening } = opened;
        // First, so that no veth appears unseen while another agent ends.
        let veths = VethWatcher::open().context("cannot watch for new interfaces")?;
        let existing = veths.existing().clone();
        let pins = PinRoot::take_over(&config.files.bpffs, config.takes_from)?;
        let offer =
            config.give_way.then(|| PinRootOffer::new(&config.files.bpffs, TakesFrom::GivesWay));
        let offer = offer.transpose()?;
        let mode = AttachMode::probe();
        requirements::warn_of_lacks(mode);
        let mut attacher = Attacher::new(&pins.links(), mode)?;
        // Where all veths were judged before, one without a program belongs to a pod that started since. The same holds
        // if an agent has begun to load its programs for a kept state since the boot.
        let began = || attacher.closing().was_pinned() && !start::remembered(config).is_empty();
        let all = config.hooks.node_devices == NodeDevices::Auto && (pins.has_tables() || began());
        let guard = NewcomerGuard::start(attacher.closing().clone(), veths, all);
        let guard = guard.context("cannot start to close new interfaces")?;
        let pinned = PinnedState::read(&pins)?;
        // Tables of another version are not read, but its programs judge packets.
        let mut attached = attacher.attached()?;
        attached.retain(|found| !attacher.is_closed(found.program));
        let inherited = pinned.hash_seed.is_some() || !attached.is_empty();
        let judged: BTreeSet<u32> = attached.iter().map(|found| found.hook.ifindex).collect();
        let before = inherited.then(|| judged.clone());
        let mut engine = start::engine(config, pins, attacher, &pinned, before)?;
        let records =
            RecordWriters::resume(&config.files.state, &config.node, engine.rule_use_mut());
        let manifests = StaticPods::new(config.files.static_pods.clone(), config.node.clone());
        let results = cache::follow(config.files.cni_results.clone(), manifests)?;
        let mut inputs = Inputs::new(source, results, config.node.clone(), inherited);
        if inherited {
            engine.inherit(judged, start::bound(&pinned, &attached), start::remembered(config));
        } else {
            engine.set_existing_interfaces(existing);
        }
        if config.files.cni_results.is_dir() {
            engine.expect_cni_results();
        }
        // CNI results identify the interfaces, so they precede the first look at interfaces.
        let first = inputs.first(&config.files.state, &config.node);
        apply_input(&mut engine, &inputs, first);
        let engine = Arc::new(Mutex::new(engine));
        let drops = Arc::new(Mutex::new(DropLog::default()));
        let (events, interfaces) = mpsc::channel(EVENTS);
        let discovery = Discovery::start(netpold_discovery::DiscoverySettings::default(), events)?;
        let mut telemetry = Telemetry::new(config, exporter);
        let metrics = Arc::new(telemetry.metrics(&engine, &drops, inputs.status()));
        telemetry.export(&metrics);
        let readiness = Arc::clone(&metrics);
        let observer = telemetry::observer(&config.node, &engine, &drops);
        telemetry.prepare_feed(&engine, &observer);
        let requests =
            requests(&config.node, &engine, &drops, observer, inputs.status(), readiness);
        let admin = Admin::serve(&config.files.socket, requests)?;
        let heartbeat = Heartbeat::default();
        let listen = |address| Listener::serve(address, routes(metrics, heartbeat.clone()));
        let listener = config.listen.map(listen).transpose()?;
        info!(node = config.node, from = inputs.status().borrow().origin, "netpold starts");
        let publish = publish::PublishSettings {
            node: config.node.clone(),
            readiness_gate: config.readiness_gate.clone(),
        };
        // The agent that keeps the node for another one leaves publishing to that agent.
        let publish = (!config.give_way).then_some(publish);
        Ok(Self {
            engine,
            drops,
            telemetry,
            inputs,
            opening,
            reports: Reports::new(event_recorder, publish),
            records,
            interfaces,
            interfaces_in_sync: false,
            reading_events: false,
            settled_sweeps: 0,
            inherited,
            offer,
            hands_over: (config.takes_from == TakesFrom::Predecessor)
                .then(|| config.files.bpffs.clone()),
            heartbeat,
            _running: (guard, discovery, admin, listener),
        })
    }

    /// Serves until the agent ends; compares everything with the kernel within each `readback`.
    async fn serve(mut self, readback: Duration) -> Result<EndReason> {
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen to SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen to SIGINT")?;
        // A sweep also removes expired flows (they count as absent before that).
        let mut sweep = tokio::time::interval(readback);
        let mut slice = tokio::time::interval(readback / SLICES);
        slice.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut room = tokio::time::interval(ROOM);
        room.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut asked = tokio::time::interval(OFFERED);
        asked.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut starting = true;
        let mut retry: Option<Instant> = None;
        let mut grace = GraceTimer::default();
        let mut taken = false;
        loop {
            let mut noticed = None;
            self.heartbeat.beat();
            tokio::select! {
                input = self.inputs.next() => match input {
                    Some(input) => noticed = Some(self.take_input(input)),
                    None => return self.source_ended().await,
                },
                event = self.interfaces.recv() => match event {
                    Some(event) => self.take_interface(event),
                    None => bail!("endpoint discovery ended; enforcement stays in place"),
                },
                () = pause_until(retry) => {}
                () = grace.passed() => {
                    lock(&self.engine).grace_passed();
                    continue;
                }
                _ = sweep.tick() => {
                    let due = block_in_place(|| self.sweep_and_report());
                    retry = retry.into_iter().chain(due).min();
                    continue;
                }
                _ = asked.tick(), if self.offer.is_some() => {
                    if self.offer.as_ref().is_some_and(PinRootOffer::is_taken) {
                        info!("another agent takes over");
                        taken = true;
                        break;
                    }
                    continue;
                }
                _ = slice.tick() => {
                    let due = block_in_place(|| lock(&self.engine).readback(SLICES));
                    retry = retry.into_iter().chain(due).min();
                    self.records.write_state(&self.engine, self.inputs.are_restored()).await;
                    continue;
                }
                _ = room.tick() => {
                    let due = block_in_place(|| lock(&self.engine).check_room());
                    retry = retry.into_iter().chain(due).min();
                    continue;
                }
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
            self.take_pending(&mut noticed);
            if self.inputs.are_usable() && self.interfaces_in_sync {
                retry = block_in_place(|| lock(&self.engine).step(noticed));
                grace.restart_wait();
                self.read_events();
            }
            if starting && self.is_at_work() {
                starting = false;
                notify_ready();
                self.offer_to_successor();
            }
            self.reports.publish(&self.engine, self.inputs.status());
        }
        block_in_place(|| {
            let mut engine = lock(&self.engine);
            let news = engine.sweep();
            record_new_flows(&engine, &self.drops, news);
            Tracing::end(&mut *engine);
        });
        self.telemetry.finish().await;
        self.records.finish(&self.engine).await;
        info!("netpold exits; enforcement stays in place");
        // An agent that gives way waits for no other agent.
        Ok(if taken && self.hands_over.is_some() {
            EndReason::HandedOver
        } else {
            EndReason::Stopped
        })
    }

    /// Sweeps the flow table, repairs, and reports the flows and denials since the last sweep. Returns the time of the
    /// next attempt at a repair.
    fn sweep_and_report(&mut self) -> Option<Instant> {
        let mut engine = lock(&self.engine);
        let news = engine.sweep();
        record_new_flows(&engine, &self.drops, news);
        let due = engine.repair();
        let denied = lock(&self.drops).take_denied();
        engine.record_denied(&denied);
        self.reports.record_events(&engine, denied);
        self.records.write_counted(engine.rule_use());
        self.settled_sweeps += u32::from(engine.is_settled() && !self.inputs.are_restored());
        // The first sweep may precede the first comparison of the tables.
        if self.settled_sweeps == 2 {
            memory::give_back_the_start();
        }
        due
    }

    /// Lets the next agent of this node take over from this one.
    fn offer_to_successor(&mut self) {
        let Some(root) = &self.hands_over else { return };
        match PinRootOffer::new(root, TakesFrom::Predecessor) {
            Ok(offer) => self.offer = Some(offer),
            Err(error) => warn!(%error, "cannot offer takeover to another agent"),
        }
    }

    /// Returns whether the state known at the start is in force: the last good state, an earlier agent's tables, or the
    /// source's state. An unopened source with nothing kept counts as in force too.
    fn is_at_work(&self) -> bool {
        let waits = self.inputs.are_restored() && !lock(&self.engine).is_settled();
        self.interfaces_in_sync && !waits
    }

    /// Returns the error that ended or prevented the source.
    async fn source_ended(self) -> Result<EndReason> {
        if let Some(opening) = self.opening {
            opening.await??;
        }
        bail!("object source ended; enforcement stays in place")
    }

    /// Takes the pending inputs and events into the same update.
    fn take_pending(&mut self, noticed: &mut Option<Instant>) {
        while let Some(input) = self.inputs.try_next() {
            let at = self.take_input(input);
            noticed.get_or_insert(at);
        }
        while let Ok(event) = self.interfaces.try_recv() {
            self.take_interface(event);
        }
    }

    /// Passes changes to the engine; returns when they were noticed.
    fn take_input(&mut self, input: Input) -> Instant {
        let at = input.at;
        apply_input(&mut lock(&self.engine), &self.inputs, input);
        at
    }

    fn take_interface(&mut self, event: netpold_discovery::DiscoveryEvent) {
        self.interfaces_in_sync |= matches!(event, netpold_discovery::DiscoveryEvent::InSync);
        lock(&self.engine).ingest_discovery(event);
    }

    /// Starts to read drop events once a ring exists; generations share the ring.
    fn read_events(&mut self) {
        if self.reading_events {
            return;
        }
        let Some(mut ring) = lock(&self.engine).events() else { return };
        self.reading_events = true;
        let (engine, drops) = (Arc::clone(&self.engine), Arc::clone(&self.drops));
        let pod = move |dropped: &Dropped| lock(&engine).pod_name(dropped);
        self.telemetry.start_feed(self.inherited, || {
            let lines = events::record_events(&mut ring, &drops);
            lines.iter().for_each(|line| events::log_line(line, &pod));
        });
        tokio::spawn(async move {
            if let Err(error) = events::read(ring, drops, pod).await {
                warn!(%error, "cannot read drop events; drops are still counted");
            }
        });
    }
}

/// Notifies the service manager that the agent is at work.
fn notify_ready() {
    if let Err(error) = service_manager::ready() {
        warn!(%error, "cannot notify the service manager of readiness");
    }
}

/// Records new flows for `netpold observe`. Logs flows that audited policies would deny, and keeps them for the status.
fn record_new_flows(engine: &Engine, drops: &Mutex<DropLog>, news: NewFlows) {
    let now = Instant::now();
    let lines: Vec<_> = {
        let mut drops = lock(drops);
        drops.journal().flows(news.opened, news.unreported);
        news.audited.into_iter().filter_map(|dropped| drops.record_drop(dropped, now)).collect()
    };
    for line in lines {
        events::log_line(&line, |dropped| engine.pod_name(dropped));
    }
}

/// Passes changes to the engine, with the trust in their source.
fn apply_input(engine: &mut Engine, inputs: &Inputs, input: Input) {
    engine.set_source_state(inputs.held(), inputs.are_restored());
    if let Some(results) = input.results {
        engine.set_cni_results(results);
    }
    input.changes.into_iter().for_each(|change| engine.ingest(change));
}

/// Waits until no CPU still judges a packet by data read before the last update.
#[derive(Debug, Default)]
struct GraceTimer {
    wait: Option<JoinHandle<()>>,
}

impl GraceTimer {
    /// Restarts the wait, after an update was written.
    fn restart_wait(&mut self) {
        self.wait = Some(tokio::task::spawn_blocking(grace_period));
    }

    async fn passed(&mut self) {
        match &mut self.wait {
            Some(wait) => {
                let _ = wait.await;
                self.wait = None;
            }
            None => std::future::pending().await,
        }
    }
}
