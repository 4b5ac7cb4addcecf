//! netpold's packet path, shared by the kernel program, the agent and the tests.
#![no_std]

pub mod layout;
pub mod policy;
pub mod reason;
