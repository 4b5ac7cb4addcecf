//! Where cluster state comes from: one interface that yields changes and "in sync".
//!
//! A source sends [`Batch`]es over a channel and keeps a [`SourceStatus`] for anyone to look at. It
//! yields the difference between what it said before and what now is, so an object that did not
//! change is not mentioned, and what a batch says belongs together.

pub mod cluster;
pub mod cni_results;
pub mod convert;
pub mod decode;
pub mod document;
pub mod inputs;
pub mod manifests;
pub mod opened;
pub mod restored;

use std::fmt;
use std::time::Instant;

use netpold_core::model::Change;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

/// Changes that belong together.
#[derive(Clone, Debug)]
pub struct Batch {
    /// What changed, at most one change for an object, in the order of kinds and names.
    pub changes: Vec<Change>,
    /// Everything there is has been said, up to and including this batch. Until then an object not
    /// mentioned may well exist, and what is installed in the kernel must stay.
    pub in_sync: bool,
    /// When the source noticed the first of the changes.
    pub at: Instant,
}

/// A running source. It ends when `batches` is dropped.
#[derive(Debug)]
pub struct Source {
    /// What changed; closed if the source ended.
    pub batches: mpsc::Receiver<Batch>,
    /// How the source is, at any time.
    pub status: watch::Receiver<SourceStatus>,
    /// Where nothing is enforced yet, what is known before it is in sync is better than nothing.
    pub partial: bool,
}

/// How a source is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStatus {
    /// Where the objects come from.
    pub origin: String,
    /// As in [`Batch::in_sync`].
    pub in_sync: bool,
    /// The files read, by name.
    pub files: Vec<FileStatus>,
    /// The kinds watched on an API server.
    #[serde(default)]
    pub kinds: Vec<KindStatus>,
    /// What could not be read or understood, by file and line.
    pub problems: Vec<SourceProblem>,
}

/// How one file is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatus {
    /// Name within the directory.
    pub name: String,
    /// Objects in effect from its last good content.
    pub objects: usize,
    /// Whether that content is what the file holds now.
    pub current: bool,
}

/// How following one kind goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KindStatus {
    /// Resource and API group, as `networkpolicies.networking.k8s.io`.
    pub kind: String,
    /// All of it was known at some time since the agent started.
    pub in_sync: bool,
    /// The server serves it.
    pub served: bool,
    /// Objects known.
    pub objects: usize,
    /// Of them, objects that cannot be decoded as they are now: the problems name them.
    pub undecoded: usize,
    /// When the server was last heard of on this watch, in seconds since the epoch: an object, a
    /// bookmark (about one a minute), the end of a list.
    pub last_event: Option<u64>,
    /// Full lists begun since the agent started.
    pub lists: u64,
    /// Lists and watches that failed since the agent started.
    pub restarts: u64,
    /// What is wrong now; what is known stays in effect.
    pub error: Option<String>,
    /// The error is that there is no connection to the server.
    #[serde(skip)]
    pub unreachable: bool,
}

/// Something that could not be read or understood.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourceProblem {
    /// File name within the directory; empty: the directory itself.
    pub file: String,
    /// Line, from 1; 0: the file as a whole.
    pub line: u32,
    /// What is wrong, with the object and the path in it.
    pub text: String,
}

impl fmt::Display for SourceProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.file.as_str(), self.line) {
            ("", _) => f.write_str(&self.text),
            (file, 0) => write!(f, "{file}: {}", self.text),
            (file, line) => write!(f, "{file}:{line}: {}", self.text),
        }
    }
}
