//! A cluster, compiled and written to a generation of real maps.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use aya::Pod;
use aya::maps::MapData;
use netpold_core::compile::Compiler;
use netpold_core::model::Change;
use netpold_core::ops::Capacity;
use netpold_core::options::Options;
use netpold_dataplane::bpf::mmap::MappedArray;
use netpold_dataplane::bpffs::PinRoot;
use netpold_dataplane::conntrack::measure_hz;
use netpold_dataplane::generation::Generation;
use netpold_ebpf::flow::control::timeouts;
use netpold_ebpf::flow::key::hash_keys;
use netpold_ebpf::judge::proof::DEFAULT_BIT;
use netpold_ebpf::layout::{Ct4Bucket, Ct6Bucket, Settings};
use netpold_engine::compile_with_room;

use crate::cluster::NODE;

/// A compiler and its tables.
pub(crate) struct LoadedCluster {
    /// The compiled cluster.
    pub(crate) compiler: Compiler,
    /// The maps and programs.
    pub(crate) generation: Generation,
    /// Times of the first image.
    pub(crate) first: FirstImage,
    _pins: PinRoot,
}

/// Times of the steps to the first image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstImage {
    /// Taking and compiling the objects.
    pub(crate) compile: Duration,
    /// Creating maps, loading programs.
    pub(crate) load: Duration,
    /// Writing the tables.
    pub(crate) write: Duration,
    /// Number of operations.
    pub(crate) operations: usize,
}

impl LoadedCluster {
    /// Compiles the changes, creates and fills maps, loads programs. `pins` is a folder on a bpffs for this world
    /// alone.
    ///
    /// # Errors
    /// The cluster exceeds the tables' layout ([`netpold_core::compile::CompileError`]), or the kernel refuses.
    pub(crate) fn new(pins: &Path, changes: Vec<Change>, buckets: u32) -> Result<Self> {
        Self::sized(pins, changes, buckets, Capacity::default())
    }

    /// A world with tables of these initial sizes.
    ///
    /// # Errors
    /// Same as [`LoadedCluster::new`].
    pub(crate) fn sized(
        pins: &Path,
        changes: Vec<Change>,
        buckets: u32,
        capacity: Capacity,
    ) -> Result<Self> {
        let pins = PinRoot::open(pins)?;
        let start = Instant::now();
        let options = Options { node: NODE.into(), first_endpoint_id: 1, ..Options::default() };
        let mut compiler = Compiler::new(options);
        changes.into_iter().for_each(|change| compiler.ingest(change));
        let ops = compile_with_room(&mut compiler, capacity, &BTreeSet::new())?;
        let compile = start.elapsed();
        let start = Instant::now();
        let mut generation = Generation::load(&pins, &compiler.capacity(), buckets)?;
        let load = start.elapsed();
        let hz = measure_hz(|| generation.jiffies()).context("cannot read the kernel's clock")?;
        // Without events: the cost of a drop beyond the event limit.
        let settings = Settings {
            hash_seed: 1,
            hash_keys: hash_keys(1),
            timeouts: timeouts(hz),
            refresh_after: hz,
            event_burst: 0,
            event_window: u32::MAX,
            proof: 1 << DEFAULT_BIT,
            demands_proof: 1,
            ..Settings::default()
        };
        generation.write_settings(settings)?;
        let start = Instant::now();
        generation.apply(&ops)?;
        let write = start.elapsed();
        compiler.grace_passed();
        let first = FirstImage { compile, load, write, operations: ops.len() };
        Ok(Self { compiler, generation, first, _pins: pins })
    }

    /// Clears all conntrack entries of a family.
    pub(crate) fn clear_conntrack(&self, v6: bool) -> Result<()> {
        let (four, six) = self.generation.conntrack()?;
        if v6 { clear::<Ct6Bucket>(six) } else { clear::<Ct4Bucket>(four) }
    }
}

fn clear<T: Pod>(map: &MapData) -> Result<()> {
    let table = MappedArray::<T>::new(map)?;
    let Some(words) = table.words() else { bail!("conntrack buckets are not whole words") };
    words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    Ok(())
}
