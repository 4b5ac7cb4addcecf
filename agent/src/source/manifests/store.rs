//! All files together: which object is in effect, and what an update changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use netpold_core::cluster::ObjectKey;
use netpold_core::model::Change;

use super::content::{Content, Object};
use crate::source::{FileStatus, SourceProblem};

/// What became of a file.
pub(super) enum Update {
    /// It was read.
    Good(Content),
    /// It was read and there is nothing in it, not even a comment. Its objects stay: a writer that
    /// failed leaves such a file behind, who wants the objects to go deletes it.
    Empty,
    /// It could not be read; its last good content stays.
    Bad { line: u32, reason: String },
    /// It is gone, and its objects with it.
    Gone,
}

/// Last good content of every file.
///
/// An object in several files is in effect as the file whose name sorts last has it. So what is in
/// effect depends on the files' contents, not on the order in which they came.
#[derive(Default)]
pub(super) struct Store {
    files: BTreeMap<Arc<str>, File>,
    owners: BTreeMap<ObjectKey, BTreeSet<Arc<str>>>,
}

#[derive(Default)]
struct File {
    content: Option<Content>,
    error: Option<(u32, String)>,
}

impl Store {
    /// Take in what became of some files; at most one change for an object.
    pub(super) fn apply(
        &mut self,
        updates: impl IntoIterator<Item = (String, Update)>,
    ) -> Vec<Change> {
        let mut before = BTreeMap::new();
        for (name, update) in updates {
            self.update(name.into(), update, &mut before);
        }
        let mut changes = Vec::new();
        for (key, before) in before {
            let now = self.in_effect(&key).map(|object| &object.change);
            if now == before.as_ref() {
                continue;
            }
            changes.push(now.cloned().unwrap_or_else(|| key.gone()));
        }
        changes
    }

    /// What the pod templates of all files would make.
    pub(super) fn templates(&self) -> impl Iterator<Item = Change> + use<> {
        let contents = self.files.values().filter_map(|file| file.content.as_ref());
        let templates = contents.flat_map(|content| &content.templates);
        let last: BTreeMap<&ObjectKey, &Object> = templates.collect();
        let changes: Vec<Change> = last.into_values().map(|object| object.change.clone()).collect();
        changes.into_iter()
    }

    /// Every file has been good at some time, so that all objects are known.
    pub(super) fn complete(&self) -> bool {
        self.files.values().all(|file| file.content.is_some())
    }

    /// Each file's state and all problems, in the order of file names and lines.
    pub(super) fn report(&self) -> (Vec<FileStatus>, Vec<SourceProblem>) {
        let (mut files, mut problems) = (Vec::new(), Vec::new());
        for (name, file) in &self.files {
            let objects = file.content.as_ref().map_or(0, |c| c.objects.len());
            files.push(FileStatus {
                name: name.to_string(),
                objects,
                current: file.error.is_none(),
            });
            if let Some((line, reason)) = &file.error {
                let kept = match file.content {
                    Some(_) => "its last good content stays in effect",
                    None => "nothing of it is in effect",
                };
                let text = format!("{reason} ({kept})");
                problems.push(SourceProblem { file: name.to_string(), line: *line, text });
            }
            problems.extend(file.content.iter().flat_map(|c| c.problems.iter().cloned()));
        }
        problems.extend(self.duplicates());
        problems.sort();
        (files, problems)
    }

    fn update(
        &mut self,
        name: Arc<str>,
        update: Update,
        before: &mut BTreeMap<ObjectKey, Option<Change>>,
    ) {
        let content = match update {
            Update::Good(content) => Some(content),
            Update::Empty if self.objects_in(&name) == 0 => Some(Content::default()),
            Update::Empty => {
                let reason = "is empty; delete it if its objects are to go".to_owned();
                self.files.entry(name).or_default().error = Some((0, reason));
                return;
            }
            Update::Gone => None,
            Update::Bad { line, reason } => {
                self.files.entry(name).or_default().error = Some((line, reason));
                return;
            }
        };
        let former = self.files.get(&name).and_then(|file| file.content.as_ref());
        let touched: BTreeSet<ObjectKey> = [former, content.as_ref()]
            .into_iter()
            .flatten()
            .flat_map(|c| c.objects.keys().cloned())
            .collect();
        for key in &touched {
            if !before.contains_key(key) {
                before.insert(key.clone(), self.in_effect(key).map(|o| o.change.clone()));
            }
        }
        for key in touched {
            let owners = self.owners.entry(key.clone()).or_default();
            if content.as_ref().is_some_and(|c| c.objects.contains_key(&key)) {
                owners.insert(name.clone());
            } else {
                owners.remove(&name);
            }
            if owners.is_empty() {
                self.owners.remove(&key);
            }
        }
        match content {
            Some(_) => self.files.insert(name, File { content, error: None }),
            None => self.files.remove(&name),
        };
    }

    fn objects_in(&self, file: &str) -> usize {
        let content = self.files.get(file).and_then(|file| file.content.as_ref());
        content.map_or(0, |content| content.objects.len())
    }

    fn in_effect(&self, key: &ObjectKey) -> Option<&Object> {
        self.object(self.owners.get(key)?.last()?, key)
    }

    fn object(&self, file: &str, key: &ObjectKey) -> Option<&Object> {
        self.files.get(file)?.content.as_ref()?.objects.get(key)
    }

    fn duplicates(&self) -> impl Iterator<Item = SourceProblem> + '_ {
        self.owners.iter().filter(|(_, owners)| owners.len() > 1).flat_map(move |(key, owners)| {
            let (winner, others) = (owners.last(), owners.iter().rev().skip(1));
            others.filter_map(move |file| {
                let text = format!("{key} is also in {}, whose name sorts later and wins", winner?);
                let line = self.object(file, key)?.line;
                Some(SourceProblem { file: file.to_string(), line, text })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use netpold_core::model::Key;

    use super::super::content::read;
    use super::*;

    fn pods(file: &str, pods: &[(&str, &str)]) -> (String, Update) {
        let text: String = pods
            .iter()
            .map(|(name, label)| {
                format!(
                    "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{l: '{label}'}}}}}}\n"
                )
            })
            .collect();
        (file.into(), Update::Good(read(file, text.as_bytes(), "default").unwrap()))
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "of the many kinds, the ones this is about")]
    fn said(changes: Vec<Change>) -> Vec<String> {
        let text = |change| match change {
            Change::Pod(pod) => format!("{}={}", pod.key.name, pod.labels.get("l").unwrap()),
            Change::PodGone(Key { name, .. }) => format!("-{name}"),
            other => panic!("{other:?}"),
        };
        changes.into_iter().map(text).collect()
    }

    #[test]
    fn only_what_changed_is_said() {
        let mut store = Store::default();
        assert_eq!(said(store.apply([pods("f", &[("a", "1"), ("b", "1")])])), ["a=1", "b=1"]);
        assert!(store.apply([pods("f", &[("b", "1"), ("a", "1")])]).is_empty());
        assert_eq!(said(store.apply([pods("f", &[("a", "2"), ("c", "1")])])), ["a=2", "-b", "c=1"]);
        assert_eq!(said(store.apply([("f".into(), Update::Gone)])), ["-a", "-c"]);
    }

    #[test]
    fn the_last_file_name_wins_in_whatever_order_they_come() {
        for order in [["a", "b"], ["b", "a"]] {
            let mut store = Store::default();
            for file in order {
                store.apply([pods(file, &[("x", file)])]);
            }
            let (_, problems) = store.report();
            assert_eq!(
                problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
                ["a:2: Pod default/x is also in b, whose name sorts later and wins"]
            );
            assert_eq!(said(store.apply([("b".into(), Update::Gone)])), ["x=a"]);
            assert!(store.report().1.is_empty());
        }
    }

    #[test]
    fn a_renamed_file_changes_nothing() {
        let mut store = Store::default();
        store.apply([pods("a", &[("x", "1")])]);
        let changes = store.apply([("a".into(), Update::Gone), pods("b", &[("x", "1")])]);
        assert!(changes.is_empty(), "{changes:?}");
    }

    #[test]
    fn a_bad_file_keeps_its_last_good_content() {
        let mut store = Store::default();
        let bad = || ("f".to_owned(), Update::Bad { line: 3, reason: "no".into() });
        assert!(store.apply([bad()]).is_empty());
        assert!(!store.complete());
        assert_eq!(store.report().1[0].to_string(), "f:3: no (nothing of it is in effect)");
        assert_eq!(said(store.apply([pods("f", &[("a", "1")])])), ["a=1"]);
        assert!(store.complete() && store.report().1.is_empty());
        assert!(store.apply([bad()]).is_empty());
        assert!(store.complete());
        let (files, problems) = store.report();
        assert_eq!(problems[0].to_string(), "f:3: no (its last good content stays in effect)");
        assert!(!files[0].current && files[0].objects == 1);
        assert_eq!(said(store.apply([("f".into(), Update::Gone)])), ["-a"]);
    }
}
