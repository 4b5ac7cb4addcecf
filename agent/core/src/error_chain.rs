//! Errors with their causes on one line.

use std::error::Error;
use std::iter::successors;

/// Returns an error and its causes, the last cause last.
pub fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error| error.source())
}

/// Joins an error and its causes.
#[must_use]
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    joined(chain(error).map(ToString::to_string)).unwrap_or_default()
}

/// Joins the texts of an error and its causes, without a text that is repeated: many errors include their causes.
/// `None` without a text.
pub fn joined(texts: impl IntoIterator<Item = String>) -> Option<String> {
    texts.into_iter().reduce(
        |all, next| {
            if all.contains(&next) { all } else { format!("{all}: {next}") }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_causes_are_left_out() {
        let joined = |texts: &[&str]| joined(texts.iter().map(ToString::to_string));
        assert_eq!(joined(&["a", "b"]).as_deref(), Some("a: b"));
        assert_eq!(joined(&["a: b", "b", "c"]).as_deref(), Some("a: b: c"));
        assert_eq!(joined(&[]), None);
    }
}
