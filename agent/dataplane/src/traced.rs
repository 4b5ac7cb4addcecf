//! The traced variant of the pods' programs, over the maps of the generation in force.
//!
//! The traced programs are the same code on the same tables. They replace the ordinary programs at one pod for a
//! limited time, so that each packet is judged once. With an observing program in front of the ordinary one, each
//! packet would be judged twice, and the second judgement would find the conntrack entries of the first.
//!
//! aya's loader would create new maps, or fill the given ones of sections with zeros. So it creates small maps, and
//! `share` replaces their descriptors by those of the maps in force before a program is loaded.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use aya::maps::{Array, PerCpuArray};
use aya::programs::SchedClassifier;
use aya::{Ebpf, EbpfLoader};
use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};
use netpold_core::lock::lock;
use netpold_core::model::Direction;
use netpold_ebpf::trace::{TraceFilter, TraceRecord};

use super::generation::GenerationError;
use super::role::Program;
use super::shared_maps::{MapsByName, SharedMaps, data};
use crate::object::{ObjectMissing, TRACED_OBJECT, object};

/// Maps that only the traced programs have.
const OWN: [&str; 3] = ["TRACE", "TRACE_FILTER", "AYA_LOGS"];
/// Size of the ring buffer of unread lines, in bytes; lines that do not fit are lost.
const LINES: u32 = 1 << 20;

/// Lines that the programs log, in the order of the verdicts.
#[derive(Clone, Debug, Default)]
struct LogLines(Arc<Mutex<Vec<String>>>);

impl Log for LogLines {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let mut lines = lock(&self.0);
        lines.push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// Loaded traced programs; [`super::Dataplane::trace`] attaches them.
pub struct TracedPrograms {
    bpf: Ebpf,
    logger: EbpfLogger<LogLines>,
    lines: LogLines,
    /// Generation of the maps, as in [`SharedMaps`].
    pub(super) generation: u32,
}

impl TracedPrograms {
    /// Loads the programs with these maps, without attaching one. No packet is reported before [`TracedPrograms::set_filter`].
    ///
    /// # Errors
    /// See [`GenerationError`].
    pub fn load(shared: &SharedMaps) -> Result<Self, GenerationError> {
        object()?;
        if TRACED_OBJECT.is_empty() {
            return Err(ObjectMissing { missing: "the traced object" }.into());
        }
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        for name in shared.maps.keys().filter(|name| *name != "EVENTS") {
            loader.map_max_entries(name, 1);
        }
        loader.map_max_entries("AYA_LOGS", LINES);
        shared.globals.set_constants(&mut loader);
        let load = |e| GenerationError::Load { cause: Box::new(e) };
        let object = shared.globals.checksum.prepare(TRACED_OBJECT);
        let mut bpf = loader.load(&object).map_err(load)?;
        share(&bpf, &shared.maps)?;
        for direction in Direction::BOTH {
            let name = Program::from(direction).name();
            let failed = |e| GenerationError::Program { name, cause: Box::new(e) };
            let program = bpf.program_mut(name).ok_or(GenerationError::NoProgram(name))?;
            let program: &mut SchedClassifier = program.try_into().map_err(failed)?;
            program.load().map_err(failed)?;
        }
        let lines = LogLines::default();
        let logger = EbpfLogger::init_with_logger(&mut bpf, lines.clone()).map_err(traced)?;
        Ok(Self { bpf, logger, lines, generation: shared.generation })
    }

    /// Sets the filter of reported packets.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_filter(&mut self, filter: &TraceFilter) -> Result<(), GenerationError> {
        write(&mut self.bpf, filter).map_err(traced)
    }

    /// The program of a direction, and its identifier.
    ///
    /// # Errors
    /// The kernel does not report the identifier.
    pub(super) fn program(
        &self,
        direction: Direction,
    ) -> Result<(BorrowedFd<'_>, u32), GenerationError> {
        let name = Program::from(direction).name();
        let failed = |e| GenerationError::Program { name, cause: Box::new(e) };
        let program = self.bpf.program(name).ok_or(GenerationError::NoProgram(name))?;
        let program: &SchedClassifier = program.try_into().map_err(failed)?;
        let fd = program.fd().map_err(failed)?.as_fd();
        Ok((fd, program.info().map_err(failed)?.id()))
    }

    /// The descriptor of a direction's program, for tests that run it.
    ///
    /// # Errors
    /// The kernel does not report the program.
    pub fn fd(&self, direction: Direction) -> Result<BorrowedFd<'_>, GenerationError> {
        self.program(direction).map(|(fd, _)| fd)
    }

    /// Returns the lines logged since the last call.
    pub fn read(&mut self) -> Vec<String> {
        self.logger.flush();
        std::mem::take(&mut *lock(&self.lines.0))
    }

    /// Number of packets that the filter admitted, including those with lost lines.
    #[must_use]
    pub fn matched(&self) -> u64 {
        let records = self.bpf.map("TRACE").and_then(|map| PerCpuArray::try_from(map).ok());
        let all = records.and_then(|all: PerCpuArray<_, TraceRecord>| all.get(&0, 0).ok());
        all.map_or(0, |all| all.iter().map(|record| record.matched).sum())
    }
}

fn traced(error: impl std::fmt::Display) -> GenerationError {
    GenerationError::Traced(error.to_string())
}

fn write(bpf: &mut Ebpf, filter: &TraceFilter) -> Result<(), String> {
    let map = bpf.map_mut("TRACE_FILTER").ok_or("the object has no map TRACE_FILTER")?;
    let mut map: Array<_, TraceFilter> = map.try_into().map_err(|error| format!("{error}"))?;
    map.set(0, *filter, 0).map_err(|error| error.to_string())
}

/// Replaces the descriptors of an object's maps by those of maps with the same names.
fn share(bpf: &Ebpf, maps: &MapsByName) -> Result<(), GenerationError> {
    let known = |name: &str| name.starts_with(".rodata") || OWN.contains(&name);
    if let Some((name, _)) = bpf.maps().find(|(name, _)| !known(name) && !maps.contains_key(*name))
    {
        return Err(traced(format!("map {name} is in the traced object only")));
    }
    for (name, map) in maps {
        let data = bpf.map(name).and_then(data);
        let data = data.ok_or_else(|| traced(format!("the traced object has no map {name}")))?;
        // SAFETY: a descriptor that the loader's map owns, before and after the call.
        let result =
            unsafe { libc::dup3(map.as_raw_fd(), data.fd().as_fd().as_raw_fd(), libc::O_CLOEXEC) };
        if result < 0 {
            return Err(traced(format!("map {name}: {}", io::Error::last_os_error())));
        }
    }
    Ok(())
}
