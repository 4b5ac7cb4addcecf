//! Compiles large policies and Services on another thread, into a separate generation, so that other updates do not
//! wait.
//!
//! The engine's own compiler skips large policies ([`Compiler::defer`](netpold_core::compile::Compiler::defer)), and large Services wait in [`super::pace`].
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
use std::time::{Duration, Instant};

use netpold_core::compile::CompileError;

use super::error::EngineError;
use super::reconciler::Reconciler;
use super::room::roomy;
use super::succession::{
    BuiltSuccessor, CompilationInput, CompilationJob, CompilationSettings, OutdatedSuccessor,
    WrittenUpdate,
};

/// Interval at which the engine checks whether the other thread has finished.
const POLL: Duration = Duration::from_millis(20);
/// Maximum number of objects changed since the start that the engine takes over in one update of its own.
const FEW: usize = 128;
/// Maximum number of times that the other thread catches up before the engine takes the remaining changes itself.
const ROUNDS: u32 = 10;
/// Pause before the next successor, in multiples of the processor time of the last one, so that compilations do not
/// occupy a processor all the time.
const REST: u32 = 2;
/// Time that unused large policies stay in the tables, unless there is another reason to begin.
const LINGER: Duration = Duration::from_mins(1);
/// Least pause after a successor before one that only looks for room for closed policies, and the pause in multiples of
/// the processor time of the last successor.
const SEARCH: (Duration, u32) = (Duration::from_mins(1), 20);
/// Nice increment of the other thread.
const NICE: libc::c_int = 5;

impl Reconciler {
    /// Returns when to check or start the other compiler.
    pub(super) fn successor_due(&self, now: Instant) -> Option<Instant> {
        if self.succession.is_busy() {
            return Some(now + POLL);
        }
        if !self.installed {
            return None;
        }
        let rests = self.succession.next_start.unwrap_or(now);
        let linger = self.succession.lingering.map(|since| since + LINGER);
        let crowded = roomy(self.capacity, &self.compiler.fill()) != self.capacity
            || self.dataplane.active().is_outgrown();
        let search = self.compiler.has_room_again();
        let search = search.then(|| self.succession.searches_at.unwrap_or(now));
        let asks = self.pace.next_due(&self.compiler.late(), now).into_iter();
        let is_urgent = crowded || self.compiler.has_outdated_tiers();
        let asks = asks.chain(linger).chain(search).chain(is_urgent.then_some(now));
        asks.min().map(|at| at.max(rests))
    }

    /// Starts to compile large policies and Services, if some are due.
    pub(super) fn begin_successor(&mut self) {
        if let Some(outdated) = self.succession.outdated.take() {
            self.catch_up(outdated);
            return;
        }
        let now = Instant::now();
        let lingering = self.compiler.lingering();
        let since = self.succession.lingering;
        self.succession.lingering = (!lingering.is_empty()).then(|| since.unwrap_or(now));
        if self.succession.is_busy() || self.successor_due(now).is_none_or(|due| due > now) {
            return;
        }
        let Some(generation_inputs) = self.dataplane.generation_inputs() else { return };
        let mut charged_namespaces = self.compiler.late();
        charged_namespaces.extend(lingering);
        charged_namespaces.retain(|namespace| self.pace.is_ready(namespace, now));
        let changes = self.pace.take_due(now, self.compiler.cluster());
        charged_namespaces.extend(self.pace.namespaces_of_taken().map(str::to_owned));
        let compilation = CompilationInput {
            compiler: self.compiler.blank(),
            input: self.compiler.all_objects(),
            changes,
            settings: CompilationSettings {
                capacity: self.capacity,
                full: self.compiler.full_tables(),
                generation_inputs,
                instruments: self.instruments.clone(),
            },
        };
        self.spawn(charged_namespaces, 0, move || compilation.build());
    }

    /// Lets a compiler catch up on its own thread. Runs after an update, so that new endpoints have their numbers.
    fn catch_up(&mut self, outdated: OutdatedSuccessor) {
        let OutdatedSuccessor { built: made, changed, charged_namespaces, rounds } = outdated;
        let input = self.compiler.changed_objects(changed);
        self.spawn(charged_namespaces, rounds + 1, move || made.catch_up_on_thread(input));
    }

    fn spawn(
        &mut self,
        charged_namespaces: BTreeSet<String>,
        rounds: u32,
        work: impl FnOnce() -> Result<BuiltSuccessor, EngineError> + Send + 'static,
    ) {
        let work = move || {
            yield_to_others();
            work()
        };
        match std::thread::Builder::new().name("successor".into()).spawn(work) {
            Ok(thread) => {
                let changed = BTreeSet::new();
                self.succession.job =
                    Some(CompilationJob { thread, changed, charged_namespaces, rounds });
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
    pub(super) fn succeed(&mut self) -> Result<Option<WrittenUpdate>, EngineError> {
        let Some(job) = self.succession.job.take_if(|job| job.thread.is_finished()) else {
            return Ok(None);
        };
        let CompilationJob { thread, changed, charged_namespaces, rounds } = job;
        let made = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let mut made = match made {
            Ok(made) => made,
            Err(error) => {
                self.abandon(&error);
                return Ok(None);
            }
        };
        if changed.len() > FEW && rounds < ROUNDS {
            self.succession.outdated =
                Some(OutdatedSuccessor { built: made, changed, charged_namespaces, rounds });
            return Ok(None);
        }
        let input = self.compiler.changed_objects(changed);
        made.compiler.defer(Some(self.pace.namespaces_in_debt(Instant::now())));
        let compiled = made.compiler.take_compiled();
        let shares = charged_namespaces.iter().map(|namespace| {
            (namespace.clone(), compiled.get(namespace).copied().unwrap_or(0).max(1))
        });
        let took = made.took;
        let written = match made.catch_up(input) {
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
        self.pace.end_compilation(took, shares.collect(), now);
        self.succession.failure = None;
        self.succession.next_start = Some(now + took * REST);
        self.succession.searches_at = Some(now + SEARCH.0.max(took * SEARCH.1));
        tracing::debug!(?took, clients = ?charged_namespaces, "large policies and Services are in force");
        Ok(Some(written))
    }

    /// Puts the successor's compiler and generation into force.
    fn replace(
        &mut self,
        made: BuiltSuccessor,
        operations: usize,
    ) -> Result<WrittenUpdate, EngineError> {
        let BuiltSuccessor { compiler, generation, .. } = made;
        self.installed = false;
        let generation = self.instruments.applying(|| self.dataplane.replace(generation))?;
        let former = std::mem::replace(&mut self.compiler, compiler);
        drop_elsewhere((former, generation));
        self.capacity = self.compiler.capacity();
        self.instruments.new_generation();
        self.import_conntrack();
        self.installed = true;
        self.in_force.record_endpoints(&self.compiler);
        Ok(WrittenUpdate { operations, shares: self.compiler.take_compiled() })
    }

    /// Takes the successor's compiler without its generation, which is too full for the latest changes, and compiles
    /// everything. The namespaces that filled it are charged for this compilation, and the large policies wait no
    /// longer.
    fn take_over(
        &mut self,
        made: BuiltSuccessor,
        error: CompileError,
    ) -> Result<WrittenUpdate, EngineError> {
        tracing::info!(%error, "a table is too full for the latest changes: creating a new generation");
        let BuiltSuccessor { compiler, generation, .. } = made;
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
