//! The kernel's side: maps, programs, and where they are attached.

pub mod mmap;
mod sys;
