//! Fields that NetworkPolicy does not have.
//!
//! An API server refuses them (or drops them, where validation is off); read over in silence they
//! would turn a misspelt `from` into "everyone".

use super::{Problem, Unknown};
use crate::source::document::{Node, Value};

/// The fields an object may have.
enum Shape {
    /// Not looked into: a scalar, or a map with keys of the user's choice.
    Free,
    /// A mapping with these fields.
    Fields(&'static [(&'static str, &'static Shape)]),
    /// A list of these.
    Each(&'static Shape),
}

use Shape::{Each, Fields, Free};

const SELECTOR: Shape = Fields(&[("matchLabels", &Free), ("matchExpressions", &Each(&EXPRESSION))]);
const EXPRESSION: Shape = Fields(&[("key", &Free), ("operator", &Free), ("values", &Free)]);
const BLOCK: Shape = Fields(&[("cidr", &Free), ("except", &Free)]);
const PORT: Shape = Fields(&[("protocol", &Free), ("port", &Free), ("endPort", &Free)]);
const PEER: Shape =
    Fields(&[("podSelector", &SELECTOR), ("namespaceSelector", &SELECTOR), ("ipBlock", &BLOCK)]);
const INGRESS: Shape = Fields(&[("from", &Each(&PEER)), ("ports", &Each(&PORT))]);
const EGRESS: Shape = Fields(&[("to", &Each(&PEER)), ("ports", &Each(&PORT))]);
const SPEC: Shape = Fields(&[
    ("podSelector", &SELECTOR),
    ("policyTypes", &Free),
    ("ingress", &Each(&INGRESS)),
    ("egress", &Each(&EGRESS)),
]);
const METADATA: Shape = Fields(&[
    ("name", &Free),
    ("namespace", &Free),
    ("labels", &Free),
    ("annotations", &Free),
    ("uid", &Free),
    ("creationTimestamp", &Free),
    ("deletionTimestamp", &Free),
    ("deletionGracePeriodSeconds", &Free),
    ("finalizers", &Free),
    ("generateName", &Free),
    ("generation", &Free),
    ("managedFields", &Free),
    ("ownerReferences", &Free),
    ("resourceVersion", &Free),
    ("selfLink", &Free),
]);
const POLICY: Shape = Fields(&[
    ("apiVersion", &Free),
    ("kind", &Free),
    ("metadata", &METADATA),
    ("spec", &SPEC),
    // Removed from the API in 1.28, still found in what older clusters exported.
    ("status", &Free),
]);

/// The fields of a NetworkPolicy that the API does not know, each with its full path.
pub(super) fn unknown(policy: &Node) -> Vec<Unknown> {
    let mut found = Vec::new();
    walk(policy, &POLICY, "", &mut found);
    found
}

/// The fields of an object's `metadata` that the API does not know.
pub(super) fn unknown_metadata(object: &Node) -> Vec<Unknown> {
    let mut found = Vec::new();
    if let Some(metadata) = object.get("metadata") {
        walk(metadata, &METADATA, "metadata", &mut found);
    }
    found
}

fn walk(node: &Node, shape: &Shape, path: &str, found: &mut Vec<Unknown>) {
    match (shape, &node.value) {
        (Each(shape), Value::List(items)) => {
            for (index, item) in items.iter().enumerate() {
                walk(item, shape, &format!("{path}[{index}]"), found);
            }
        }
        (Fields(fields), Value::Map(entries)) => {
            for entry in entries {
                let dot = if path.is_empty() { "" } else { "." };
                let field = format!("{path}{dot}{}", entry.key);
                match fields.iter().find(|(name, _)| *name == entry.key) {
                    Some((_, shape)) => walk(&entry.node, shape, &field, found),
                    None => found.push(Unknown {
                        inside: path.to_owned(),
                        problem: Problem::new(field, not_known(fields)),
                    }),
                }
            }
        }
        // A wrong type is the decoder's to report.
        _ => {}
    }
}

fn not_known(fields: &[(&str, &Shape)]) -> String {
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    match names.as_slice() {
        names if names.len() > 5 => "no such field in metadata".into(),
        names => format!("no such field; there are {}", names.join(", ")),
    }
}
