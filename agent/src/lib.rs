//! netpold's agent.

pub mod dataplane;
pub mod endpoint;
mod netlink;
pub mod object;
