//! The flow table: 4-way set-associative buckets, two choices for each flow, in plain shared memory.
//!
//! The kernel program, the agent's sweeper and tests use this same code over [`memory::Memory`].

pub mod cached_verdict;
pub mod control;
pub mod evict;
#[cfg(not(target_arch = "bpf"))]
mod import;
pub mod key;
pub mod memory;
pub mod relocate;
#[cfg(not(target_arch = "bpf"))]
pub mod sweep;
pub mod table;
