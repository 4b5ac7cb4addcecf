//! Judgement of packets: first [`decide`] at the pod's own hook, then [`post_nat`] where the node may have translated
//! them.

pub mod checksum;
pub mod connection;
pub mod context;
pub mod cut;
pub mod decide;
pub mod evaluator;
mod fast_path;
pub mod fragment;
pub mod hook;
mod link;
pub(crate) mod lookup;
pub(crate) mod opaque;
pub mod policy;
pub mod post_nat;
pub mod proof;
pub mod reject;
pub mod station;
mod track;
pub(crate) mod transition;
