//! Pods of other nodes as peers of policies, packed into slices. An agent that follows slices instead of all pods gets a
//! fraction of the bytes, with the same verdicts about its own pods.
//!
//! ```text
//! policies ──► Vocabulary ─┐
//! pods ────────────────────┴─► Packing ─► SliceContent ─► … ─► pods with the labels and ports that policies name
//! ```
//!
//! No I/O: nothing here writes or watches slices yet. A reader may judge by slices only while their [`Vocabulary`]
//! [covers](Vocabulary::covers) that of the policies in force: a label that no slice has looks like an absent one.

mod content;
mod packing;
mod vocabulary;

pub use content::{PeerPod, SliceContent, Unreadable};
pub use packing::{MAX_PODS, Packing, SliceNumber};
pub use vocabulary::Vocabulary;
