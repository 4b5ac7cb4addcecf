//! YAML and JSON text to trees that know the line of every value.
//!
//! JSON is read as the YAML it is. The rules are those of `kubectl`: a key may stand only once in a
//! mapping, `<<` merges, anchors expand within a limit, and plain scalars are typed by YAML 1.2's
//! core schema, with YAML 1.1's octal numbers (`defaultMode: 0644`).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput, Tag};
use thiserror::Error;

/// Deepest nesting accepted; Kubernetes objects stay under 20.
const MAX_DEPTH: usize = 64;
/// Most values that aliases of one file may expand to.
const MAX_ALIASED: usize = 1_000_000;

/// Why a file, or an object in it, cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct ReadError {
    /// Line in the file, from 1.
    pub line: u32,
    /// What is wrong there.
    pub reason: String,
}

impl ReadError {
    /// An error at a line.
    pub fn new(line: u32, reason: impl Into<String>) -> Self {
        Self { line, reason: reason.into() }
    }
}

/// A value and the line where it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Line in the file, from 1.
    pub line: u32,
    /// The value.
    pub value: Value,
}

/// What a [`Node`] holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`, `~` or nothing at all
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Everything else that is scalar.
    Text(String),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in the order of the file, keys unique.
    Map(Vec<Entry>),
}

/// One key of a mapping.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Line of the key, from 1.
    pub line: u32,
    /// The key's value.
    pub node: Node,
}

impl Node {
    /// The entry of a key, if this is a mapping that has it.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        if let Value::Map(entries) = &self.value {
            entries.iter().find(|e| e.key == key)
        } else {
            None
        }
    }

    /// The value of a key, if this is a mapping that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|e| &e.node)
    }

    /// The text of a key, if it has one.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        if let Value::Text(text) = &self.get(key)?.value { Some(text) } else { None }
    }

    /// Line of what a path such as `spec.ingress[0].ports` names, or of the nearest part of the
    /// path that exists.
    #[must_use]
    pub fn line_of(&self, path: &str) -> u32 {
        let (mut node, mut line) = (self, self.line);
        for step in path.split(['.', '[']) {
            let next = match step.strip_suffix(']').map(str::parse::<usize>) {
                Some(Ok(index)) => {
                    if let Value::List(items) = &node.value {
                        items.get(index).map(|n| (n, n.line))
                    } else {
                        None
                    }
                }
                _ => node.entry(step).map(|e| (&e.node, e.line)),
            };
            let Some(next) = next else { break };
            (node, line) = next;
        }
        line
    }

    fn size(&self) -> usize {
        1 + match &self.value {
            Value::List(items) => items.iter().map(Self::size).sum(),
            Value::Map(entries) => entries.iter().map(|e| e.node.size()).sum(),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) => 0,
        }
    }
}

/// All documents of a text; empty ones are left out.
///
/// # Errors
/// The first thing that is not YAML, a repeated key, or a limit exceeded, with its line.
#[expect(clippy::wildcard_enum_match_arm, reason = "most events begin no document")]
pub fn parse(text: &str) -> Result<Vec<Node>, ReadError> {
    let text = join_surrogates(text.strip_prefix('\u{feff}').unwrap_or(text));
    let mut reader =
        Reader { parser: Parser::new_from_str(&text), anchors: HashMap::new(), aliased: 0 };
    let mut documents = Vec::new();
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::DocumentStart(_) => {
                let (event, span) = reader.next()?;
                let node = reader.node(event, span, 0)?;
                if node.value != Value::Null {
                    documents.push(node);
                }
                reader.anchors.clear();
            }
            Event::StreamEnd => return Ok(documents),
            Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
            _ => return Err(ReadError::new(line(span), "content outside of a document")),
        }
    }
}

/// JSON may write a character beyond the first 65,536 as two escapes, which YAML does not know.
fn join_surrogates(text: &str) -> Cow<'_, str> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut joined = String::new();
    let mut copied = 0;
    for (at, _) in text.match_indices("\\u") {
        let (Some(high @ 0xd800..0xdc00), Some(low)) = (unit(at), unit(at + 6)) else { continue };
        if let Some(Ok(character)) = char::decode_utf16([high, low]).next() {
            joined.push_str(&text[copied..at]);
            joined.push(character);
            copied = at + 12;
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    joined.push_str(&text[copied..]);
    Cow::Owned(joined)
}

fn line(span: Span) -> u32 {
    u32::try_from(span.start.line()).unwrap_or(u32::MAX)
}

struct Reader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    anchors: HashMap<usize, Node>,
    aliased: usize,
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span), ReadError> {
        match self.parser.next_event() {
            Some(Ok(next)) => Ok(next),
            Some(Err(e)) => {
                let line = u32::try_from(e.marker().line()).unwrap_or(u32::MAX);
                Err(ReadError::new(line, e.info()))
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "most events begin no node")]
    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Node, ReadError> {
        let at = line(span);
        if depth > MAX_DEPTH {
            return Err(ReadError::new(at, format!("nested deeper than {MAX_DEPTH}")));
        }
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                (anchor, scalar(&text, style, tag.as_deref(), at)?)
            }
            Event::SequenceStart(anchor, _) => (anchor, self.list(depth)?),
            Event::MappingStart(anchor, _) => (anchor, self.map(depth)?),
            Event::Alias(id) => return self.alias(id, at),
            _ => return Err(ReadError::new(at, "a value is missing")),
        };
        let node = Node { line: at, value };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn alias(&mut self, id: usize, at: u32) -> Result<Node, ReadError> {
        let node = self
            .anchors
            .get(&id)
            .ok_or_else(|| ReadError::new(at, "alias of an anchor that is not complete here"))?;
        self.aliased += node.size();
        if self.aliased > MAX_ALIASED {
            let reason = format!("aliases expand to more than {MAX_ALIASED} values");
            return Err(ReadError::new(at, reason));
        }
        Ok(node.clone())
    }

    fn list(&mut self, depth: usize) -> Result<Value, ReadError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, ReadError> {
        let (mut entries, mut merges) = (Vec::<Entry>::new(), Vec::new());
        let mut keys = HashSet::new();
        loop {
            let (key, line) = match self.next()? {
                (Event::MappingEnd, _) => break,
                (Event::Scalar(text, _, _, _), span) => (text.into_owned(), line(span)),
                (_, span) => return Err(ReadError::new(line(span), "a key must be a scalar")),
            };
            let (event, span) = self.next()?;
            let node = self.node(event, span, depth + 1)?;
            if key == "<<" {
                merges.push(node);
            } else if keys.insert(key.clone()) {
                entries.push(Entry { key, line, node });
            } else {
                return Err(ReadError::new(line, format!("key `{key}` is given twice")));
            }
        }
        for node in merges {
            merge(&mut entries, &mut keys, node)?;
        }
        Ok(Value::Map(entries))
    }
}

/// `<<`: adds what the mapping does not say itself.
fn merge(into: &mut Vec<Entry>, keys: &mut HashSet<String>, from: Node) -> Result<(), ReadError> {
    match from.value {
        Value::Map(entries) => {
            for entry in entries {
                if keys.insert(entry.key.clone()) {
                    into.push(entry);
                }
            }
            Ok(())
        }
        Value::List(items) => items.into_iter().try_for_each(|item| merge(into, keys, item)),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) => {
            Err(ReadError::new(from.line, "`<<` needs a mapping"))
        }
    }
}

fn scalar(
    text: &str,
    style: ScalarStyle,
    tag: Option<&Tag>,
    line: u32,
) -> Result<Value, ReadError> {
    match tag.map(|t| (t.is_yaml_core_schema(), t.suffix.as_str())) {
        None if style == ScalarStyle::Plain => Ok(plain(text)),
        None | Some((true, "str")) => Ok(Value::Text(text.to_owned())),
        Some((true, "int" | "bool" | "float" | "null")) => Ok(plain(text)),
        Some((_, suffix)) => Err(ReadError::new(line, format!("tag `{suffix}` is not known"))),
    }
}

/// Type of a plain scalar: YAML 1.2 core schema, and YAML 1.1 octal numbers.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Value::Text(text.to_owned());
    }
    let radix = |prefix, radix| {
        let digits = text.strip_prefix(prefix).filter(|d| !d.starts_with(['+', '-']))?;
        i64::from_str_radix(digits, radix).ok()
    };
    let number = if digits.len() > 1 && digits.bytes().all(|b| b.is_ascii_digit()) {
        if digits.starts_with('0') { radix("0", 8) } else { text.parse().ok() }
    } else {
        text.parse().ok().or_else(|| radix("0x", 16)).or_else(|| radix("0o", 8))
    };
    if let Some(number) = number {
        return Value::Int(number);
    }
    match text.parse() {
        Ok(number) if !digits.starts_with('0') || digits.contains(['.', 'e', 'E']) => {
            Value::Float(number)
        }
        _ => Value::Text(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Node {
        parse(text).unwrap().remove(0)
    }

    fn error(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn scalars_are_typed_as_kubectl_types_them() {
        for (text, value) in [
            ("", Value::Null),
            ("~", Value::Null),
            ("true", Value::Bool(true)),
            ("80", Value::Int(80)),
            ("-1", Value::Int(-1)),
            ("0", Value::Int(0)),
            ("0644", Value::Int(0o644)),
            ("0x10", Value::Int(16)),
            ("089", Value::Text("089".into())),
            ("1.5", Value::Float(1.5)),
            ("1e3", Value::Float(1000.0)),
            ("1.2.3", Value::Text("1.2.3".into())),
            ("10.0.0.0/8", Value::Text("10.0.0.0/8".into())),
            ("y", Value::Text("y".into())),
            ("nan", Value::Text("nan".into())),
            ("'80'", Value::Text("80".into())),
            ("!!str 80", Value::Text("80".into())),
            ("2026-01-01T00:00:00Z", Value::Text("2026-01-01T00:00:00Z".into())),
        ] {
            assert_eq!(one(&format!("a: {text}")).get("a").unwrap().value, value, "{text}");
        }
    }

    #[test]
    fn documents_are_separate_and_empty_ones_left_out() {
        let documents = parse("---\n# nothing\n---\na: 1\n---\nb: 2\n...\n---\n").unwrap();
        assert_eq!(documents.iter().map(|d| d.line).collect::<Vec<_>>(), [4, 6]);
        assert!(parse("").unwrap().is_empty());
        assert_eq!(parse("\u{feff}a: 1").unwrap().len(), 1);
    }

    #[test]
    fn json_is_read_tabs_and_all() {
        let node = one("{\n\t\"a\": [1, {\"b\": \"x\\u003c\\/y\"}],\n\t\"c\": null\n}\n");
        let Value::List(items) = &node.get("a").unwrap().value else { panic!("{node:?}") };
        assert_eq!(items[1].text("b"), Some("x</y"));
    }

    #[test]
    fn json_writes_some_characters_as_two_escapes() {
        let node = one(r#"{"a": "\ud83d\ude00\u00e9", "b": "\\ud83d\\ude00"}"#);
        assert_eq!(node.text("a"), Some("\u{1f600}\u{e9}"));
        assert_eq!(node.text("b"), Some(r"\ud83d\ude00"));
        assert!(error(r#"{"a": "\ud83d"}"#).starts_with("line 1: "));
    }

    #[test]
    fn lines_follow_paths_as_far_as_they_exist() {
        let node =
            one("spec:\n  ingress:\n  - from: []\n    ports:\n    - port: 1\n    - port: 2\n");
        for (path, line) in [
            ("spec", 1),
            ("spec.ingress[0]", 3),
            ("spec.ingress[0].ports", 4),
            ("spec.ingress[0].ports[1].port", 6),
            ("spec.ingress[0].ports[1].endPort", 6),
            ("spec.egress[3]", 1),
        ] {
            assert_eq!(node.line_of(path), line, "{path}");
        }
    }

    #[test]
    fn anchors_and_merge_keys_expand() {
        let node = one("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\nz: [*x]\n");
        let y = node.get("y").unwrap();
        assert_eq!(y.get("a").unwrap().value, Value::Int(1));
        assert_eq!(y.get("b").unwrap().value, Value::Int(3));
    }

    #[test]
    fn what_is_refused_is_named_with_its_line() {
        assert_eq!(error("a: 1\nb: 2\na: 3\n"), "line 3: key `a` is given twice");
        assert_eq!(error("a: !secret x\n"), "line 1: tag `secret` is not known");
        assert!(error("a: 1\n  b: 2\n").starts_with("line 2: "), "{}", error("a: 1\n  b: 2\n"));
        assert!(error("a: [1, 2\nb: 3\n").starts_with("line "));
        assert_eq!(error(&"[".repeat(100)), "line 1: nested deeper than 64");
        assert!(error(&"[".repeat(100_000)).starts_with("line 1: "));
    }

    #[test]
    fn aliases_cannot_explode() {
        let mut text = String::from("a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n");
        for n in 1..12 {
            let aliases = vec![format!("*a{}", n - 1); 10].join(", ");
            text.push_str(&format!("a{n}: &a{n} [{aliases}]\n"));
        }
        assert!(error(&text).contains("aliases expand to more than"));
    }
}
