//! Access to BPF that aya does not offer: system calls, memory-mapped arrays, test runs.

pub mod mmap;
pub mod sys;
#[cfg(any(test, feature = "test-objects"))]
pub mod test_objects;
pub mod test_run;
