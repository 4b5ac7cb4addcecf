//! Nothing yet.

pub mod dataplane;
pub mod endpoint;
mod netlink;
