//! Flow table: 4-way set-associative buckets in plain shared memory, two buckets to choose from for each flow.
//!
//! The kernel program, the agent's sweeper and tests share this code, over [`memory::Memory`].

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
