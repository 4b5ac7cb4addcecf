//! netpold's agent.

pub mod dataplane;
pub mod object;
