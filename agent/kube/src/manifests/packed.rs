//! Serialized objects, which take a fifth of the memory.

use std::sync::Arc;

use netpold_core::model::Change;
use tracing::error;

/// A serialized object. Equal bytes are equal objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PackedObject {
    /// JSON.
    Bytes(Arc<[u8]>),
    /// An object that cannot be serialized as JSON; none is known.
    Whole(Arc<Change>),
}

impl PackedObject {
    pub(super) fn of(change: &Change) -> Self {
        match serde_json::to_vec(change) {
            Ok(bytes) => Self::Bytes(bytes.into()),
            Err(_) => Self::Whole(Arc::new(change.clone())),
        }
    }

    /// Returns the object; `None` only after a bug in this module.
    pub(super) fn unpacked(&self) -> Option<Change> {
        let bytes = match self {
            Self::Bytes(bytes) => bytes,
            Self::Whole(change) => return Some(Change::clone(change)),
        };
        serde_json::from_slice(bytes)
            .inspect_err(|cause| error!(%cause, "cannot decode an object in memory"))
            .ok()
    }
}
