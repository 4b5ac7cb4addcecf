//! Access to words that others change at the same time.

/// Access to words that others change at the same time.
pub trait Memory {
    /// Reads a word; later reads are not made before it.
    ///
    /// # Safety
    /// The word must be readable, aligned, and only ever changed atomically.
    unsafe fn load(&self, word: *const u64) -> u64;
    /// Writes a word; earlier writes are visible before it.
    ///
    /// # Safety
    /// As [`Memory::load`], and writable.
    unsafe fn store(&self, word: *mut u64, value: u64);
    /// Writes `new` if the word is `old`; the word as it was.
    ///
    /// # Safety
    /// As [`Memory::store`].
    unsafe fn swap(&self, word: *mut u64, old: u64, new: u64) -> u64;
    /// The same index, in the kernel hidden behind `noise` from the verifier, which else follows
    /// everything behind a search once for each place where the search may end.
    #[inline(always)]
    fn opaque(&self, index: usize, noise: u64) -> usize {
        let _ = noise;
        index
    }
}
