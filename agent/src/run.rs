//! `netpold run`: sources and discovery in, engine, answers out.
//!
//! The agent never detaches anything at its end: enforcement outlives it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use netpold_core::compile::{CheckSource, Compiler, NewPods, Options};
use netpold_core::model::Change;
use netpold_core::ops::Capacity;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::block_in_place;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use crate::admin::Admin;
use crate::config::{self, Origin, RunConfig};
use crate::dataplane::Dataplane;
use crate::dataplane::attach::{Attacher, Mode};
use crate::dataplane::bpffs::PinRoot;
use crate::dataplane::generation::Predecessor;
use crate::dataplane::tables::grace_period;
use crate::endpoint::{self, Discovery};
use crate::engine::Engine;
use crate::events::{self, DropLog};
use crate::listen::{Heartbeat, Listener};
use crate::metrics::Metrics;
use crate::object::object;
use crate::requirements;
use crate::sandbox::{Sandboxes, results};
use crate::source::cluster::{self, Notices};
use crate::source::{Batch, Source, manifests};
use crate::state::{self, Keeper, Restored};
use crate::status::Status;

/// Buckets of the IPv4 conntrack table, four flows each: half a million flows in 16 MiB.
const CONNTRACK_BUCKETS: u32 = 131_072;
/// Parts in which the kernel's tables are compared within the interval.
const SLICES: u32 = 40;
/// Why an agent that took over does not begin.
const NOTHING_GIVEN: &str = "the manifests directory holds no object; what an earlier agent enforced \
                             stays until it does (`netpold uninstall` takes it off the node)";
/// Interface events in flight.
const EVENTS: usize = 4096;

/// Enforce until told to end.
///
/// # Errors
/// Something is missing that the agent cannot do without; nothing was changed then.
pub fn run(mut config: RunConfig) -> Result<()> {
    config.start_log()?;
    object()?;
    requirements::check()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        // First, since it changes nothing where it fails.
        let (source, notices) = open(&config.origin).await?;
        Agent::start(&config, source, notices)?.serve().await
    })
}

/// Starts following the objects; a cluster is told of policies that cannot be honoured.
async fn open(origin: &Origin) -> Result<(Source, Option<Notices>)> {
    Ok(match origin {
        Origin::Manifests(directory) => (manifests::watch(directory)?, None),
        Origin::Cluster(settings) => {
            let (source, notices) = cluster::watch(settings.clone()).await?;
            (source, Some(notices))
        }
    })
}

/// Everything that runs.
struct Agent {
    engine: Arc<Mutex<Engine>>,
    drops: Arc<Mutex<DropLog>>,
    source: Source,
    notices: Option<Notices>,
    interfaces: mpsc::Receiver<endpoint::Event>,
    sandboxes: Sandboxes,
    answers: watch::Receiver<Vec<results::Answer>>,
    synced: Synced,
    /// Of the last good state: what the source has not spoken of.
    restored: Restored,
    keeper: Keeper,
    /// An earlier agent's state is in force.
    inherited: bool,
    /// The source has not named a single object.
    nothing_given: bool,
    reading_events: bool,
    /// How long comparing everything with the kernel may take.
    readback: Duration,
    heartbeat: Heartbeat,
    _listener: Option<Listener>,
    _discovery: Discovery,
    _admin: Admin,
}

/// What has said all there is.
#[derive(Clone, Copy, Debug, Default)]
struct Synced {
    source: bool,
    interfaces: bool,
}

impl Agent {
    fn start(config: &RunConfig, source: Source, notices: Option<Notices>) -> Result<Self> {
        let pins = PinRoot::open(&config.bpffs)?;
        let mode = Mode::probe();
        requirements::warn_of_lacks(mode);
        let mut attacher = Attacher::new(&pins.links(), mode)?;
        let predecessor = Predecessor::read(&pins)?;
        // Another version's tables are not read, but its programs judge.
        let inherited = predecessor.hash_seed.is_some() || !attacher.attached()?.is_empty();
        let mut engine = engine(config, pins, attacher, &predecessor)?;
        let restored = if inherited {
            engine.inherits_flows();
            Restored::default()
        } else {
            restore(config, &mut engine)
        };
        let engine = Arc::new(Mutex::new(engine));
        let drops = Arc::new(Mutex::new(DropLog::default()));
        let (events, interfaces) = mpsc::channel(EVENTS);
        let discovery = Discovery::start(endpoint::Settings::default(), events)?;
        let answers = results::follow(config.cni_results.clone())?;
        let status = {
            let (engine, drops) = (Arc::clone(&engine), Arc::clone(&drops));
            let source = source.status.clone();
            move || {
                let recent = lock(&drops).recent();
                let source = source.borrow().clone();
                let report = lock(&engine).report(&recent);
                Status { in_sync: source.in_sync && report.in_sync, source, ..report }
            }
        };
        let admin = Admin::serve(&config.socket, status)?;
        let heartbeat = Heartbeat::default();
        let listen = |address| {
            let metrics = Metrics::new(engine.clone(), drops.clone(), source.status.clone());
            Listener::start(address, metrics, heartbeat.clone())
        };
        let listener = config.listen.map(listen).transpose()?;
        info!(node = config.node, from = source.status.borrow().origin, "netpold starts");
        Ok(Self {
            engine,
            drops,
            source,
            notices,
            interfaces,
            sandboxes: Sandboxes::new(config.node.clone()),
            answers,
            // Nothing else is in force, so this is enforced before the source has said a word.
            synced: Synced { source: restored.is_in_force(), interfaces: false },
            keeper: Keeper::new(config.state.clone(), config.node.clone()),
            restored,
            inherited,
            nothing_given: true,
            reading_events: false,
            readback: config.readback,
            heartbeat,
            _listener: listener,
            _discovery: discovery,
            _admin: admin,
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
                batch = self.source.batches.recv() => match batch {
                    Some(batch) => noticed = Some(self.take_batch(batch)),
                    None => bail!("the source of objects ended; what was enforced stays"),
                },
                event = self.interfaces.recv() => match event {
                    Some(event) => self.take_interface(event),
                    None => bail!("endpoint discovery ended; what was enforced stays"),
                },
                Ok(()) = self.answers.changed() => {
                    noticed = Some(Instant::now());
                    self.take_answers();
                }
                () = pause_until(retry) => {}
                () = grace.passed() => {
                    lock(&self.engine).grace_passed();
                    continue;
                }
                _ = sweep.tick() => {
                    block_in_place(|| {
                        let mut engine = lock(&self.engine);
                        engine.sweep();
                        retry = retry.into_iter().chain(engine.repair()).min();
                        if let Some(notices) = &self.notices {
                            notices.tell(engine.unhonoured());
                        }
                    });
                    continue;
                }
                _ = slice.tick() => {
                    block_in_place(|| lock(&self.engine).readback(SLICES));
                    self.keep_state().await;
                    continue;
                }
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
            self.take_what_is_there(&mut noticed);
            if self.synced.source && self.synced.interfaces {
                retry = block_in_place(|| lock(&self.engine).step(noticed));
                grace.begin();
                self.read_events();
            }
        }
        info!("netpold ends; what is enforced stays enforced");
        Ok(())
    }

    /// What came in the meantime belongs into the same update.
    fn take_what_is_there(&mut self, noticed: &mut Option<Instant>) {
        while let Ok(batch) = self.source.batches.try_recv() {
            let at = self.take_batch(batch);
            noticed.get_or_insert(at);
        }
        while let Ok(event) = self.interfaces.try_recv() {
            self.take_interface(event);
        }
    }

    /// Writes the last good state if it is time to.
    async fn keep_state(&mut self) {
        let problem = self.keeper.settle().await;
        if self.restored.is_in_force() {
            return;
        }
        let keeper = &self.keeper;
        let mut engine = lock(&self.engine);
        engine.state_problem(problem);
        let due = block_in_place(|| engine.last_good(|revision| keeper.is_due(revision)));
        drop(engine);
        if let Some((revision, objects)) = due {
            self.keeper.write(revision, objects);
        }
    }

    fn take_batch(&mut self, mut batch: Batch) -> Instant {
        self.restored.complete(&mut batch);
        self.sandboxes.complete(&mut batch.changes);
        // A file that never was readable keeps the source from being in sync. Where an earlier agent
        // enforces something, that stays; where nothing is enforced, what is known is better. No
        // object at all never means that there are no policies: the volume may not be mounted yet.
        self.nothing_given &= batch.changes.is_empty();
        // A cluster is not enforced in parts: its API server will have the rest in a moment.
        let early = !self.inherited && self.source.partial;
        self.synced.source |= early || (batch.in_sync && !self.nothing_given);
        let mut engine = lock(&self.engine);
        let held = (batch.in_sync && !self.synced.source).then(|| NOTHING_GIVEN.to_owned());
        engine.hold(held);
        engine.restored(self.restored.is_in_force());
        batch.changes.into_iter().for_each(|change| engine.apply(change));
        batch.at
    }

    fn take_answers(&mut self) {
        let answers = self.answers.borrow_and_update().clone();
        let changes = self.sandboxes.answers_are(answers);
        let mut engine = lock(&self.engine);
        changes.into_iter().for_each(|change| engine.apply(change));
    }

    fn take_interface(&mut self, event: endpoint::Event) {
        match event {
            endpoint::Event::InSync => self.synced.interfaces = true,
            endpoint::Event::OwnAddresses(addresses) => {
                lock(&self.engine).apply(Change::OwnAddresses(addresses));
            }
            endpoint::Event::Devices(devices) => lock(&self.engine).devices_are(devices),
            endpoint::Event::Interface(event) => lock(&self.engine).apply_interface(event),
        }
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
    predecessor: &Predecessor,
) -> Result<Engine> {
    let capacity = Capacity::default();
    let known = predecessor.endpoints.iter().map(|e| ((e.ifindex, e.uid_hash), e.id)).collect();
    let last = predecessor.endpoints.iter().map(|e| e.id).max();
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
        first_endpoint_id: first_endpoint_id(last, predecessor.hash_seed.is_some(), random),
        known_endpoints: known,
        new_pods: match config.new_pods {
            config::NewPods::Allow => NewPods::Allow,
            config::NewPods::Deny => NewPods::Deny,
        },
    };
    let seed = predecessor.hash_seed.unwrap_or(random);
    let dataplane = Dataplane::new(pins, attacher, CONNTRACK_BUCKETS, seed)
        .with_uplinks(config.uplinks.clone())
        .with_sent(config.sent);
    let mut engine = Engine::new(Compiler::new(options), dataplane, capacity);
    engine.judge_at(config.node_devices.clone());
    Ok(engine)
}

/// Puts the last good state in the place of the objects that the source has yet to name.
fn restore(config: &RunConfig, engine: &mut Engine) -> Restored {
    let objects = state::read(&config.state, &config.node).unwrap_or_else(|error| {
        warn!("{error}; begins without it");
        None
    });
    let objects = objects.unwrap_or_default();
    let restored = Restored::new(&objects);
    if restored.is_in_force() {
        info!(
            objects = objects.len(),
            "the last good state is enforced until the source is in sync"
        );
    }
    engine.restored(restored.is_in_force());
    objects.into_iter().for_each(|object| engine.apply(object));
    restored
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

async fn pause_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}

/// A panic elsewhere leaves what is behind the lock as it was before that update.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no CPU is still judging a packet by what it read before the last update.
#[derive(Debug, Default)]
struct Grace {
    wait: Option<tokio::task::JoinHandle<()>>,
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
