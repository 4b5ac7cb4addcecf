//! A map of numbers that are often close to each other, such as pod addresses.

use std::collections::BTreeMap;

/// Values by number. Numbers that differ only in the lowest 8 bits share a page.
#[derive(Clone, Debug)]
pub(super) struct Pages<T> {
    /// Indexes of pages by the upper bits of their numbers.
    order: BTreeMap<u128, usize>,
    pages: Vec<Page<T>>,
    /// Indexes of empty pages.
    free: Vec<usize>,
    /// Upper bits and index of the page accessed last; access in order stays on it.
    last: Option<(u128, usize)>,
}

/// Values of a page, in order.
#[derive(Clone, Debug)]
struct Page<T> {
    /// Bit set of the numbers in the page.
    there: [u64; 4],
    values: Vec<T>,
}

/// Upper bits of a number, and its index in a page.
fn split(number: u128) -> (u128, u8) {
    (number >> 8, number as u8)
}

impl<T> Page<T> {
    const EMPTY: Self = Self { there: [0; 4], values: Vec::new() };

    /// Position of a number's value, or where to insert it.
    fn find(&self, low: u8) -> Result<usize, usize> {
        let (word, bit) = (usize::from(low >> 6), 1 << (low & 63));
        let before: u32 = self.there[..word].iter().map(|word| word.count_ones()).sum();
        let place = (before + (self.there[word] & (bit - 1)).count_ones()) as usize;
        if self.there[word] & bit == 0 { Err(place) } else { Ok(place) }
    }

    fn flip(&mut self, low: u8) {
        self.there[usize::from(low >> 6)] ^= 1 << (low & 63);
    }

    fn iter(&self) -> impl Iterator<Item = (u8, &T)> {
        let lows = (0u8..4).zip(self.there).flat_map(|(word, mut left)| {
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as u8)?;
                left &= left - 1;
                Some(word << 6 | bit)
            })
        });
        lows.zip(&self.values)
    }
}

impl<T> Pages<T> {
    pub(super) fn new() -> Self {
        Self { order: BTreeMap::new(), pages: Vec::new(), free: Vec::new(), last: None }
    }

    fn place(&self, upper: u128) -> Option<usize> {
        match self.last {
            Some((last, place)) if last == upper => Some(place),
            _ => self.order.get(&upper).copied(),
        }
    }

    pub(super) fn get(&self, number: u128) -> Option<&T> {
        let (upper, low) = split(number);
        let page = &self.pages[self.place(upper)?];
        page.find(low).ok().map(|place| &page.values[place])
    }

    pub(super) fn get_mut(&mut self, number: u128) -> Option<&mut T> {
        let (upper, low) = split(number);
        let place = self.place(upper)?;
        self.last = Some((upper, place));
        let page = &mut self.pages[place];
        page.find(low).ok().map(|place| &mut page.values[place])
    }

    /// The value of a number, inserted if missing.
    pub(super) fn entry(&mut self, number: u128, new: impl FnOnce() -> T) -> &mut T {
        let (upper, low) = split(number);
        let place = self.place(upper).unwrap_or_else(|| self.add(upper));
        self.last = Some((upper, place));
        let page = &mut self.pages[place];
        let place = page.find(low).unwrap_or_else(|place| {
            page.flip(low);
            page.values.insert(place, new());
            place
        });
        &mut page.values[place]
    }

    fn add(&mut self, upper: u128) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            self.pages.push(Page::EMPTY);
            self.pages.len() - 1
        });
        self.order.insert(upper, place);
        place
    }

    pub(super) fn remove(&mut self, number: u128) -> Option<T> {
        let (upper, low) = split(number);
        let place = self.place(upper)?;
        self.last = Some((upper, place));
        let page = &mut self.pages[place];
        let value = page.values.remove(page.find(low).ok()?);
        page.flip(low);
        if page.values.is_empty() {
            *page = Page::EMPTY;
            self.order.remove(&upper);
            self.free.push(place);
            self.last = None;
        }
        Some(value)
    }

    /// Values of the numbers from `first` to `last`, in order.
    pub(super) fn range(&self, first: u128, last: u128) -> impl Iterator<Item = (u128, &T)> {
        let pages = self.order.range(first >> 8..=last >> 8);
        let all = pages.flat_map(|(upper, place)| {
            self.pages[*place].iter().map(move |(low, value)| (upper << 8 | u128::from(low), value))
        });
        all.skip_while(move |(number, _)| *number < first)
            .take_while(move |(number, _)| *number <= last)
    }
}
