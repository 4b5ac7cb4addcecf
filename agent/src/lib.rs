//! netpold's agent.

pub mod conntrack;
pub mod dataplane;
pub mod endpoint;
pub mod events;
mod netlink;
pub mod object;
