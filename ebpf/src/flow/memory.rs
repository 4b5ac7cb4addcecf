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
    /// Writes `new` to a word that is `old` and that no other writer changes now; earlier writes are visible before it.
    /// False if the word was not `old`, where that is known: a plain store does where a CPU keeps its stores in order.
    ///
    /// # Safety
    /// As [`Memory::swap`].
    unsafe fn publish(&self, word: *mut u64, old: u64, new: u64) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.swap(word, old, new) == old }
    }
    /// The same index, in the kernel hidden behind `noise` from the verifier, which else follows
    /// everything behind a search once for each place where the search may end.
    #[inline(always)]
    fn opaque(&self, index: usize, noise: u64) -> usize {
        let _ = noise;
        index
    }
}
