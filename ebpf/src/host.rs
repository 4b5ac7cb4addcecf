//! Atomic access to conntrack words in the host's own memory (mapped BPF maps, and plain memory in tests), and sums of
//! answers.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{
    flow::{control::Timeouts, memory::Memory},
    packet::rejection::{RejectionFrame, Sums},
};

/// Atomic access to the host's memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMemory;

impl Timeouts for HostMemory {}

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

/// Sums of bytes on the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostSums;

impl Sums for HostSums {
    fn add(&self, frame: &RejectionFrame, at: usize, length: u32, sum: u32) -> u32 {
        let bytes = frame.0.iter().skip(at).take(length as usize);
        let (mut total, mut first) = (u64::from(sum), None);
        for byte in bytes.copied() {
            match first.take() {
                None => first = Some(byte),
                Some(before) => total += u64::from(u16::from_ne_bytes([before, byte])),
            }
        }
        while total >> 32 != 0 {
            total = (total & u64::from(u32::MAX)) + (total >> 32);
        }
        total as u32
    }
}
