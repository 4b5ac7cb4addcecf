//! Splitting of text into documents, as `kubectl` does: at lines that begin with `---`, before parsing.

use std::borrow::Cow;
use std::ops::Range;

use super::{Document, ReadError, TakeItem, json, yaml};

/// The documents of a file, read one after another.
#[derive(Debug)]
pub struct Documents<'t> {
    all: Cow<'t, str>,
    /// Bytes read.
    at: usize,
    /// Text between a JSON object and the next separator.
    behind: Option<Range<usize>>,
    /// Whether JSON may follow: kubectl expects it only at the beginning of a file.
    json: bool,
    /// Line of the next text, from 1.
    line: u32,
    /// Number of values to which aliases have expanded.
    aliased: usize,
}

impl<'t> Documents<'t> {
    /// Starts at the beginning of a file.
    #[must_use]
    pub fn new(bytes: &'t [u8]) -> Self {
        Self { all: text(bytes), at: 0, behind: None, json: true, line: 1, aliased: 0 }
    }

    /// Returns the next document that is not empty; an error concerns that document alone.
    pub fn next(&mut self, take: TakeItem<'_>) -> Option<Result<Document, ReadError>> {
        loop {
            let range = self.range()?;
            let text = &self.all[range.clone()];
            self.json &= text.trim_start().starts_with('{');
            if self.json {
                if let Some((document, taken)) = json::object(text, self.line, take) {
                    self.line = self.line.saturating_add(lines(&text.as_bytes()[..taken]));
                    self.behind = Some(range.start + taken..range.end);
                    return Some(Ok(document));
                }
                self.json = false;
            }
            let (document, line) = without_separator(text, self.line);
            self.line = self.line.saturating_add(lines(text.as_bytes()));
            match yaml::document(document, line, &mut self.aliased, take) {
                Ok(None) => {}
                Ok(Some(document)) => return Some(Ok(document)),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Returns the place of the next text, up to a separator.
    fn range(&mut self) -> Option<Range<usize>> {
        if let Some(behind) = self.behind.take() {
            return Some(behind);
        }
        let first = self.at;
        if first == self.all.len() {
            return None;
        }
        self.at += chunk(&self.all.as_bytes()[first..]).len();
        Some(first..self.at)
    }
}

/// Decodes a file's bytes as `kubectl` does: UTF-16 with a byte-order mark, as PowerShell writes it, else UTF-8, where
/// other bytes are replaced by U+FFFD.
#[must_use]
pub fn text(bytes: &[u8]) -> Cow<'_, str> {
    let unit: fn([u8; 2]) -> u16 = match bytes {
        [0xff, 0xfe, ..] => u16::from_le_bytes,
        [0xfe, 0xff, ..] => u16::from_be_bytes,
        _ => return String::from_utf8_lossy(bytes),
    };
    let (pairs, odd) = bytes[2..].as_chunks::<2>();
    let units = pairs.iter().map(|pair| unit(*pair));
    let decoded = char::decode_utf16(units).map(|it| it.unwrap_or(char::REPLACEMENT_CHARACTER));
    let odd = (!odd.is_empty()).then_some(char::REPLACEMENT_CHARACTER);
    decoded.chain(odd).collect::<String>().into()
}

/// Strips the separator line, if the line has no other content, and a byte-order mark; returns the text with its line.
fn without_separator(text: &str, line: u32) -> (&str, u32) {
    let (text, line) = match text.split_once('\n') {
        Some((first, below)) if is_separator(first.as_bytes()) => (below, line.saturating_add(1)),
        _ => (text, line),
    };
    (text.strip_prefix('\u{feff}').unwrap_or(text), line)
}

/// Returns whether a line is `---`, white space and a comment. A carriage return ends a line in YAML, but not here for
/// kubectl.
fn is_separator(line: &[u8]) -> bool {
    let rest = line.strip_prefix(b"---").map(<[u8]>::trim_ascii);
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'#')) && !rest.contains(&b'\r'))
}

fn lines(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.split(|byte| *byte == b'\n').count() - 1).unwrap_or(u32::MAX)
}

/// Returns the text before the next line that begins with `---`; such a line does not count if only comments and
/// directives precede it.
fn chunk(bytes: &[u8]) -> &[u8] {
    let mut at = 0;
    let mut holds_something = false;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let begins = is_separator(line)
            || line.strip_prefix(b"---").is_some_and(|rest| matches!(rest, [b' ' | b'\t', ..]));
        if begins && holds_something {
            return &bytes[..at];
        }
        let text = line.trim_ascii();
        holds_something |= begins || !(text.is_empty() || matches!(text[0], b'#' | b'%'));
        at += line.len();
    }
    bytes
}
