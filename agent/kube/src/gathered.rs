//! Changes of objects that are passed on together.

use std::collections::BTreeMap;

use netpold_core::cluster::ObjectKey;
use netpold_core::model::Change;

/// Changes, at most one per object: the last.
#[derive(Debug, Default)]
pub(crate) struct GatheredChanges(pub(crate) BTreeMap<ObjectKey, Change>);

impl GatheredChanges {
    pub(crate) fn add(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.0.extend(changes.into_iter().map(|change| (ObjectKey::of(&change), change)));
    }

    /// Returns the changes in the order of kinds and names.
    pub(crate) fn changes(self) -> Vec<Change> {
        self.0.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use netpold_core::model::Key;

    use super::*;

    #[test]
    fn of_several_changes_of_an_object_the_last_counts() {
        let mut gathered = GatheredChanges::default();
        let gone = |name: &str| Change::PodGone(Key::new("x", name));
        let pod = Change::NamespaceGone("x".into());
        gathered.add(vec![gone("b"), gone("a"), pod.clone()]);
        gathered.add(vec![gone("b")]);
        assert_eq!(gathered.changes(), [pod, gone("a"), gone("b")]);
    }
}
