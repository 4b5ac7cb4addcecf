//! netpold's pure core: from cluster state to table contents. No I/O, no clock, no Kubernetes types.
#![forbid(unsafe_code)]

pub mod explain;
#[cfg(any(test, feature = "generate"))]
pub mod generate;
pub mod model;
pub mod ops;
pub mod oracle;
pub mod probe;
