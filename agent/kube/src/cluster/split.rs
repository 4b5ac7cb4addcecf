//! Streaming splitter of an answer's JSON into parts: a list's items, a watch's events.
//!
//! The splitter only searches a part for its end, so a part that cannot be decoded (too deep, not UTF-8, not even JSON
//! within its brackets) does not affect the others. At most one part is in memory at a time, limited to [`PART_MAX`].

use thiserror::Error;

/// Maximum number of bytes kept of one object. etcd's limit is 1.5 MB; escapes in JSON expand one byte to six at most.
pub(super) const PART_MAX: usize = 16 << 20;
/// Maximum number of bytes kept of a key.
const KEY_MAX: usize = 64;
/// Capacity to which larger buffers shrink.
const KEPT: usize = 1 << 20;

/// A part of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResponsePart<'p> {
    /// An element of `items`.
    Item(RawValue<'p>),
    /// The end of `items`.
    Items,
    /// A field other than `items`, by its key.
    Field(&'p [u8], RawValue<'p>),
    /// The end of an object: a list, or an event.
    End,
}

/// The text of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawValue<'p> {
    pub(super) text: &'p [u8],
    /// Whether all of the value was kept.
    pub(super) whole: bool,
}

/// Error of an answer that is not a sequence of JSON objects.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("not JSON: {}", found(*.0))]
pub(super) struct NotJson(u8);

fn found(byte: u8) -> String {
    format!("`{}` where a value, a key or an end should be", byte.escape_ascii())
}

/// Splits a sequence of JSON objects.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    at: SplitPosition,
    key: Vec<u8>,
    value: Vec<u8>,
    whole: bool,
    /// Whether the position is between the brackets of `items`.
    items: bool,
    /// Number of open brackets in the value.
    depth: usize,
    quoted: bool,
    escaped: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SplitPosition {
    /// Outside of any object.
    #[default]
    Outside,
    /// Before a key, a comma or the end.
    BeforeKey,
    Key,
    Colon,
    /// Before a value, or in `items` before a comma or the end.
    BeforeValue,
    Value,
}

impl Splitter {
    /// Returns whether every object that began has ended.
    pub(super) fn is_outside(&self) -> bool {
        self.at == SplitPosition::Outside
    }

    /// Takes in further bytes, and passes the parts that end in them to `out`.
    pub(super) fn feed(
        &mut self,
        mut bytes: &[u8],
        mut out: impl FnMut(ResponsePart<'_>),
    ) -> Result<(), NotJson> {
        while let Some((&byte, rest)) = bytes.split_first() {
            match (self.at, byte) {
                (SplitPosition::Value, _) => {
                    let (taken, ended) = self.scan(bytes);
                    self.append(&bytes[..taken]);
                    bytes = &bytes[taken..];
                    if ended {
                        self.hand_out(&mut out);
                    }
                    continue;
                }
                (SplitPosition::Key, b'"') => self.at = SplitPosition::Colon,
                (SplitPosition::Key, _) => {
                    if self.key.len() < KEY_MAX {
                        self.key.push(byte);
                    }
                }
                (_, b' ' | b'\n' | b'\r' | b'\t') | (SplitPosition::BeforeKey, b',') => {}
                (SplitPosition::Outside, b'{') => self.at = SplitPosition::BeforeKey,
                (SplitPosition::BeforeKey, b'"') => {
                    self.key.clear();
                    self.at = SplitPosition::Key;
                }
                (SplitPosition::BeforeKey, b'}') => {
                    self.at = SplitPosition::Outside;
                    out(ResponsePart::End);
                }
                (SplitPosition::Colon, b':') => self.at = SplitPosition::BeforeValue,
                (SplitPosition::BeforeValue, b'[') if !self.items && self.key == b"items" => {
                    self.items = true;
                }
                (SplitPosition::BeforeValue, b',') if self.items => {}
                (SplitPosition::BeforeValue, b']') if self.items => {
                    self.items = false;
                    self.at = SplitPosition::BeforeKey;
                    out(ResponsePart::Items);
                }
                (
                    SplitPosition::BeforeValue,
                    b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b'a'..=b'z',
                ) => {
                    (self.depth, self.quoted, self.escaped, self.whole) = (0, false, false, true);
                    self.value.clear();
                    self.value.shrink_to(KEPT);
                    self.at = SplitPosition::Value;
                    // The byte is the value's first.
                    continue;
                }
                (_, byte) => return Err(NotJson(byte)),
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Returns the number of bytes that belong to the value, and whether the value ends there.
    fn scan(&mut self, bytes: &[u8]) -> (usize, bool) {
        for (at, &byte) in bytes.iter().enumerate() {
            if self.quoted {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => {
                        self.quoted = false;
                        if self.depth == 0 {
                            return (at + 1, true);
                        }
                    }
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.quoted = true,
                b'{' | b'[' => self.depth += 1,
                // The byte after a number or a word.
                b'}' | b']' | b',' | b' ' | b'\n' | b'\r' | b'\t' if self.depth == 0 => {
                    return (at, true);
                }
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return (at + 1, true);
                    }
                }
                _ => {}
            }
        }
        (bytes.len(), false)
    }

    fn append(&mut self, bytes: &[u8]) {
        let room = PART_MAX - self.value.len();
        self.whole &= bytes.len() <= room;
        self.value.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn hand_out(&mut self, out: &mut impl FnMut(ResponsePart<'_>)) {
        let raw = RawValue { text: &self.value, whole: self.whole };
        if self.items {
            out(ResponsePart::Item(raw));
            self.at = SplitPosition::BeforeValue;
        } else {
            out(ResponsePart::Field(&self.key, raw));
            self.at = SplitPosition::BeforeKey;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits a text in pieces of a given size; returns its parts as text.
    fn parts(text: &[u8], size: usize) -> Result<Vec<String>, NotJson> {
        let (mut splitter, mut parts) = (Splitter::default(), Vec::new());
        let shown = |raw: RawValue<'_>| {
            let cut = if raw.whole { "" } else { " (cut)" };
            format!("{}{cut}", String::from_utf8_lossy(raw.text))
        };
        for piece in text.chunks(size) {
            splitter.feed(piece, |part| {
                parts.push(match part {
                    ResponsePart::Item(raw) => format!("- {}", shown(raw)),
                    ResponsePart::Field(key, raw) => {
                        format!("{}: {}", String::from_utf8_lossy(key), shown(raw))
                    }
                    ResponsePart::Items => "no more items".to_owned(),
                    ResponsePart::End => "end".to_owned(),
                });
            })?;
        }
        assert!(splitter.is_outside(), "{splitter:?}");
        Ok(parts)
    }

    #[test]
    fn lists_and_events_come_in_parts_however_they_are_cut() {
        let text = br#"{"kind":"PodList","metadata":{"resourceVersion":"7"}, "items": [
            {"a":"]}\"\\"},{"b":[{}]} , {} ],"n":-1.5e3,"t":true,"s":"x}"}
            {"type":"ADDED","object":{"items":[1]}}{"items":null}{"items":[]}{}"#;
        for size in [1, 2, 3, 7, 64, 10_000] {
            assert_eq!(
                parts(text, size).unwrap(),
                [
                    "kind: \"PodList\"",
                    "metadata: {\"resourceVersion\":\"7\"}",
                    "- {\"a\":\"]}\\\"\\\\\"}",
                    "- {\"b\":[{}]}",
                    "- {}",
                    "no more items",
                    "n: -1.5e3",
                    "t: true",
                    "s: \"x}\"",
                    "end",
                    "type: \"ADDED\"",
                    "object: {\"items\":[1]}",
                    "end",
                    "items: null",
                    "end",
                    "no more items",
                    "end",
                    "end",
                ],
                "{size}"
            );
        }
    }

    #[test]
    fn a_hostile_item_leaves_the_others() {
        let deep = ["[".repeat(1_000_000), "]".repeat(1_000_000)].concat();
        for hostile in [deep.as_bytes(), b"{\"a\":\"\xff\xfe\"}", b"{]", b"{\"a\" 1 b}", b"nul"] {
            let text = [&b"{\"items\":[{\"n\":1},"[..], hostile, b",{\"n\":2}]}"].concat();
            let found = parts(&text, 4096).unwrap();
            assert_eq!((found.len(), &*found[0], &*found[2]), (5, "- {\"n\":1}", "- {\"n\":2}"));
        }
    }

    #[test]
    fn of_an_item_that_is_too_large_a_part_is_kept() {
        let large = format!("{{\"name\":\"{}\"}}", "x".repeat(PART_MAX));
        let text = format!("{{\"items\":[{large},{{\"n\":2}}]}}");
        let found = parts(text.as_bytes(), 1 << 16).unwrap();
        assert!(found[0].ends_with("x (cut)") && found[0].len() < PART_MAX + 20);
        assert_eq!(found[1..], ["- {\"n\":2}", "no more items", "end"]);
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in ["<html>", "[]", "{a:1}", "{\"a\"}", "}", "{\"a\":}", "\"x\"", "{\"items\":[}"]
        {
            assert!(parts(text.as_bytes(), 10).is_err(), "{text}");
        }
        let error = parts(b"<html>", 10).unwrap_err().to_string();
        assert_eq!(error, "not JSON: `<` where a value, a key or an end should be");
    }
}
