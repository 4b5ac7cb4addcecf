//! Reading of consecutive JSON values, with lines.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Read};

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{Document, Entry, MAX_DEPTH, Mapping, Node, ReadError, TakeItem, Value};

/// Reads the object at the beginning of a text; returns it with its length in bytes, or `None` if it is not JSON.
/// `line` is the number of the text's first line.
pub(super) fn object(text: &str, line: u32, take: TakeItem<'_>) -> Option<(Document, usize)> {
    let place = Cell::new(Place { line, pending: false, taken: 0 });
    let mut deserializer =
        serde_json::Deserializer::from_reader(Source { rest: text.as_bytes(), place: &place });
    let mut context = Context { place: &place, doubts: Vec::new(), take };
    let seed = Seed { context: &mut context, depth: 0, before: None };
    let node = seed.deserialize(&mut deserializer).ok()?;
    // An object ends with its bracket: no byte behind it was read.
    Some((Document { node, doubts: context.doubts }, place.get().taken))
}

/// Position in a text.
#[derive(Clone, Copy)]
struct Place {
    /// Line of the last byte read.
    line: u32,
    /// Whether the last byte read ended its line.
    pending: bool,
    /// Number of bytes read.
    taken: usize,
}

/// A text that is read byte by byte, so that the line of each value is known.
struct Source<'t> {
    rest: &'t [u8],
    place: &'t Cell<Place>,
}

impl Read for Source<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (Some(slot), Some((byte, rest))) = (into.first_mut(), self.rest.split_first()) else {
            return Ok(0);
        };
        (*slot, self.rest) = (*byte, rest);
        let Place { line, pending, taken } = self.place.get();
        let line = line.saturating_add(u32::from(pending));
        self.place.set(Place { line, pending: *byte == b'\n', taken: taken + 1 });
        Ok(1)
    }
}

/// State shared by the values of a document.
struct Context<'c> {
    place: &'c Cell<Place>,
    doubts: Vec<ReadError>,
    take: TakeItem<'c>,
}

/// A value being read.
struct Seed<'s, 'c> {
    context: &'s mut Context<'c>,
    depth: usize,
    /// Entries before the document's `items`, if this value is `items`.
    before: Option<&'s [Entry]>,
}

impl Seed<'_, '_> {
    fn made<E: de::Error>(&self, value: Value) -> Result<Node, E> {
        if self.depth > MAX_DEPTH {
            return Err(E::custom("nested too deep"));
        }
        Ok(Node { line: self.context.place.get().line, value })
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
        self.made(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Node, E> {
        self.made(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Node, E> {
        self.made(Value::Int(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Node, E> {
        self.made(i64::try_from(value).map_or(Value::Float(value as f64), Value::Int))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Node, E> {
        self.made(Value::Float(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Node, E> {
        self.made(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut node = self.made(Value::Null)?;
        let mut items = Vec::new();
        loop {
            let seed = Seed { context: self.context, depth: self.depth + 1, before: None };
            let Some(item) = list.next_element_seed(seed)? else { break };
            match self.before {
                Some(before) => items.extend((self.context.take)(before, item)),
                None => items.push(item),
            }
        }
        node.value = Value::List(items);
        Ok(node)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut node = self.made(Value::Null)?;
        let mut mapping = Mapping::default();
        while let Some(key) = map.next_key::<String>()? {
            let line = self.context.place.get().line;
            let before = (self.depth == 0 && key == "items").then_some(&*mapping.entries);
            let seed = Seed { context: self.context, depth: self.depth + 1, before };
            let value = map.next_value_seed(seed)?;
            mapping.set(Entry { key, line, node: value }, false, &mut self.context.doubts);
        }
        node.value = Value::Map(mapping.entries);
        Ok(node)
    }
}
