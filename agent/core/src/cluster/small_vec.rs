//! One or more of something, mostly one: no allocation then.

/// At least one, without order.
#[derive(Debug)]
pub(super) struct SmallVec<T> {
    first: T,
    others: Vec<T>,
}

impl<T> SmallVec<T> {
    /// Just one.
    pub(super) fn one(first: T) -> Self {
        Self { first, others: Vec::new() }
    }

    /// One of them.
    pub(super) fn first(&self) -> &T {
        &self.first
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub(super) fn push(&mut self, another: T) {
        self.others.push(another);
    }

    /// Takes one out. Says whether it is the only one: then it stays, and all of this may go.
    #[must_use]
    pub(super) fn remove(&mut self, is_it: impl Fn(&T) -> bool) -> bool {
        if let Some(place) = self.others.iter().position(&is_it) {
            self.others.swap_remove(place);
        } else if is_it(&self.first) {
            let Some(other) = self.others.pop() else { return true };
            self.first = other;
        }
        false
    }
}
