//! A generation that is made and filled on another thread, while the one in force goes on.

use netpold_core::ops::{Capacity, Op};
use netpold_ebpf::layout::Settings;

use super::Dataplane;
use super::bpffs::MapPins;
use super::generation::{Generation, GenerationError};
use super::xdp::Early;

/// What a generation is made from.
#[derive(Clone, Debug)]
pub struct Recipe {
    pins: MapPins,
    conntrack_buckets: u32,
    /// Of the generation in force.
    settings: Settings,
    /// The XDP programs that it has.
    early: Vec<Early>,
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
        for program in &self.early {
            // What the kernel refuses is told of where it is to be attached.
            drop(fresh.early(*program));
        }
        Ok(fresh)
    }
}

impl Dataplane {
    /// How to make a generation like the one in force; `None` before the first.
    #[must_use]
    pub fn recipe(&self) -> Option<Recipe> {
        self.generation.as_ref()?;
        Some(Recipe {
            pins: self.pins.maps(),
            conntrack_buckets: self.conntrack_buckets,
            settings: self.settings?,
            early: self.uplinks.early().into_iter().chain(self.sent.early()).collect(),
        })
    }

    /// Puts a generation that is filled in the place of the one in force, which is given back and goes on
    /// judging until the next [`Dataplane::attach`].
    ///
    /// # Errors
    /// See [`GenerationError`]; the generation in force is then the one from before.
    pub fn adopt(&mut self, mut fresh: Generation) -> Result<Option<Generation>, GenerationError> {
        self.introduce(&mut fresh)?;
        self.put_in_place(fresh)
    }
}
