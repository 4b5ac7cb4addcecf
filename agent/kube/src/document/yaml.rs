//! Parsing of one YAML document to a tree.

use std::borrow::Cow;
use std::collections::HashMap;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, Span, StrInput, Tag};

use super::scalar::Scalar;
use super::{
    Document, DocumentNode, MAX_ALIASED, MAX_DEPTH, Mapping, MappingEntry, ReadError, TakeItem,
    Value,
};

/// Maximum number of comments of a document that may begin without white space before them.
const MAX_ADJACENT: usize = 100;
/// Maximum number of bytes that may be reread to find such comments.
const MAX_REREAD: usize = 1 << 25;

/// Parses the document of a text. `None`: the document is empty or null. `first` is the number of the text's first
/// line; `aliased` counts the values to which aliases expand.
pub(super) fn document(
    text: &str,
    first: u32,
    aliased: &mut usize,
    take: TakeItem<'_>,
) -> Result<Option<Document>, ReadError> {
    let lines = FileLines::of(text, first);
    let text = with_comments_apart(with_line_feeds(text));
    let (parser, anchors, doubts) = (parser(&text), HashMap::new(), Vec::new());
    let mut reader = YamlReader { parser, lines, anchors, aliased, doubts, take };
    loop {
        match reader.next()? {
            (Event::DocumentStart(..), _) => break,
            (Event::StreamEnd, _) => return Ok(None),
            _ => {}
        }
    }
    let (event, span) = reader.next()?;
    let node = reader.node(event, span, 0)?;
    reader.end()?;
    let doubts = reader.doubts;
    Ok((node.value != Value::Null).then_some(Document { node, doubts }))
}

/// Configures the parser as close to libyaml, the base of go-yaml, as possible.
fn parser(text: &str) -> Parser<'_, StrInput<'_>> {
    let mut options = granit_parser::options! { bom_inside_document_as_content: true };
    options.set_emit_comments(false);
    Parser::new_from_str_with_options(text, options)
}

/// Characters that end a line in YAML 1.1, but not in a file.
const BREAKS: [char; 3] = ['\u{85}', '\u{2028}', '\u{2029}'];

/// Replaces the line ends of YAML 1.1 by line feeds.
fn with_line_feeds(text: &str) -> Cow<'_, str> {
    if text.contains(BREAKS) { text.replace(BREAKS, "\n").into() } else { text.into() }
}

/// Inserts white space before comments that lack it: libyaml does not require it after a bracket or a quote.
fn with_comments_apart(mut text: Cow<'_, str>) -> Cow<'_, str> {
    let adjacent = |text: &str| {
        text.as_bytes().windows(2).any(|pair| pair[1] == b'#' && b"\"'[]{},|>".contains(&pair[0]))
    };
    for _ in 0..MAX_ADJACENT.min(MAX_REREAD / text.len().max(1)) {
        if !adjacent(&text) {
            break;
        }
        let error = parser(&text).find_map(Result::err);
        let error = error.filter(|error| *error.kind() == ErrorKind::CommentNotSeparated);
        let Some(at) = error.and_then(|error| error.marker().byte_offset()) else { break };
        let Some(comment) = text.get(at..).and_then(|rest| rest.find('#')) else { break };
        text.to_mut().insert(at + comment, ' ');
    }
    text
}

/// Mapping from the lines of a text to the lines of its file.
struct FileLines {
    /// Line in the file of the text's first line.
    first: u32,
    /// Lines of the text that one of [`BREAKS`] ended, from 1, ascending.
    broken: Vec<usize>,
}

impl FileLines {
    fn of(text: &str, first: u32) -> Self {
        let mut broken = Vec::new();
        if text.contains(BREAKS) {
            let mut line = 1;
            for character in text.chars() {
                if BREAKS.contains(&character) {
                    broken.push(line);
                }
                line += usize::from(character == '\n' || BREAKS.contains(&character));
            }
        }
        Self { first, broken }
    }

    /// Returns the line in the file for a line of the text, from 1.
    fn line(&self, line: usize) -> u32 {
        let broken = self.broken.partition_point(|broken| *broken < line);
        let below = line.saturating_sub(1 + broken);
        self.first.saturating_add(u32::try_from(below).unwrap_or(u32::MAX))
    }
}

struct YamlReader<'t, 'r> {
    parser: Parser<'t, StrInput<'t>>,
    lines: FileLines,
    anchors: HashMap<usize, DocumentNode>,
    aliased: &'r mut usize,
    doubts: Vec<ReadError>,
    take: TakeItem<'r>,
}

impl<'t> YamlReader<'t, '_> {
    fn next(&mut self) -> Result<(Event<'t>, Span), ReadError> {
        match self.parser.next_event() {
            Some(Ok(next)) => Ok(next),
            Some(Err(e)) => Err(ReadError::new(self.lines.line(e.marker().line()), e.info())),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// Returns the line in the file at which a span begins.
    fn line(&self, span: Span) -> u32 {
        self.lines.line(span.start.line())
    }

    /// Checks that nothing follows the document: kubectl would not read it.
    fn end(&mut self) -> Result<(), ReadError> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(()),
                (Event::DocumentStart(..), span) => {
                    let text = "kubectl reads nothing after the end of a document (`...`): begin it with `---`";
                    return Err(ReadError::new(self.line(span), text));
                }
                _ => {}
            }
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "most events begin no node")]
    fn node(
        &mut self,
        event: Event<'t>,
        span: Span,
        depth: usize,
    ) -> Result<DocumentNode, ReadError> {
        let line = self.line(span);
        if depth > MAX_DEPTH {
            return Err(ReadError::new(line, format!("nested deeper than {MAX_DEPTH}")));
        }
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(text, style, tag.as_deref()).and_then(Scalar::into_value);
                let value = value.map_err(|reason| ReadError::new(line, reason))?;
                Ok(self.anchored(anchor, DocumentNode { line, value }))
            }
            Event::SequenceStart(_, anchor, _) => {
                let value = Value::List(self.list(depth, None)?);
                Ok(self.anchored(anchor, DocumentNode { line, value }))
            }
            Event::MappingStart(_, anchor, _) => self.map(depth, line, anchor),
            Event::Alias(id) => self.alias(id, line),
            _ => Err(ReadError::new(line, "a value is missing")),
        }
    }

    fn anchored(&mut self, anchor: usize, node: DocumentNode) -> DocumentNode {
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        node
    }

    fn alias(&mut self, id: usize, line: u32) -> Result<DocumentNode, ReadError> {
        let node = self
            .anchors
            .get(&id)
            .ok_or_else(|| ReadError::new(line, "alias of an anchor that is not complete here"))?;
        *self.aliased = self.aliased.saturating_add(node.size());
        if *self.aliased > MAX_ALIASED {
            let reason = format!("aliases expand to more than {MAX_ALIASED} values");
            return Err(ReadError::new(line, reason));
        }
        Ok(node.clone())
    }

    /// Reads a list. `before`: the entries before it, if the list is the document's `items`.
    fn list(
        &mut self,
        depth: usize,
        before: Option<&[MappingEntry]>,
    ) -> Result<Vec<DocumentNode>, ReadError> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(items);
            }
            let item = self.node(event, span, depth + 1)?;
            match before {
                Some(before) => items.extend((self.take)(before, item)),
                None => items.push(item),
            }
        }
    }

    fn map(&mut self, depth: usize, line: u32, anchor: usize) -> Result<DocumentNode, ReadError> {
        let mut mapping = Mapping::default();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                let value = Value::Map(mapping.entries);
                return Ok(self.anchored(anchor, DocumentNode { line, value }));
            }
            let at = self.line(span);
            let is_merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, tag)
                if text == "<<" && tag.as_ref().is_none_or(|tag| tag.suffix() == "merge"));
            if is_merge {
                self.merge(&mut mapping, depth)?;
                continue;
            }
            let key = self.key(event, span, depth)?;
            let (event, span) = self.next()?;
            let is_list = matches!(event, Event::SequenceStart(_, 0, _));
            let node = if is_list && depth == 0 && anchor == 0 && key == "items" {
                let value = Value::List(self.list(depth + 1, Some(&mapping.entries))?);
                DocumentNode { line: self.line(span), value }
            } else {
                self.node(event, span, depth + 1)?
            };
            mapping.set(MappingEntry { key, line: at, node }, false, &mut self.doubts);
        }
    }

    fn key(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<String, ReadError> {
        let line = self.line(span);
        let key = if let Event::Scalar(text, style, anchor, tag) = event {
            let scalar = scalar(text, style, tag.as_deref());
            if anchor > 0 {
                let value = scalar.clone().and_then(Scalar::into_value);
                let value = value.map_err(|reason| ReadError::new(line, reason))?;
                self.anchors.insert(anchor, DocumentNode { line, value });
            }
            scalar.and_then(Scalar::into_key)
        } else {
            match self.node(event, span, depth + 1)?.value {
                Value::Text(text) => Ok(text),
                Value::Bool(value) => Ok(value.to_string()),
                Value::Int(number) => Ok(number.to_string()),
                Value::Null | Value::Float(_) | Value::List(_) | Value::Map(_) => {
                    Err("a key must be text".into())
                }
            }
        };
        key.map_err(|reason| ReadError::new(line, reason))
    }

    /// Merges the mappings of a `<<` key; among several, the first wins. Their keys replace keys before `<<`, and are
    /// replaced by keys after it, as in go-yaml v2.
    #[expect(clippy::wildcard_enum_match_arm, reason = "a single mapping is a list of one")]
    fn merge(&mut self, mapping: &mut Mapping, depth: usize) -> Result<(), ReadError> {
        let (event, span) = self.next()?;
        let line = self.line(span);
        let is_alias = matches!(event, Event::Alias(_));
        let from = match self.node(event, span, depth + 1)?.value {
            Value::List(items) if !is_alias => items,
            value => vec![DocumentNode { line, value }],
        };
        for node in from.into_iter().rev() {
            let Value::Map(entries) = node.value else {
                return Err(ReadError::new(node.line, "`<<` needs a mapping"));
            };
            for entry in entries {
                mapping.set(entry, true, &mut self.doubts);
            }
        }
        Ok(())
    }
}

/// Resolves a scalar event's value.
fn scalar<'t>(
    text: Cow<'t, str>,
    style: ScalarStyle,
    tag: Option<&Tag>,
) -> Result<Scalar<'t>, String> {
    let tag = tag.map(|tag| format!("{}{}", tag.handle(), tag.suffix()));
    Scalar::resolve(text, style == ScalarStyle::Plain, tag.as_deref())
}
