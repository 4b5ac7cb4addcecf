//! The objects in one file's text.

use std::collections::BTreeMap;

use netpold_api::source::SourceProblem;
use netpold_core::cluster::ObjectKey;
use tracing::debug;

use super::complete::complete;
use super::packed::PackedObject;
use crate::convert::{
    Converted, ConvertedTemplate, FieldProblem, Manifest, UndecodableObject, manifest, refused,
    template,
};
use crate::document::{Document, DocumentNode, Documents, MappingEntry, ReadError, Value};

/// Maximum number of problems of a file that are named; the others are counted.
const NAMED: usize = 200;
/// Outcome of an object that cannot be decoded, and has no former version.
const ABSENT: &str = "it counts as absent";

/// Problem of an object with a later definition in the same file.
const TWICE: &str = " is defined twice; the one in line ";
/// End of the problem of an object with a definition in another file.
pub(super) const LATER: &str = ", whose name sorts later and wins";

/// Returns whether a problem is one of an object that is defined twice.
#[must_use]
pub fn is_repetition(problem: &SourceProblem) -> bool {
    problem.text.contains(TWICE) || problem.text.ends_with(LATER)
}

/// End of the problem of a document that cannot be read, if no former content replaces it.
pub(super) const NOTHING: &str = "(nothing of it is in effect)";

/// Object that counts as absent because it cannot be decoded, or a pod template without its labels and ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecoded {
    /// Key of the object; of a template that of its stand-in pod, such as `deployment.web`. `None` if it cannot be
    /// read.
    pub key: Option<ObjectKey>,
    /// Whether the object is a workload with a pod template.
    pub is_template: bool,
    /// The error.
    pub problem: SourceProblem,
}

impl Undecoded {
    fn new((file, line): (&str, u32), text: &str, key: Option<ObjectKey>) -> Self {
        let problem = SourceProblem { file: file.to_owned(), line, text: text.to_owned() };
        Self { key, is_template: false, problem }
    }
}

/// An object and the line where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileObject {
    pub(super) change: PackedObject,
    pub(super) line: u32,
    /// Whether this is the file's own version; otherwise the object could not be decoded, and this is a policy that
    /// grants nothing, or a template without labels and ports.
    pub(super) understood: bool,
}

/// Content of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) objects: BTreeMap<ObjectKey, FileObject>,
    /// Stand-in pods of pod templates: see [`template`].
    pub(super) templates: BTreeMap<ObjectKey, FileObject>,
    /// Objects that cannot be decoded, and their lines.
    refused: Vec<(ObjectKey, UndecodableObject, u32)>,
    /// Documents and items that cannot be read and may isolate any pod.
    pub(super) unread: Vec<ReadError>,
    /// Objects that count as absent, and templates that cannot be decoded.
    pub(super) undecoded: Vec<Undecoded>,
    /// Problems with the objects.
    problems: Vec<SourceProblem>,
    /// Number of problems that are not named.
    more: usize,
}

/// Reads a file's text, each document independently. Objects without a namespace get `namespace`.
pub(super) fn read(file: &str, bytes: &[u8], namespace: &str) -> Content {
    let mut reader = FileReader { file, namespace, content: Content::default() };
    let mut documents = Documents::new(bytes);
    loop {
        // Items of a list are converted one by one: the tree of all items is far larger than the objects.
        let mut taken = Vec::new();
        let mut take =
            |before: &[MappingEntry], item| take_item(before, item, namespace, &mut taken);
        match documents.next(&mut take) {
            Some(Ok(document)) => reader.document(document, taken),
            Some(Err(error)) => reader.content.unread.push(error),
            None => return reader.content,
        }
    }
}

impl Content {
    /// Replaces objects that cannot be decoded, given the file's former content: by the former version, else for a
    /// policy by one that grants nothing, else by none. If a document cannot be read, all former objects stay. `known`:
    /// every object of the file was known at some time. Returns whether a former object stays.
    pub(super) fn replace_undecoded(
        &mut self,
        file: &str,
        former: Option<&Self>,
        known: bool,
    ) -> bool {
        let mut kept = false;
        for (key, refused, line) in std::mem::take(&mut self.refused) {
            kept |= self.settle_object(file, key, refused, line, former);
        }
        let outcome = match known {
            true => "(its last good content stays in effect)",
            false => NOTHING,
        };
        for error in self.unread.clone() {
            self.problem(file, error.line, format!("{} {outcome}", error.reason));
        }
        if !self.unread.is_empty() {
            for (key, object) in former.iter().flat_map(|former| &former.objects) {
                self.objects.entry(key.clone()).or_insert_with(|| object.clone());
            }
        }
        kept || !self.unread.is_empty()
    }

    fn settle_object(
        &mut self,
        file: &str,
        key: ObjectKey,
        refused: UndecodableObject,
        line: u32,
        former: Option<&Self>,
    ) -> bool {
        let former = former.and_then(|former| former.objects.get(&key));
        let former = former.filter(|object| object.understood);
        let (outcome, kept) = match (self.objects.contains_key(&key), former, refused.change) {
            (true, _, _) => ("another definition in this file takes effect", false),
            (false, Some(former), _) => {
                self.objects.insert(key.clone(), former.clone());
                ("its last good version stays in effect", true)
            }
            (false, None, Some(change)) => {
                for problem in refused.problems {
                    self.problem(file, problem.line, format!("{key}: {}", problem.reason));
                }
                let change = PackedObject::of(&change);
                self.objects.insert(key, FileObject { change, line, understood: false });
                return false;
            }
            (false, None, None) => (ABSENT, false),
        };
        let ReadError { line, reason } = refused.error;
        let text = format!("{key}: {reason} ({outcome})");
        if outcome == ABSENT {
            self.undecoded.push(Undecoded::new((file, line), &text, Some(key)));
        }
        self.problem(file, line, text);
        kept
    }

    /// Returns the documents that cannot be read, as problems without a former content.
    pub(super) fn unread_documents(&self, file: &str) -> impl Iterator<Item = SourceProblem> {
        self.unread.iter().map(|ReadError { line, reason }| SourceProblem {
            file: file.to_owned(),
            line: *line,
            text: format!("{reason} {NOTHING}"),
        })
    }

    /// Returns the problems; if there are many, the first ones and the number of the others.
    pub(super) fn problems(&self, file: &str) -> impl Iterator<Item = SourceProblem> {
        let text = format!("{} more problems", self.more);
        let more = SourceProblem { file: file.to_owned(), line: 0, text };
        self.problems.iter().cloned().chain((self.more > 0).then_some(more))
    }

    fn problem(&mut self, file: &str, line: u32, text: String) {
        if self.problems.len() < NAMED {
            self.problems.push(SourceProblem { file: file.to_owned(), line, text });
        } else {
            self.more += 1;
        }
    }
}

/// An object that policies depend on.
enum DecodedObject {
    /// A decoded object, with problems of its parts by line.
    Object(ObjectKey, FileObject, Vec<(u32, FieldProblem)>),
    /// The pod of a workload's template, after the workload's name in problems.
    Template(String, ObjectKey, FileObject, Vec<(u32, FieldProblem)>),
    /// An object that cannot be decoded, and its line.
    Refused(Box<UndecodableObject>, u32),
}

/// Takes an item out of a list, unless its meaning depends on later parts of the list, or it is a list itself.
fn take_item(
    before: &[MappingEntry],
    mut item: DocumentNode,
    namespace: &str,
    taken: &mut Vec<DecodedObject>,
) -> Option<DocumentNode> {
    let text = |key: &str| {
        let entry = before.iter().find(|entry| entry.key == key)?;
        if let Value::Text(text) = &entry.node.value { Some(text.as_str()) } else { None }
    };
    if let Some(kind) = text("kind").and_then(|kind| kind.strip_suffix("List")) {
        inherit(&mut item, kind, text("apiVersion"));
    }
    if item.text("kind").is_none() || item.text("apiVersion").is_none() || list(&item).is_some() {
        return Some(item);
    }
    taken.extend(found(item, namespace));
    None
}

/// Converts an object; `None` if policies do not depend on its kind.
fn found(mut node: DocumentNode, namespace: &str) -> Option<DecodedObject> {
    complete(&mut node, namespace);
    match manifest(&node) {
        Ok(Manifest::Object(converted)) => {
            let (key, object, problems) = packed(&node, *converted);
            Some(DecodedObject::Object(key, object, problems))
        }
        Ok(Manifest::Other(version, kind)) => {
            let Some(template) = template(&node) else {
                debug!("line {}: {kind} of {version} is not used", node.line);
                return None;
            };
            let ConvertedTemplate { converted, understood } = template;
            let (key, object, problems) = packed(&node, converted);
            let object = FileObject { understood, ..object };
            Some(DecodedObject::Template(workload_name(&node), key, object, problems))
        }
        Err(error) => Some(DecodedObject::Refused(Box::new(refused(&node, error)), node.line)),
    }
}

/// Packs a converted object; returns it with its problems by line.
fn packed(
    node: &DocumentNode,
    converted: Converted,
) -> (ObjectKey, FileObject, Vec<(u32, FieldProblem)>) {
    let Converted { change, problems } = converted;
    let problems = problems.into_iter().map(|problem| (node.line_of(&problem.path), problem));
    let object =
        FileObject { change: PackedObject::of(&change), line: node.line, understood: true };
    (ObjectKey::of(&change), object, problems.collect())
}

/// Returns the name of a workload, such as `Deployment shop/web`.
fn workload_name(node: &DocumentNode) -> String {
    let metadata = node.get("metadata");
    let text = |field: &str| metadata.and_then(|metadata| metadata.text(field)).unwrap_or_default();
    let name = if text("name").is_empty() { text("generateName") } else { text("name") };
    format!("{} {}/{name}", node.text("kind").unwrap_or_default(), text("namespace"))
}

/// Returns `kind` and `apiVersion` of the items of a `List` or a `PodList`, which the items may omit.
fn list(node: &DocumentNode) -> Option<(&str, Option<&str>)> {
    let kind = node.text("kind")?.strip_suffix("List")?;
    node.get("items").map(|_| (kind, node.text("apiVersion")))
}

/// A file being read.
struct FileReader<'r> {
    file: &'r str,
    namespace: &'r str,
    content: Content,
}

impl FileReader<'_> {
    /// Reads a document; `taken` are the items already taken out of it.
    fn document(&mut self, document: Document, taken: Vec<DecodedObject>) {
        let Document { node, doubts } = document;
        let mut found = if list(&node).is_some() { taken } else { Vec::new() };
        self.node(node, &mut found);
        if !found.is_empty() {
            for ReadError { line, reason } in doubts {
                self.content.problem(self.file, line, reason);
            }
        }
        found.into_iter().for_each(|found| self.found(found));
    }

    /// Reads an object, or the items of a list.
    fn node(&mut self, node: DocumentNode, into: &mut Vec<DecodedObject>) {
        let Some((kind, version)) = list(&node) else {
            into.extend(found(node, self.namespace));
            return;
        };
        let (kind, version) = (kind.to_owned(), version.map(str::to_owned));
        let Value::Map(entries) = node.value else { return };
        let Some(items) = entries.into_iter().find(|e| e.key == "items") else { return };
        match items.node.value {
            Value::List(items) => {
                for mut item in items {
                    inherit(&mut item, &kind, version.as_deref());
                    self.node(item, into);
                }
            }
            Value::Null => {}
            Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) | Value::Map(_) => {
                self.content.unread.push(ReadError::new(items.line, "items: is not a list"));
            }
        }
    }

    fn found(&mut self, found: DecodedObject) {
        let content = &mut self.content;
        match found {
            DecodedObject::Object(key, object, problems) => {
                let (name, line) = (key.to_string(), object.line);
                let former = content.objects.insert(key, object);
                self.understood(&name, line, former, problems);
            }
            DecodedObject::Template(name, key, object, problems) => {
                let (line, understood) = (object.line, object.understood);
                let former = content.templates.insert(key.clone(), object);
                // A later definition of the same template counts.
                content.undecoded.retain(|it| it.key.as_ref() != Some(&key));
                if !understood && let Some((line, problem)) = problems.last() {
                    let text = format!("{name}: {problem}");
                    let undecoded = Undecoded::new((self.file, *line), &text, Some(key));
                    content.undecoded.push(Undecoded { is_template: true, ..undecoded });
                }
                self.understood(&name, line, former, problems);
            }
            DecodedObject::Refused(refused, line) => {
                let ReadError { line: at, reason } = refused.error.clone();
                match &refused.key {
                    Some(key) if refused.may_isolate => {
                        content.unread.push(ReadError::new(at, format!("{key}: {reason}")));
                    }
                    None if refused.may_isolate => content.unread.push(refused.error),
                    Some(key) => content.refused.push((key.clone(), *refused, line)),
                    None => {
                        let text = format!("{reason} ({ABSENT})");
                        content.undecoded.push(Undecoded::new((self.file, at), &text, None));
                        content.problem(self.file, at, text);
                    }
                }
            }
        }
    }

    /// Reports the problems of an object, and an earlier object of the same name in the file.
    fn understood(
        &mut self,
        name: &str,
        line: u32,
        former: Option<FileObject>,
        problems: Vec<(u32, FieldProblem)>,
    ) {
        for (line, problem) in problems {
            self.content.problem(self.file, line, format!("{name}: {problem}"));
        }
        if let Some(former) = former {
            let text = format!("{name}{TWICE}{line} wins");
            self.content.problem(self.file, former.line, text);
        }
    }
}

/// Adds `kind` and `apiVersion` of a typed list to an item that omits them; a plain `List` adds nothing.
fn inherit(item: &mut DocumentNode, kind: &str, version: Option<&str>) {
    if kind.is_empty() {
        return;
    }
    for (key, text) in [("kind", Some(kind)), ("apiVersion", version)] {
        let (line, Some(text)) = (item.line, text) else { continue };
        if item.get(key).is_none()
            && let Value::Map(entries) = &mut item.value
        {
            let node = DocumentNode { line, value: Value::Text(text.to_owned()) };
            entries.push(MappingEntry { key: key.to_owned(), line, node });
        }
    }
}

#[cfg(test)]
mod tests;
