//! Escapes for text from objects: no part of a name, a label or a message starts a line, moves the cursor or turns the
//! reading direction.

use std::borrow::Cow;

/// Whether a terminal interprets a character instead of showing it, or shows nothing for it.
fn is_unprintable(c: char) -> bool {
    let invisible = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}');
    c.is_control() || invisible
}

/// Escapes unprintable characters of a text, as in `\n` and `\u{1b}`.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_unprintable(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// Shortens a text to `most` bytes at a character boundary, with ` ...` at the end.
#[must_use]
pub fn cut(mut text: String, most: usize) -> String {
    const MORE: &str = " ...";
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most.saturating_sub(MORE.len())));
        text.push_str(MORE);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_text_is_written_out() {
        for (text, shown) in [
            ("shop/web", "shop/web"),
            ("näme 名", "näme 名"),
            ("a\nb", r"a\nb"),
            ("\x1b[2J\x07", r"\u{1b}[2J\u{7}"),
            ("\u{9b}31m", r"\u{9b}31m"),
            ("\u{202e}drow", r"\u{202e}drow"),
            ("a\u{2028}b\u{200b}", r"a\u{2028}b\u{200b}"),
        ] {
            assert_eq!(printable(text), shown);
        }
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(cut("short".into(), 5), "short");
        let long = cut("\u{e9}".repeat(1000), 1024);
        assert_eq!((long.len(), long.ends_with("\u{e9} ...")), (1024, true));
        assert!(cut("\u{e9}".repeat(1000), 1023).len() <= 1023);
    }
}
