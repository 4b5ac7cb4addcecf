//! Taking over from another layout version without losing a flow.
//!
//! The other version's programs go on judging by their own tables while this version's run in
//! front of them, record the flows they see and pass everything on. Then the flows from before are
//! copied, this version judges too, and only then the other's programs go. A packet meets the one,
//! or both, or the other, and a flow that either knows is known to this one when it judges alone.
//! Below clsact, where a second filter would be in the way of one-step replacement, flows are copied
//! before and after instead: an answer to a packet of the milliseconds between may be lost.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use netpold_core::model::Direction;

use super::attach::Hook;
use super::heritage::Heritage;
use super::{Dataplane, sys, tables};

/// Programs that run in front of another version's.
#[derive(Debug, Default)]
pub(super) struct Watchers(Vec<OwnedFd>);

impl Drop for Watchers {
    fn drop(&mut self) {
        for link in &self.0 {
            // Closing it would do, some time later; the interface may be gone.
            let _ = sys::link_detach(link.as_fd());
        }
    }
}

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
    pub(super) fn begin_takeover(&mut self, wanted: &BTreeMap<u32, u32>) -> Watchers {
        if self.heritage.is_empty() {
            return Watchers::default();
        }
        let watchers = self.watch(wanted);
        // Who passed before the watchers were there has left its flow in the other's table by now.
        tables::grace_period();
        self.carry_over();
        if let Some(generation) = &self.generation
            && let Err(error) = generation.watch_only(false)
        {
            tracing::error!(%error, "the new programs cannot be told to judge");
        }
        watchers
    }

    /// After programs were replaced: the watchers are in the way, and so is the heritage.
    pub(super) fn end_takeover(&mut self, watchers: Watchers) {
        if self.heritage.is_empty() {
            return;
        }
        drop(watchers);
        self.carry_over();
        self.heritage.clear();
    }

    /// Runs this version's programs in front of whatever judges.
    fn watch(&mut self, wanted: &BTreeMap<u32, u32>) -> Watchers {
        let mut watchers = Watchers::default();
        let Some(generation) = &mut self.generation else { return watchers };
        for &ifindex in wanted.keys() {
            for direction in Direction::BOTH {
                let Ok(program) = generation.program(direction) else { continue };
                let Ok(program) = program.fd() else { continue };
                match self.attacher.watch(program.as_fd(), Hook { ifindex, direction }) {
                    Ok(link) => watchers.0.extend(link),
                    Err(error) if error.is_gone() => {}
                    Err(error) => tracing::warn!(%error, "flows that begin now may be lost"),
                }
            }
        }
        watchers
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
