//! Limits of the `CustomResourceDefinition`, by which API servers refuse a ClusterNetworkPolicy. They change no rule.

use super::values::given;
use crate::convert::problem::FieldProblem;
use crate::document::{DocumentNode, Value};

/// Most items of every list.
const ITEMS_MAX: usize = 25;
/// Longest `name` of a rule, in characters.
const NAME_MAX: usize = 100;

/// Reports the lists and names of a `spec` that exceed the limits.
pub(super) fn check(spec: &DocumentNode, problems: &mut Vec<FieldProblem>) {
    for (direction, side) in [("ingress", "from"), ("egress", "to")] {
        let path = format!("spec.{direction}");
        for (number, rule) in list(spec, direction, &path, problems).iter().enumerate() {
            let path = format!("{path}[{number}]");
            list(rule, "protocols", &format!("{path}.protocols"), problems);
            let long = rule.text("name").filter(|name| name.chars().count() > NAME_MAX);
            if long.is_some() {
                let text = format!("has more characters than the limit of API servers, {NAME_MAX}");
                problems.push(FieldProblem::new(format!("{path}.name"), text));
            }
            let path = format!("{path}.{side}");
            for (number, peer) in list(rule, side, &path, problems).iter().enumerate() {
                for field in ["networks", "domainNames"] {
                    list(peer, field, &format!("{path}[{number}].{field}"), problems);
                }
            }
        }
    }
}

/// Returns the items of a list, and reports one that is too long.
fn list<'n>(
    node: &'n DocumentNode,
    field: &str,
    path: &str,
    problems: &mut Vec<FieldProblem>,
) -> &'n [DocumentNode] {
    let Some(Value::List(items)) = given(node, field).map(|node| &node.value) else { return &[] };
    if items.len() > ITEMS_MAX {
        let text = format!("has {} items; API servers take at most {ITEMS_MAX}", items.len());
        problems.push(FieldProblem::new(path, text));
    }
    items
}
