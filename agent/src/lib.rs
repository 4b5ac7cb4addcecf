//! netpold, the agent: everything around the pure core.

pub mod admin;
pub mod cli;
pub mod config;
pub mod explain;
pub mod run;
pub mod source;
pub mod status;
