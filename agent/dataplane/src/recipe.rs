//! Recipe of a generation that another thread creates and fills, while the one in force goes on.

use netpold_core::ops::{Capacity, Op};
use netpold_ebpf::layout::Settings;

use super::bpffs::MapPins;
use super::generation::{FlowTables, Generation, GenerationError};
use super::xdp::XdpProgram;

/// Inputs of a new generation.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub(super) pins: MapPins,
    pub(super) flow_tables: FlowTables,
    /// Settings of the generation in force.
    pub(super) settings: Settings,
    /// XDP programs to load.
    pub(super) xdp: Vec<XdpProgram>,
}

impl Recipe {
    /// Creates the maps, loads the programs and fills the maps. No program is attached, and enforcement does not
    /// change.
    ///
    /// # Errors
    /// See [`GenerationError`].
    pub fn make(&self, capacity: &Capacity, ops: &[Op]) -> Result<Generation, GenerationError> {
        let mut fresh = self.load(capacity)?;
        fresh.write_settings(self.settings)?;
        fresh.fill(ops)?;
        for program in &self.xdp {
            // The attachment reports a program that the kernel rejects.
            drop(fresh.xdp(*program));
        }
        Ok(fresh)
    }

    /// Loads a generation; without room for larger flow tables, it keeps the pinned ones.
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
