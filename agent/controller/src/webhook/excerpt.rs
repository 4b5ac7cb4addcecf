//! Streaming extraction of the few fields in use of an `AdmissionReview`. A review can have megabytes, and any client
//! that reaches the webhook can send one.

use thiserror::Error;

/// Maximum length of an excerpt, in bytes: room for 300 readiness gates.
const LENGTH_MAX: usize = 16 << 10;
/// Maximum length of a compared field name, in bytes.
const NAME_MAX: usize = 64;

/// Part of a value that the excerpt keeps.
#[derive(Debug)]
pub(super) enum ExcerptPart {
    /// A string, a number, `true`, `false` or `null`.
    Scalar,
    /// These fields of an object.
    Fields(&'static [(&'static str, ExcerptPart)]),
    /// This part of each item of an array.
    Items(&'static ExcerptPart),
}

/// Reason for the absence of an excerpt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum ExcerptError {
    /// The input is not JSON.
    #[error("not JSON")]
    Malformed,
    /// The fields in use exceed the maximum length.
    #[error("the fields in use exceed {LENGTH_MAX} bytes")]
    TooLong,
}

/// Parser of JSON (RFC 8259) in pieces that keeps a part of the document, as JSON. A value of another type than the
/// part's becomes an empty object, an empty array or the scalar itself. A name with escapes equals no field.
///
/// Of omitted values only brackets and quotes are checked. The consumer parses the excerpt with a JSON parser.
#[derive(Debug)]
pub(super) struct Excerpt {
    kept: Vec<u8>,
    /// Enclosing objects and arrays that are kept.
    around: Vec<EnclosingValue>,
    state: ParserState,
}

#[derive(Debug)]
enum EnclosingValue {
    Object { fields: &'static [(&'static str, ExcerptPart)], is_empty: bool },
    Array { item: &'static ExcerptPart },
}

#[derive(Debug)]
enum ParserState {
    /// Before a value; `part` is the kept part. With `may_end`, an empty array may end instead.
    Value {
        part: Option<&'static ExcerptPart>,
        may_end: bool,
    },
    /// Before a field's name. With `may_end`, an empty object may end instead.
    Name {
        may_end: bool,
    },
    InName {
        name: Vec<u8>,
        is_escaped: bool,
    },
    /// Before the colon.
    Colon {
        name: Vec<u8>,
    },
    InText {
        is_kept: bool,
        is_escaped: bool,
    },
    InScalar {
        is_kept: bool,
    },
    /// In an omitted value, at this nesting depth.
    LeftOut {
        depth: u32,
        in_text: bool,
        is_escaped: bool,
    },
    /// After a value.
    Behind,
    /// After the document.
    End,
}

impl Excerpt {
    pub(super) const fn new(part: &'static ExcerptPart) -> Self {
        let state = ParserState::Value { part: Some(part), may_end: false };
        Self { kept: Vec::new(), around: Vec::new(), state }
    }

    /// Parses the next piece.
    pub(super) fn push(&mut self, piece: &[u8]) -> Result<(), ExcerptError> {
        for byte in piece {
            self.push_byte(*byte)?;
            if self.kept.len() > LENGTH_MAX {
                return Err(ExcerptError::TooLong);
            }
        }
        Ok(())
    }

    /// Returns the excerpt of a complete document.
    pub(super) fn finish(self) -> Result<Vec<u8>, ExcerptError> {
        // A number at the top level has no terminator.
        let is_scalar =
            matches!(self.state, ParserState::InScalar { .. }) && self.around.is_empty();
        let is_whole = is_scalar || matches!(self.state, ParserState::End);
        if is_whole { Ok(self.kept) } else { Err(ExcerptError::Malformed) }
    }

    fn push_byte(&mut self, byte: u8) -> Result<(), ExcerptError> {
        let is_space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        match &mut self.state {
            ParserState::Value { part, may_end } => {
                let (part, may_end) = (*part, *may_end);
                match byte {
                    _ if is_space => {}
                    b']' if may_end => return self.end(byte),
                    b'{' | b'[' => self.begin(byte, part),
                    b'"' => {
                        self.keep_byte(part.is_some(), byte);
                        self.state =
                            ParserState::InText { is_kept: part.is_some(), is_escaped: false };
                    }
                    b'-' | b'0'..=b'9' | b'a'..=b'z' => {
                        self.keep_byte(part.is_some(), byte);
                        self.state = ParserState::InScalar { is_kept: part.is_some() };
                    }
                    _ => return Err(ExcerptError::Malformed),
                }
            }
            ParserState::Name { may_end } => match byte {
                _ if is_space => {}
                b'"' => self.state = ParserState::InName { name: Vec::new(), is_escaped: false },
                b'}' if *may_end => return self.end(byte),
                _ => return Err(ExcerptError::Malformed),
            },
            ParserState::InName { name, is_escaped } => {
                if byte == b'"' && !*is_escaped {
                    self.state = ParserState::Colon { name: std::mem::take(name) };
                } else {
                    *is_escaped = byte == b'\\' && !*is_escaped;
                    if name.len() <= NAME_MAX {
                        name.push(byte);
                    }
                }
            }
            ParserState::Colon { name } => match byte {
                _ if is_space => {}
                b':' => {
                    let name = std::mem::take(name);
                    let part = self.field(&name);
                    self.state = ParserState::Value { part, may_end: false };
                }
                _ => return Err(ExcerptError::Malformed),
            },
            ParserState::InText { is_kept, is_escaped } => {
                let ends = byte == b'"' && !*is_escaped;
                *is_escaped = byte == b'\\' && !*is_escaped;
                let is_kept = *is_kept;
                self.keep_byte(is_kept, byte);
                if ends {
                    self.ends();
                }
            }
            ParserState::InScalar { is_kept } => {
                if is_space || matches!(byte, b',' | b']' | b'}') {
                    self.ends();
                    return if is_space { Ok(()) } else { self.push_byte(byte) };
                }
                let is_kept = *is_kept;
                self.keep_byte(is_kept, byte);
            }
            ParserState::LeftOut { depth, in_text, is_escaped } => {
                if *in_text {
                    *in_text = byte != b'"' || *is_escaped;
                    *is_escaped = byte == b'\\' && !*is_escaped;
                    return Ok(());
                }
                match byte {
                    b'"' => *in_text = true,
                    b'{' | b'[' => *depth += 1,
                    b'}' | b']' => *depth -= 1,
                    _ => {}
                }
                if *depth == 0 {
                    self.ends();
                }
            }
            ParserState::Behind => match (byte, self.around.last()) {
                _ if is_space => {}
                (b',', Some(EnclosingValue::Object { .. })) => {
                    self.state = ParserState::Name { may_end: false }
                }
                (b',', Some(EnclosingValue::Array { item })) => {
                    self.state = ParserState::Value { part: Some(item), may_end: false };
                    self.kept.push(byte);
                }
                (b'}' | b']', Some(_)) => return self.end(byte),
                _ => return Err(ExcerptError::Malformed),
            },
            ParserState::End if is_space => {}
            ParserState::End => return Err(ExcerptError::Malformed),
        }
        Ok(())
    }

    fn keep_byte(&mut self, is_kept: bool, byte: u8) {
        if is_kept {
            self.kept.push(byte);
        }
    }

    /// Begins the field of this name in the enclosing object, and returns its kept part.
    fn field(&mut self, name: &[u8]) -> Option<&'static ExcerptPart> {
        let Some(EnclosingValue::Object { fields, is_empty }) = self.around.last_mut() else {
            return None;
        };
        let (name, part) = fields.iter().find(|(field, _)| field.as_bytes() == name)?;
        if !std::mem::take(is_empty) {
            self.kept.push(b',');
        }
        self.kept.extend([b"\"", name.as_bytes(), b"\":"].concat());
        Some(part)
    }

    /// Begins an object or array.
    fn begin(&mut self, bracket: u8, part: Option<&'static ExcerptPart>) {
        let (around, state) = match (bracket, part) {
            (b'{', Some(ExcerptPart::Fields(fields))) => (
                EnclosingValue::Object { fields, is_empty: true },
                ParserState::Name { may_end: true },
            ),
            (b'[', Some(ExcerptPart::Items(item))) => (
                EnclosingValue::Array { item },
                ParserState::Value { part: Some(item), may_end: true },
            ),
            (_, part) => {
                if part.is_some() {
                    self.kept.extend(if bracket == b'{' { b"{}" } else { b"[]" });
                }
                self.state = ParserState::LeftOut { depth: 1, in_text: false, is_escaped: false };
                return;
            }
        };
        self.kept.push(bracket);
        self.around.push(around);
        self.state = state;
    }

    /// Ends the enclosing object or array.
    fn end(&mut self, bracket: u8) -> Result<(), ExcerptError> {
        match (self.around.pop(), bracket) {
            (Some(EnclosingValue::Object { .. }), b'}')
            | (Some(EnclosingValue::Array { .. }), b']') => {}
            _ => return Err(ExcerptError::Malformed),
        }
        self.kept.push(bracket);
        self.ends();
        Ok(())
    }

    /// Ends a value.
    fn ends(&mut self) {
        self.state = if self.around.is_empty() { ParserState::End } else { ParserState::Behind };
    }
}

#[cfg(test)]
mod tests {
    use netpold_testkit::random::Random;
    use serde_json::{Map, Value, json};

    use super::*;

    static PART: ExcerptPart = ExcerptPart::Fields(&[
        ("a", ExcerptPart::Scalar),
        (
            "b",
            ExcerptPart::Fields(&[
                ("a", ExcerptPart::Scalar),
                ("c/d", ExcerptPart::Items(&ExcerptPart::Scalar)),
            ]),
        ),
        ("c", ExcerptPart::Items(&ExcerptPart::Fields(&[("a", ExcerptPart::Scalar)]))),
    ]);

    fn excerpt(text: &[u8], piece: usize) -> Result<Vec<u8>, ExcerptError> {
        let mut excerpt = Excerpt::new(&PART);
        text.chunks(piece).try_for_each(|piece| excerpt.push(piece))?;
        excerpt.finish()
    }

    /// Computes the excerpt of a parsed document.
    fn part_of(value: &Value, part: &ExcerptPart) -> Value {
        match (value, part) {
            (Value::Object(all), ExcerptPart::Fields(fields)) => {
                let fields = fields.iter().filter_map(|(name, part)| {
                    Some(((*name).to_owned(), part_of(all.get(*name)?, part)))
                });
                Value::Object(fields.collect())
            }
            (Value::Array(items), ExcerptPart::Items(item)) => {
                items.iter().map(|it| part_of(it, item)).collect()
            }
            (Value::Object(_), _) => json!({}),
            (Value::Array(_), _) => json!([]),
            (scalar, _) => scalar.clone(),
        }
    }

    fn random_value(random: &mut Random, depth: usize) -> Value {
        let text = |random: &mut Random| {
            let all = ["a", "b", "c", "c/d", "\"", "\\", "}", "]", "{\"a\":1}", "\u{e9}\n", ""];
            all[random.below(all.len())].to_owned()
        };
        match random.below(if depth == 0 { 4 } else { 8 }) {
            0 => json!(random.below(1000) as f64 - 500.5),
            1 => json!(random.below(2) == 0),
            2 => Value::Null,
            3 => text(random).into(),
            4 | 5 => (0..random.below(4)).map(|_| random_value(random, depth - 1)).collect(),
            _ => {
                let fields = (0..random.below(6)).map(|_| (text(random), Value::Null));
                let mut fields: Map<String, Value> = fields.collect();
                fields.values_mut().for_each(|it| *it = random_value(random, depth - 1));
                Value::Object(fields)
            }
        }
    }

    #[test]
    fn an_excerpt_is_the_same_part_of_the_document() {
        let mut random = Random(7);
        for round in 0..20_000 {
            let value = random_value(&mut random, 5);
            let pretty = random.below(2) == 0;
            let text = if pretty { format!(" {value:#}\n") } else { value.to_string() };
            let kept = excerpt(text.as_bytes(), 1 + random.below(20)).unwrap();
            let kept: Value = serde_json::from_slice(&kept).unwrap_or_else(|error| {
                panic!("round {round}: {error}: {}\n{text}", String::from_utf8_lossy(&kept))
            });
            assert_eq!(kept, part_of(&value, &PART), "round {round}: {text}");
        }
    }

    /// Damaged input is refused, either here or by the parser of the excerpt, unless it is still valid JSON.
    #[test]
    fn what_is_no_json_is_refused() {
        for text in ["", "{", "{]", r#"{"a"}"#, r#"{"a":}"#, r#"{"a":1,}"#, "{}{}", "]", "{,}"] {
            let kept = excerpt(text.as_bytes(), 1);
            let is_json = |kept: &Vec<u8>| serde_json::from_slice::<Value>(kept).is_ok();
            assert!(!kept.as_ref().is_ok_and(is_json), "{text}: {kept:?}");
        }
        let mut random = Random(11);
        for _ in 0..20_000 {
            let mut text = random_value(&mut random, 5).to_string().into_bytes();
            for _ in 0..=random.below(3) {
                let at = random.below(text.len());
                text[at] = b"{}[],:\"\\x1 "[random.below(11)];
            }
            let _ = excerpt(&text, 7);
        }
    }

    /// Memory stays bounded for 4 MiB of a name, a string, nesting, or items.
    #[test]
    fn what_is_held_is_bounded() {
        let long = "x".repeat(4 << 20);
        let bracket = "[".repeat(4 << 20);
        for (text, is_kept) in [
            (format!(r#"{{"{long}":1}}"#), true),
            (format!(r#"{{"d":"{long}"}}"#), true),
            (format!(r#"{{"a":"{long}"}}"#), false),
            (format!(r#"{{"c":[{}1]}}"#, "{},".repeat(1 << 20)), false),
            (format!(r#"{{"d":{bracket}"#), true),
        ] {
            let mut excerpt = Excerpt::new(&PART);
            let pushed = excerpt.push(text.as_bytes());
            assert_eq!(pushed, if is_kept { Ok(()) } else { Err(ExcerptError::TooLong) });
            assert!(excerpt.kept.capacity() <= 4 * LENGTH_MAX);
        }
    }
}
