//! The kernel's side: maps, programs, and where they are attached.

pub mod attach;
pub mod bpffs;
pub mod generation;
pub mod mmap;
mod sys;
pub mod tables;
pub mod test_run;

use std::collections::{BTreeMap, BTreeSet};

use netpold_core::model::Direction;
use netpold_core::ops::{Capacity, Op};
use netpold_ebpf::layout::Settings;

use attach::{AttachError, Attachment, Hooks};
use bpffs::PinRoot;
use generation::{Generation, GenerationError, Predecessor};
use tables::TableError;

/// The node's dataplane: the current generation and what it is attached to.
pub struct Dataplane {
    pins: PinRoot,
    hooks: Hooks,
    conntrack_buckets: u32,
    settings: Settings,
    generation: Option<Generation>,
    attached: BTreeMap<(u32, Direction), Attachment>,
}

impl Dataplane {
    /// A dataplane that has not written anything yet.
    #[must_use]
    pub fn new(pins: PinRoot, hooks: Hooks, conntrack_buckets: u32, settings: Settings) -> Self {
        Self {
            pins,
            hooks,
            conntrack_buckets,
            settings,
            generation: None,
            attached: BTreeMap::new(),
        }
    }

    /// What the agent before this one left pinned.
    ///
    /// # Errors
    /// A pin is there but cannot be read.
    pub fn predecessor(&self) -> Result<Predecessor, GenerationError> {
        Predecessor::read(&self.pins)
    }

    /// Loads a new generation, fills it, and replaces the programs of everything attached. Until
    /// the replacement, and if this fails, the old generation judges.
    ///
    /// # Errors
    /// See [`GenerationError`].
    pub fn install(&mut self, capacity: &Capacity, ops: &[Op]) -> Result<(), GenerationError> {
        let mut fresh = Generation::load(&self.pins, capacity, self.conntrack_buckets)?;
        fresh.write_settings(self.settings)?;
        fresh.apply(ops)?;
        fresh.publish(&self.pins)?;
        for ((_, direction), attachment) in &mut self.attached {
            if let Err(error) = attachment.replace(fresh.program(*direction)?) {
                tracing::warn!(%error, "cannot replace a program; it will be attached anew");
            }
        }
        self.generation = Some(fresh);
        Ok(())
    }
}
