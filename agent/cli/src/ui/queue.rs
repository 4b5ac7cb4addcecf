//! Changes that wait to be judged.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use netpold_core::lock::lock;
use tokio::sync::OwnedMutexGuard;

/// Longest name of a page, in bytes.
pub(super) const NAME: usize = 64;
/// Most pages whose newest changes are known.
const PAGES: usize = 64;

/// Changes to judge: one at a time, and of those of a page that wait only the newest.
#[derive(Default)]
pub(super) struct ChangeQueue {
    newest: Mutex<NewestChanges>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl ChangeQueue {
    /// Waits for the turn of a page's change; `None` if the page has a newer one by then.
    pub(super) async fn wait_for_turn(&self, page: &str) -> Option<OwnedMutexGuard<()>> {
        let newest = || lock(&self.newest);
        let number = newest().add(page.to_owned());
        let turn = Arc::clone(&self.turn).lock_owned().await;
        newest().is_newest(page, number).then_some(turn)
    }
}

/// Number of the newest change of each page.
#[derive(Default)]
struct NewestChanges {
    last: u64,
    of_pages: BTreeMap<String, u64>,
}

impl NewestChanges {
    /// Adds a change of a page; beyond [`PAGES`], the page with the oldest change is forgotten.
    fn add(&mut self, page: String) -> u64 {
        self.last += 1;
        self.of_pages.insert(page, self.last);
        if self.of_pages.len() > PAGES {
            let oldest = self.of_pages.iter().min_by_key(|(_, number)| **number);
            let oldest = oldest.map(|(page, _)| page.clone());
            oldest.and_then(|page| self.of_pages.remove(&page));
        }
        self.last
    }

    fn is_newest(&self, page: &str, number: u64) -> bool {
        self.of_pages.get(page).is_none_or(|newest| *newest == number)
    }
}

/// Ends a comparison when its request is given up: the page asks about a newer text, or is closed.
pub(super) struct EndsOnDrop(pub(super) Arc<AtomicBool>);

impl Drop for EndsOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_replaces_older_ones_of_its_page_only() {
        let mut newest = NewestChanges::default();
        let [first, other, second] = ["a", "b", "a"].map(|page| newest.add(page.to_owned()));
        assert!(!newest.is_newest("a", first));
        assert!(newest.is_newest("a", second) && newest.is_newest("b", other));
        for page in 0..2 * PAGES {
            newest.add(format!("page-{page}"));
        }
        assert_eq!(newest.of_pages.len(), PAGES);
        assert!(newest.is_newest("b", other), "a forgotten page's change is judged");
    }
}
