//! netpold's pure core: from cluster state to table contents. No I/O, no clock, no Kubernetes types.
#![forbid(unsafe_code)]

pub mod model;
pub mod ops;
