//! A map of numbers of which many are close together: the addresses of pods.

use std::collections::BTreeMap;

/// Values by number. Numbers that differ in the lowest 8 bits alone share a page.
#[derive(Clone, Debug)]
pub(super) struct Pages<T> {
    /// The places of pages, by the numbers' upper bits.
    order: BTreeMap<u128, usize>,
    pages: Vec<Page<T>>,
    /// Places of pages that are empty.
    free: Vec<usize>,
    /// The page that was changed last and its place: whoever goes from number to number stays on it.
    last: Option<(u128, usize)>,
}

/// The values of a page, in order.
#[derive(Clone, Debug)]
struct Page<T> {
    /// A bit for each number that is there.
    there: [u64; 4],
    values: Vec<T>,
}

/// The upper bits of a number, and its place in a page.
fn split(number: u128) -> (u128, u8) {
    (number >> 8, number as u8)
}

impl<T> Page<T> {
    const EMPTY: Self = Self { there: [0; 4], values: Vec::new() };

    /// Where a number's value is, or was to be inserted.
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

    /// The value of a number, made if it is new.
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

    /// The values of these numbers, in order.
    pub(super) fn range(&self, first: u128, last: u128) -> impl Iterator<Item = (u128, &T)> {
        let pages = self.order.range(first >> 8..=last >> 8);
        let all = pages.flat_map(|(upper, place)| {
            self.pages[*place].iter().map(move |(low, value)| (upper << 8 | u128::from(low), value))
        });
        all.skip_while(move |(number, _)| *number < first)
            .take_while(move |(number, _)| *number <= last)
    }
}
