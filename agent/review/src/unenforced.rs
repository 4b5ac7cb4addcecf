//! Policies of other APIs among the objects of `diff` and `test`.

use std::collections::BTreeSet;

use crate::doctor::Details;

/// Most policies that a note names.
const NAMED: usize = 5;

/// Returns the policies of other APIs among these details.
pub(crate) fn names(details: &Details) -> BTreeSet<String> {
    let all = details.foreign.iter().flat_map(|(kind, policies)| {
        policies.objects.iter().map(move |policy| format!("{} {policy}", kind.name()))
    });
    all.collect()
}

/// Returns a note on these policies; `None` without any.
pub(crate) fn note(policies: &BTreeSet<String>) -> Option<String> {
    let named: Vec<&str> = policies.iter().take(NAMED).map(String::as_str).collect();
    let more = match policies.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let text =
        format!("not enforced by netpold, and not part of this answer: {}{more}", named.join(", "));
    (!named.is_empty()).then_some(text)
}
