//! Owner of an address, for display.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::Key;

/// Owner of an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum AddressOwner {
    /// A pod.
    Pod(Key),
    /// A node, also for the addresses of its hostNetwork pods.
    Node {
        /// `metadata.name`
        name: String,
    },
    /// A Service; the first by name if several have the address.
    Service(Key),
    /// None: no object of the cluster has the address.
    Outside,
}

/// `shop/web`, `node/n1`, `svc/shop/db` or `outside`.
impl fmt::Display for AddressOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(key) => key.fmt(f),
            Self::Node { name } => write!(f, "node/{name}"),
            Self::Service(key) => write!(f, "svc/{key}"),
            Self::Outside => f.write_str("outside"),
        }
    }
}
