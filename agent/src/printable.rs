//! Escapes for text from objects: no part of a name, a label or a message starts a line, moves the cursor or turns the
//! reading direction.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::field::Field;
use tracing_subscriber::fmt::format::Writer;

/// Whether a terminal interprets a character instead of showing it, or shows nothing for it.
fn is_unprintable(c: char) -> bool {
    let invisible = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}');
    c.is_control() || invisible
}

/// Escapes unprintable characters of a text, as in `\n` and `\u{1b}`.
#[must_use]
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
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
pub(crate) fn cut(mut text: String, most: usize) -> String {
    const MORE: &str = " ...";
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most.saturating_sub(MORE.len())));
        text.push_str(MORE);
    }
    text
}

/// Makes every string of a JSON document [`printable`], except for keys.
pub(crate) fn printable_json(value: &mut serde_json::Value) {
    use serde_json::Value;
    match value {
        Value::String(text) => {
            if let Cow::Owned(shown) = printable(text) {
                *text = shown;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(printable_json),
        Value::Object(fields) => fields.values_mut().for_each(printable_json),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Makes every string of a document [`printable`], except for keys.
///
/// # Errors
/// The document cannot be written as JSON, or the result does not fit `U`.
pub(crate) fn printable_document<T, U>(document: &T) -> Result<U>
where
    T: Serialize + ?Sized,
    U: DeserializeOwned,
{
    let mut value = serde_json::to_value(document).context("no document can be made of it")?;
    printable_json(&mut value);
    serde_json::from_value(value).context("it is no such document")
}

/// Writes a field of a log line in the format of tracing's own formatter, but printable.
pub(crate) fn log_field(
    writer: &mut Writer<'_>,
    field: &Field,
    value: &dyn fmt::Debug,
) -> fmt::Result {
    if field.name() != "message" {
        write!(writer, "{}=", field.name())?;
    }
    let mut text = String::new();
    write!(text, "{value:?}")?;
    writer.write_str(&printable(&text))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

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

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_name_is_no_line_of_the_log() {
        use tracing_subscriber::field::MakeExt as _;
        let log = Log::default();
        let made = log.clone();
        let fields = tracing_subscriber::fmt::format::debug_fn(log_field).delimited(" ");
        let subscriber = tracing_subscriber::fmt()
            .fmt_fields(fields)
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(move || made.clone())
            .finish();
        let forged = "x\n INFO all is well\x1b[2J";
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(pod = %forged, other = forged, count = 3, "policy {forged}: refused");
        });
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let name = r"x\n INFO all is well\u{1b}[2J";
        assert_eq!(
            log,
            format!(" WARN policy {name}: refused pod={name} other=\"{name}\" count=3\n")
        );
    }
}
