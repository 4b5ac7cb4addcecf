//! Migration from flow tables of another layout version, or of another size, without losing a flow.
//!
//! The former programs continue to judge by their own tables, while the new ones run in front of them, record flows and
//! pass every packet on. Then the older flows are copied, the new programs start to judge, and the former ones stop
//! judging, all by one word; those at exits continue. If instead programs were replaced hook by hook, the remaining
//! former ones would lack the flows that began at other hooks. Finally the former links are removed, and the links in
//! front take their pins. These are pinned from the start, so that packets are judged even if the agent ends suddenly;
//! the former tables are pinned too, so that the next agent copies their flows.
//!
//! With clsact a second filter would prevent one-step replacement, so flows are copied before and after it: a reply to
//! a packet of the milliseconds in between may be lost.

use std::path::PathBuf;

use netpold_core::model::Direction;
use netpold_ebpf::layout::{MAY_BE_BEHIND, SHARES_NAMES, WATCH_ONLY};

use super::attach::{Attacher, Hook};
use super::bpffs::PinRoot;
use super::generation::{Generation, GenerationError, pin_error};
use super::other_layout::OtherLayout;
use super::quiescence::grace_period;
use super::role::{Program, Role, Roles};
use super::settings::ActiveSettings;
use super::tc_hooks::TcHooks;

/// Migration of flows from other tables.
#[derive(Debug)]
pub(super) struct FlowMigration {
    /// The other tables, until their flows are migrated.
    layouts: Vec<OtherLayout>,
    /// Whether programs may run in front of others, of this agent or an earlier one.
    watching: bool,
    /// Whether all other tables are of a former generation of this agent, which has the same tables of domain names.
    shares_names: bool,
}

impl FlowMigration {
    /// Opens the tables of earlier agents. Unreadable ones are logged, and their flows are not migrated.
    pub(super) fn find(pins: &PinRoot) -> Self {
        let open = |directory: PathBuf| match OtherLayout::open(&directory) {
            Ok(layout) => Some(layout),
            Err(error) => {
                tracing::warn!(
                    directory = %directory.display(), %error,
                    "cannot migrate flows of an earlier agent"
                );
                None
            }
        };
        let layouts = pins.other_tables().into_iter().filter_map(open).collect();
        Self { layouts, watching: true, shares_names: false }
    }

    /// Schedules the migration of flows from the tables of a generation.
    ///
    /// # Errors
    /// The maps of the generation cannot be pinned or mapped.
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
        self.shares_names = self.layouts.is_empty();
        self.layouts.push(tables);
        self.watching = true;
        Ok(())
    }

    /// Whether flows remain to be migrated.
    pub(super) fn is_pending(&self) -> bool {
        !self.layouts.is_empty()
    }

    /// Whether flows remain to be migrated, all from a former generation of this agent. Then its programs read DNS messages
    /// until those of the next one judge, and no message is missed or read twice.
    pub(super) fn shares_names(&self) -> bool {
        self.is_pending() && self.shares_names
    }

    /// [`Settings::handover`](netpold_ebpf::layout::Settings) of programs that run in front of the former ones. If the agent
    /// ends before the migration does, the next one puts its programs in front of these.
    pub(super) fn handover_flags(&self) -> u32 {
        let flags = WATCH_ONLY | MAY_BE_BEHIND;
        if self.shares_names() { flags | SHARES_NAMES } else { flags }
    }

    /// Whether the next agent would attach programs in front of these.
    pub(super) fn may_be_behind(&self, pins: &PinRoot) -> bool {
        self.watching || self.is_pending() || !pins.other_tables().is_empty()
    }

    /// Migrates the existing flows before programs are replaced.
    pub(super) fn begin(
        &self,
        wanted: &Roles,
        hooks: &mut TcHooks,
        settings: &ActiveSettings,
        generation: &Generation,
    ) {
        if !self.is_pending() {
            return;
        }
        self.layouts.iter().for_each(OtherLayout::expect_others);
        let watched = attach_all_in_front(wanted, hooks.attacher(), generation);
        // Packets that passed before the watchers were attached have their flows in the other tables by now.
        grace_period();
        self.carry_over(settings, generation);
        if let Err(error) = generation.set_handover(MAY_BE_BEHIND) {
            tracing::error!(%error, "cannot switch the new programs to judging");
            return;
        }
        if watched && self.shares_names() {
            self.layouts.iter().for_each(OtherLayout::share_names);
        }
        // The former programs judge and read the packets that the new ones have only watched.
        grace_period();
        // The other programs first: the former ones at exits judge by tables that are about to be emptied, and an interface
        // about to be closed has no program in front. Failures are repeated and reported with all others.
        let others = wanted.iter().filter(|(_, role)| !matches!(role, Role::Pod(_)));
        hooks.attach(others, generation);
        let stays = |layout: &&OtherLayout| watched && !layout.stand_aside();
        let left: Vec<&OtherLayout> = self.layouts.iter().filter(stays).collect();
        let attacher = hooks.attacher();
        for &ifindex in wanted.keys() {
            for layout in &left {
                if let Err(error) = layout.pass_all(ifindex) {
                    tracing::warn!(%error, "flows that begin during the migration may be lost");
                }
            }
            for direction in Direction::BOTH {
                if let Err(error) = attacher.promote(Hook { ifindex, direction }) {
                    tracing::warn!(%error, "cannot detach the former program; it stays");
                }
            }
        }
    }

    /// Ends the migration after programs were replaced: removes the programs in front of them, of this agent or of one
    /// that ended at this point, and drops the other tables. If a program could not be replaced (`complete` is false),
    /// the programs in front continue to judge.
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
                Err(error) => {
                    tracing::warn!(%error, "cannot detach the programs in front; they stay for now");
                }
            }
        }
        if self.is_pending() {
            self.carry_over(settings, generation);
            self.layouts.clear();
        }
    }

    /// Copies flows of other tables: those that the tables in force lack, and the initiators of all others.
    fn carry_over(&self, settings: &ActiveSettings, generation: &Generation) {
        let (mut flows, mut refused) = (0_u64, 0_u64);
        let Ok(Some((tables, now))) = settings.flow_tables(Some(generation)) else { return };
        for layout in &self.layouts {
            // The programs behind those that only watch have all of their flows, and know the initiators.
            if !layout.only_watches() {
                let carried = layout.flows(|flow| match tables.migrate(&flow, now) {
                    Ok(()) => flows += 1,
                    Err(_) => refused += 1,
                });
                if let Err(error) = carried {
                    tracing::warn!(%error, "cannot migrate flows of other tables");
                }
            }
            let Some((map, resolved)) = layout.resolved() else { continue };
            if let Err(error) = generation.adopt_resolutions(map, resolved) {
                tracing::warn!(%error, "pods have to resolve their domain names again");
            }
        }
        tracing::info!(flows, refused, "migrated flows of other tables");
    }
}

/// Runs the new programs in front of the ones that judge pods; returns whether they run everywhere.
fn attach_all_in_front(wanted: &Roles, attacher: &Attacher, generation: &Generation) -> bool {
    let mut everywhere = true;
    let pods = wanted.iter().filter(|(_, role)| matches!(role, Role::Pod(_)));
    for &ifindex in pods.map(|(ifindex, _)| ifindex) {
        for direction in Direction::BOTH {
            let Ok(program) = generation.fd(Program::from(direction)) else {
                everywhere = false;
                continue;
            };
            match attacher.attach_in_front(program, Hook { ifindex, direction }) {
                Ok(watched) => everywhere &= watched,
                Err(error) if error.is_gone() => {}
                Err(error) => {
                    tracing::warn!(%error, "flows that begin during the migration may be lost");
                    everywhere = false;
                }
            }
        }
    }
    everywhere
}
