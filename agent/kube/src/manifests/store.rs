//! All files together: the objects in effect, and the changes that an update causes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use netpold_api::source::{FileStatus, SourceProblem};
use netpold_core::cluster::ObjectKey;
use netpold_core::model::Change;

use super::content::{Content, FileObject, LATER, NOTHING, Undecoded};
use super::packed::PackedObject;

/// Update of a file.
pub(super) enum FileUpdate {
    /// The file was read.
    Read(Content),
    /// The file was read and is empty, without even a comment. Its objects stay: a failed writer leaves such a file
    /// behind; to remove the objects, delete the file.
    Empty,
    /// The file could not be read; its last good content stays.
    Unreadable(String),
    /// The file is gone, and its objects with it.
    Gone,
}

/// Last good content of every file.
///
/// If several files contain an object, the file with the last name in sort order wins. So the objects in effect depend
/// on the files' contents, not on the order of their arrival.
#[derive(Default)]
pub(super) struct FileStore {
    files: BTreeMap<Arc<str>, File>,
    /// Files that contain an object, by a 64-bit hash of the object's key.
    owners: HashMap<u64, ObjectOwners>,
    hasher: RandomState,
}

/// Files that contain an object.
enum ObjectOwners {
    One(Arc<str>),
    More(BTreeSet<Arc<str>>),
}

#[derive(Default)]
struct File {
    content: Option<Content>,
    /// Whether every document of the file was readable at some time, so that no unknown policy may isolate pods.
    known: bool,
    /// Whether some object of the file is its former version.
    kept: bool,
    /// Error of reading the file.
    error: Option<String>,
}

/// Objects in effect before some updates.
type ObjectsBefore = BTreeMap<ObjectKey, Option<PackedObject>>;

impl FileStore {
    /// Applies updates of files; returns at most one change per object.
    pub(super) fn apply(
        &mut self,
        updates: impl IntoIterator<Item = (String, FileUpdate)>,
    ) -> Vec<Change> {
        let mut before = ObjectsBefore::new();
        for (name, update) in updates {
            self.update(name.into(), update, &mut before);
        }
        let mut changes = Vec::new();
        for (key, before) in before {
            let now = self.in_effect(&key).map(|object| &object.change);
            if now == before.as_ref() {
                continue;
            }
            match now {
                Some(now) => changes.extend(now.unpacked()),
                None => changes.push(key.removal()),
            }
        }
        changes
    }

    /// Returns the stand-in pods of the pod templates in all files.
    pub(super) fn templates(&self) -> Vec<Change> {
        let contents = self.files.values().filter_map(|file| file.content.as_ref());
        let templates = contents.flat_map(|content| &content.templates);
        let last: BTreeMap<&ObjectKey, &FileObject> = templates.collect();
        last.into_values().filter_map(|object| object.change.unpacked()).collect()
    }

    /// Returns the objects that cannot be decoded, apart from those that another file defines.
    pub(super) fn undecoded(&self) -> Vec<Undecoded> {
        let contents = self.files.values().filter_map(|file| file.content.as_ref());
        let templates = contents.clone().flat_map(|content| &content.templates);
        let templates: BTreeMap<&ObjectKey, &FileObject> = templates.collect();
        let is_known = |key: &ObjectKey| {
            self.in_effect(key).or(templates.get(key).copied()).is_some_and(|it| it.understood)
        };
        let all = contents.flat_map(|content| &content.undecoded);
        all.filter(|it| !it.key.as_ref().is_some_and(is_known)).cloned().collect()
    }

    /// Returns the documents and files that cannot be read and have no former content.
    pub(super) fn unread(&self) -> Vec<SourceProblem> {
        let mut unread = Vec::new();
        for (name, file) in self.files.iter().filter(|(_, file)| !file.known) {
            unread.extend(file.error.iter().map(|reason| unread_file(name, reason)));
            unread.extend(file.content.iter().flat_map(|content| content.unread_documents(name)));
        }
        unread
    }

    /// Returns whether every file, and so every object, has been known at some time.
    pub(super) fn complete(&self) -> bool {
        self.files.values().all(|file| file.known)
    }

    /// Returns each file's status and all problems, in the order of file names and lines.
    pub(super) fn report(&self) -> (Vec<FileStatus>, Vec<SourceProblem>) {
        let (mut files, mut problems) = (Vec::new(), Vec::new());
        for (name, file) in &self.files {
            let objects = file.content.as_ref().map_or(0, |c| c.objects.len());
            let content = file.content.as_ref();
            let unread = content.is_some_and(|content| !content.unread.is_empty());
            let current = file.error.is_none() && !file.kept && !unread;
            files.push(FileStatus { name: name.to_string(), objects, current });
            if let Some(reason) = &file.error {
                let problem = unread_file(name, reason);
                problems.push(match file.content {
                    Some(_) => {
                        let text = format!("{reason} (its last good content stays in effect)");
                        SourceProblem { text, ..problem }
                    }
                    None => problem,
                });
            }
            problems.extend(content.iter().flat_map(|content| content.problems(name)));
        }
        problems.extend(self.duplicates());
        problems.sort();
        (files, problems)
    }

    fn update(&mut self, name: Arc<str>, update: FileUpdate, before: &mut ObjectsBefore) {
        let mut content = match update {
            FileUpdate::Read(content) => Some(content),
            FileUpdate::Empty if self.objects_in(&name) == 0 => Some(Content::default()),
            FileUpdate::Empty => {
                let reason = "is empty; delete the file to remove its objects".to_owned();
                self.files.entry(name).or_default().error = Some(reason);
                return;
            }
            FileUpdate::Gone => None,
            FileUpdate::Unreadable(reason) => {
                self.files.entry(name).or_default().error = Some(reason);
                return;
            }
        };
        let former = self.files.get(&name);
        let mut file = File { known: former.is_some_and(|file| file.known), ..File::default() };
        let former = former.and_then(|file| file.content.as_ref());
        if let Some(content) = &mut content {
            file.kept = content.replace_undecoded(&name, former, file.known);
            file.known |= content.unread.is_empty();
        }
        let keys = |content: &Content| content.objects.keys().cloned().collect::<Vec<_>>();
        let touched: BTreeSet<ObjectKey> =
            former.iter().copied().chain(&content).flat_map(keys).collect();
        for key in touched {
            let has = content.as_ref().is_some_and(|content| content.objects.contains_key(&key));
            before
                .entry(key.clone())
                .or_insert_with(|| self.in_effect(&key).map(|object| object.change.clone()));
            self.record_owner(&key, &name, has);
        }
        match content {
            Some(_) => self.files.insert(name, File { content, ..file }),
            None => self.files.remove(&name),
        };
    }

    /// Records whether a file contains an object.
    fn record_owner(&mut self, key: &ObjectKey, name: &Arc<str>, has: bool) {
        let hash = self.hasher.hash_one(key);
        let mut files = match self.owners.remove(&hash) {
            None => BTreeSet::new(),
            Some(ObjectOwners::One(one)) => BTreeSet::from([one]),
            Some(ObjectOwners::More(files)) => files,
        };
        if has {
            files.insert(name.clone());
        } else {
            files.remove(name);
        }
        let owners = match files.len() {
            0 => return,
            1 => files.pop_first().map(ObjectOwners::One),
            _ => Some(ObjectOwners::More(files)),
        };
        self.owners.extend(owners.map(|owners| (hash, owners)));
    }

    fn objects_in(&self, file: &str) -> usize {
        let content = self.files.get(file).and_then(|file| file.content.as_ref());
        content.map_or(0, |content| content.objects.len())
    }

    fn in_effect(&self, key: &ObjectKey) -> Option<&FileObject> {
        self.object(self.owner(key)?, key)
    }

    /// Returns the file that wins for an object.
    fn owner(&self, key: &ObjectKey) -> Option<&Arc<str>> {
        match self.owners.get(&self.hasher.hash_one(key))? {
            ObjectOwners::One(file) => Some(file),
            ObjectOwners::More(files) => files.last(),
        }
    }

    fn object(&self, file: &str, key: &ObjectKey) -> Option<&FileObject> {
        self.files.get(file)?.content.as_ref()?.objects.get(key)
    }

    fn duplicates(&self) -> Vec<SourceProblem> {
        let several = self.owners.values().filter_map(|owners| match owners {
            ObjectOwners::One(_) => None,
            ObjectOwners::More(files) => Some(files),
        });
        let several: BTreeSet<&Arc<str>> = several.flatten().collect();
        let mut problems = Vec::new();
        for (name, file) in self.files.iter().filter(|(name, _)| several.contains(name)) {
            for (key, object) in file.content.iter().flat_map(|content| &content.objects) {
                let Some(winner) = self.owner(key).filter(|winner| *winner != name) else {
                    continue;
                };
                let text = format!("{key} is also in {winner}{LATER}");
                problems.push(SourceProblem { file: name.to_string(), line: object.line, text });
            }
        }
        problems
    }
}

/// Describes a file that cannot be read and has no former content.
fn unread_file(name: &str, reason: &str) -> SourceProblem {
    SourceProblem { file: name.to_owned(), line: 0, text: format!("{reason} {NOTHING}") }
}

#[cfg(test)]
mod tests {
    use netpold_core::model::Key;

    use super::super::content::read;
    use super::*;

    fn pods(file: &str, pods: &[(&str, &str)]) -> (String, FileUpdate) {
        let text: String = pods
            .iter()
            .map(|(name, label)| {
                format!(
                    "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{l: '{label}'}}}}}}\n"
                )
            })
            .collect();
        (file.into(), FileUpdate::Read(read(file, text.as_bytes(), "default")))
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
        let mut store = FileStore::default();
        assert_eq!(said(store.apply([pods("f", &[("a", "1"), ("b", "1")])])), ["a=1", "b=1"]);
        assert!(store.apply([pods("f", &[("b", "1"), ("a", "1")])]).is_empty());
        assert_eq!(said(store.apply([pods("f", &[("a", "2"), ("c", "1")])])), ["a=2", "-b", "c=1"]);
        assert_eq!(said(store.apply([("f".into(), FileUpdate::Gone)])), ["-a", "-c"]);
    }

    #[test]
    fn the_last_file_name_wins_in_whatever_order_they_come() {
        for order in [["a", "b"], ["b", "a"]] {
            let mut store = FileStore::default();
            for file in order {
                store.apply([pods(file, &[("x", file)])]);
            }
            let (_, problems) = store.report();
            assert_eq!(
                problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
                ["a:2: Pod default/x is also in b, whose name sorts later and wins"]
            );
            assert_eq!(said(store.apply([("b".into(), FileUpdate::Gone)])), ["x=a"]);
            assert!(store.report().1.is_empty());
        }
    }

    #[test]
    fn a_renamed_file_changes_nothing() {
        let mut store = FileStore::default();
        store.apply([pods("a", &[("x", "1")])]);
        let changes = store.apply([("a".into(), FileUpdate::Gone), pods("b", &[("x", "1")])]);
        assert!(changes.is_empty(), "{changes:?}");
    }

    #[test]
    fn a_bad_file_keeps_its_last_good_content() {
        let mut store = FileStore::default();
        let bad = || ("f".to_owned(), FileUpdate::Read(read("f", b"a: 1\nb: 2\n- c\n", "default")));
        let text = |problem: &SourceProblem, outcome: &str| {
            let text = problem.to_string();
            text.starts_with("f:3: ") && text.ends_with(outcome)
        };
        assert!(store.apply([bad()]).is_empty());
        assert!(!store.complete());
        assert!(text(&store.report().1[0], " (nothing of it is in effect)"));
        assert_eq!(said(store.apply([pods("f", &[("a", "1")])])), ["a=1"]);
        assert!(store.complete() && store.report().1.is_empty());
        assert!(store.apply([bad()]).is_empty());
        assert!(store.complete());
        let (files, problems) = store.report();
        assert!(text(&problems[0], " (its last good content stays in effect)"));
        assert!(!files[0].current && files[0].objects == 1);
        assert_eq!(said(store.apply([("f".into(), FileUpdate::Gone)])), ["-a"]);
    }
}
