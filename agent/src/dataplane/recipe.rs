//! A generation that is made and filled on another thread, while the one in force goes on.

use netpold_core::ops::{Capacity, Op};
use netpold_ebpf::layout::Settings;

use super::bpffs::MapPins;
use super::generation::{Generation, GenerationError};
use super::xdp::XdpProgram;

/// What a generation is made from.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub(super) pins: MapPins,
    pub(super) conntrack_buckets: u32,
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
        let mut fresh = Generation::load_at(&self.pins, capacity, self.conntrack_buckets)?;
        fresh.write_settings(self.settings)?;
        fresh.fill(ops)?;
        for program in &self.xdp {
            // What the kernel refuses is told of where it is to be attached.
            drop(fresh.xdp(*program));
        }
        Ok(fresh)
    }
}
