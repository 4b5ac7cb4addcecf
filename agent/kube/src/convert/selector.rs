//! Conversion of LabelSelector to [`Selector`]; it refuses the same selectors as the API server.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use netpold_core::model::{Requirement, Selector};

use super::problem::FieldProblem;

/// Converts a selector; `None`, with the reasons in `problems`, if any part cannot be interpreted.
pub(super) fn selector(
    selector: &LabelSelector,
    path: &str,
    problems: &mut Vec<FieldProblem>,
) -> Option<Selector> {
    let before = problems.len();
    let mut requirements = Vec::new();
    for (key, value) in selector.match_labels.iter().flatten() {
        let path = format!("{path}.matchLabels");
        check_key(key, &path, problems);
        check_value(value, &path, problems);
        requirements.push(Requirement::In(key.clone(), vec![value.clone()]));
    }
    for (index, expression) in selector.match_expressions.iter().flatten().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        requirements.extend(requirement(expression, &path, problems));
    }
    requirements.sort();
    requirements.dedup();
    (problems.len() == before).then_some(Selector { requirements })
}

fn requirement(
    expression: &LabelSelectorRequirement,
    path: &str,
    problems: &mut Vec<FieldProblem>,
) -> Option<Requirement> {
    check_key(&expression.key, &format!("{path}.key"), problems);
    let mut values = expression.values.clone().unwrap_or_default();
    values.iter().for_each(|v| check_value(v, &format!("{path}.values"), problems));
    values.sort();
    values.dedup();
    let key = expression.key.clone();
    let operator = expression.operator.as_str();
    let wrong = match (operator, values.is_empty()) {
        ("In", false) => return Some(Requirement::In(key, values)),
        ("NotIn", false) => return Some(Requirement::NotIn(key, values)),
        ("Exists", true) => return Some(Requirement::Exists(key)),
        ("DoesNotExist", true) => return Some(Requirement::DoesNotExist(key)),
        ("In" | "NotIn", true) => FieldProblem::new(
            format!("{path}.values"),
            format!("operator {operator} needs at least one value"),
        ),
        ("Exists" | "DoesNotExist", false) => FieldProblem::new(
            format!("{path}.values"),
            format!("operator {operator} takes no values"),
        ),
        _ => FieldProblem::new(
            format!("{path}.operator"),
            format!("`{operator}` is not In, NotIn, Exists or DoesNotExist"),
        ),
    };
    problems.push(wrong);
    None
}

fn check_key(key: &str, path: &str, problems: &mut Vec<FieldProblem>) {
    let valid = match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_label_text(name),
        None => is_label_text(key),
    };
    if !valid {
        problems.push(FieldProblem::new(path, format!("`{key}` is not a label key")));
    }
}

fn check_value(value: &str, path: &str, problems: &mut Vec<FieldProblem>) {
    if !value.is_empty() && !is_label_text(value) {
        problems.push(FieldProblem::new(path, format!("`{value}` is not a label value")));
    }
}

/// Returns whether a text can be the name part of a label key, or a label value that is not empty.
fn is_label_text(text: &str) -> bool {
    text.len() <= 63
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

/// Returns whether a text is an RFC 1123 subdomain, the prefix of a label key.
fn is_subdomain(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= 253
        && text.split('.').all(|part| {
            part.starts_with(edge)
                && part.ends_with(edge)
                && part.chars().all(|c| edge(c) || c == '-')
        })
}
