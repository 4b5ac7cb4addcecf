//! Text to documents, as `kubectl` cuts it: at lines that begin with `---`, before anything is parsed.

use super::{Document, ReadError, TakeItem, json, yaml};

/// The documents of a file, one after another.
#[derive(Debug)]
pub struct Documents<'t> {
    rest: &'t [u8],
    /// What follows a JSON object before the next separator.
    behind: Option<&'t str>,
    /// JSON may follow: kubectl looks for it at the beginning of a file.
    json: bool,
    /// Line of what follows, from 1.
    line: u32,
    /// Values that aliases have expanded to.
    aliased: usize,
}

impl<'t> Documents<'t> {
    /// Of a file's bytes.
    #[must_use]
    pub fn new(bytes: &'t [u8]) -> Self {
        Self { rest: bytes, behind: None, json: true, line: 1, aliased: 0 }
    }

    /// The next document that is not empty; an error concerns it alone.
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

    /// What is read next, up to a separator.
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

/// A document without the line that begins it, if there is nothing else in that, and without a byte-order mark;
/// and its line.
fn without_separator(text: &str, line: u32) -> (&str, u32) {
    let (text, line) = match text.split_once('\n') {
        Some((first, below)) if is_separator(first.as_bytes()) => (below, line.saturating_add(1)),
        _ => (text, line),
    };
    (text.strip_prefix('\u{feff}').unwrap_or(text), line)
}

/// `---`, white space and a comment. To YAML a carriage return ends a line, to kubectl it does not here.
fn is_separator(line: &[u8]) -> bool {
    let rest = line.strip_prefix(b"---").map(<[u8]>::trim_ascii);
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'#')) && !rest.contains(&b'\r'))
}

fn lines(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.split(|byte| *byte == b'\n').count() - 1).unwrap_or(u32::MAX)
}

/// What comes before the next line that begins with `---`, but for lines before which there are only
/// comments and directives.
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
