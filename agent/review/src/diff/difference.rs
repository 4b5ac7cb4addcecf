//! Result of a comparison.

use std::sync::Arc;

use super::args::DiffKind;
use super::isolation::{Isolation, UnmatchedWorkload};
use super::party::DiffParty;
use super::ports::PortRanges;

/// Difference of connectivity between two clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Senders and receivers.
    pub parties: Vec<DiffParty>,
    /// Pairs of parties with a change, in the order of the parties.
    pub changes: Vec<ConnectivityChange>,
    /// Changes of isolation per workload, and the gaps of the comparison.
    pub isolation: Isolation,
    /// Further facts about the change, a sentence each.
    pub notes: Vec<String>,
}

impl Difference {
    /// Returns whether there is a change of the given kind.
    pub(super) fn has(&self, kind: DiffKind) -> bool {
        let cut = || self.changes.iter().any(|change| !change.loses().is_empty());
        let opened = || self.changes.iter().any(|change| !change.gains().is_empty());
        let Isolation { open, isolated, .. } = &self.isolation;
        match kind {
            DiffKind::Cut => cut() || !isolated.is_empty(),
            DiffKind::Open => opened() || !open.is_empty(),
            DiffKind::Any => !self.changes.is_empty() || !isolated.is_empty() || !open.is_empty(),
        }
    }

    /// Returns whether a change of the given kind may be among the objects that were not compared.
    pub(super) fn may_have(&self, kind: DiffKind) -> bool {
        let Isolation { alone, unknown, compared, .. } = &self.isolation;
        let regards = |it: &UnmatchedWorkload| match kind {
            DiffKind::Cut => !it.is_new,
            DiffKind::Open => it.is_new,
            DiffKind::Any => true,
        };
        *compared == 0 || !unknown.is_empty() || alone.iter().any(regards)
    }
}

/// Lost and gained ports.
pub(super) type LostGained = [PortRanges; 2];

/// Change of the connections from one party to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectivityChange {
    /// Index of the sender among the parties.
    pub from: usize,
    /// Index of the receiver among the parties.
    pub to: usize,
    /// Ports allowed before and denied after, and ports denied before and allowed after; changes share equal ones.
    pub(super) ports: Arc<LostGained>,
    /// Whether some pairs of pods or addresses of the two parties change otherwise, or not at all.
    pub some: bool,
}

impl ConnectivityChange {
    /// Returns the ports that were allowed before and are denied after.
    #[must_use]
    pub fn loses(&self) -> &PortRanges {
        &self.ports[0]
    }

    /// Returns the ports that were denied before and are allowed after.
    #[must_use]
    pub fn gains(&self) -> &PortRanges {
        &self.ports[1]
    }
}
