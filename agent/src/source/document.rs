//! YAML and JSON text to trees that know the line of every value.
//!
//! Text is read as `kubectl` reads it: cut at lines that begin with `---` ([`split`]), JSON as JSON
//! ([`json`]), all else as YAML ([`yaml`]) whose plain scalars have the types of go-yaml v2
//! ([`scalar`]). Each document is read on its own: one that is not YAML is an error of its own.
//!
//! What `kubectl` refuses and this reads: tabs where YAML 1.2 has white space, directives, content
//! in the line of `---`. What it reads and this refuses: text behind the end of a document, nesting
//! deeper than 128, anchors and tags whose names have characters that YAML 1.2 reserves.

mod json;
mod scalar;
mod split;
mod yaml;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use thiserror::Error;

pub use self::split::Documents;

/// Deepest nesting accepted; Kubernetes objects stay under 20, `CustomResourceDefinition`s under 100.
const MAX_DEPTH: usize = 128;
/// Most values that aliases of one file may expand to.
const MAX_ALIASED: usize = 1_000_000;
/// Mappings with more entries than these find their keys by hash.
const SMALL: usize = 32;
/// Doubts of a document that are named.
const NAMED: usize = 20;

/// Why a file, or an object in it, cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct ReadError {
    /// Line in the file, from 1.
    pub line: u32,
    /// What is wrong there.
    pub reason: String,
}

impl ReadError {
    /// An error at a line.
    pub fn new(line: u32, reason: impl Into<String>) -> Self {
        Self { line, reason: reason.into() }
    }
}

/// A value and the line where it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Line in the file, from 1.
    pub line: u32,
    /// The value.
    pub value: Value,
}

/// What a [`Node`] holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`, `~` or nothing at all
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number; whole ones beyond 64 bits too.
    Float(f64),
    /// Everything else that is scalar.
    Text(String),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in the order of the file, keys unique.
    Map(Vec<Entry>),
}

/// One key of a mapping.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Line of the key, from 1.
    pub line: u32,
    /// The key's value.
    pub node: Node,
}

impl Node {
    /// The entry of a key, if this is a mapping that has it.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        if let Value::Map(entries) = &self.value {
            entries.iter().find(|e| e.key == key)
        } else {
            None
        }
    }

    /// The value of a key, if this is a mapping that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|e| &e.node)
    }

    /// The text of a key, if it has one.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        if let Value::Text(text) = &self.get(key)?.value { Some(text) } else { None }
    }

    /// Line of what a path such as `spec.ingress[0].ports` names, or of the nearest part of the
    /// path that exists.
    #[must_use]
    pub fn line_of(&self, path: &str) -> u32 {
        let (mut node, mut line) = (self, self.line);
        for step in path.split(['.', '[']) {
            let next = match step.strip_suffix(']').map(str::parse::<usize>) {
                Some(Ok(index)) => {
                    if let Value::List(items) = &node.value {
                        items.get(index).map(|n| (n, n.line))
                    } else {
                        None
                    }
                }
                _ => node.entry(step).map(|e| (&e.node, e.line)),
            };
            let Some(next) = next else { break };
            (node, line) = next;
        }
        line
    }

    /// Values in it, itself included.
    fn size(&self) -> usize {
        1 + match &self.value {
            Value::List(items) => items.iter().map(Self::size).sum(),
            Value::Map(entries) => entries.iter().map(|e| e.node.size()).sum(),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) => 0,
        }
    }
}

/// A document that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Its root.
    pub node: Node,
    /// Keys that are given more than once. As with `kubectl`, the last one counts.
    pub doubts: Vec<ReadError>,
}

/// What becomes of an item of the `items` of a document, given the entries before them: taken out of the tree,
/// or left in it.
pub type TakeItem<'f> = &'f mut dyn FnMut(&[Entry], Node) -> Option<Node>;

/// All documents of a text; empty ones are left out.
///
/// # Errors
/// The first thing that is not YAML, a repeated key, or a limit exceeded, with its line.
pub fn parse(text: &str) -> Result<Vec<Node>, ReadError> {
    let mut nodes = Vec::new();
    let mut documents = Documents::new(text.as_bytes());
    while let Some(document) = documents.next(&mut |_, item| Some(item)) {
        let Document { node, doubts } = document?;
        if let Some(doubt) = doubts.into_iter().next() {
            return Err(doubt);
        }
        nodes.push(node);
    }
    Ok(nodes)
}

/// A mapping that is being read.
#[derive(Default)]
struct Mapping {
    entries: Vec<Entry>,
    /// Which entries came by `<<`.
    merged: Vec<bool>,
    /// Place of each key, if there are many.
    places: HashMap<String, usize>,
}

impl Mapping {
    /// Set a key. One that is there is replaced, which is a doubt unless the former came by `<<`.
    fn set(&mut self, entry: Entry, merged: bool, doubts: &mut Vec<ReadError>) {
        let Some(place) = self.place(&entry.key) else {
            if self.entries.len() >= SMALL {
                if self.places.is_empty() {
                    let places = self.entries.iter().enumerate();
                    self.places = places.map(|(at, e)| (e.key.clone(), at)).collect();
                }
                self.places.insert(entry.key.clone(), self.entries.len());
            }
            self.entries.push(entry);
            self.merged.push(merged);
            return;
        };
        if !self.merged[place] && doubts.len() < NAMED {
            let key = crate::printable::cut(entry.key.clone(), 200);
            let text = format!("key `{key}` is given twice; as with kubectl, the last one counts");
            doubts.push(ReadError::new(entry.line, text));
        }
        self.entries[place] = entry;
        self.merged[place] = merged;
    }

    fn place(&self, key: &str) -> Option<usize> {
        if self.places.is_empty() {
            return self.entries.iter().position(|entry| entry.key == key);
        }
        self.places.get(key).copied()
    }
}
