//! The judgement of a packet: first [`decide`] at the pod's own hook, then [`post_nat`] where the node may
//! have translated it.

pub mod connection;
pub mod decide;
pub mod evaluator;
mod fast_path;
mod fragment;
mod link;
pub mod post_nat;
pub mod proof;
pub mod station;
mod track;
