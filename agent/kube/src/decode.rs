//! Decoding of typed values from a [`DocumentNode`], with path and line of a mismatch.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, Deserializer, IntoDeserializer, Visitor};

use crate::document::{DocumentNode, MappingEntry, ReadError, Value};

/// Decodes a node.
///
/// # Errors
/// The first value of the wrong type, by its path and line.
pub fn decode<'n, T: de::Deserialize<'n>>(node: &'n DocumentNode) -> Result<T, ReadError> {
    typed(node).map_err(|mismatch| mismatch.at(node))
}

/// Decodes a node.
///
/// # Errors
/// The first value of the wrong type, by its path.
pub(super) fn typed<'n, T: de::Deserialize<'n>>(node: &'n DocumentNode) -> Result<T, Mismatch> {
    T::deserialize(TypedNode { node, is_struct: false })
}

/// A decoding error that collects its path on the way out.
#[derive(Debug)]
pub(super) struct Mismatch {
    /// Path of the value; empty for the object as a whole.
    pub(super) path: String,
    /// Line of the value, if known.
    pub(super) line: Option<u32>,
    /// Description of the mismatch.
    pub(super) reason: String,
}

impl Mismatch {
    /// Converts to the error of the decoded document.
    pub(super) fn at(self, node: &DocumentNode) -> ReadError {
        let line = self.line.unwrap_or_else(|| node.line_of(&self.path));
        let reason = match self.path.as_str() {
            "" => self.reason,
            path => format!("{path}: {}", self.reason),
        };
        ReadError::new(line, reason)
    }

    fn within(mut self, step: &str, line: u32) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{step}{dot}{}", self.path);
        self.line.get_or_insert(line);
        self
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Mismatch {}

impl de::Error for Mismatch {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { path: String::new(), line: None, reason: message.to_string() }
    }

    fn invalid_type(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        use de::Unexpected::{Bool, Float, Signed, Unit};
        let expected = expected.to_string();
        let hint = if let Bool(_) | Float(_) | Signed(_) = found
            && expected == "a string"
        {
            "; put it in quotes"
        } else {
            ""
        };
        if found == Unit {
            Self::custom(format_args!("is empty, expected {expected}"))
        } else {
            Self::custom(format_args!("is {found}, expected {expected}{hint}"))
        }
    }
}

/// A node being decoded. A null field of a struct counts as absent, and a null value of a map (such as labels) or an item of
/// a list as the type's zero value: the API server decodes both in this way.
struct TypedNode<'n> {
    node: &'n DocumentNode,
    is_struct: bool,
}

impl<'de> Deserializer<'de> for TypedNode<'de> {
    type Error = Mismatch;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Int(value) => visitor.visit_i64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(value) => visitor.visit_borrowed_str(value),
            Value::List(items) => visitor.visit_seq(Items { items: items.iter(), index: 0 }),
            Value::Map(entries) => visitor.visit_map(Entries {
                entries: entries.iter(),
                value: None,
                skip_null: self.is_struct,
            }),
        }
    }

    /// Accepts `y` and `n`, which are text in a [`DocumentNode`] but booleans to kubectl.
    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        match &self.node.value {
            Value::Text(text) if text == "y" || text == "Y" => visitor.visit_bool(true),
            Value::Text(text) if text == "n" || text == "N" => visitor.visit_bool(false),
            Value::Null
            | Value::Bool(_)
            | Value::Int(_)
            | Value::Float(_)
            | Value::Text(_)
            | Value::List(_)
            | Value::Map(_) => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        if self.node.value == Value::Null { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Mismatch> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mismatch> {
        if self.node.value == Value::Null {
            return visitor.visit_map(Entries { entries: [].iter(), value: None, skip_null: true });
        }
        Self { is_struct: true, ..self }.deserialize_any(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        if self.node.value == Value::Null {
            return visitor.visit_borrowed_str("");
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        self.deserialize_str(visitor)
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit
        unit_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct Items<'n> {
    items: std::slice::Iter<'n, DocumentNode>,
    index: usize,
}

impl<'n> de::SeqAccess<'n> for Items<'n> {
    type Error = Mismatch;

    fn next_element_seed<T: DeserializeSeed<'n>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Mismatch> {
        let Some(node) = self.items.next() else { return Ok(None) };
        let step = format_args!("[{}]", self.index).to_string();
        self.index += 1;
        seed.deserialize(TypedNode { node, is_struct: false })
            .map(Some)
            .map_err(|e| e.within(&step, node.line))
    }
}

struct Entries<'n> {
    entries: std::slice::Iter<'n, MappingEntry>,
    value: Option<&'n MappingEntry>,
    skip_null: bool,
}

impl<'n> de::MapAccess<'n> for Entries<'n> {
    type Error = Mismatch;

    fn next_key_seed<K: DeserializeSeed<'n>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Mismatch> {
        let skip_null = self.skip_null;
        self.value = self.entries.find(|e| !(skip_null && e.node.value == Value::Null));
        let Some(entry) = self.value else { return Ok(None) };
        let key: StrDeserializer<'_, Mismatch> = entry.key.as_str().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'n>>(&mut self, seed: V) -> Result<V::Value, Mismatch> {
        let entry = self
            .value
            .take()
            .ok_or_else(|| <Mismatch as de::Error>::custom("a value without a key"))?;
        seed.deserialize(TypedNode { node: &entry.node, is_struct: false })
            .map_err(|e| e.within(&entry.key, entry.node.line))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::document::parse;

    #[derive(Debug, Default, serde::Deserialize)]
    #[serde(default)]
    struct Sample {
        list: Vec<Sample>,
        labels: BTreeMap<String, String>,
        port: Option<i32>,
        open: bool,
    }

    fn sample(text: &str) -> Result<Sample, String> {
        decode(&parse(text).unwrap()[0]).map_err(|e| e.to_string())
    }

    #[test]
    fn null_fields_are_absent_and_other_nulls_are_zero_values() {
        let value = sample("list:\nport:\nlabels: {}\n").unwrap();
        assert!(value.list.is_empty() && value.port.is_none());
        let value = sample("list:\n- port: 1\n-\n- labels:\n    app:\n").unwrap();
        assert_eq!(value.list.len(), 3);
        assert!(value.list[1].labels.is_empty());
        assert_eq!(value.list[2].labels["app"], "");
        let error = sample("list: [{labels: {app: 1}}]").unwrap_err();
        assert!(error.ends_with("is integer `1`, expected a string; put it in quotes"), "{error}");
    }

    #[test]
    fn plain_letters_of_yaml_1_1_are_booleans() {
        let text = "open: y\nlabels: {a: 'y', b: \"n\"}\nlist: [{open: N}, {open: yes}]\n";
        let value = sample(text).unwrap();
        assert!(value.open && !value.list[0].open && value.list[1].open);
        assert_eq!((value.labels["a"].as_str(), value.labels["b"].as_str()), ("y", "n"));
        for (word, boolean) in [("yes", true), ("y", true), ("Y", true), ("n", false), ("N", false)]
        {
            let error = sample(&format!("labels: {{a: {word}}}\n")).unwrap_err();
            assert!(error.contains(&format!("is boolean `{boolean}`")), "{word}: {error}");
        }
    }

    #[test]
    fn a_wrong_type_is_named_by_path_and_line() {
        let error = sample("list:\n- list:\n  - port: eighty\n").unwrap_err();
        assert!(error.starts_with("line 3: list[0].list[0].port: is string"), "{error}");
    }
}
