//! The kernel's side of the agent: maps, programs, and where they are attached.

pub mod attach;
mod clsact;
pub mod mmap;
pub(crate) mod sys;
pub mod test_run;
