//! A compilation on another thread, and its result.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netpold_core::cluster::ObjectKey;
use netpold_core::compile::{Compiler, CompilerInput};
use netpold_core::model::Change;
use netpold_core::ops::{Capacity, Table};
use netpold_dataplane::generation::Generation;
use netpold_dataplane::generation_inputs::GenerationInputs;
use nix::time::{ClockId, clock_gettime};

use super::error::EngineError;
use super::room::compile_with_room;
use crate::metrics::Instruments;

/// Shortest and longest pause before a failed compilation is retried.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// State of the compilation on another thread.
#[derive(Default)]
pub(super) struct Succession {
    pub(super) job: Option<CompilationJob>,
    /// Compiled, but many objects have changed since its start.
    pub(super) outdated: Option<OutdatedSuccessor>,
    /// Earliest start of the next successor.
    pub(super) next_start: Option<Instant>,
    /// Earliest start of a successor that only looks for room for closed policies.
    pub(super) searches_at: Option<Instant>,
    /// Time since when unused large policies are in the tables.
    pub(super) lingering: Option<Instant>,
    pub(super) failure: Option<(String, Duration)>,
}

/// A compiler at work on another thread.
pub(super) struct CompilationJob {
    pub(super) thread: JoinHandle<Result<BuiltSuccessor, EngineError>>,
    /// Objects that changed since the job received its input.
    pub(super) changed: BTreeSet<ObjectKey>,
    /// Namespaces with large policies or Services in this job.
    pub(super) charged_namespaces: BTreeSet<String>,
    pub(super) rounds: u32,
}

/// A compiler that has to catch up with changes, on its own thread again.
pub(super) struct OutdatedSuccessor {
    pub(super) built: BuiltSuccessor,
    pub(super) changed: BTreeSet<ObjectKey>,
    pub(super) charged_namespaces: BTreeSet<String>,
    pub(super) rounds: u32,
}

/// A compiler with the generation that holds its output.
pub(super) struct BuiltSuccessor {
    pub(super) compiler: Compiler,
    pub(super) generation: Generation,
    /// Processor time used.
    pub(super) took: Duration,
    pub(super) settings: CompilationSettings,
}

/// Input of a compilation.
pub(super) struct CompilationInput {
    pub(super) compiler: Compiler,
    pub(super) input: CompilerInput,
    /// Changes held back in the engine.
    pub(super) changes: Vec<Change>,
    pub(super) settings: CompilationSettings,
}

/// Inputs of a new generation and its compilation.
#[derive(Clone)]
pub(super) struct CompilationSettings {
    pub(super) capacity: Capacity,
    /// Tables for which policies are closed.
    pub(super) full: BTreeSet<Table>,
    pub(super) generation_inputs: GenerationInputs,
    pub(super) instruments: Instruments,
}

impl CompilationInput {
    pub(super) fn build(self) -> Result<BuiltSuccessor, EngineError> {
        let Self { mut compiler, input, changes, settings } = self;
        let begin = thread_time();
        compiler.take_over(input);
        changes.into_iter().for_each(|change| compiler.ingest(change));
        let mut made = settings.build(compiler)?;
        made.took = thread_time().saturating_sub(begin);
        Ok(made)
    }
}

impl CompilationSettings {
    /// Compiles everything into a new generation.
    pub(super) fn build(self, mut compiler: Compiler) -> Result<BuiltSuccessor, EngineError> {
        let Self { capacity, full, generation_inputs, instruments } = &self;
        let ops = instruments.compiling(|| compile_with_room(&mut compiler, *capacity, full))?;
        let generation = generation_inputs.make(&compiler.capacity(), &ops)?;
        // The namespaces with large policies are charged, not those whose policies had to be closed.
        drop(compiler.take_causes(None));
        // No packet is judged by this generation yet.
        compiler.grace_passed();
        compiler.defer(Some(BTreeSet::new()));
        Ok(BuiltSuccessor { compiler, generation, took: Duration::ZERO, settings: self })
    }
}

impl BuiltSuccessor {
    /// Takes over the changes since the last call; returns the number of operations.
    pub(super) fn catch_up(&mut self, input: CompilerInput) -> Result<usize, EngineError> {
        self.compiler.take_over(input);
        let ops = self.compiler.update()?;
        self.generation.fill(&ops)?;
        self.compiler.grace_passed();
        Ok(ops.len())
    }

    /// Takes over changes on the other thread; starts over if a table is too full for them.
    pub(super) fn catch_up_on_thread(mut self, input: CompilerInput) -> Result<Self, EngineError> {
        let begin = thread_time();
        let took = self.took;
        let mut made = match self.catch_up(input) {
            Ok(_) => self,
            Err(EngineError::Compile(error)) => {
                tracing::info!(%error, "a table is too full for the latest changes: starting over");
                let Self { mut compiler, generation, mut settings, .. } = self;
                // Two generations in memory are enough.
                drop(generation);
                settings.full.extend(compiler.full_tables());
                settings.capacity = compiler.capacity();
                compiler.defer(None);
                settings.build(compiler)?
            }
            Err(error) => return Err(error),
        };
        made.took = took + thread_time().saturating_sub(begin);
        Ok(made)
    }
}

impl Succession {
    /// Records a changed object.
    pub(super) fn record_change(&mut self, change: &Change) {
        let job = self.job.as_mut().map(|job| &mut job.changed);
        let changed = job.or(self.outdated.as_mut().map(|outdated| &mut outdated.changed));
        if let Some(changed) = changed {
            changed.insert(ObjectKey::of(change));
        }
    }

    /// Returns whether a compiler is at work.
    pub(super) fn is_busy(&self) -> bool {
        self.job.is_some() || self.outdated.is_some()
    }

    /// Returns why large policies are not compiled.
    pub(super) fn problem(&self) -> Option<String> {
        let (reason, _) = self.failure.as_ref()?;
        Some(format!("cannot compile large policies and Services, will retry: {reason}"))
    }

    pub(super) fn failed(&mut self, error: &EngineError) {
        let pause = self.failure.as_ref().map_or(RETRY.0, |(_, pause)| (*pause * 2).min(RETRY.1));
        tracing::error!(%error, retry_in = ?pause, "cannot compile large policies");
        self.failure = Some((error.to_string(), pause));
        self.next_start = Some(Instant::now() + pause);
    }
}

/// A written update.
pub(super) struct WrittenUpdate {
    pub(super) operations: usize,
    /// Namespaces to charge, and their shares.
    pub(super) shares: BTreeMap<String, u64>,
}

/// Returns the processor time of this thread.
pub(super) fn thread_time() -> Duration {
    let clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}
