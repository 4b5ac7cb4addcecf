//! Compiles large policies and Services on another thread, into a separate generation, so that other updates do not
//! wait.
//!
//! The engine's own compiler skips large policies ([`Compiler::defer`]), and large Services wait in [`super::pace`].
//! When some are due, a second compiler receives all objects and compiles everything, while the first one continues
//! with small edits. The second thread also creates and fills the maps and programs of the new generation. At the end
//! the second compiler catches up with the changes since its start, and it and its generation replace the first. Tables
//! with little room left, flow tables included, grow in the same way.
//!
//! A second compiler also looks for room for policies that are closed because a table was full, at a bounded pace. If
//! the tables are too full for the changes since its start, it starts over on its thread, or the engine compiles
//! everything at once with it: a namespace that changes without end delays no other one.
//!
//! Until the replacement, pods keep the state from before an edit of their large policies, and newly isolated pods are
//! closed.

use std::collections::BTreeSet;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netpold_core::cluster::ObjectKey;
use netpold_core::compile::{CompileError, Compiler, News};
use netpold_core::model::Change;
use netpold_core::ops::{Capacity, Table};
use netpold_dataplane::generation::Generation;
use netpold_dataplane::recipe::Recipe;

use super::EngineError;
use super::reconciler::{Reconciler, Written, thread_time};
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
/// Least pause after a successor before one that only looks for room for closed policies, and the pause in multiples of
/// the processor time of the last successor.
const SEARCH: (Duration, u32) = (Duration::from_mins(1), 20);
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
    /// Earliest start of a successor that only looks for room for closed policies.
    searches_at: Option<Instant>,
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
    workshop: Workshop,
}

/// Input of a compilation.
struct Order {
    compiler: Compiler,
    news: News,
    /// Changes held back in the engine.
    changes: Vec<Change>,
    workshop: Workshop,
}

/// Inputs of a new generation and its compilation.
#[derive(Clone)]
struct Workshop {
    capacity: Capacity,
    /// Tables for which policies are closed.
    full: BTreeSet<Table>,
    recipe: Recipe,
    instruments: Instruments,
}

impl Order {
    fn make(self) -> Result<Made, EngineError> {
        let Self { mut compiler, news, changes, workshop } = self;
        let begin = thread_time();
        compiler.follow(news);
        changes.into_iter().for_each(|change| compiler.ingest(change));
        let mut made = workshop.make(compiler)?;
        made.took = thread_time().saturating_sub(begin);
        Ok(made)
    }
}

impl Workshop {
    /// Compiles everything into a new generation.
    fn make(self, mut compiler: Compiler) -> Result<Made, EngineError> {
        let Self { capacity, full, recipe, instruments } = &self;
        let ops = instruments.compiling(|| install(&mut compiler, *capacity, full))?;
        let generation = recipe.make(&compiler.capacity(), &ops)?;
        // The clients pay, not those for whom policies had to be closed.
        drop(compiler.take_causes(None));
        // No packet is judged by this generation yet.
        compiler.grace_passed();
        compiler.defer(Some(BTreeSet::new()));
        Ok(Made { compiler, generation, took: Duration::ZERO, workshop: self })
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

    /// Takes over changes on the other thread; starts over if a table is too full for them.
    fn catch_up_beside(mut self, news: News) -> Result<Self, EngineError> {
        let begin = thread_time();
        let took = self.took;
        let mut made = match self.catch_up(news) {
            Ok(_) => self,
            Err(EngineError::Compile(error)) => {
                tracing::info!(%error, "a table is too full for the latest changes: starting over");
                let Self { mut compiler, generation, mut workshop, .. } = self;
                // Two generations in memory are enough.
                drop(generation);
                workshop.full.extend(compiler.full_tables());
                workshop.capacity = compiler.capacity();
                compiler.defer(None);
                workshop.make(compiler)?
            }
            Err(error) => return Err(error),
        };
        made.took = took + thread_time().saturating_sub(begin);
        Ok(made)
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
        let search = self.compiler.has_room_again();
        let search = search.then(|| self.succession.searches_at.unwrap_or(now));
        let asks = self.pace.next(&self.compiler.late(), now).into_iter();
        let asks = asks.chain(linger).chain(search).chain(crowded.then_some(now));
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
            workshop: Workshop {
                capacity: self.capacity,
                full: self.compiler.full_tables(),
                recipe,
                instruments: self.instruments.clone(),
            },
        };
        self.spawn(clients, 0, move || order.make());
    }

    /// Lets a compiler catch up on its own thread. Runs after an update, so that new endpoints have their numbers.
    fn catch_up(&mut self, behind: Behind) {
        let Behind { made, changed, clients, rounds } = behind;
        let news = self.compiler.news(changed);
        self.spawn(clients, rounds + 1, move || made.catch_up_beside(news));
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

    /// Replaces compiler and generation by the successor's, if these are ready.
    pub(super) fn succeed(&mut self) -> Result<Option<Written>, EngineError> {
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
        let client_shares = clients.iter().map(|namespace| {
            (namespace.clone(), compiled.get(namespace).copied().unwrap_or(0).max(1))
        });
        let took = made.took;
        let written = match made.catch_up(news) {
            Ok(operations) => {
                let replaced = self.replace(made, operations.max(1));
                // The former compiler lacks the changes that the successor took.
                replaced.inspect_err(|_| self.pace.put_back())?
            }
            Err(EngineError::Compile(error)) => self.take_over(made, error)?,
            Err(error) => {
                self.abandon(&error);
                drop_elsewhere(made);
                return Ok(None);
            }
        };
        let now = Instant::now();
        self.pace.succeeded(took, client_shares.collect(), now);
        self.succession.failure = None;
        self.succession.rests_until = Some(now + took * REST);
        self.succession.searches_at = Some(now + SEARCH.0.max(took * SEARCH.1));
        tracing::debug!(?took, ?clients, "large policies and Services are in force");
        Ok(Some(written))
    }

    /// Puts the successor's compiler and generation into force.
    fn replace(&mut self, made: Made, operations: usize) -> Result<Written, EngineError> {
        let Made { compiler, generation, .. } = made;
        self.installed = false;
        let generation = self.instruments.applying(|| self.dataplane.replace(generation))?;
        let former = std::mem::replace(&mut self.compiler, compiler);
        drop_elsewhere((former, generation));
        self.capacity = self.compiler.capacity();
        self.instruments.new_generation();
        self.import_conntrack();
        self.installed = true;
        self.in_force.note(&self.compiler);
        Ok(Written { operations, shares: self.compiler.take_compiled() })
    }

    /// Takes the successor's compiler without its generation, which is too full for the latest changes, and compiles
    /// everything. Those who filled it pay for this compilation, and the large policies do not wait any longer.
    fn take_over(&mut self, made: Made, error: CompileError) -> Result<Written, EngineError> {
        tracing::info!(%error, "a table is too full for the latest changes: creating a new generation");
        let Made { compiler, generation, .. } = made;
        // Two generations in memory are enough.
        drop(generation);
        drop_elsewhere(std::mem::replace(&mut self.compiler, compiler));
        self.capacity = self.compiler.capacity();
        self.new_generation(Some(error))
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
