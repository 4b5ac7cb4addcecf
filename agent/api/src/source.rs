//! Status of the source of the objects.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Status of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStatus {
    /// Origin of the objects, for people: a directory or an API server.
    pub origin: String,
    /// Whether every object was reported.
    pub in_sync: bool,
    /// Files read, by name.
    pub files: Vec<FileStatus>,
    /// Kinds watched on an API server.
    #[serde(default)]
    pub kinds: Vec<KindStatus>,
    /// Problems with files and objects, by file and line.
    pub problems: Vec<SourceProblem>,
}

/// Status of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatus {
    /// Name within the directory.
    pub name: String,
    /// Number of objects in effect from the file's last good content.
    pub objects: usize,
    /// Whether the last good content is the file's current content.
    pub current: bool,
}

/// Status of following one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KindStatus {
    /// Resource and API group, such as `networkpolicies.networking.k8s.io`.
    pub kind: String,
    /// Whether the kind was fully listed since the agent started, or is known not to be served.
    pub in_sync: bool,
    /// Whether the server serves the kind.
    pub served: bool,
    /// Number of known objects.
    pub objects: usize,
    /// Number of known objects with a current version that cannot be decoded; the problems name them.
    pub undecoded: usize,
    /// Time of the last message from the server on this watch (an object, a bookmark about once a minute, the end of a
    /// list), in seconds since the epoch.
    pub last_event: Option<u64>,
    /// Number of full lists begun since the agent started.
    pub lists: u64,
    /// Number of lists and watches that failed since the agent started.
    pub restarts: u64,
    /// Current error; the known objects stay in effect.
    pub error: Option<String>,
    /// Whether the error is a missing connection to the server.
    #[serde(skip)]
    pub unreachable: bool,
}

/// A problem with a file or an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourceProblem {
    /// File name within the directory; empty for the directory itself.
    pub file: String,
    /// Line, from 1; 0 for the file as a whole.
    pub line: u32,
    /// Description of the problem, with the object and the path in it.
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
