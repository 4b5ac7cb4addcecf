//! Lists of names in texts.

use std::fmt::Display;

/// Joins the first names, at most so many, with the number of the others: `a, b and 3 more`.
pub fn first_names<T: Display>(names: impl ExactSizeIterator<Item = T>, most: usize) -> String {
    let more = names.len().saturating_sub(most);
    let named: Vec<String> = names.take(most).map(|name| name.to_string()).collect();
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    named.join(", ") + &more
}

/// Joins the names; of more than one beyond `most`, the first `most` and the number of the others.
pub fn short_list<T: Display>(names: impl ExactSizeIterator<Item = T>, most: usize) -> String {
    let named = if names.len() == most + 1 { most + 1 } else { most };
    first_names(names, named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_names_are_counted() {
        assert_eq!(first_names(["a", "b"].iter(), 2), "a, b");
        assert_eq!(first_names(["a", "b", "c", "d"].iter(), 2), "a, b and 2 more");
    }

    #[test]
    fn a_single_further_name_is_listed() {
        assert_eq!(short_list(["a", "b", "c"].iter(), 2), "a, b, c");
        assert_eq!(short_list(["a", "b", "c", "d"].iter(), 2), "a, b and 2 more");
    }
}
