//! A generation: a set of tables with the programs that read them.
//!
//! Agent start, restart, upgrade and growth take the same path: a new generation is loaded and filled while the old one
//! continues to judge packets, then each link's program is replaced. Generations share conntrack, fragments, counters
//! and events by pins; all other maps belong to their generation and are freed with the last program that uses them.

mod error;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, OnceLock, PoisonError};

use aya::maps::{MapData, PerCpuArray, RingBuf};
use aya::programs::{SchedClassifier, Xdp};
use aya::{Ebpf, EbpfLoader};
use netpold_core::ops::{Capacity, Op, TableWriter};
use netpold_ebpf::layout::{MAY_BE_BEHIND, Settings, Unproven};
use netpold_ebpf::reason::COUNTERS;

use super::bpffs::{MapPins, PinRoot, remove_if_there};
use super::checksum::ChecksumFields;
use super::global_sections::{self, Section, TemporaryPins};
use super::ipv6_blocks::nodes_for;
use super::ipv6_hosts::{buckets_for, filter_for, overflow_for};
use super::maps::{TableError, array, at, descriptor};
use super::names::{self, DOUBTED_PODS, LEARNED, Resolution};
use super::namespace;
use super::other_layout;
use super::packet_counters::{self, PacketCounts};
use super::role::Program;
use super::shared_maps::{self, Globals, MapsByName, SharedMaps};
use super::tables::BpfTables;
use super::xdp::XdpProgram;
use super::{connection, features, kernel_types};
use crate::bpf::mmap::MmapError;
use crate::bpf::{sys, test_run};
use crate::object::object;

pub use error::GenerationError;
pub(super) use error::pin_error;

/// Program that returns the kernel's clock in a test run.
const CLOCK: &str = "netpold_clock";
/// The flow tables.
const FLOWS: [&str; 2] = ["CT4", "CT6"];
/// Maps that outlive their generation, by pin name.
const SHARED: [&str; 13] = [
    FLOWS[0],
    FLOWS[1],
    "FRAGMENTS",
    packet_counters::NAME,
    "EVENTS",
    LEARNED,
    "ASKED",
    "STREAMS",
    "STREAM_BYTES",
    "DOUBTS",
    DOUBTED_PODS,
    OBSERVED[0],
    OBSERVED[1],
];
/// The tables of observed flows.
const OBSERVED: [&str; 2] = ["OBSERVED4", "OBSERVED6"];

/// Maps of the generation in force that are pinned for a later agent.
const PUBLISHED: [Section; 2] = [global_sections::ENDPOINTS, global_sections::SETTINGS];

/// Loader of all generations, without the kernel's types: aya would parse them for each new loader, which takes 0.1 s.
static LOADER: OnceLock<Mutex<EbpfLoader<'static>>> = OnceLock::new();

fn loader() -> &'static Mutex<EbpfLoader<'static>> {
    LOADER.get_or_init(|| {
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        Mutex::new(loader)
    })
}

/// Prepares the inputs of [`Generation::load`] in the background.
pub fn prepare() {
    let prepare = || {
        globals();
        loader();
    };
    // Without a thread, the inputs are prepared on first use.
    drop(std::thread::Builder::new().name("loader".into()).spawn(prepare));
}

/// Constants for the load of programs.
fn globals() -> &'static Globals {
    static GLOBALS: OnceLock<Globals> = OnceLock::new();
    GLOBALS.get_or_init(|| {
        let types = kernel_types::read();
        let connection = connection::offsets(types.as_deref());
        let [connection_offset, tuples_offset] =
            connection.map_or([0; 2], |it| [it.connection, it.tuples]);
        let asks_for_namespace = namespace::cookie().is_some().into();
        let checksum = ChecksumFields::from_btf(types.as_deref());
        Globals { asks_for_namespace, connection_offset, tuples_offset, checksum }
    })
}

/// Flow tables of a generation, by the buckets of the IPv4 table; the IPv6 table has half of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowTables {
    /// The pinned tables, regardless of their size; new ones if there are none.
    Pinned(u32),
    /// New tables, which replace the pinned ones when the generation is published.
    Own(u32),
    /// The pinned tables, because the kernel has no memory for larger ones.
    Kept,
}

/// A loaded generation.
pub struct Generation {
    bpf: Ebpf,
    tables: BpfTables,
    flow_tables: FlowTables,
    /// All maps of the object.
    maps: MapsByName,
    /// The pinned maps, by pin name.
    pinned: Vec<(&'static str, OwnedFd)>,
    /// Numbers of the endpoints for which the former programs read DNS messages; `None` once the programs of this
    /// generation are attached everywhere.
    read_before: Option<BTreeSet<u32>>,
}

impl Generation {
    /// Creates the maps with the given sizes and loads the programs. No program is attached, and enforcement does not
    /// change.
    ///
    /// # Errors
    /// See [`GenerationError`].
    pub fn load(
        pins: &PinRoot,
        capacity: &Capacity,
        conntrack_buckets: u32,
    ) -> Result<Self, GenerationError> {
        Self::load_at(&pins.maps(), capacity, FlowTables::Pinned(conntrack_buckets))
    }

    /// Loads a generation without the pin root itself, see [`Generation::load`].
    pub(super) fn load_at(
        pins: &MapPins,
        capacity: &Capacity,
        flow_tables: FlowTables,
    ) -> Result<Self, GenerationError> {
        let (buckets, own) = match flow_tables {
            FlowTables::Pinned(buckets) => (buckets, &[][..]),
            FlowTables::Own(buckets) => (buckets, &FLOWS[..]),
            FlowTables::Kept => (1, &[][..]),
        };
        let object = globals().checksum.prepare(object()?);
        let mut loader = loader().lock().unwrap_or_else(PoisonError::into_inner);
        for (name, size) in sizes(capacity) {
            loader.map_max_entries(name, size);
        }
        for (name, size) in FLOWS.into_iter().zip([buckets, (buckets / 2).max(1)]) {
            loader.map_max_entries(name, size);
        }
        for name in SHARED {
            loader.map_pin_path(name, pins.map(name));
        }
        globals().set_constants(&mut loader);
        let offered = TemporaryPins::to(&mut loader, pins, own)
            .map_err(|(name, cause)| GenerationError::Offer { name, cause })?;
        let mut bpf =
            loader.load(&object).map_err(|e| GenerationError::Load { cause: Box::new(e) })?;
        drop((offered, loader));
        load_programs(&mut bpf)?;
        let maps = shared_maps::maps(&bpf).map_err(GenerationError::Maps)?;
        let tables = BpfTables::open(&mut bpf)?;
        let published = PUBLISHED.map(|Section { name, section, .. }| (name, section));
        let mut pinned = SHARED
            .map(|name| (name, name))
            .into_iter()
            .chain(published)
            .map(|(name, map)| Ok((name, descriptor(&bpf, map)?)))
            .collect::<Result<Vec<_>, TableError>>()?;
        let name = other_layout::DESCRIPTION;
        let description =
            other_layout::describe().map_err(|e| pin_error(pins.map(name), name, e.to_string()))?;
        pinned.push((name, description));
        Ok(Self { bpf, tables, flow_tables, maps, pinned, read_before: None })
    }

    /// Maps and constants for the load of traced programs.
    ///
    /// # Errors
    /// The kernel does not report a program's identifier, or the process is out of descriptors.
    pub fn shared_maps(&self) -> Result<SharedMaps, GenerationError> {
        let copy = |(name, map): (&String, &OwnedFd)| Ok((name.clone(), map.try_clone()?));
        let maps: io::Result<_> = self.maps.iter().map(copy).collect();
        let maps = maps.map_err(GenerationError::Maps)?;
        Ok(SharedMaps { maps, globals: *globals(), generation: self.id(Program::Ingress)? })
    }

    /// A program; for a direction, the program at the hooks of pods.
    ///
    /// # Errors
    /// The object has no such program.
    pub fn program(
        &mut self,
        program: impl Into<Program>,
    ) -> Result<&mut SchedClassifier, GenerationError> {
        classifier(&mut self.bpf, program.into().name())
    }

    /// The descriptor of a program.
    ///
    /// # Errors
    /// The object has no such program.
    pub fn fd(&self, program: Program) -> Result<BorrowedFd<'_>, GenerationError> {
        let failed = |e| GenerationError::Program { name: program.name(), cause: Box::new(e) };
        self.loaded(program)?.fd().map(AsFd::as_fd).map_err(failed)
    }

    /// The identifier of a program.
    ///
    /// # Errors
    /// The object has no such program, or the kernel does not report the identifier.
    pub fn id(&self, program: Program) -> Result<u32, GenerationError> {
        let failed = |e| GenerationError::Program { name: program.name(), cause: Box::new(e) };
        self.loaded(program)?.info().map(|info| info.id()).map_err(failed)
    }

    fn loaded(&self, program: Program) -> Result<&SchedClassifier, GenerationError> {
        let name = program.name();
        let failed = |e| GenerationError::Program { name, cause: Box::new(e) };
        let program = self.bpf.program(name).ok_or(GenerationError::NoProgram(name))?;
        program.try_into().map_err(failed)
    }

    /// An XDP program and its identifier; loaded on first use.
    ///
    /// # Errors
    /// The object has no such program, or the kernel rejects it.
    pub fn xdp(&mut self, program: XdpProgram) -> Result<(BorrowedFd<'_>, u32), GenerationError> {
        let name = program.name();
        let failed = |e| GenerationError::Program { name, cause: Box::new(e) };
        let program = self.bpf.program_mut(name).ok_or(GenerationError::NoProgram(name))?;
        let program: &mut Xdp = program.try_into().map_err(failed)?;
        if program.fd().is_err() {
            program.load().map_err(|error| match features::xdp_fragments() {
                Some(false) => GenerationError::XdpFragments,
                _ => failed(error),
            })?;
        }
        let id = program.info().map_err(failed)?.id();
        Ok((program.fd().map_err(failed)?.as_fd(), id))
    }

    /// Writes operations in order, then a new revision, which invalidates the cached verdicts.
    ///
    /// # Errors
    /// Error of the first operation that the kernel refused; earlier ones are in effect.
    pub fn apply(&mut self, ops: &[Op]) -> Result<(), TableError> {
        if ops.is_empty() {
            return Ok(());
        }
        let applied = ops.iter().try_for_each(|op| self.tables.write(op));
        self.tables.next_revision().and(applied)
    }

    /// Writes operations in order before any program is attached, without grace periods.
    ///
    /// # Errors
    /// Error of the first operation that the kernel refused.
    pub fn fill(&mut self, ops: &[Op]) -> Result<(), TableError> {
        let writes = ops.iter().filter(|op| !matches!(op, Op::Grace));
        writes.into_iter().try_for_each(|op| self.tables.write(op))
    }

    /// Writes the settings, before any program is attached, and returns the written ones: the bucket masks follow from
    /// the actual size of the conntrack maps.
    ///
    /// # Errors
    /// A map is missing or cannot be mapped.
    pub fn write_settings(&mut self, mut settings: Settings) -> Result<Settings, TableError> {
        settings.ct4_mask = elements(&self.bpf, "CT4")? - 1;
        settings.ct6_mask = elements(&self.bpf, "CT6")? - 1;
        self.tables.write_settings(settings)
    }

    /// Sets [`Settings::handover`].
    ///
    /// # Errors
    /// The map is smaller than one element.
    pub fn set_handover(&self, flags: u32) -> Result<(), TableError> {
        self.tables.set_handover(flags)
    }

    /// Returns [`Settings::handover`]; `None`: the settings cannot be read.
    pub(super) fn handover(&self) -> Option<u32> {
        self.tables.current_settings().ok().map(|settings| settings.handover)
    }

    /// Whether the programs expect others in front of them ([`MAY_BE_BEHIND`]).
    pub(super) fn may_be_behind(&self) -> bool {
        self.handover().is_some_and(|flags| flags & MAY_BE_BEHIND != 0)
    }

    /// Numbers of the endpoints for which the programs of this generation read DNS messages.
    pub(super) fn named(&self) -> BTreeSet<u32> {
        self.tables.named()
    }

    /// The kernel's jiffies, low 32 bits.
    ///
    /// # Errors
    /// The program cannot be run.
    pub fn jiffies(&self) -> io::Result<u32> {
        let program = self.bpf.program(CLOCK).and_then(|p| p.fd().ok());
        let program = program.ok_or_else(|| io::Error::other("the clock program is not loaded"))?;
        test_run::jiffies(program.as_fd())
    }

    /// Addresses that endpoints resolved.
    ///
    /// # Errors
    /// The table cannot be mapped, or the clock cannot be read.
    pub fn resolutions(&self, settings: &Settings) -> Result<Vec<Resolution>, GenerationError> {
        let learned = array(&self.bpf, LEARNED)?;
        let now = self.jiffies().map_err(GenerationError::Clock)?;
        let now = names::jiffies(now, settings).map_err(GenerationError::Clock)?;
        Ok(names::resolutions(learned, settings, now).map_err(at(LEARNED))?)
    }

    /// Copies resolved addresses from the words of another version's table, by the map's identifier. Generations of one
    /// version share the table.
    ///
    /// # Errors
    /// A table cannot be mapped, or the kernel does not report its identifier.
    pub(super) fn adopt_resolutions(
        &self,
        map: u32,
        former: &[AtomicU64],
    ) -> Result<(), TableError> {
        let settings = self.tables.current_settings()?;
        let learned = array(&self.bpf, LEARNED)?;
        let info = learned.info().map_err(|cause| TableError::Map { name: LEARNED, cause })?;
        if info.id() == map {
            return Ok(());
        }
        names::adopt(learned, former, &settings).map_err(at(LEARNED))
    }

    /// Removes the resolved addresses of endpoints other than these.
    ///
    /// # Errors
    /// The table cannot be mapped.
    pub fn sweep_resolutions(&self, endpoints: &BTreeSet<u32>) -> Result<(), TableError> {
        names::sweep(array(&self.bpf, LEARNED)?, endpoints).map_err(at(LEARNED))
    }

    /// Ends the reading of connections to resolvers for the endpoints to which operations give domain names: earlier
    /// packets were not read, so the position in the stream is unknown.
    pub(super) fn end_streams_before(&self, ops: &[Op]) -> Result<BTreeSet<u32>, TableError> {
        let gaining = self.tables.endpoints_gaining_names(ops);
        self.end_streams(&gaining)?;
        Ok(gaining)
    }

    /// Prepares this generation to replace `former`. Ends the reading of connections to resolvers, except for the
    /// endpoints `named`, for which the programs of `former` read DNS messages.
    pub(super) fn succeed(
        &mut self,
        former: Option<&Generation>,
        mut named: BTreeSet<u32>,
    ) -> Result<(), TableError> {
        if let Some(former) = former {
            self.tables.inherit_seen(&former.tables);
            // Some hooks still have the predecessors of the programs of `former`, which read DNS messages for these
            // endpoints only.
            if let Some(before) = &former.read_before {
                named.retain(|endpoint| before.contains(endpoint));
            }
        }
        self.end_streams_without(&named)?;
        self.read_before = Some(named);
        Ok(())
    }

    /// Ends the reading of the same connections again after an attachment of this generation's programs: the packets
    /// before the attachment were not read. Unless the programs are attached `everywhere`, the next call does so again.
    pub(super) fn end_streams_attached(&mut self, everywhere: bool) -> Result<(), TableError> {
        let Some(named) = self.read_before.take() else { return Ok(()) };
        let ended = self.end_streams_without(&named);
        if !everywhere || ended.is_err() {
            self.read_before = Some(named);
        }
        ended
    }

    fn end_streams_without(&self, named: &BTreeSet<u32>) -> Result<(), TableError> {
        self.end_streams(&self.tables.named().difference(named).copied().collect())
    }

    /// Demands the proof of packets ([`Settings::demands_proof`](netpold_ebpf::layout::Settings)). Packets without it that
    /// passed before may have begun connections to resolvers.
    ///
    /// # Errors
    /// A table cannot be written.
    pub(super) fn demand_proof(&self) -> Result<(), TableError> {
        self.end_streams_without(&BTreeSet::new())?;
        self.tables.demand_proof()
    }

    /// Marks all connections of these endpoints to resolvers as doubted, so that programs do not read them.
    pub(super) fn end_streams(&self, endpoints: &BTreeSet<u32>) -> Result<(), TableError> {
        if endpoints.is_empty() {
            return Ok(());
        }
        let now = self.jiffies().map_err(MmapError::Clock).map_err(at(DOUBTED_PODS))?;
        names::end_streams(array(&self.bpf, DOUBTED_PODS)?, endpoints, now)
            .map_err(at(DOUBTED_PODS))
    }

    /// The conntrack tables, IPv4 and IPv6.
    ///
    /// # Errors
    /// The object has no such maps.
    pub fn conntrack(&self) -> Result<(&MapData, &MapData), TableError> {
        Ok((array(&self.bpf, "CT4")?, array(&self.bpf, "CT6")?))
    }

    /// The tables of observed flows, IPv4 and IPv6.
    ///
    /// # Errors
    /// The object has no such maps.
    pub fn observed(&self) -> Result<(&MapData, &MapData), TableError> {
        Ok((array(&self.bpf, OBSERVED[0])?, array(&self.bpf, OBSERVED[1])?))
    }

    /// The ring buffer of drop events, shared by generations; returned once per generation.
    ///
    /// # Errors
    /// The map is missing or of another kind.
    pub fn events(&mut self) -> Result<RingBuf<MapData>, TableError> {
        let name = "EVENTS";
        RingBuf::try_from(self.bpf.take_map(name).ok_or(TableError::Missing(name))?)
            .map_err(|cause| TableError::Map { name, cause })
    }

    /// The packets of [`Counters`], summed over the CPUs; shared by generations.
    ///
    /// [`Counters`]: netpold_ebpf::layout::Counters
    #[must_use]
    pub fn counters(&self) -> PacketCounts {
        let map = self.bpf.map(packet_counters::NAME);
        let counters = map.and_then(|map| PerCpuArray::try_from(map).ok());
        counters.map_or([0; COUNTERS as usize], |counters| packet_counters::sum(&counters))
    }

    /// Counters at exits of packets with an incomplete proof from the endpoint at an interface, since the creation of
    /// this generation.
    #[must_use]
    pub fn unproven(&self, ifindex: u32) -> Unproven {
        self.tables.unproven(ifindex)
    }

    /// Flow tables of the generation.
    #[must_use]
    pub fn flow_tables(&self) -> FlowTables {
        self.flow_tables
    }

    /// Pins this generation's maps in place of the former ones, so that a later agent recognises endpoints and
    /// continues the flows with their hash.
    ///
    /// # Errors
    /// Error of bpffs.
    pub fn publish(&self, pins: &PinRoot) -> Result<(), GenerationError> {
        for (name, map) in &self.pinned {
            replace_pin(pins, name, map.as_fd())
                .map_err(|e| pin_error(pins.map(name), name, e.to_string()))?;
        }
        Ok(())
    }

    /// Pins the maps that are missing in a folder; returns their number.
    ///
    /// # Errors
    /// Error of bpffs.
    pub(super) fn pin_missing(&self, pins: &MapPins) -> Result<u64, GenerationError> {
        let missing = self.pinned.iter().filter(|(name, _)| !pins.map(name).exists());
        let mut count = 0;
        for (name, map) in missing {
            sys::obj_pin(map.as_fd(), &pins.map(name))
                .map_err(|e| pin_error(pins.map(name), name, e.to_string()))?;
            count += 1;
        }
        Ok(count)
    }

    /// Policy revision of valid cached verdicts.
    ///
    /// # Errors
    /// The map is smaller than one element.
    pub fn revision(&self) -> Result<u32, TableError> {
        Ok(self.tables.current_settings()?.revision)
    }

    /// Whether programs apply policy to the packets of an endpoint, by its slot; other endpoints have no flows.
    #[must_use]
    pub fn has_rows(&self, slot: u32) -> bool {
        self.tables.endpoints.read(slot).is_ok_and(|endpoint| endpoint.rows != 0)
    }

    /// The tables.
    pub(super) fn tables(&mut self) -> &mut BpfTables {
        &mut self.tables
    }
}

/// Replaces a pinned map atomically.
fn replace_pin(pins: &PinRoot, name: &str, map: BorrowedFd<'_>) -> io::Result<()> {
    let fresh = pins.map(&format!("{name}_NEW"));
    remove_if_there(&fresh)?;
    sys::obj_pin(map, &fresh)?;
    std::fs::rename(&fresh, pins.map(name))
}

/// Number of elements of an array map, at least one.
fn elements(bpf: &Ebpf, name: &'static str) -> Result<u32, TableError> {
    let info = array(bpf, name)?.info().map_err(|cause| TableError::Map { name, cause })?;
    Ok(info.max_entries().max(1))
}

fn classifier<'a>(
    bpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut SchedClassifier, GenerationError> {
    bpf.program_mut(name)
        .ok_or(GenerationError::NoProgram(name))?
        .try_into()
        .map_err(|e| GenerationError::Program { name, cause: Box::new(e) })
}

/// Loads the programs in parallel: the kernel takes up to half a second to verify one.
fn load_programs(bpf: &mut Ebpf) -> Result<(), GenerationError> {
    let names = Program::ALL.map(Program::name).into_iter().chain([CLOCK]);
    let mut missing: BTreeSet<&str> = names.collect();
    let loaded = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (name, program) in bpf.programs_mut() {
            let Some(name) = missing.take(name) else { continue };
            let failed = move |e| GenerationError::Program { name, cause: Box::new(e) };
            threads.push(scope.spawn(move || {
                let program: &mut SchedClassifier = program.try_into().map_err(failed)?;
                program.load().map_err(failed)
            }));
        }
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    });
    loaded.and(missing.first().map_or(Ok(()), |name| Err(GenerationError::NoProgram(name))))
}

fn sizes(capacity: &Capacity) -> [(&'static str, u32); 8] {
    let hosts = buckets_for(capacity.hosts6);
    [
        ("PORT_BITMAPS", capacity.bitmaps),
        ("ROW_BLOCKS", capacity.row_blocks),
        ("ROWS", capacity.rows),
        ("TRIE_BLOCKS", capacity.trie_blocks),
        ("HOSTS6", hosts),
        ("HOSTS6_FILTER", filter_for(hosts)),
        ("BLOCKS6", nodes_for(capacity.blocks6 + overflow_for(capacity.hosts6))),
        ("NAMES", capacity.names),
    ]
}
