//! Policies of other APIs among the objects of `diff` and `test`.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use crate::doctor::Details;
use crate::offline;

/// Most policies that a note names.
const NAMED: usize = 5;

/// Returns the policies of other APIs in a directory, in one file, or on standard input (`-`), which `option` reads.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn read(option: &'static str, path: &Path) -> Result<BTreeSet<String>> {
    let details = match offline::is_standard_input(path) {
        true => {
            let mut details = Details::default();
            details.add_text(offline::STANDARD_INPUT, &offline::standard_input(option)?);
            details
        }
        false => Details::read(path)?,
    };
    let all = details.foreign.iter().flat_map(|(kind, policies)| {
        policies.objects.iter().map(move |policy| format!("{} {policy}", kind.name()))
    });
    Ok(all.collect())
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
