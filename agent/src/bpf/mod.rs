//! Access to BPF objects that aya does not offer: system calls, arrays mapped into memory, test runs.

pub mod mmap;
pub mod sys;
pub mod test_run;
