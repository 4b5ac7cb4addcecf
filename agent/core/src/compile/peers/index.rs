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
    /// Files atoms under their pod selectors, each under the label that fewest ask for.
    pub(super) fn new<'a>(atoms: impl Iterator<Item = (AtomId, &'a Selector)> + Clone) -> Self {
        let mut counts: HashMap<(&str, &str), u32> = HashMap::new();
        for (key, values) in atoms.clone().flat_map(|(_, selector)| required(selector)) {
            for value in values {
                *counts.entry((key, value)).or_default() += 1;
            }
        }
        let others = |(key, values): &(&str, &[String])| -> u32 {
            values.iter().filter_map(|value| counts.get(&(*key, value.as_str()))).sum()
        };
        let mut index = Self::default();
        for (atom, selector) in atoms {
            let Some((key, values)) = required(selector).min_by_key(others) else {
                index.others.push(atom);
                continue;
            };
            let by_value = index.by_label.entry_ref(key).or_default();
            for value in values {
                by_value.entry_ref(value).or_default().push(atom);
            }
        }
        index
    }

    /// The atoms whose selectors may match: all that do, and few that do not.
    pub(super) fn possible(&self, labels: &Labels) -> impl Iterator<Item = AtomId> {
        let filed = labels.iter().filter_map(|(key, value)| self.by_label.get(key)?.get(value));
        filed.flatten().chain(&self.others).copied()
    }
}

/// Keys of which a pod must have one of some values.
fn required(selector: &Selector) -> impl Iterator<Item = (&str, &[String])> {
    selector.requirements.iter().filter_map(|requirement| match requirement {
        Requirement::In(key, values) => Some((key.as_str(), values.as_slice())),
        _ => None,
    })
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
        let index = Index::new((0..).zip(&selectors));
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
