//! `netpold run`: sources and discovery in, engine, answers out.
//!
//! The agent never detaches anything at its end: enforcement outlives it.

mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use netpold_core::compile::{Compiler, WAITING};
use netpold_core::model::{Change, Pod};
use netpold_core::ops::Capacity;
use netpold_core::options::{CheckSource, NewPods, Options};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use crate::admin::Admin;
use crate::config::{self, RunConfig};
use crate::conntrack::buckets_for_this_node;
use crate::dataplane::attach::{Attached, Attacher, Mode};
use crate::dataplane::bpffs::{self, PinRoot};
use crate::dataplane::generation;
use crate::dataplane::pinned_state::PinnedState;
use crate::dataplane::quiescence::grace_period;
use crate::dataplane::{Dataplane, DataplaneOptions};
use crate::endpoint::{self, Discovery};
use crate::engine::Engine;
use crate::events::{self, DropLog};
use crate::kept;
use crate::learn;
use crate::listen::{Heartbeat, Listener};
use crate::lock::{lock, try_lock};
use crate::metrics::Metrics;
use crate::object::object;
use crate::pause::pause_until;
use crate::publish::{self, Look, Publisher};
use crate::requirements;
use crate::rule_use::{self, News};
use crate::service_manager;
use crate::source::cluster::EventRecorder;
use crate::source::cni_results::cache;
use crate::source::cni_results::static_pods::StaticPods;
use crate::source::inputs::{Input, Inputs, kept};
use crate::source::opened::Opened;
use crate::state::SnapshotWriter;
use crate::trace::Tracing;
use requests::requests;

/// Parts in which the kernel's tables are compared within the interval.
const SLICES: u32 = 40;
/// Interface events in flight.
const EVENTS: usize = 4096;

/// Enforce until told to end.
///
/// # Errors
/// Something is missing that the agent cannot do without; nothing was changed then.
pub fn run(mut config: RunConfig) -> Result<()> {
    give_memory_back();
    config.start_log()?;
    object()?;
    requirements::check()?;
    generation::prepare();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(async {
        let opened = if config.state.exists() {
            // What is kept is enforced whether or not there is a source.
            Opened::later(config.origin.clone())
        } else {
            // First, since it changes nothing where it fails.
            Opened::now(&config.origin).await?
        };
        Agent::start(&config, when_due(opened, &config).await)?.serve().await
    });
    // A program that fetches credentials may still run.
    runtime.shutdown_background();
    result
}

/// What is freed goes back to the kernel. The C library would keep an arena for each few threads, and more and more
/// of what was freed in the largest pieces: after the start alone 20 MB.
#[cfg(target_env = "gnu")]
fn give_memory_back() {
    for (parameter, value) in [
        (libc::M_ARENA_MAX, 2),
        (libc::M_MMAP_THRESHOLD, 128 << 10),
        (libc::M_TRIM_THRESHOLD, 1 << 20),
    ] {
        // SAFETY: mallopt(3) takes no pointers. Where it refuses, more stays.
        let _ = unsafe { libc::mallopt(parameter, value) };
    }
}

#[cfg(not(target_env = "gnu"))]
fn give_memory_back() {}

/// Who takes over from an agent that gives way does so when everything is known: until then that one
/// goes on judging new pods.
async fn when_due(opened: Opened, config: &RunConfig) -> Opened {
    if config.give_way || !PinRoot::is_kept_for_another(&config.bpffs) {
        return opened;
    }
    info!("another agent keeps this node until all objects are known here");
    opened.complete().await
}

/// Everything that runs.
struct Agent {
    engine: Arc<Mutex<Engine>>,
    drops: Arc<Mutex<DropLog>>,
    inputs: Inputs,
    event_recorder: Arc<OnceLock<EventRecorder>>,
    opening: Option<JoinHandle<Result<()>>>,
    /// Tells the cluster what is in force, once there is a connection; it is rung after each step.
    publisher: Option<Publisher>,
    ring: Arc<Notify>,
    to_publish: publish::Settings,
    interfaces: mpsc::Receiver<endpoint::Event>,
    /// All interfaces there are at the start are known.
    interfaces_in_sync: bool,
    snapshots: SnapshotWriter,
    rule_use: kept::Keeper,
    recorded_flows: kept::Keeper,
    reading_events: bool,
    /// How long comparing everything with the kernel may take.
    readback: Duration,
    /// The pin root that is kept for another agent.
    kept_for_another: Option<PathBuf>,
    /// The service manager waits for word.
    starting: bool,
    heartbeat: Heartbeat,
    /// They end with the agent.
    _running: (Discovery, Admin, Option<Listener>),
}

impl Agent {
    fn start(config: &RunConfig, opened: Opened) -> Result<Self> {
        let Opened { source, event_recorder, opening } = opened;
        let pins = PinRoot::open(&config.bpffs)?;
        if config.give_way {
            pins.give_way()?;
        }
        let mode = Mode::probe();
        requirements::warn_of_lacks(mode);
        let mut attacher = Attacher::new(&pins.links(), mode)?;
        let pinned = PinnedState::read(&pins)?;
        // Another version's tables are not read, but its programs judge.
        let attached = attacher.attached()?;
        let inherited = pinned.hash_seed.is_some() || !attached.is_empty();
        let mut engine = engine(config, pins, attacher, &pinned)?;
        if let Some(saved) = kept::read(&config.state, rule_use::FILE, &config.node) {
            engine.resume_rule_use(saved);
        }
        if let Some(saved) = kept::read(&config.state, learn::FILE, &config.node) {
            engine.resume_flows(saved);
        }
        let manifests = StaticPods::new(config.static_pods.clone(), config.node.clone());
        let results = cache::follow(config.cni_results.clone(), manifests)?;
        let mut inputs = Inputs::new(source, results, config.node.clone(), inherited);
        if inherited {
            engine.inherits_flows();
            engine.inherit(bound(&pinned, &attached), remembered(config));
        }
        // CNI results say whose the interfaces are, so they are known before the first is looked at.
        let first = inputs.first(&config.state, &config.node);
        take(&mut engine, &inputs, first);
        let engine = Arc::new(Mutex::new(engine));
        let drops = Arc::new(Mutex::new(DropLog::default()));
        let (events, interfaces) = mpsc::channel(EVENTS);
        let discovery = Discovery::start(endpoint::Settings::default(), events)?;
        let requests = requests(&config.node, &engine, &drops, inputs.status());
        let admin = Admin::serve(&config.socket, requests)?;
        let heartbeat = Heartbeat::default();
        let listen = |address| {
            let at_work = Arc::clone(&engine);
            let snapshot = move || try_lock(&at_work).map(|mut engine| engine.snapshot());
            let mut now = lock(&engine);
            let (instruments, first) = (now.instruments().clone(), now.snapshot());
            drop(now);
            let (drops, source) = (drops.clone(), inputs.status());
            let metrics = Metrics::new(&instruments, first, snapshot, drops, source);
            Listener::start(address, metrics, heartbeat.clone())
        };
        let listener = config.listen.map(listen).transpose()?;
        info!(node = config.node, from = inputs.status().borrow().origin, "netpold starts");
        Ok(Self {
            engine,
            drops,
            inputs,
            event_recorder,
            opening,
            publisher: None,
            ring: Arc::default(),
            to_publish: publish::Settings {
                node: config.node.clone(),
                readiness_gate: config.readiness_gate.clone(),
            },
            interfaces,
            interfaces_in_sync: false,
            snapshots: SnapshotWriter::new(config.state.clone(), config.node.clone()),
            rule_use: kept::Keeper::new(&config.state, rule_use::FILE, config.node.clone()),
            recorded_flows: kept::Keeper::new(&config.state, learn::FILE, config.node.clone()),
            reading_events: false,
            readback: config.readback,
            kept_for_another: config.give_way.then(|| config.bpffs.clone()),
            starting: true,
            heartbeat,
            _running: (discovery, admin, listener),
        })
    }

    async fn serve(mut self) -> Result<()> {
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen to SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen to SIGINT")?;
        // Expired flows are tidied away too (they count as absent before that).
        let mut sweep = tokio::time::interval(self.readback);
        let mut slice = tokio::time::interval(self.readback / SLICES);
        slice.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut retry: Option<Instant> = None;
        let mut grace = Grace::default();
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
                    None => bail!("endpoint discovery ended; what was enforced stays"),
                },
                () = pause_until(retry) => {}
                () = grace.passed() => {
                    lock(&self.engine).grace_passed();
                    continue;
                }
                _ = sweep.tick() => {
                    block_in_place(|| {
                        let mut engine = lock(&self.engine);
                        let news = engine.sweep();
                        tell_of_flows(&engine, &self.drops, news);
                        retry = retry.into_iter().chain(engine.repair()).min();
                        let denied = lock(&self.drops).take_denied();
                        engine.record_denied(&denied);
                        if let Some(event_recorder) = self.event_recorder.get() {
                            event_recorder.tell(engine.unsupported_policies());
                            event_recorder.tell_of_node(engine.wrong_with_node());
                            event_recorder.tell_of_denials(engine.denials(denied));
                        }
                        if self.rule_use.is_due() {
                            self.rule_use.write(engine.rule_use());
                        }
                        if self.recorded_flows.is_due() {
                            self.recorded_flows.write(engine.kept_flows());
                        }
                    });
                    continue;
                }
                _ = slice.tick() => {
                    if self.kept_for_another.as_ref().is_some_and(|root| !bpffs::is_still_kept(root)) {
                        info!("another agent takes over");
                        break;
                    }
                    block_in_place(|| lock(&self.engine).readback(SLICES));
                    self.keep_state().await;
                    continue;
                }
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
            self.take_what_is_there(&mut noticed);
            if self.inputs.are_usable() && self.interfaces_in_sync {
                retry = block_in_place(|| lock(&self.engine).step(noticed));
                grace.begin();
                self.read_events();
            }
            self.say_ready();
            self.publish();
        }
        let counted = block_in_place(|| {
            let mut engine = lock(&self.engine);
            let news = engine.sweep();
            tell_of_flows(&engine, &self.drops, news);
            Tracing::end(&mut *engine);
            (engine.rule_use(), engine.kept_flows())
        });
        self.rule_use.finish(counted.0).await;
        self.recorded_flows.finish(counted.1).await;
        info!("netpold ends; what is enforced stays enforced");
        Ok(())
    }

    /// Tells the service manager, once, that what is known at the start is in force: the last good state,
    /// what an earlier agent left, or what the source has said. Nothing at all is also in force.
    fn say_ready(&mut self) {
        let waits = self.inputs.are_restored() && !lock(&self.engine).is_settled();
        if !self.starting || !self.interfaces_in_sync || waits {
            return;
        }
        self.starting = false;
        if let Err(error) = service_manager::ready() {
            warn!(%error, "the service manager cannot be told that the agent is ready");
        }
    }

    /// Tells the cluster what is in force now. The agent that keeps the node for another one leaves that to it.
    fn publish(&mut self) {
        self.ring.notify_one();
        if self.publisher.is_some() || self.kept_for_another.is_some() {
            return;
        }
        let Some(event_recorder) = self.event_recorder.get() else { return };
        let (engine, source) = (Arc::clone(&self.engine), self.inputs.status());
        let look = move || {
            let in_sync = source.borrow().in_sync;
            let engine = lock(&engine);
            let held_since = Instant::now();
            let (enforcement, problems) = (engine.enforcement(), engine.hindrances());
            (Look { enforcement, problems, in_sync }, held_since.elapsed())
        };
        let (settings, ring) = (self.to_publish.clone(), Arc::clone(&self.ring));
        self.publisher = Some(Publisher::start(event_recorder, settings, ring, look));
    }

    /// Why there is no source any more, or never was.
    async fn source_ended(self) -> Result<()> {
        if let Some(opening) = self.opening {
            opening.await??;
        }
        bail!("the source of objects ended; what was enforced stays")
    }

    /// What came in the meantime belongs into the same update.
    fn take_what_is_there(&mut self, noticed: &mut Option<Instant>) {
        while let Some(input) = self.inputs.try_next() {
            let at = self.take_input(input);
            noticed.get_or_insert(at);
        }
        while let Ok(event) = self.interfaces.try_recv() {
            self.take_interface(event);
        }
    }

    /// Writes the last good state if it is time to.
    async fn keep_state(&mut self) {
        let problem = self.snapshots.settle().await;
        if self.inputs.are_restored() {
            return;
        }
        let snapshots = &self.snapshots;
        let mut engine = lock(&self.engine);
        engine.state_problem(problem);
        let due = block_in_place(|| engine.last_good(|revision| snapshots.is_due(revision)));
        drop(engine);
        if let Some((revision, objects)) = due {
            self.snapshots.write(revision, objects);
        }
    }

    /// Gives changes to the engine; when they were noticed.
    fn take_input(&mut self, input: Input) -> Instant {
        let at = input.at;
        take(&mut lock(&self.engine), &self.inputs, input);
        at
    }

    fn take_interface(&mut self, event: endpoint::Event) {
        self.interfaces_in_sync |= matches!(event, endpoint::Event::InSync);
        lock(&self.engine).discovered(event);
    }

    /// Starts reading drop events once there is a ring to read from; generations share it.
    fn read_events(&mut self) {
        if self.reading_events {
            return;
        }
        let Some(ring) = lock(&self.engine).events() else { return };
        self.reading_events = true;
        let (engine, drops) = (Arc::clone(&self.engine), Arc::clone(&self.drops));
        let pod = move |endpoint| lock(&engine).pod_of(endpoint).map(|pod| pod.to_string());
        tokio::spawn(async move {
            if let Err(error) = events::read(ring, drops, pod).await {
                warn!(%error, "drop events cannot be read; drops are still counted");
            }
        });
    }
}

fn engine(
    config: &RunConfig,
    pins: PinRoot,
    attacher: Attacher,
    pinned: &PinnedState,
) -> Result<Engine> {
    let capacity = Capacity::SMALL;
    let known = pinned.endpoints.iter().map(|e| ((e.ifindex, e.uid_hash), e.id)).collect();
    let last = pinned.endpoints.iter().map(|e| e.id).max();
    let random = random().context("cannot read random bytes")?;
    let options = Options {
        node: config.node.clone(),
        capacity,
        check_source: match config.check_source {
            config::CheckSource::Off => CheckSource::Off,
            config::CheckSource::Isolated => CheckSource::Isolated,
            config::CheckSource::All => CheckSource::All,
        },
        source_exempt: config.source_exempt.clone(),
        first_endpoint_id: first_endpoint_id(last, pinned.hash_seed.is_some(), random),
        known_endpoints: known,
        new_pods: match config.new_pods {
            config::NewPods::Allow => NewPods::Allow,
            config::NewPods::Deny => NewPods::Deny,
        },
    };
    let seed = pinned.hash_seed.unwrap_or(random);
    let dataplane = DataplaneOptions {
        proof: 1 << config.mark_bit,
        uplinks: config.uplinks.clone(),
        pod_xdp: config.sent,
        ..DataplaneOptions::new(buckets_for_this_node(), seed)
    };
    let dataplane = Dataplane::new(pins, attacher, dataplane);
    let mut engine = Engine::new(Compiler::new(options), dataplane, capacity);
    engine.judge_at(config.node_devices.clone());
    Ok(engine)
}

/// Records new flows for whoever watches. Logs those that policies on trial would deny, and keeps them for the
/// status.
fn tell_of_flows(engine: &Engine, drops: &Mutex<DropLog>, news: News) {
    let now = Instant::now();
    let lines: Vec<_> = {
        let mut drops = lock(drops);
        drops.journal().flows(news.opened, news.untold);
        news.audited.into_iter().filter_map(|dropped| drops.take_in(dropped, now)).collect()
    };
    for line in lines {
        events::say(&line, |endpoint| engine.pod_of(endpoint).map(|pod| pod.to_string()));
    }
}

/// Whose the interfaces are by the tables of the agent before this one. A program that is still
/// attached shows that an interface has been there since: it goes with it.
fn bound(pinned: &PinnedState, attached: &[Attached]) -> BTreeMap<u32, u64> {
    let since: BTreeSet<u32> = attached.iter().map(|found| found.hook.ifindex).collect();
    let endpoints = pinned.endpoints.iter();
    let known = endpoints.filter(|e| since.contains(&e.ifindex) && e.uid_hash != WAITING);
    known.map(|endpoint| (endpoint.ifindex, endpoint.uid_hash)).collect()
}

/// The pods of this node in the last good state, for those that are gone from the source.
fn remembered(config: &RunConfig) -> Vec<Pod> {
    let objects = kept(&config.state, &config.node, "pods that were deleted since are not known");
    let pods = objects
        .into_iter()
        .filter_map(|object| if let Change::Pod(pod) = object { Some(pod) } else { None });
    pods.filter(|pod| pod.node == config.node && !pod.host_network).collect()
}

/// Gives changes to the engine, and says how far they may be believed.
fn take(engine: &mut Engine, inputs: &Inputs, input: Input) {
    engine.hold(inputs.held());
    engine.restored(inputs.are_restored());
    if let Some(results) = input.results {
        engine.cni_results_are(results);
    }
    input.changes.into_iter().for_each(|change| engine.ingest(change));
}

/// Conntrack may still know endpoints that went before the last agent ended, so numbers go on well
/// after the greatest that is left, or anywhere (in the lower half: room is left) if none is.
fn first_endpoint_id(last: Option<u32>, inherited: bool, random: u64) -> u32 {
    const GAP: u32 = 1 << 16;
    match last {
        Some(last) => last.checked_add(GAP).unwrap_or(1),
        None if inherited => u32::try_from(random >> 33).map_or(1, |id| id.max(1)),
        None => 1,
    }
}

fn random() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Waits until no CPU is still judging a packet by what it read before the last update.
#[derive(Debug, Default)]
struct Grace {
    wait: Option<JoinHandle<()>>,
}

impl Grace {
    /// Starts over: an update has just been written.
    fn begin(&mut self) {
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

#[cfg(test)]
mod tests {
    use super::first_endpoint_id;

    #[test]
    fn numbers_of_endpoints_that_conntrack_may_know_are_not_given_again() {
        assert_eq!(first_endpoint_id(None, false, u64::MAX), 1, "nothing is tracked yet");
        assert_eq!(first_endpoint_id(Some(7), true, u64::MAX), 7 + (1 << 16));
        assert_eq!(first_endpoint_id(Some(u32::MAX), true, 0), 1);
        assert_eq!(first_endpoint_id(None, true, u64::MAX), u32::MAX >> 1);
        assert_eq!(first_endpoint_id(None, true, 0), 1, "never 0");
    }
}
