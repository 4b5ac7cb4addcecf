//! Records of observed flows, for `netpold learn`.

mod recorder;
mod shares;

use netpold_api::learn::{LearnAnswer, PeerAddress};
use serde::{Deserialize, Serialize};

pub use recorder::{FlowSighting, Recorder};

use crate::kept;

/// File of the records.
pub const FILE: kept::RecordKind = kept::RecordKind { suffix: ".flows", subject: "recorded flows" };

/// Content of the file of records: one field per kind, since the file itself names its node.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeptRecords {
    /// All records.
    pub recorded: LearnAnswer,
    /// Workloads by the addresses of recorded flows.
    #[serde(default)]
    pub peer_addresses: Vec<PeerAddress>,
}

#[cfg(test)]
mod tests;
