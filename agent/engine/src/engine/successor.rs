//! Compiles large policies and Services on another thread, into a separate generation, so that other updates do not
//! wait.
//!
//! The engine's own compiler skips large policies ([`Compiler::defer`]), and large Services wait in [`super::pace`].
//! When some are due, a second compiler receives all objects and compiles everything, while the first one continues
//! with small edits. The second thread also creates and fills the maps and programs of the new generation. At the end
//! the second compiler catches up with the changes since its start, and it and its generation replace the first. Tables
//! with little room left, flow tables included, grow in the same way.
//!
//! Until the replacement, pods keep the state from before an edit of their large policies, and newly isolated pods are
//! closed.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netpold_core::cluster::ObjectKey;
use netpold_core::compile::{Compiler, News};
use netpold_core::model::Change;
use netpold_core::ops::Capacity;
use netpold_dataplane::generation::Generation;
use netpold_dataplane::recipe::Recipe;

use super::EngineError;
use super::reconciler::{Reconciler, thread_time};
use super::room::{install, roomy};
use crate::metrics::Instruments;

/// Interval at which the engine checks whether the other thread has finished.
const POLL: Duration = Duration::from_millis(20);
/// Most objects changed since the start that the engine takes over in one update of its own.
const FEW: usize = 128;
/// Most times that the other thread catches up before the engine takes the remaining changes itself.
const ROUNDS: u32 = 10;
/// Pause before the next successor, in multiples of the processor time of the last one, so that a processor has rest.
const REST: u32 = 2;
/// Time that unused large policies stay in the tables, unless there is another reason to begin.
const LINGER: Duration = Duration::from_mins(1);
/// Shortest and longest pause before a failed compilation is retried.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// Nice increment of the other thread.
const NICE: libc::c_int = 5;

/// State of the compilation beside the engine.
#[derive(Default)]
pub(super) struct Succession {
    job: Option<Job>,
    /// Compiled, but many objects have changed since its start.
    behind: Option<Behind>,
    /// Earliest start of the next successor.
    rests_until: Option<Instant>,
    /// Time since when unused large policies are in the tables.
    lingering: Option<Instant>,
    failure: Option<(String, Duration)>,
}

/// A compiler at work on another thread.
struct Job {
    thread: JoinHandle<Result<Made, EngineError>>,
    /// Objects that changed since the job received its input.
    changed: BTreeSet<ObjectKey>,
    /// Namespaces with large policies or Services in this job.
    clients: BTreeSet<String>,
    rounds: u32,
}

/// A compiler that has to catch up with changes, on its own thread again.
struct Behind {
    made: Made,
    changed: BTreeSet<ObjectKey>,
    clients: BTreeSet<String>,
    rounds: u32,
}

/// A compiler with the generation that holds its output.
struct Made {
    compiler: Compiler,
    generation: Generation,
    /// Processor time used.
    took: Duration,
}

/// Input of a compilation.
struct Order {
    compiler: Compiler,
    news: News,
    /// Changes held back in the engine.
    changes: Vec<Change>,
    capacity: Capacity,
    recipe: Recipe,
    instruments: Instruments,
}

impl Order {
    fn make(self) -> Result<Made, EngineError> {
        let Self { mut compiler, news, changes, capacity, recipe, instruments } = self;
        let begin = thread_time();
        compiler.follow(news);
        changes.into_iter().for_each(|change| compiler.ingest(change));
        let ops = instruments.compiling(|| install(&mut compiler, capacity))?;
        let made = recipe.make(&compiler.capacity(), &ops);
        let took = thread_time().saturating_sub(begin);
        // No packet is judged by this generation yet.
        compiler.grace_passed();
        compiler.defer(Some(BTreeSet::new()));
        Ok(Made { compiler, generation: made?, took })
    }
}

impl Made {
    /// Takes over the changes since the last call; returns the number of operations.
    fn catch_up(&mut self, news: News) -> Result<usize, EngineError> {
        self.compiler.follow(news);
        let ops = self.compiler.update()?;
        self.generation.fill(&ops)?;
        self.compiler.grace_passed();
        Ok(ops.len())
    }
}

impl Succession {
    /// Records a changed object.
    pub(super) fn note(&mut self, change: &Change) {
        let job = self.job.as_mut().map(|job| &mut job.changed);
        let changed = job.or(self.behind.as_mut().map(|behind| &mut behind.changed));
        if let Some(changed) = changed {
            changed.insert(ObjectKey::of(change));
        }
    }

    /// Returns whether a compiler is at work.
    pub(super) fn is_busy(&self) -> bool {
        self.job.is_some() || self.behind.is_some()
    }

    /// Returns why large policies are not compiled.
    pub(super) fn problem(&self) -> Option<String> {
        let (reason, _) = self.failure.as_ref()?;
        Some(format!("cannot compile large policies and Services, will retry: {reason}"))
    }

    fn failed(&mut self, error: &EngineError) {
        let pause = self.failure.as_ref().map_or(RETRY.0, |(_, pause)| (*pause * 2).min(RETRY.1));
        tracing::error!(%error, retry_in = ?pause, "cannot compile large policies");
        self.failure = Some((error.to_string(), pause));
        self.rests_until = Some(Instant::now() + pause);
    }
}

impl Reconciler {
    /// Returns when to check or start the other compiler.
    pub(super) fn successor_due(&self, now: Instant) -> Option<Instant> {
        if self.succession.is_busy() {
            return Some(now + POLL);
        }
        if !self.installed {
            return None;
        }
        let rests = self.succession.rests_until.unwrap_or(now);
        let linger = self.succession.lingering.map(|since| since + LINGER);
        let crowded = roomy(self.capacity, &self.compiler.fill()) != self.capacity
            || self.dataplane.active().is_outgrown();
        let asks = self.compiler.late();
        let asks =
            self.pace.next(&asks, now).into_iter().chain(linger).chain(crowded.then_some(now));
        asks.min().map(|at| at.max(rests))
    }

    /// Starts to compile large policies and Services, if some are due.
    pub(super) fn begin_successor(&mut self) {
        if let Some(behind) = self.succession.behind.take() {
            self.catch_up(behind);
            return;
        }
        let now = Instant::now();
        let lingering = self.compiler.lingering();
        let since = self.succession.lingering;
        self.succession.lingering = (!lingering.is_empty()).then(|| since.unwrap_or(now));
        if self.succession.is_busy() || self.successor_due(now).is_none_or(|due| due > now) {
            return;
        }
        let Some(recipe) = self.dataplane.recipe() else { return };
        let mut clients = self.compiler.late();
        clients.extend(lingering);
        clients.retain(|namespace| self.pace.is_ready(namespace, now));
        let changes = self.pace.take(now);
        clients.extend(self.pace.taken().map(str::to_owned));
        let order = Order {
            compiler: self.compiler.blank(),
            news: self.compiler.everything(),
            changes,
            capacity: self.capacity,
            recipe,
            instruments: self.instruments.clone(),
        };
        self.spawn(clients, 0, move || order.make());
    }

    /// Lets a compiler catch up on its own thread. Runs after an update, so that new endpoints have their numbers.
    fn catch_up(&mut self, behind: Behind) {
        let Behind { mut made, changed, clients, rounds } = behind;
        let news = self.compiler.news(changed);
        self.spawn(clients, rounds + 1, move || {
            let begin = thread_time();
            made.catch_up(news)?;
            made.took += thread_time().saturating_sub(begin);
            Ok(made)
        });
    }

    fn spawn(
        &mut self,
        clients: BTreeSet<String>,
        rounds: u32,
        work: impl FnOnce() -> Result<Made, EngineError> + Send + 'static,
    ) {
        let work = move || {
            yield_to_others();
            work()
        };
        match std::thread::Builder::new().name("successor".into()).spawn(work) {
            Ok(thread) => {
                let changed = BTreeSet::new();
                self.succession.job = Some(Job { thread, changed, clients, rounds });
            }
            Err(error) => self.abandon(&EngineError::Thread(error)),
        }
    }

    /// Gives up the current successor.
    fn abandon(&mut self, error: &EngineError) {
        self.succession.failed(error);
        self.pace.put_back();
    }

    /// Replaces compiler and generation by the successor's, if these are ready. Returns the number of operations.
    pub(super) fn succeed(&mut self) -> Result<Option<usize>, EngineError> {
        let Some(job) = self.succession.job.take_if(|job| job.thread.is_finished()) else {
            return Ok(None);
        };
        let Job { thread, changed, clients, rounds } = job;
        let made = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let mut made = match made {
            Ok(made) => made,
            Err(error) => {
                self.abandon(&error);
                return Ok(None);
            }
        };
        if changed.len() > FEW && rounds < ROUNDS {
            self.succession.behind = Some(Behind { made, changed, clients, rounds });
            return Ok(None);
        }
        let news = self.compiler.news(changed);
        made.compiler.defer(Some(self.pace.held(Instant::now())));
        let compiled = made.compiler.take_compiled();
        match made.catch_up(news) {
            Ok(operations) => {
                self.replace(made, &clients, &compiled)?;
                Ok(Some(operations.max(1)))
            }
            Err(error) => {
                self.abandon(&error);
                drop_elsewhere(made);
                Ok(None)
            }
        }
    }

    fn replace(
        &mut self,
        made: Made,
        clients: &BTreeSet<String>,
        compiled: &BTreeMap<String, u64>,
    ) -> Result<(), EngineError> {
        let Made { compiler, generation, took } = made;
        self.installed = false;
        let generation = self.instruments.applying(|| self.dataplane.replace(generation))?;
        let former = std::mem::replace(&mut self.compiler, compiler);
        drop_elsewhere((former, generation));
        self.capacity = self.compiler.capacity();
        self.instruments.new_generation();
        self.import_conntrack();
        self.installed = true;
        self.in_force.note(&self.compiler);
        let shares = clients.iter().map(|namespace| {
            (namespace.clone(), compiled.get(namespace).copied().unwrap_or(0).max(1))
        });
        let now = Instant::now();
        self.pace.succeeded(took, shares.collect(), now);
        self.succession.failure = None;
        self.succession.rests_until = Some(now + took * REST);
        tracing::debug!(?took, ?clients, "large policies and Services are in force");
        Ok(())
    }
}

/// Drops a value on another thread: freeing hundreds of megabytes takes a while.
fn drop_elsewhere(it: impl Send + 'static) {
    // Without a thread, the closure and its value are dropped here.
    drop(std::thread::Builder::new().name("former".into()).spawn(move || drop(it)));
}

/// Lowers the priority of the calling thread below the engine's.
fn yield_to_others() {
    // SAFETY: nice(3) takes no pointers; on Linux it affects the calling thread only.
    let nice = unsafe { libc::nice(NICE) };
    if nice == -1 {
        tracing::debug!("cannot lower the priority of the thread that compiles large policies");
    }
}
