//! Treatment of denied packets.

use serde::{Deserialize, Serialize};

/// Treatment of the packets that a policy denies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Denial {
    /// Drops the packets without an answer.
    #[default]
    Drop,
    /// Drops the packets, and answers the sender with a TCP reset or an ICMP error.
    Reject,
}
