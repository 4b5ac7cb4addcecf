//! Reviews of policies: the commands that judge the objects of manifests or of a cluster.
//!
//! | module | command |
//! |---|---|
//! | [`explain`] | the verdict on a connection, and its reason |
//! | [`diff`] | changes of allowed connections between two sets of objects |
//! | [`assertions`] | `test`: assertions on connections |
//!
//! [`judge`] gives the verdicts of these commands: an object that may be missing or was not readable makes
//! a verdict that depends on the object unknown.

pub mod assertions;
pub mod diff;
pub mod explain;
pub mod judge;
mod parallel;
mod unenforced;
