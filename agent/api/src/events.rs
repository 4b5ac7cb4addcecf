//! Outcomes of packets and flows, and numbers of lost events.

use serde::{Deserialize, Serialize};

/// Reason of a flow that passed and that audited policies would have denied.
pub const AUDIT: &str = "audit";

/// Outcome of a packet or flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrafficVerdict {
    /// The packet was dropped.
    Deny,
    /// The flow passed, but audited policies would deny it.
    Audit,
    /// A new flow passed.
    Allow,
}

/// Numbers of events that an observer did not receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LostEvents {
    /// Drops without an event of the kernel, because of its rate limit.
    pub kernel: u64,
    /// Flows, new or audited, not reported individually: above the per-sweep limit, or closed before the sweep.
    pub flows: u64,
    /// Events displaced from the record before the observer read them.
    pub slow: u64,
    /// Events without policy and rule, because of the time limit for explanations.
    pub unattributed: u64,
}

impl TrafficVerdict {
    /// All outcomes.
    pub const ALL: [Self; 3] = [Self::Deny, Self::Audit, Self::Allow];

    /// Returns the name, as in flags and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Audit => "audit",
            Self::Allow => "allow",
        }
    }
}

impl LostEvents {
    /// Returns whether nothing was lost.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the sums of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            kernel: self.kernel + other.kernel,
            flows: self.flows + other.flows,
            slow: self.slow + other.slow,
            unattributed: self.unattributed + other.unattributed,
        }
    }
}
