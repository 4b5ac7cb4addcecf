//! Source of generated values.

/// A stream of choices: pseudo-random from a seed, or a fuzzer's bytes (then zeros).
#[derive(Clone, Debug)]
pub struct Choices<'a>(ChoiceSource<'a>);

#[derive(Clone, Debug)]
enum ChoiceSource<'a> {
    Seed(u64),
    Bytes(&'a [u8]),
}

impl<'a> Choices<'a> {
    /// Choices from a seed.
    #[must_use]
    pub const fn from_seed(seed: u64) -> Self {
        Self(ChoiceSource::Seed(seed))
    }

    /// Choices from bytes.
    #[must_use]
    pub const fn from_bytes(bytes: &'a [u8]) -> Self {
        Self(ChoiceSource::Bytes(bytes))
    }

    /// Whether bytes are left; always true for a seed.
    #[must_use]
    pub const fn any_left(&self) -> bool {
        match &self.0 {
            ChoiceSource::Seed(_) => true,
            ChoiceSource::Bytes(bytes) => !bytes.is_empty(),
        }
    }

    /// 32 bits; consumes at most `bytes` of a fuzzer's bytes.
    fn bits(&mut self, bytes: usize) -> u32 {
        match &mut self.0 {
            ChoiceSource::Seed(state) => (splitmix(state) >> 32) as u32,
            ChoiceSource::Bytes(left) => {
                let (now, rest) = left.split_at(bytes.min(left.len()));
                *left = rest;
                now.iter().fold(0, |word, &byte| word << 8 | u32::from(byte))
            }
        }
    }

    /// A number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: u32) -> u32 {
        let bytes = if limit <= 256 { 1 } else { 4 };
        self.bits(bytes).checked_rem(limit).unwrap_or(0)
    }

    /// 32 random bits.
    pub fn word(&mut self) -> u32 {
        self.bits(4)
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }

    /// One of the items, which must not be empty.
    pub fn pick<'i, T>(&mut self, items: &'i [T]) -> &'i T {
        let index = self.below(u32::try_from(items.len()).unwrap_or(u32::MAX));
        &items[index as usize]
    }

    /// A list of at most `most` items, more often short than long.
    pub fn list<T>(&mut self, most: u32, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let limit = self.below(most + 1);
        let length = self.below(limit + 1).max(limit.min(1));
        (0..length).map(|_| item(self)).collect()
    }
}

/// Sebastiano Vigna's SplitMix64.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
