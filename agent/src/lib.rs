//! Nothing yet.

pub mod dataplane;
