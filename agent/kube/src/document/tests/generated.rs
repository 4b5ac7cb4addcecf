//! Tests: values written in every style of YAML are read back unchanged.
#![expect(clippy::wildcard_enum_match_arm, reason = "of the many kinds, the ones this is about")]

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Map, Value as Json};

use super::*;

/// Texts that are difficult in more than one style.
const TEXTS: [&str; 30] = [
    "",
    " ",
    "~",
    "null",
    "y",
    "No",
    "on",
    "80",
    "0x1F",
    "017",
    "1_000",
    "1e3",
    ".inf",
    "2026-01-01",
    "- a",
    "a: b",
    "a #b",
    "#",
    "*a",
    "&a",
    "!t",
    "[a]",
    "{a}",
    "'",
    "\"",
    "\\",
    "a, b",
    "@a",
    "%a",
    "---",
];

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        proptest::sample::select(&TEXTS[..]).prop_map(str::to_owned),
        "[a-z][a-z0-9./-]{0,12}",
        "[!-~]{1,6}( [!-~]{1,6}){1,4}",
        "([a-z][ -~]{0,8}\n){1,3}\n{0,2}",
        "[ -~\t\n\u{a0}é日\u{1f600}]{0,10}",
    ]
}

fn scalar() -> impl Strategy<Value = Json> {
    prop_oneof![
        3 => text().prop_map(Json::from),
        1 => Just(Json::Null),
        1 => any::<bool>().prop_map(Json::from),
        1 => prop_oneof![(-300..300_i64).boxed(), any::<i64>().boxed()].prop_map(Json::from),
        1 => (-1000..1000_i32).prop_map(|n| Json::from(f64::from(n) + 0.25)),
    ]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-z]{2,5}", 1 => text()]
}

fn tree() -> impl Strategy<Value = Json> {
    scalar().prop_recursive(5, 40, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Json::from),
            btree_map(key(), inner, 0..4).prop_map(|map| Json::Object(map.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Map<String, Json>> {
    btree_map(key(), tree(), 1..5).prop_map(|map| map.into_iter().collect())
}

/// Writer of values; each choice depends on the next byte of a tape.
struct Writer<'t> {
    tape: &'t [u8],
    at: usize,
    text: String,
    /// Anchors and their values.
    anchors: Vec<(String, Json)>,
    /// Lines of keys, by their paths.
    lines: Vec<(String, u32)>,
}

impl Writer<'_> {
    /// Chooses a number below another.
    fn below(&mut self, end: usize) -> usize {
        self.at += 1;
        usize::from(self.tape.get(self.at).copied().unwrap_or_default()) % end
    }

    fn one<'s>(&mut self, of: &[&'s str]) -> &'s str {
        of[self.below(of.len())]
    }

    fn put(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn indent(&mut self, columns: usize) {
        self.put(&" ".repeat(columns));
    }

    fn document(&mut self, object: &Map<String, Json>) {
        self.anchors.clear();
        let first = ["", "", "# head\n", "\n", "---\n", "--- # begins\n"];
        let first = self.one(&first);
        self.put(first);
        match self.below(6) {
            0 => {
                self.flow(&Json::Object(object.clone()), 0);
                self.put("\n");
            }
            _ => self.block(&Json::Object(object.clone()), 0, Some(String::new())),
        }
    }

    /// Writes a mapping or a sequence that is not empty, each entry in a line of its own.
    fn block(&mut self, value: &Json, columns: usize, path: Option<String>) {
        match value {
            Json::Object(entries) => {
                for (key, value) in entries {
                    self.comment(columns);
                    self.indent(columns);
                    self.entry(key, value, columns, path.as_deref());
                }
            }
            Json::Array(items) => {
                for (n, item) in items.iter().enumerate() {
                    self.comment(columns);
                    self.indent(columns);
                    self.put("-");
                    self.value(
                        item,
                        columns,
                        path.as_ref().map(|path| format!("{path}[{n}]")),
                        false,
                    );
                }
            }
            _ => unreachable!("a scalar is no block"),
        }
    }

    fn entry(&mut self, key: &str, value: &Json, columns: usize, path: Option<&str>) {
        let simple = !key.is_empty() && key.bytes().all(|b| b.is_ascii_lowercase());
        let dot = if path.is_some_and(str::is_empty) { "" } else { "." };
        let path = path.filter(|_| simple).map(|path| format!("{path}{dot}{key}"));
        if let Some(path) = &path {
            let line = self.text.matches('\n').count() as u32 + 1;
            self.lines.push((path.clone(), line));
        }
        let explicit = self.below(12) == 0;
        if explicit {
            self.put("? ");
        }
        self.inline(&Json::from(key), columns, true);
        if explicit {
            self.put("\n");
            self.indent(columns);
        }
        let colon = if explicit { ":" } else { self.one(&[":", ":", ":", " :"]) };
        self.put(colon);
        self.value(value, columns, path, !explicit);
    }

    /// Writes the value after `-` or `:`, to the end of the line.
    fn value(&mut self, value: &Json, columns: usize, path: Option<String>, of_key: bool) {
        if self.alias(value) {
            self.end();
            return;
        }
        self.anchor(value);
        let is_list = value.is_array();
        let is_empty = value.as_array().is_some_and(Vec::is_empty)
            || value.as_object().is_some_and(Map::is_empty);
        if (is_list || value.is_object()) && !is_empty && self.below(3) > 0 {
            self.end();
            let further = if is_list && of_key { self.below(3) } else { 1 + self.below(3) };
            self.block(value, columns + further, path);
            return;
        }
        self.put(" ");
        match value {
            Json::String(text) if self.literal(text, columns) => {}
            Json::Array(_) | Json::Object(_) => {
                self.flow(value, columns);
                self.end();
            }
            _ => {
                self.inline(value, columns, false);
                self.end();
            }
        }
    }

    fn alias(&mut self, value: &Json) -> bool {
        let name = self.anchors.iter().rev().find(|(_, of)| of == value);
        let Some(name) = name.map(|(name, _)| name.clone()) else { return false };
        let chosen = self.below(2) == 0;
        if chosen {
            self.put(&format!(" *{name} "));
        }
        chosen
    }

    fn anchor(&mut self, value: &Json) {
        // An anchor's value must be complete before an alias to it; scalars are complete at once.
        if self.below(8) == 0 && !value.is_array() && !value.is_object() {
            let name = format!("a{}", self.anchors.len());
            self.put(&format!(" &{name}"));
            self.anchors.push((name, value.clone()));
        }
    }

    fn end(&mut self) {
        let end = self.one(&["\n", "\n", " \n", " # why\n", "  # why\n"]);
        self.put(end);
    }

    fn comment(&mut self, columns: usize) {
        if self.below(6) == 0 {
            self.indent(columns);
            self.put("# a: comment\n");
        }
    }

    /// Writes white space in brackets, where a line may end at any column.
    fn space(&mut self, columns: usize) {
        match self.below(7) {
            0 => {
                self.put("\n");
                let columns = [0, columns, columns + 2][self.below(3)];
                self.indent(columns);
            }
            1 => {
                self.put(" # why\n");
                self.indent(columns);
            }
            2 => self.put("  "),
            _ => {}
        }
    }

    fn flow(&mut self, value: &Json, columns: usize) {
        match value {
            Json::Array(items) => {
                self.put("[");
                for (n, item) in items.iter().enumerate() {
                    self.space(columns);
                    self.flow(item, columns);
                    self.comma(columns, n + 1 == items.len());
                }
                self.put("]");
            }
            Json::Object(entries) => {
                self.put("{");
                for (n, (key, value)) in entries.iter().enumerate() {
                    self.space(columns);
                    self.inline(&Json::from(key.as_str()), columns, true);
                    self.put(": ");
                    self.space(columns);
                    self.flow(value, columns);
                    self.comma(columns, n + 1 == entries.len());
                }
                self.put("}");
            }
            Json::Null => self.put("null"),
            value => self.inline(value, columns, false),
        }
    }

    fn comma(&mut self, columns: usize, last: bool) {
        self.space(columns);
        if !last || self.below(4) == 0 {
            self.put(",");
            self.space(columns);
        }
    }

    /// Writes a scalar other than a block; `key`: in a single line.
    fn inline(&mut self, value: &Json, columns: usize, key: bool) {
        let written = match value {
            Json::Null => self.one(&["null", "~", "Null", "NULL"]).to_owned(),
            Json::Bool(true) => self.one(&["true", "yes", "On", "TRUE"]).to_owned(),
            Json::Bool(false) => self.one(&["false", "No", "off", "FALSE"]).to_owned(),
            Json::Number(number) => match number.as_i64() {
                Some(number) => self.whole(number),
                None => number.to_string(),
            },
            Json::String(text) => self.string(text, columns, key),
            _ => unreachable!("no scalar"),
        };
        self.put(&written);
    }

    fn whole(&mut self, number: i64) -> String {
        let (sign, size) = (if number < 0 { "-" } else { "" }, number.unsigned_abs());
        match self.below(7) {
            0 => format!("{sign}0x{size:x}"),
            1 => format!("{sign}0o{size:o}"),
            2 => format!("{sign}0{size:o}"),
            3 => format!("{sign}0b{size:b}"),
            4 if size > 999 => format!("{sign}{}_{:03}", size / 1000, size % 1000),
            5 if number >= 0 => format!("+{number}"),
            _ => number.to_string(),
        }
    }

    fn string(&mut self, text: &str, columns: usize, key: bool) -> String {
        let words = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
        let plain = text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"./-".contains(&b))
            && !words.contains(&text.to_ascii_lowercase().as_str());
        let printable = !text.contains(['\n', '\t']);
        match self.below(3) {
            0 if plain => text.to_owned(),
            1 if printable => {
                let text = text.replace('\'', "''");
                format!("'{}'", self.folded(&text, columns, key))
            }
            _ => {
                let escaped: String = text.chars().map(|c| self.escaped(c)).collect();
                format!("\"{}\"", self.folded(&escaped, columns, key))
            }
        }
    }

    fn escaped(&mut self, character: char) -> String {
        let number = u32::from(character);
        match character {
            '"' | '\\' => format!("\\{character}"),
            '\n' => self.one(&["\\n", "\\x0a", "\\u000A"]).to_owned(),
            '\t' => self.one(&["\\t", "\\x09"]).to_owned(),
            '/' => self.one(&["/", "\\/"]).to_owned(),
            _ if self.below(8) == 0 => format!("\\U{number:08x}"),
            _ if number < 0x1_0000 && self.below(16) == 0 => format!("\\u{number:04X}"),
            _ => character.into(),
        }
    }

    /// Writes a quoted text in which some single spaces become line ends.
    fn folded(&mut self, text: &str, columns: usize, key: bool) -> String {
        let bytes = text.as_bytes();
        let mut folded = String::new();
        for (at, character) in text.char_indices() {
            let between = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
            let alone = at > 0 && between(bytes.get(at - 1)) && between(bytes.get(at + 1));
            if character == ' ' && alone && !key && self.below(3) == 0 {
                folded.push('\n');
                folded.push_str(&" ".repeat(columns + 1 + self.below(3)));
            } else {
                folded.push(character);
            }
        }
        folded
    }

    /// Writes a text as a block scalar, if that is possible.
    fn literal(&mut self, text: &str, columns: usize) -> bool {
        let lines = text.starts_with(|c: char| c.is_ascii_lowercase()) && text.ends_with('\n');
        if !lines || text.contains(['\t', '\u{a0}']) || self.below(2) == 0 {
            return false;
        }
        let keep = if text.ends_with("\n\n") { "+" } else { "" };
        let further = 1 + self.below(4);
        let indicator = if self.below(2) == 0 { further.to_string() } else { String::new() };
        let comment = self.one(&["", " # a text"]);
        self.put(&format!("|{indicator}{keep}{comment}\n"));
        for line in text.split_terminator('\n') {
            self.indent(if line.is_empty() { 0 } else { columns + further });
            self.put(&format!("{line}\n"));
        }
        true
    }
}

fn json(node: &DocumentNode) -> Json {
    match &node.value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::from(*value),
        Value::Int(number) => Json::from(*number),
        Value::Float(number) => Json::from(*number),
        Value::Text(text) => Json::from(text.as_str()),
        Value::List(items) => items.iter().map(json).collect(),
        Value::Map(entries) => entries.iter().map(|e| (e.key.clone(), json(&e.node))).collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_its_style_a_value_is_read_as_it_was_written(
        objects in vec(object(), 1..4),
        tape in vec(any::<u8>(), 0..400),
        end in proptest::sample::select(&["\n", "\n", "\r\n"][..]),
    ) {
        let (mut text, mut lines) = (String::new(), Vec::new());
        for (n, object) in objects.iter().enumerate() {
            let (anchors, tape) = (Vec::new(), &tape[tape.len() * n / objects.len()..]);
            let mut writer = Writer { tape, at: 0, text, anchors, lines: Vec::new() };
            if n > 0 {
                let between = writer.one(&["---\n", "--- # next\n", "...\n---\n", "---\n---\n", "--- \n# next\n"]);
                writer.put(between);
            }
            writer.document(object);
            text = writer.text;
            lines.push(writer.lines);
        }
        let text = text.replace('\n', end);
        let read = parse(&text).map_err(|error| TestCaseError::fail(format!("{error}:\n{text}")))?;
        prop_assert_eq!(read.len(), objects.len(), "{}", text);
        for ((node, object), lines) in read.iter().zip(objects).zip(lines) {
            prop_assert_eq!(json(node), Json::Object(object), "{}", text);
            for (path, line) in lines {
                prop_assert_eq!(node.line_of(&path), line, "{} of\n{}", path, text);
            }
        }
    }

    /// JSON is read as JSON, with any white space.
    #[test]
    fn json_is_read_as_it_was_written(objects in vec(object(), 1..4), pretty in any::<bool>()) {
        let written = objects.iter().map(|object| match pretty {
            true => serde_json::to_string_pretty(object).unwrap(),
            false => serde_json::to_string(object).unwrap(),
        });
        let text = written.collect::<Vec<_>>().join("\n");
        let read: Vec<Json> = parse(&text).unwrap().iter().map(json).collect();
        prop_assert_eq!(read, objects.into_iter().map(Json::Object).collect::<Vec<_>>());
    }
}
