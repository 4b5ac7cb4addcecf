//! List of one or more items that allocates only from the second item on.

/// List of at least one item, without order.
#[derive(Clone, Debug)]
pub(super) struct SmallVec<T> {
    first: T,
    others: Vec<T>,
}

impl<T> SmallVec<T> {
    /// A list of one item.
    pub(super) fn one(first: T) -> Self {
        Self { first, others: Vec::new() }
    }

    /// Any item.
    pub(super) fn first(&self) -> &T {
        &self.first
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub(super) fn push(&mut self, another: T) {
        self.others.push(another);
    }

    /// Removes a matching item. Returns true if it is the only one: it stays then, and the caller may drop the list.
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
