//! Results of opened connections.

use std::collections::BTreeMap;
use std::fmt;

/// Result of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConnectResult {
    /// The connection was opened.
    Connected,
    /// The peer answered that no socket listens at the port.
    Refused,
    /// No answer arrived in time.
    TimedOut,
    /// A router reported that the address is unreachable.
    Unreachable,
}

impl ConnectResult {
    /// Returns whether packets passed in both directions.
    pub(super) const fn passed(self) -> bool {
        matches!(self, Self::Connected | Self::Refused)
    }
}

impl fmt::Display for ConnectResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connected => "connected",
            Self::Refused => "refused",
            Self::TimedOut => "timed out",
            Self::Unreachable => "unreachable",
        })
    }
}

/// Results of an assertion's connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProbeResults {
    pub(super) met: BTreeMap<ConnectResult, usize>,
    /// Number of connections not attempted, by reason.
    pub(super) not: BTreeMap<String, usize>,
    /// Number of unexpected results.
    pub(super) wrong: usize,
    /// Descriptions of the first unexpected results.
    pub(super) failures: Vec<String>,
}

impl ProbeResults {
    /// Returns the number of attempted connections.
    pub(super) fn count(&self) -> usize {
        self.met.values().sum()
    }

    /// Returns the number of connections not attempted.
    pub(super) fn left_out(&self) -> usize {
        self.not.values().sum()
    }
}

impl fmt::Display for ProbeResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let met: Vec<String> = self.met.iter().map(|(met, n)| format!("{n} {met}")).collect();
        let not: Vec<String> = self.not.iter().map(|(why, n)| format!("{n} ({why})")).collect();
        match (&met[..], &not[..]) {
            ([], not) => write!(f, "not probed: {}", not.join(", ")),
            (met, []) => write!(f, "probed: {}", met.join(", ")),
            (met, not) => write!(f, "probed: {}; not probed: {}", met.join(", "), not.join(", ")),
        }
    }
}
