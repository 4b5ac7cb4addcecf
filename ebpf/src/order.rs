//! Reads of shared memory in the order of the program, on CPUs that else make them in another.
//!
//! BPF has had no barrier between two reads before kernel 6.15, and compiles a read to a plain one. On x86
//! these stay in order. On arm64 they do if the later one's address depends on what the earlier one
//! read, be it through a zero made of it (Arm Architecture Reference Manual, B2.3: address
//! dependency). Programs for such CPUs are built with the feature `ordered-reads`; in others, and on
//! the host, whose reads are acquiring ones, nothing is left of this module. Where an address comes from
//! memory anyway, as a row's of an endpoint or a column's of a class, nothing is needed.
//!
//! Writers need nothing of this kind: the agent's stores release, and a compare-and-swap is a full
//! barrier. Without the feature a plain store replaces the compare-and-swap that publishes an entry
//! ([`crate::flow::memory::Memory::publish`]): x86 keeps stores in order too.

/// 0, known only once `read` is. Part of an address, it keeps the read there behind the one that gave
/// `read`. To be made before `read` is compared with anything: behind that the compiler may take the
/// other side of the comparison instead.
#[must_use]
#[inline(always)]
pub fn zero(read: u64) -> usize {
    #[cfg(all(target_arch = "bpf", feature = "ordered-reads"))]
    {
        let mut zero = read;
        // Not `pure`, so that it stays where it is. The verifier knows the result, the CPU has to wait.
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

/// The same place, read only once `read` is known.
#[must_use]
#[inline(always)]
pub fn after_load<T>(place: *mut T, read: u64) -> *mut T {
    place.wrapping_byte_add(zero(read))
}
