//! netpold's pure core: from cluster state to table contents. No I/O, no clock, no Kubernetes types.
//!
//! [`cluster::Cluster`] holds the current objects, [`compile::Compiler`] turns them into table
//! contents and into the ordered [`ops::Op`]s that lead there, [`memory::MemoryTables`] is the
//! kernel's maps in plain memory. [`oracle::Oracle`] is the literal reading of the API that all of it is
//! held against, [`explain::Explainer`] says why.
#![forbid(unsafe_code)]

pub mod bindings;
pub mod budget;
pub mod cluster;
pub mod compile;
pub mod explain;
pub mod model;
pub mod ops;
pub mod options;
pub mod ports;
mod prefix;
pub mod probe;
mod selector;
