//! Parsing of YAML and JSON text to trees with the line of every value.
//!
//! Text is read like `kubectl` reads it: cut at lines that begin with `---` ([`split`]), JSON as JSON ([`json`]),
//! anything else as YAML ([`yaml`]), with plain scalars of the types of go-yaml v2 ([`scalar`]). Each document is read
//! independently: an error in one document does not affect the others.
//!
//! Accepted here but refused by `kubectl`: tabs where YAML 1.2 has white space, directives, content in the line of
//! `---`. Refused here but accepted by `kubectl`: text after the end of a document, nesting deeper than 128, anchors
//! and tags with characters that YAML 1.2 reserves.

mod json;
mod scalar;
mod split;
mod yaml;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use thiserror::Error;

pub use self::split::{Documents, text};

/// Deepest nesting accepted; Kubernetes objects stay under 20, `CustomResourceDefinition`s under 100.
const MAX_DEPTH: usize = 128;
/// Maximum number of values that aliases of one file may expand to.
const MAX_ALIASED: usize = 1_000_000;
/// Number of entries beyond which a mapping finds its keys by hash.
const SMALL: usize = 32;
/// Maximum number of doubts of a document that are named.
const NAMED: usize = 20;

/// Error of a file, or of an object in it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct ReadError {
    /// Line in the file, from 1.
    pub line: u32,
    /// Description of the error.
    pub reason: String,
}

impl ReadError {
    /// Creates an error at a line.
    pub fn new(line: u32, reason: impl Into<String>) -> Self {
        Self { line, reason: reason.into() }
    }
}

/// A value and the line where it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentNode {
    /// Line in the file, from 1.
    pub line: u32,
    /// The value.
    pub value: Value,
}

/// Content of a [`DocumentNode`].
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`, `~` or empty
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number, including whole numbers beyond 64 bits.
    Float(f64),
    /// Any other scalar.
    Text(String),
    /// A sequence.
    List(Vec<DocumentNode>),
    /// A mapping, in the order of the file, keys unique.
    Map(Vec<MappingEntry>),
}

/// One key of a mapping.
#[derive(Clone, Debug, PartialEq)]
pub struct MappingEntry {
    /// The key.
    pub key: String,
    /// Line of the key, from 1.
    pub line: u32,
    /// The key's value.
    pub node: DocumentNode,
}

impl DocumentNode {
    /// Returns the entry of a key, if this is a mapping with that key.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<&MappingEntry> {
        if let Value::Map(entries) = &self.value {
            entries.iter().find(|e| e.key == key)
        } else {
            None
        }
    }

    /// Returns the value of a key, if this is a mapping with that key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|e| &e.node)
    }

    /// Returns the text of a key, if its value is text.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        if let Value::Text(text) = &self.get(key)?.value { Some(text) } else { None }
    }

    /// Returns the line of the value at a path such as `spec.ingress[0].ports`, or of the longest existing part of the
    /// path.
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

    /// Returns the number of values in the node, itself included.
    fn size(&self) -> usize {
        1 + match &self.value {
            Value::List(items) => items.iter().map(Self::size).sum(),
            Value::Map(entries) => entries.iter().map(|e| e.node.size()).sum(),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) => 0,
        }
    }
}

/// A parsed document.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Root of the document.
    pub node: DocumentNode,
    /// Repeated keys. As with `kubectl`, the last one counts.
    pub doubts: Vec<ReadError>,
}

/// Callback for each item of a document's `items`, with the entries before them: takes the item out of the tree, or
/// returns it to leave it there.
pub type TakeItem<'f> = &'f mut dyn FnMut(&[MappingEntry], DocumentNode) -> Option<DocumentNode>;

/// Parses all documents of a text; empty ones are left out.
///
/// # Errors
/// The first invalid YAML, repeated key, or exceeded limit, with its line.
pub fn parse(text: &str) -> Result<Vec<DocumentNode>, ReadError> {
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

/// A mapping being read.
#[derive(Default)]
struct Mapping {
    entries: Vec<MappingEntry>,
    /// Whether each entry came from a `<<` key.
    merged: Vec<bool>,
    /// Index of each key, if there are many.
    places: HashMap<String, usize>,
}

impl Mapping {
    /// Sets a key. An existing one is replaced, which is a doubt unless it came from a `<<` key.
    fn set(&mut self, entry: MappingEntry, merged: bool, doubts: &mut Vec<ReadError>) {
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
            let key = netpold_core::printable::cut(entry.key.clone(), 200);
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
