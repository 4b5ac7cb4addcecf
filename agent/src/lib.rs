//! netpold, the agent: everything around the pure core.

pub mod source;
