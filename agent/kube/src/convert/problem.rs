//! Problems with the fields of an object.

use std::fmt;

use netpold_core::printable::cut;

use crate::decode::Mismatch;

/// Maximum number of problems of a policy that are named; the others are counted. A policy may have 60,000.
const NAMED: usize = 50;

/// Longest path or text of a [`FieldProblem`], in bytes: a value may be as long as a megabyte.
const PROBLEM_MAX: usize = 400;

/// A part of an object that could not be interpreted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldProblem {
    /// Path of the field, such as `spec.ingress[0].ports[1].endPort`.
    pub path: String,
    /// Description of the problem.
    pub text: String,
}

impl FieldProblem {
    pub(super) fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: clipped(path.into()), text: clipped(text.into()) }
    }
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.text),
            path => write!(f, "{path}: {}", self.text),
        }
    }
}

impl From<Mismatch> for FieldProblem {
    fn from(mismatch: Mismatch) -> Self {
        Self::new(mismatch.path, mismatch.reason)
    }
}

impl From<FieldProblem> for Mismatch {
    fn from(problem: FieldProblem) -> Self {
        Self { path: problem.path, line: None, reason: problem.text }
    }
}

/// Prepares a text for a line of a log: limited in length, control characters escaped.
pub(super) fn clipped(text: String) -> String {
    let text = cut(text, PROBLEM_MAX);
    if text.contains(char::is_control) {
        let shown =
            |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
        return text.chars().map(shown).collect();
    }
    text
}

/// A field that the API does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Path of the mapping that contains the field.
    pub inside: String,
    /// Path of the field, and the names of the known fields.
    pub problem: FieldProblem,
}

/// Keeps the first problems of a policy, and adds the number of the others.
pub(super) fn limited(mut problems: Vec<FieldProblem>) -> Vec<FieldProblem> {
    let more = problems.len().saturating_sub(NAMED);
    if more > 0 {
        problems.truncate(NAMED);
        problems.push(FieldProblem::new("spec", format!("{more} more problems")));
    }
    problems
}
