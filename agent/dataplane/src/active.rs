//! The generation in force: writes, audits, sweeps and probes of its tables.

use std::collections::BTreeSet;

use aya::maps::{MapData, RingBuf};
use netpold_core::compile::{Compiler, Cursor};
use netpold_core::ops::Op;
use netpold_ebpf::layout::Settings;

use super::audit::{Repaired, UnexpectedEntries};
use super::flow_growth::FlowGrowth;
use super::generation::{Generation, GenerationError};
use super::probing::{ProbeRun, Probed};
use super::settings::ActiveSettings;
use super::shared_maps::SharedMaps;
use super::tables::TableError;
use crate::conntrack::{PassResult, Sighting, Sweeper, TrackedFlow};
use crate::import_conntrack::{ImportRequest, Imported, KernelFlow, kernel_flows};

/// The generation in force, if there is one.
pub struct ActiveGeneration {
    pub(super) generation: Option<Generation>,
    pub(super) settings: ActiveSettings,
    pub(super) growth: FlowGrowth,
    unexpected: UnexpectedEntries,
    probed: Probed,
}

impl ActiveGeneration {
    /// State before the first generation.
    pub(super) fn new(settings: ActiveSettings, growth: FlowGrowth) -> Self {
        Self {
            generation: None,
            settings,
            growth,
            unexpected: UnexpectedEntries::default(),
            probed: Probed::default(),
        }
    }

    /// The generation and its settings, for changes of both.
    pub(super) fn parts(&mut self) -> Option<(&mut Generation, &mut ActiveSettings)> {
        self.generation.as_mut().map(|generation| (generation, &mut self.settings))
    }

    /// Bit of `skb->mark` that proves that the pod's program has judged the packet.
    #[must_use]
    pub fn proof(&self) -> u32 {
        self.settings.proof()
    }

    /// The written settings; `None` before the first generation.
    #[must_use]
    pub fn settings(&self) -> Option<Settings> {
        self.settings.written()
    }

    /// The generation in force, once there is one.
    #[must_use]
    pub fn generation(&self) -> Option<&Generation> {
        self.generation.as_ref()
    }

    /// The ring of drop events; returned only once, after the first generation.
    pub fn events(&mut self) -> Option<RingBuf<MapData>> {
        self.generation.as_mut()?.events().ok()
    }

    /// Writes operations in order.
    ///
    /// # Errors
    /// Error of the first operation that the kernel refused; earlier ones are in effect.
    pub fn write(&mut self, ops: &[Op]) -> Result<(), TableError> {
        let Some(generation) = &mut self.generation else { return Ok(()) };
        let gaining = generation.end_streams_before(ops)?;
        generation.apply(ops)?;
        // The programs did not read packets of these endpoints during the writes.
        generation.end_streams(&gaining)
    }

    /// Compares the next of `slices` parts of the tables with their desired content after the compiler's last update,
    /// and repairs differences. Returns the start of the next part.
    ///
    /// # Errors
    /// A table cannot be read or written.
    pub fn audit(
        &mut self,
        compiler: &Compiler,
        cursor: Cursor,
        slices: u32,
    ) -> Result<(Cursor, Repaired), TableError> {
        let (Some(settings), Some(generation)) = (self.settings.written(), &mut self.generation)
        else {
            return Ok((cursor, Repaired::new()));
        };
        generation.tables().audit(settings, compiler, (cursor, slices), &mut self.unexpected)
    }

    /// Removes expired flows as in [`Sweeper::pass`], by the current timeouts of the node's own conntrack, and counts
    /// the others; `None` before the first generation.
    ///
    /// [`Sweeper::pass`]: crate::conntrack::Sweeper::pass
    ///
    /// # Errors
    /// The tables cannot be mapped or the clock cannot be read.
    pub fn sweep(
        &mut self,
        endpoints: Option<&BTreeSet<u32>>,
        visit: impl FnMut(&Sighting<'_>),
    ) -> Result<Option<PassResult>, GenerationError> {
        if let Some(generation) = &mut self.generation {
            self.settings.follow_timeouts(generation)?;
        }
        let tables = self.settings.flow_tables(self.generation())?;
        Ok(tables.map(|(tables, now)| tables.pass(now, endpoints, visit)))
    }

    /// Removes expired records of observed flows, and counts the others; `None` before the first generation.
    ///
    /// # Errors
    /// The tables cannot be mapped or the clock cannot be read.
    pub fn sweep_observed(
        &self,
        endpoints: Option<&BTreeSet<u32>>,
        visit: impl FnMut(&Sighting<'_>),
    ) -> Result<Option<PassResult>, GenerationError> {
        let tables = self.settings.observed_flows(self.generation())?;
        Ok(tables.map(|(tables, now)| tables.pass(now, endpoints, visit)))
    }

    /// The flow tables, the kernel's jiffies, and the revision of valid cached verdicts; `None` before the first
    /// generation.
    ///
    /// # Errors
    /// The tables cannot be mapped or the clock cannot be read.
    pub fn flow_tables(&self) -> Result<Option<(Sweeper, u32, u32)>, GenerationError> {
        let Some(generation) = &self.generation else { return Ok(None) };
        let revision = generation.revision()?;
        let tables = self.settings.flow_tables(Some(generation))?;
        Ok(tables.map(|(tables, now)| (tables, now, revision)))
    }

    /// Records the occupancy of the flow tables, if it decides about their growth.
    pub fn watch_room(&mut self) {
        let in_force = self.settings.buckets();
        if in_force.is_none_or(|in_force| !self.growth.needs_occupancy(in_force)) {
            return;
        }
        match self.settings.flow_tables(self.generation()) {
            Ok(tables) => {
                tables.iter().for_each(|(it, _)| self.growth.record_occupancy(it.occupancy()));
            }
            Err(error) => tracing::warn!(%error, "cannot read the occupancy of the flow tables"),
        }
    }

    /// Whether the flow tables are too small, so that the next generation must have larger ones.
    #[must_use]
    pub fn is_outgrown(&self) -> bool {
        self.settings.buckets().is_some_and(|in_force| self.growth.is_due(in_force))
    }

    /// Imports flows of some endpoints from the kernel's own conntrack.
    ///
    /// # Errors
    /// The kernel's conntrack cannot be read, or the flow tables cannot be mapped.
    pub fn import_conntrack(&self, wanted: &ImportRequest) -> Result<Imported, String> {
        let (mut found, mut visited) = (Vec::new(), 0);
        let is_wanted = |flow: &KernelFlow| wanted.sides(flow, 0).next().is_some();
        let each = |flow| {
            visited += 1;
            found.extend(Some(flow).filter(is_wanted));
        };
        kernel_flows(is_wanted, each).map_err(|error| error.to_string())?;
        let mut imported = Imported { visited, wanted: found.len() as u64, flows: 0 };
        // Mapping the flow tables takes milliseconds.
        if found.is_empty() {
            return Ok(imported);
        }
        let tables = self.settings.flow_tables(self.generation());
        let Some((tables, now)) = tables.map_err(|error| error.to_string())? else {
            return Ok(imported);
        };
        for flow in &found {
            for side in wanted.sides(flow, now) {
                let seen = tables.stamp(&side, flow.remaining, now);
                let is_in = tables.import(&TrackedFlow { seen, ..side }, now).is_ok();
                imported.flows += u64::from(is_in);
            }
        }
        Ok(imported)
    }

    /// Runs the attached program on a probe's packet; returns whether the packet passes. Removes the conntrack entry of
    /// the probe, and counts its drop in [`ActiveGeneration::probed`], so that it is not reported.
    ///
    /// # Errors
    /// The cause, if the probe gives no result.
    pub fn show(&mut self, shown: &ProbeRun<'_>) -> Result<bool, String> {
        let tables = match shown.flow {
            Some(_) => self.flow_tables().map_err(|error| error.to_string())?,
            None => None,
        };
        let generation =
            self.generation.as_ref().ok_or("nothing has been written to the kernel")?;
        self.probed.show(shown, generation, tables.as_ref().map(|(tables, ..)| tables))
    }

    /// Number of probes among a counter's drops since this agent started.
    #[must_use]
    pub fn probed(&self, counter: u32) -> u64 {
        self.probed.drops_of(counter)
    }

    /// Maps for the load of traced programs; `None` before the first generation.
    ///
    /// # Errors
    /// See [`Generation::shared_maps`].
    pub fn shared_maps(&self) -> Result<Option<SharedMaps>, GenerationError> {
        self.generation.as_ref().map(Generation::shared_maps).transpose()
    }
}
