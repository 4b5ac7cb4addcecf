//! A generation that is made and filled on another thread, while the one in force goes on.

use netpold_core::ops::{Capacity, Op};
use netpold_ebpf::layout::Settings;

use super::bpffs::MapPins;
use super::generation::{FlowTables, Generation, GenerationError};
use super::xdp::XdpProgram;

/// What a generation is made from.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub(super) pins: MapPins,
    pub(super) flow_tables: FlowTables,
    /// Of the generation in force.
    pub(super) settings: Settings,
    /// The XDP programs that it has.
    pub(super) xdp: Vec<XdpProgram>,
}

impl Recipe {
    /// Creates the maps, loads the programs and fills the maps. Nothing is attached and nothing that is in
    /// force changes.
    ///
    /// # Errors
    /// See [`GenerationError`].
    pub fn make(&self, capacity: &Capacity, ops: &[Op]) -> Result<Generation, GenerationError> {
        let mut fresh = self.load(capacity)?;
        fresh.write_settings(self.settings)?;
        fresh.fill(ops)?;
        for program in &self.xdp {
            // What the kernel refuses is told of where it is to be attached.
            drop(fresh.xdp(*program));
        }
        Ok(fresh)
    }

    /// Flow tables that are too large for the node are no reason to go without the rest.
    fn load(&self, capacity: &Capacity) -> Result<Generation, GenerationError> {
        let load = |flow_tables| Generation::load_at(&self.pins, capacity, flow_tables);
        match (load(self.flow_tables), self.flow_tables) {
            (Err(error), FlowTables::Own(buckets)) => {
                tracing::warn!(%error, buckets, "no larger flow tables: those in force stay");
                load(FlowTables::Kept)
            }
            (loaded, _) => loaded,
        }
    }
}
