<<<<<<< HEAD
//! The kernel's side: maps, programs, and where they are attached.

pub mod mmap;
mod sys;
=======
//! The kernel's side of the agent.

pub mod test_run;
>>>>>>> ebpf
