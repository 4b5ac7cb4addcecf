//! Splitting of text into documents, as `kubectl` does: at lines that begin with `---`, before parsing.

use super::{Document, ReadError, TakeItem, json, yaml};

/// The documents of a file, read one after another.
#[derive(Debug)]
pub struct Documents<'t> {
    rest: &'t [u8],
    /// Text between a JSON object and the next separator.
    behind: Option<&'t str>,
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
        Self { rest: bytes, behind: None, json: true, line: 1, aliased: 0 }
    }

    /// Returns the next document that is not empty; an error concerns that document alone.
    pub fn next(&mut self, take: TakeItem<'_>) -> Option<Result<Document, ReadError>> {
        loop {
            let text = match self.text()? {
                Ok(text) => text,
                Err(error) => return Some(Err(error)),
            };
            self.json &= text.trim_start().starts_with('{');
            if self.json {
                if let Some((document, taken)) = json::object(text, self.line, take) {
                    let (object, behind) = text.split_at(taken);
                    self.line = self.line.saturating_add(lines(object.as_bytes()));
                    self.behind = Some(behind);
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

    /// Returns the next text, up to a separator.
    fn text(&mut self) -> Option<Result<&'t str, ReadError>> {
        if let Some(behind) = self.behind.take() {
            return Some(Ok(behind));
        }
        if self.rest.is_empty() {
            return None;
        }
        let (chunk, rest) = self.rest.split_at(chunk(self.rest).len());
        self.rest = rest;
        Some(std::str::from_utf8(chunk).map_err(|error| {
            let line = self.line.saturating_add(lines(&chunk[..error.valid_up_to()]));
            self.line = self.line.saturating_add(lines(chunk));
            ReadError::new(line, "not UTF-8 text")
        }))
    }
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
