//! Taking over from flow tables of another layout version, or of another size, without losing a flow.
//!
//! The former programs go on judging by their own tables while the new ones run in front of them, record
//! the flows they see and pass everything on. Then the flows from before are copied, the new programs
//! judge too, and the former endpoints are told to pass everything, each by one word: were the programs
//! replaced at once, one hook after the other, those still there would lack the flows that began at the
//! others. Only then the former links go, and those in front take their pins. They are pinned from the
//! first, so that an agent's sudden end leaves somebody who judges; the former tables are pinned too, so
//! that the agent after it copies their flows.
//!
//! Below clsact, where a second filter would be in the way of one-step replacement, flows are copied
//! before and after instead: an answer to a packet of the milliseconds between may be lost.

use std::path::PathBuf;

use netpold_core::model::Direction;

use super::attach::{Attacher, Hook};
use super::bpffs::PinRoot;
use super::generation::{Generation, GenerationError, pin_error};
use super::other_layout::OtherLayout;
use super::quiescence::grace_period;
use super::role::{Program, Role, Roles};
use super::settings::ActiveSettings;

/// The migration from other tables.
#[derive(Debug)]
pub(super) struct FlowMigration {
    /// Those tables, until their flows are carried over.
    layouts: Vec<OtherLayout>,
    /// Programs may run in front of others, an earlier agent's if not this one's.
    watching: bool,
}

impl FlowMigration {
    /// Opens what earlier agents left. What cannot be read is said, and not carried over.
    pub(super) fn find(pins: &PinRoot) -> Self {
        let open = |directory: PathBuf| match OtherLayout::open(&directory) {
            Ok(layout) => Some(layout),
            Err(error) => {
                tracing::warn!(
                    directory = %directory.display(), %error,
                    "flows of an earlier agent cannot be carried over"
                );
                None
            }
        };
        Self { layouts: pins.other_tables().into_iter().filter_map(open).collect(), watching: true }
    }

    /// Flows are to be carried over from the tables of a generation.
    ///
    /// # Errors
    /// Its maps cannot be pinned or mapped.
    pub(super) fn outgrow(
        &mut self,
        former: &Generation,
        pins: &PinRoot,
    ) -> Result<(), GenerationError> {
        let name = "CT4";
        let folder = pins.outgrown().map_err(|e| pin_error(pins.map(name), name, e.to_string()))?;
        former.pin_missing(&folder)?;
        let tables = OtherLayout::open(folder.path())
            .map_err(|e| pin_error(folder.map(name), name, e.to_string()))?;
        self.layouts.push(tables);
        self.watching = true;
        Ok(())
    }

    /// Whether flows are to be carried over.
    pub(super) fn is_pending(&self) -> bool {
        !self.layouts.is_empty()
    }

    /// Before programs are replaced: the new ones have learnt the flows there are.
    pub(super) fn begin(
        &self,
        wanted: &Roles,
        attacher: &mut Attacher,
        settings: &ActiveSettings,
        generation: &Generation,
    ) {
        if !self.is_pending() {
            return;
        }
        let watched = watch(wanted, attacher, generation);
        // Who passed before the watchers were there has left its flow in the other's table by now.
        grace_period();
        self.carry_over(settings, generation);
        if let Err(error) = generation.watch_only(false) {
            tracing::error!(%error, "the new programs cannot be told to judge");
            return;
        }
        for layout in self.layouts.iter().filter(|_| watched) {
            if let Err(error) = layout.stand_aside() {
                tracing::warn!(%error, "flows that begin now may be lost");
            }
        }
        for &ifindex in wanted.keys() {
            for direction in Direction::BOTH {
                if let Err(error) = attacher.promote(Hook { ifindex, direction }) {
                    tracing::warn!(%error, "the former program stays");
                }
            }
        }
    }

    /// After programs were replaced: what ran in front of them, for this agent or for one that ended
    /// at this point, and the other tables are of no use any more. Where one could not be replaced
    /// (`complete` is false) the ones in front go on judging.
    pub(super) fn end(
        &mut self,
        complete: bool,
        attacher: &Attacher,
        settings: &ActiveSettings,
        generation: &Generation,
    ) {
        if self.watching && complete {
            match attacher.stop_watching() {
                Ok(()) => self.watching = false,
                Err(error) => tracing::warn!(%error, "what ran in front stays for now"),
            }
        }
        if self.is_pending() {
            self.carry_over(settings, generation);
            self.layouts.clear();
        }
    }

    /// Copies the flows of other tables that those in force do not have yet.
    fn carry_over(&self, settings: &ActiveSettings, generation: &Generation) {
        let (mut flows, mut refused) = (0_u64, 0_u64);
        let Ok(Some((tables, now))) = settings.flow_tables(Some(generation)) else { return };
        for layout in &self.layouts {
            let carried = layout.flows(|flow| match tables.import(&flow, now) {
                Ok(()) => flows += 1,
                Err(_) => refused += 1,
            });
            if let Err(error) = carried {
                tracing::warn!(%error, "flows of other tables cannot be carried over");
            }
        }
        tracing::info!(flows, refused, "flows of other tables carried over");
    }
}

/// Runs the new programs in front of whatever judges pods; whether they do everywhere.
fn watch(wanted: &Roles, attacher: &Attacher, generation: &Generation) -> bool {
    let mut everywhere = true;
    let pods = wanted.iter().filter(|(_, role)| matches!(role, Role::Pod(_)));
    for &ifindex in pods.map(|(ifindex, _)| ifindex) {
        for direction in Direction::BOTH {
            let Ok(program) = generation.fd(Program::from(direction)) else {
                everywhere = false;
                continue;
            };
            match attacher.watch(program, Hook { ifindex, direction }) {
                Ok(watched) => everywhere &= watched,
                Err(error) if error.is_gone() => {}
                Err(error) => {
                    tracing::warn!(%error, "flows that begin now may be lost");
                    everywhere = false;
                }
            }
        }
    }
    everywhere
}
