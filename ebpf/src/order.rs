//! Ordered reads of shared memory, on CPUs that reorder them.
//!
//! Before kernel 6.15 BPF has no barrier between two reads, and compiles a read to a plain one. x86 keeps these in
//! order. arm64 does if the address of the later one depends on the value of the earlier one, even through a zero
//! computed from it (Arm Architecture Reference Manual, B2.3: address dependency). Programs for such CPUs are built
//! with the feature `ordered-reads`. In other programs, and on the host with its acquiring reads, this module compiles
//! to nothing. Addresses that come from memory anyway, as a row's from an endpoint or a column's from a class, need no
//! zero.
//!
//! Writers need no such order: the agent's stores release, and a compare-and-swap is a full barrier. Without the
//! feature a plain store replaces the compare-and-swap that publishes an entry
//! ([`crate::flow::memory::Memory::publish`]), since x86 keeps stores in order too.

/// Returns 0, available only once `read` is. As part of an address, it keeps the read at that address after the one
/// that returned `read`. Call it before `read` is compared with anything: after a comparison the compiler may use its
/// other side instead.
#[must_use]
#[inline(always)]
pub fn zero(read: u64) -> usize {
    #[cfg(all(target_arch = "bpf", feature = "ordered-reads"))]
    {
        let mut zero = read;
        // Not `pure`, so that it stays in place. The verifier computes the result, the CPU has to wait.
        // SAFETY: arithmetic on a register.
        unsafe { core::arch::asm!("{0} &= 0", inout(reg) zero, options(nomem, nostack)) };
        zero as usize
    }
    #[cfg(not(all(target_arch = "bpf", feature = "ordered-reads")))]
    {
        let _ = read;
        0
    }
}

/// Returns `place`, for reads that must be ordered after the one that returned `read`.
#[must_use]
#[inline(always)]
pub fn after_load<T>(place: *mut T, read: u64) -> *mut T {
    place.wrapping_byte_add(zero(read))
}
