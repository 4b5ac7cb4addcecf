//! Access to BPF that aya does not offer: system calls, memory-mapped arrays, test runs.

pub mod mmap;
pub mod sys;
pub mod test_run;
