//! Access to shared words under concurrent writes.

/// Access to shared words under concurrent writes.
pub trait Memory {
    /// Reads a word; later reads are ordered after it.
    ///
    /// # Safety
    /// The word must be readable, aligned, and only ever changed atomically.
    unsafe fn load(&self, word: *const u64) -> u64;
    /// Writes a word; earlier writes become visible before it.
    ///
    /// # Safety
    /// As [`Memory::load`], and writable.
    unsafe fn store(&self, word: *mut u64, value: u64);
    /// Writes `new` if the word is `old`; returns the previous word.
    ///
    /// # Safety
    /// As [`Memory::store`].
    unsafe fn swap(&self, word: *mut u64, old: u64, new: u64) -> u64;
    /// Writes `new` to a word that is `old` and that no other writer changes now; earlier writes become visible before
    /// it. False if the word was not `old`. On CPUs that keep stores in order a plain store suffices, which does not
    /// detect that.
    ///
    /// # Safety
    /// As [`Memory::swap`].
    unsafe fn publish(&self, word: *mut u64, old: u64, new: u64) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.swap(word, old, new) == old }
    }
    /// The same index, hidden behind `noise` from the kernel's verifier. Otherwise the verifier follows the code after
    /// a search once for each place where the search may end.
    #[inline(always)]
    fn opaque(&self, index: usize, noise: u64) -> usize {
        let _ = noise;
        index
    }
}
