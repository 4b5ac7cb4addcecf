//! Pod selectors by the labels they ask for: a pod is held against those that its own labels lead
//! to, not against all.

use hashbrown::HashMap;

use crate::compile::peers::AtomId;
use crate::model::{Labels, Requirement, Selector};

/// Atoms by a label that their pod selectors require.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// By key and value. A selector is filed under one key (and each value it takes), and a pod has
    /// a key once, so that a pod meets an atom once.
    by_label: HashMap<String, HashMap<String, Vec<AtomId>>>,
    /// Those that require no label's value.
    others: Vec<AtomId>,
}

impl Index {
    /// Files an atom under its pod selector.
    pub(super) fn add(&mut self, atom: AtomId, selector: &Selector) {
        let required = selector.requirements.iter().filter_map(|requirement| match requirement {
            Requirement::In(key, values) => Some((key, values)),
            _ => None,
        });
        let Some((key, values)) = required.min_by_key(|(_, values)| values.len()) else {
            self.others.push(atom);
            return;
        };
        let by_value = self.by_label.entry(key.clone()).or_default();
        for value in values {
            by_value.entry(value.clone()).or_default().push(atom);
        }
    }

    /// The atoms whose selectors may match: all that do, and few that do not.
    pub(super) fn possible(&self, labels: &Labels) -> impl Iterator<Item = AtomId> {
        let filed = labels.iter().filter_map(|(key, value)| self.by_label.get(key)?.get(value));
        filed.flatten().chain(&self.others).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_in(key: &str, values: &[&str]) -> Requirement {
        Requirement::In(key.into(), values.iter().map(|v| (*v).into()).collect())
    }

    #[test]
    fn finds_what_matches_once() {
        let selectors = [
            vec![],
            vec![is_in("app", &["web", "db"])],
            vec![is_in("app", &["web"]), is_in("tier", &["front"])],
            vec![is_in("app", &[])],
            vec![Requirement::Exists("app".into())],
            vec![Requirement::NotIn("app".into(), vec!["web".into()]), is_in("tier", &["back"])],
        ];
        let selectors = selectors.map(|requirements| Selector { requirements });
        let mut index = Index::default();
        for (atom, selector) in (0..).zip(&selectors) {
            index.add(atom, selector);
        }
        for app in [None, Some("web"), Some("db"), Some("other")] {
            for tier in [None, Some("front"), Some("back")] {
                let pairs = [("app", app), ("tier", tier)];
                let labels: Labels =
                    pairs.iter().filter_map(|(k, v)| Some(((*k).into(), (*v)?.into()))).collect();
                let matches = |atom: &AtomId| selectors[*atom as usize].matches(&labels);
                let mut found: Vec<AtomId> = index.possible(&labels).filter(matches).collect();
                found.sort_unstable();
                let expected: Vec<AtomId> = (0..6).filter(matches).collect();
                assert_eq!(found, expected, "{labels:?}");
            }
        }
    }
}
