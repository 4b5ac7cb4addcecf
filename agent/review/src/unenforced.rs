//! Policies of other APIs among the objects of reviews.

use std::collections::BTreeSet;

use netpold_client::details::Details;
use netpold_core::first_names::first_names;

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
pub(crate) fn list_unenforced<'p>(
    policies: impl IntoIterator<IntoIter: ExactSizeIterator<Item = &'p String>>,
) -> Option<String> {
    let named = first_names(policies.into_iter(), NAMED);
    let text = format!("not enforced by netpold, and not part of this answer: {named}");
    (!named.is_empty()).then_some(text)
}
