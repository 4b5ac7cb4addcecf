//! One small number for each class, in little memory: 5,000 peers that match most of 20,000 classes take 12 MB.

/// Bits per word.
const BITS: usize = u64::BITS as usize;

/// Numbers by class. Classes that share the most frequent number take no memory if they are most classes; otherwise a
/// class takes as many bits as the greatest number has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClassNumbers(PackedNumbers);

#[derive(Debug, PartialEq, Eq)]
enum PackedNumbers {
    Sparse {
        usual: u32,
        /// Classes with other numbers, sorted.
        others: Box<[(u32, u32)]>,
        /// Number of classes.
        count: usize,
    },
    Dense {
        /// Bits per class: a power of two, so that no number crosses a word.
        width: usize,
        words: Box<[u64]>,
        /// Number of classes.
        count: usize,
    },
}

impl ClassNumbers {
    /// Packs numbers, by class.
    pub(super) fn new(numbers: &[u32]) -> Self {
        let greatest = numbers.iter().copied().max().unwrap_or(0);
        let mut sizes = vec![0_u32; greatest as usize + 1];
        numbers.iter().for_each(|number| sizes[*number as usize] += 1);
        let usual = (0..=greatest).max_by_key(|number| sizes[*number as usize]).unwrap_or(0);
        let count = numbers.len();
        let width = (u32::BITS - greatest.leading_zeros()).max(1).next_power_of_two() as usize;
        let others = count - sizes[usual as usize] as usize;
        Self(if others * BITS < count * width {
            let all = (0..).zip(numbers.iter().copied());
            let others = all.filter(|(_, number)| *number != usual).collect();
            PackedNumbers::Sparse { usual, others, count }
        } else {
            let mut words = vec![0_u64; (count * width).div_ceil(BITS)];
            for (class, number) in numbers.iter().enumerate() {
                let (word, shift) = (class * width / BITS, class * width % BITS);
                words[word] |= u64::from(*number) << shift;
            }
            PackedNumbers::Dense { width, words: words.into(), count }
        })
    }

    /// Returns a set of classes, of `count` in all: 1 for its members, 0 for the others.
    pub(super) fn of_members(members: &[usize], count: usize) -> Self {
        let mut numbers = vec![0; count];
        for member in members {
            numbers[*member] = 1;
        }
        Self::new(&numbers)
    }

    /// Returns the number of a class.
    pub(super) fn get(&self, class: usize) -> u32 {
        match &self.0 {
            PackedNumbers::Sparse { usual, others, .. } => {
                let found = others.binary_search_by_key(&(class as u32), |(class, _)| *class);
                found.map_or(*usual, |at| others[at].1)
            }
            PackedNumbers::Dense { width, words, .. } => {
                let (word, shift) = (class * width / BITS, class * width % BITS);
                (words[word] >> shift) as u32 & (u32::MAX >> (u32::BITS as usize - width))
            }
        }
    }

    /// Returns the classes whose number is not 0, sorted.
    pub(super) fn members(&self) -> impl Iterator<Item = usize> {
        let (listed, counted) = match &self.0 {
            PackedNumbers::Sparse { usual: 0, others, .. } => (&others[..], 0),
            PackedNumbers::Sparse { count, .. } | PackedNumbers::Dense { count, .. } => {
                (&[][..], *count)
            }
        };
        let listed = listed.iter().map(|(class, _)| *class as usize);
        listed.chain((0..counted).filter(|class| self.get(*class) != 0))
    }

    /// Returns the bytes beside the value itself.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        match &self.0 {
            PackedNumbers::Sparse { others, .. } => size_of_val(&**others),
            PackedNumbers::Dense { words, .. } => size_of_val(&**words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_kept() {
        for greatest in [0, 1, 2, 3, 5, 255, 256, 70_000] {
            for every in [1, 2, 7, 300] {
                let number = |class: u32| {
                    if class.is_multiple_of(every) { class % (greatest + 1) } else { 0 }
                };
                let numbers: Vec<u32> = (0..1000).map(number).collect();
                let packed = ClassNumbers::new(&numbers);
                let found: Vec<u32> = (0..1000).map(|class| packed.get(class)).collect();
                assert_eq!(found, numbers, "up to {greatest}, of every {every}");
                let members: Vec<usize> = packed.members().collect();
                let expected = (0..1000).filter(|class| numbers[*class] != 0);
                assert_eq!(members, expected.collect::<Vec<_>>(), "up to {greatest}");
            }
        }
        assert_eq!(ClassNumbers::new(&[]).members().count(), 0);
        assert_eq!(ClassNumbers::new(&[70_000, 0, 1]).get(0), 70_000);
    }

    /// A tenant may write thousands of peers that match nearly all, half, or few of the pods.
    #[test]
    fn a_set_takes_a_bit_per_class_at_most() {
        let classes = 20_000;
        for every in [1, 2, 3, 10, 63, 64, 1000] {
            let some: Vec<usize> = (0..classes).step_by(every).collect();
            let others: Vec<usize> =
                (0..classes).filter(|class| !class.is_multiple_of(every)).collect();
            for members in [some, others] {
                let set = ClassNumbers::of_members(&members, classes);
                assert!(
                    set.bytes() <= classes / 8 + 8,
                    "{} bytes for {}",
                    set.bytes(),
                    members.len()
                );
                assert!(set.members().eq(members), "of every {every}");
            }
        }
    }
}
