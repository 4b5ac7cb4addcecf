//! Reading of consecutive JSON values, with lines.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Read};

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{Document, DocumentNode, MAX_DEPTH, Mapping, MappingEntry, ReadError, TakeItem, Value};

/// Reads the object at the beginning of a text; returns it with its length in bytes, or `None` if it is not JSON.
/// `line` is the number of the text's first line.
pub(super) fn object(text: &str, line: u32, take: TakeItem<'_>) -> Option<(Document, usize)> {
    let place = Cell::new(TextPosition { line, pending: false, taken: 0 });
    let mut deserializer = serde_json::Deserializer::from_reader(PositionedText {
        rest: text.as_bytes(),
        place: &place,
    });
    let mut context = DocumentContext { place: &place, doubts: Vec::new(), take };
    let seed = NodeSeed { context: &mut context, depth: 0, before: None };
    let node = seed.deserialize(&mut deserializer).ok()?;
    // An object ends with its bracket: no byte after it was read.
    Some((Document { node, doubts: context.doubts }, place.get().taken))
}

/// Position in a text.
#[derive(Clone, Copy)]
struct TextPosition {
    /// Line of the last byte read.
    line: u32,
    /// Whether the last byte read ended its line.
    pending: bool,
    /// Number of bytes read.
    taken: usize,
}

/// A text that is read byte by byte, so that the line of each value is known.
struct PositionedText<'t> {
    rest: &'t [u8],
    place: &'t Cell<TextPosition>,
}

impl Read for PositionedText<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (Some(slot), Some((byte, rest))) = (into.first_mut(), self.rest.split_first()) else {
            return Ok(0);
        };
        (*slot, self.rest) = (*byte, rest);
        let TextPosition { line, pending, taken } = self.place.get();
        let line = line.saturating_add(u32::from(pending));
        self.place.set(TextPosition { line, pending: *byte == b'\n', taken: taken + 1 });
        Ok(1)
    }
}

/// State shared by the values of a document.
struct DocumentContext<'c> {
    place: &'c Cell<TextPosition>,
    doubts: Vec<ReadError>,
    take: TakeItem<'c>,
}

/// A value being read.
struct NodeSeed<'s, 'c> {
    context: &'s mut DocumentContext<'c>,
    depth: usize,
    /// Entries before the document's `items`, if this value is `items`.
    before: Option<&'s [MappingEntry]>,
}

impl NodeSeed<'_, '_> {
    fn checked_node<E: de::Error>(&self, value: Value) -> Result<DocumentNode, E> {
        if self.depth > MAX_DEPTH {
            return Err(E::custom("nested too deep"));
        }
        Ok(DocumentNode { line: self.context.place.get().line, value })
    }
}

impl<'de> DeserializeSeed<'de> for NodeSeed<'_, '_> {
    type Value = DocumentNode;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<DocumentNode, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NodeSeed<'_, '_> {
    type Value = DocumentNode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: de::Error>(self) -> Result<DocumentNode, E> {
        self.checked_node(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<DocumentNode, E> {
        self.checked_node(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<DocumentNode, E> {
        self.checked_node(Value::Int(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<DocumentNode, E> {
        self.checked_node(i64::try_from(value).map_or(Value::Float(value as f64), Value::Int))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<DocumentNode, E> {
        self.checked_node(Value::Float(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<DocumentNode, E> {
        self.checked_node(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<DocumentNode, A::Error> {
        let mut node = self.checked_node(Value::Null)?;
        let mut items = Vec::new();
        loop {
            let seed = NodeSeed { context: self.context, depth: self.depth + 1, before: None };
            let Some(item) = list.next_element_seed(seed)? else { break };
            match self.before {
                Some(before) => items.extend((self.context.take)(before, item)),
                None => items.push(item),
            }
        }
        node.value = Value::List(items);
        Ok(node)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DocumentNode, A::Error> {
        let mut node = self.checked_node(Value::Null)?;
        let mut mapping = Mapping::default();
        while let Some(key) = map.next_key::<String>()? {
            let line = self.context.place.get().line;
            let before = (self.depth == 0 && key == "items").then_some(&*mapping.entries);
            let seed = NodeSeed { context: self.context, depth: self.depth + 1, before };
            let value = map.next_value_seed(seed)?;
            mapping.set(MappingEntry { key, line, node: value }, false, &mut self.context.doubts);
        }
        node.value = Value::Map(mapping.entries);
        Ok(node)
    }
}
