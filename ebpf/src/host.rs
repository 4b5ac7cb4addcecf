//! Atomic access to conntrack words in the host's own memory: mapped BPF maps, and plain memory in tests.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::flow::memory::Memory;

/// Atomic access to the host's memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMemory;

impl Memory for HostMemory {
    unsafe fn load(&self, word: *const u64) -> u64 {
        // SAFETY: as the caller promises.
        unsafe { AtomicU64::from_ptr(word.cast_mut()) }.load(Ordering::Acquire)
    }

    unsafe fn store(&self, word: *mut u64, value: u64) {
        // SAFETY: as the caller promises.
        unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
    }

    unsafe fn swap(&self, word: *mut u64, old: u64, new: u64) -> u64 {
        // SAFETY: as the caller promises.
        let word = unsafe { AtomicU64::from_ptr(word) };
        word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|seen| seen)
    }
}
