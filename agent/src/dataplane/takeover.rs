//! Taking over from another layout version without losing a flow.
//!
//! The other version's programs go on judging by their own tables while this version's run in
//! front of them, record the flows they see and pass everything on. Then the flows from before are
//! copied, this version judges too, and the other's endpoints are told to pass everything, each by one
//! word: were its programs replaced at once, one hook after the other, those still there would lack the
//! flows that began at the others. Only then the other's links go, and those in front take their pins. They
//! are pinned from the first, so that an agent's sudden end leaves somebody who judges.
//!
//! Below clsact, where a second filter would be in the way of one-step replacement, flows are copied
//! before and after instead: an answer to a packet of the milliseconds between may be lost.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use netpold_core::model::Direction;

use super::attach::Hook;
use super::heritage::Heritage;
use super::role::{Program, Role};
use super::{Dataplane, tables};

impl Dataplane {
    /// Opens what other versions left. What cannot be read is said, and not carried over.
    pub(super) fn find_heritage(&mut self) {
        for directory in self.pins.other_versions() {
            match Heritage::open(&directory) {
                Ok(heritage) => self.heritage.push(heritage),
                Err(error) => tracing::warn!(
                    directory = %directory.display(), %error,
                    "another version's flows cannot be carried over"
                ),
            }
        }
    }

    /// Before programs are replaced: this version has learnt the flows there are.
    pub(super) fn begin_takeover(&mut self, wanted: &BTreeMap<u32, Role>) {
        if self.heritage.is_empty() {
            return;
        }
        let watched = self.watch(wanted);
        // Who passed before the watchers were there has left its flow in the other's table by now.
        tables::grace_period();
        self.carry_over();
        if let Some(generation) = &self.generation
            && let Err(error) = generation.watch_only(false)
        {
            tracing::error!(%error, "the new programs cannot be told to judge");
            return;
        }
        for heritage in self.heritage.iter().filter(|_| watched) {
            if let Err(error) = heritage.stand_aside() {
                tracing::warn!(%error, "flows that begin now may be lost");
            }
        }
        for &ifindex in wanted.keys() {
            for direction in Direction::BOTH {
                if let Err(error) = self.attacher.promote(Hook { ifindex, direction }) {
                    tracing::warn!(%error, "another version's program stays");
                }
            }
        }
    }

    /// After programs were replaced: what ran in front of them, for this agent or for one that ended
    /// at this point, and the heritage are of no use any more. Where one could not be replaced
    /// (`complete` is false) the ones in front go on judging.
    pub(super) fn end_takeover(&mut self, complete: bool) {
        if self.watching && complete {
            match self.attacher.stop_watching() {
                Ok(()) => self.watching = false,
                Err(error) => tracing::warn!(%error, "what ran in front stays for now"),
            }
        }
        if !self.heritage.is_empty() {
            self.carry_over();
            self.heritage.clear();
        }
    }

    /// Runs this version's programs in front of whatever judges pods; whether they do everywhere.
    fn watch(&mut self, wanted: &BTreeMap<u32, Role>) -> bool {
        let mut everywhere = true;
        let Some(generation) = &mut self.generation else { return false };
        let pods = wanted.iter().filter(|(_, role)| matches!(role, Role::Pod(_)));
        for &ifindex in pods.map(|(ifindex, _)| ifindex) {
            for direction in Direction::BOTH {
                let program = generation.program(Program::from(direction));
                let Some(program) = program.ok().and_then(|program| program.fd().ok()) else {
                    everywhere = false;
                    continue;
                };
                match self.attacher.watch(program.as_fd(), Hook { ifindex, direction }) {
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

    /// Copies the flows of other versions' tables that this version's do not have yet.
    fn carry_over(&self) {
        let (mut flows, mut refused) = (0_u64, 0_u64);
        let tables = match (self.sweeper(), self.now()) {
            (Ok(Some(tables)), Ok(now)) => Some((tables, now)),
            _ => None,
        };
        let Some((tables, now)) = tables else { return };
        for heritage in &self.heritage {
            let carried = heritage.flows(|flow| match tables.adopt(&flow, now) {
                Ok(()) => flows += 1,
                Err(_) => refused += 1,
            });
            if let Err(error) = carried {
                tracing::warn!(%error, "another version's flows cannot be carried over");
            }
        }
        tracing::info!(flows, refused, "flows of another layout version carried over");
    }
}
