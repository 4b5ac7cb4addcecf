//! Whose an address is, for people.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::Key;

/// Whose an address is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Whose {
    /// A pod's.
    Pod(Key),
    /// A node's, and its hostNetwork pods'.
    Node {
        /// `metadata.name`
        name: String,
    },
    /// A Service's; the first by name, if several have it.
    Service(Key),
    /// No object of the cluster has it.
    Outside,
}

/// `shop/web`, `node/n1`, `svc/shop/db` or `outside`.
impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(key) => key.fmt(f),
            Self::Node { name } => write!(f, "node/{name}"),
            Self::Service(key) => write!(f, "svc/{key}"),
            Self::Outside => f.write_str("outside"),
        }
    }
}
