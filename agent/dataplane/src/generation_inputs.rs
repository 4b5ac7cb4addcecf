//! Inputs from which another thread creates and fills a new generation while the generation in force continues to
//! judge.

use netpold_core::ops::{Capacity, Op};
use netpold_ebpf::layout::Settings;

use super::bpffs::MapPins;
use super::generation::{FlowTables, Generation, GenerationError};
use super::xdp::XdpProgram;

/// Inputs of a new generation.
#[derive(Clone, Debug)]
pub struct GenerationInputs {
    pub(super) pins: MapPins,
    pub(super) flow_tables: FlowTables,
    /// Settings of the generation in force.
    pub(super) settings: Settings,
    /// XDP programs to load.
    pub(super) xdp: Vec<XdpProgram>,
}

impl GenerationInputs {
    /// Creates the maps, loads the programs and fills the maps. Attaches no program, so enforcement does not change.
    ///
    /// # Errors
    /// See [`GenerationError`].
    pub fn make(&self, capacity: &Capacity, ops: &[Op]) -> Result<Generation, GenerationError> {
        let mut fresh = self.load(capacity)?;
        fresh.write_settings(self.settings)?;
        fresh.fill(ops)?;
        for program in &self.xdp {
            // A program that the kernel rejects is reported when it is attached.
            drop(fresh.xdp(*program));
        }
        Ok(fresh)
    }

    /// Loads a generation; keeps the pinned flow tables if larger ones cannot be created.
    fn load(&self, capacity: &Capacity) -> Result<Generation, GenerationError> {
        let load = |flow_tables| Generation::load_at(&self.pins, capacity, flow_tables);
        match (load(self.flow_tables), self.flow_tables) {
            (Err(error), FlowTables::Own(buckets)) => {
                tracing::warn!(%error, buckets, "cannot create larger flow tables: the current ones stay");
                load(FlowTables::Kept)
            }
            (loaded, _) => loaded,
        }
    }
}
