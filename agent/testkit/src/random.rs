//! A small seeded generator with the same results everywhere.

/// Xorshift generator; the seed must not be 0.
pub struct Random(pub u64);

impl Random {
    /// A number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}
