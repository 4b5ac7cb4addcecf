//! The kernel's side: maps, programs, and where they are attached.

pub mod attach;
mod clsact;
pub mod mmap;
mod sys;
