//! Values of a ClusterNetworkPolicy's fields.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use netpold_core::model::{NamespacedPods, Selector};

use crate::convert::problem::FieldProblem;
use crate::convert::selector::selector;
use crate::decode::{Mismatch, typed};
use crate::document::{DocumentNode, Value};

/// Puts a mismatch below a path.
pub(super) fn inside(path: &str, mismatch: Mismatch) -> Mismatch {
    let dot = if mismatch.path.is_empty() || mismatch.path.starts_with('[') { "" } else { "." };
    Mismatch { path: format!("{path}{dot}{}", mismatch.path), ..mismatch }
}

/// Returns a field, unless it is absent or null.
pub(super) fn given<'n>(node: &'n DocumentNode, field: &str) -> Option<&'n DocumentNode> {
    node.get(field).filter(|node| node.value != Value::Null)
}

/// Decodes a value of a Rust type; reports a mismatch with its path.
pub(super) fn value<'n, T: serde::Deserialize<'n>>(
    node: &'n DocumentNode,
    path: &str,
    problems: &mut Vec<FieldProblem>,
) -> Option<T> {
    typed(node).map_err(|mismatch| problems.push(inside(path, mismatch).into())).ok()
}

/// Returns the items of a list; an empty list is reported.
pub(super) fn items<'n>(
    node: &'n DocumentNode,
    path: &str,
    problems: &mut Vec<FieldProblem>,
) -> Option<&'n [DocumentNode]> {
    if let Value::List(items) = &node.value {
        if items.is_empty() {
            problems.push(FieldProblem::new(path, "is empty; it needs at least one item"));
        }
        return Some(items);
    }
    problems.push(FieldProblem::new(path, "is not a list"));
    None
}

/// Reads a LabelSelector.
pub(super) fn labels(
    node: &DocumentNode,
    path: &str,
    problems: &mut Vec<FieldProblem>,
) -> Option<Selector> {
    let given: LabelSelector = value(node, path, problems)?;
    selector(&given, path, problems)
}

/// Reads `pods`: an absent `namespaceSelector` selects every namespace; `podSelector` is required.
pub(super) fn namespaced_pods(
    node: &DocumentNode,
    path: &str,
    problems: &mut Vec<FieldProblem>,
) -> Option<NamespacedPods> {
    if !matches!(node.value, Value::Map(_)) {
        problems
            .push(FieldProblem::new(path, "is not a mapping of namespaceSelector and podSelector"));
        return None;
    }
    let namespaces = match given(node, "namespaceSelector") {
        Some(node) => labels(node, &format!("{path}.namespaceSelector"), problems),
        None => Some(Selector::default()),
    };
    let Some(pods) = given(node, "podSelector") else {
        problems.push(FieldProblem::new(path, "needs podSelector; {} is every pod"));
        return None;
    };
    let pods = labels(pods, &format!("{path}.podSelector"), problems);
    Some(NamespacedPods { namespaces: namespaces?, pods: pods? })
}
