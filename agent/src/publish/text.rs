//! Sentences within the API's limits.

/// Longest message of a condition and of a report, in bytes. The CRD counts characters, which are never more.
pub(super) const MESSAGE_MAX: usize = 1024;

/// The text, cut at a character's end to at most `most` bytes.
pub(super) fn cut(text: &str, most: usize) -> String {
    const MORE: &str = " ...";
    if text.len() <= most {
        return text.to_owned();
    }
    let mut end = most.saturating_sub(MORE.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MORE}", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(cut("short", 5), "short");
        let long = cut(&"\u{e9}".repeat(1000), MESSAGE_MAX);
        assert_eq!((long.len(), long.ends_with("\u{e9} ...")), (MESSAGE_MAX, true));
        assert!(cut(&"\u{e9}".repeat(1000), 1023).len() <= 1023);
    }
}
