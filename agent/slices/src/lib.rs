//! Pods of other nodes as peers of policies, packed into slices. An agent that follows slices instead of all pods gets a
//! fraction of the bytes, with the same verdicts about its own pods.
//!
//! ```text
//! controller: policies ──► Vocabulary ─┐                       ┌► PeerSlice (peers-0, …)
//!             pods ────────────────────┴► Packing ──► encode ──┤
//!                                                              └► PeerSlice (index: the vocabulary)
//! agent:      PeerSlice ──► decode ──┐
//!             own pods ──────────────┼► PeerView ──► pods, as from a watch of all pods
//!             all pods (no slices) ──┘
//!             policies ──► HeldPolicies ──► policies that the vocabulary covers
//! ```
//!
//! No I/O. Agents judge by slices only what the slices' [`Vocabulary`] [covers](Vocabulary::covers): a label that no
//! slice has looks like an absent one.
#![forbid(unsafe_code)]

mod decode;
mod encode;
mod held_policies;
mod packing;
mod varint;
mod view;
mod vocabulary;

pub use decode::{SliceError, decode};
pub use encode::encode;
pub use held_policies::{HeldPolicies, KnownNames, REDUCED_AFTER};
pub use packing::{MAX_PODS, Packing, Placement, SliceNumber, slice_name, slice_number};
pub use view::{PeerOrigin, PeerView};
pub use vocabulary::{MAX_NAMES, NAMESPACE_NAMES, Vocabulary, VocabularyName};
