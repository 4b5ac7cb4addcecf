//! Generated documents, read by netpold and by kubectl: `kubectl annotate --local` reads objects as `apply` does, and
//! contacts no server.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use netpold_kube::document::{DocumentNode, Documents, Value};
use netpold_testbed::apiserver::KubectlBinary;
use netpold_testbed::skip;
use serde_json::{Deserializer, Map, Number, Value as Json};
use tempfile::TempDir;

/// Files per run; a process of kubectl reads each.
const FILES: u32 = 240;
/// Processes at a time.
const THREADS: u32 = 4;

/// Values in the styles of YAML, below a key at the beginning of a line; lines of block styles are indented by two.
const VALUES: [&str; 96] = [
    "yes",
    "No",
    "on",
    "OFF",
    "y",
    "n",
    "yEs",
    "~",
    "null",
    "",
    "true",
    "80",
    "-1",
    "+5",
    "017",
    "0o17",
    "0x1F",
    "0b11",
    "-0b1",
    "1_000",
    "08",
    "1e3",
    "1E3",
    "1.50",
    ".5",
    "5.",
    "1e400",
    "1:30",
    "190:20:30",
    "=",
    ".",
    "-.5",
    "+.5",
    "0.0",
    "-0",
    "0x",
    "0o8",
    "1__0",
    "_1",
    "2026-01-01",
    "2026-01-01 10:00:00",
    "9223372036854775808",
    "18446744073709551616",
    "-9223372036854775809",
    "'single ''quoted'' yes'",
    "\"double \\\"quoted\\\" \\u00e9\\x41\\n\"",
    "\"folded\n  over lines\n\n  here\"",
    "'folded\n  over\n\n  lines'",
    "plain over\n  two lines",
    "a: b",
    "a #b",
    "a#b",
    "[a, b, [c], {d: e}]",
    "{a: 1, b: [2], \"c\":3, 'd': 4}",
    "{a, b: , ? c}",
    "[a,\n  b\n]",
    "{a: 1,\n  b: 2\n}",
    "[\n  a, # comment\n  b,\n]",
    "[a: 1, b]",
    "[]",
    "{}",
    "|\n  text\n   more\n\n",
    "|-\n  text",
    "|+\n  text\n\n",
    ">\n  folded\n  text\n\n   kept\n",
    ">-\n  folded",
    "|2\n    indented",
    "|\n  # no comment",
    "&x {a: 1}",
    "&y text",
    "\n  a: &z {k: v}\n  b: *z",
    "\n  a: &w [1]\n  b: [*w, *w]",
    "\n- a\n- b: 1\n  c: 2\n- - d\n  - e",
    "\n  - a\n  -\n  - b",
    "\n  a:\n    b:\n    - c",
    "\n  ? complex\n  : value",
    "\n  <<: {a: 1, b: 2}\n  a: 3",
    "\n  a: 3\n  <<: {a: 1, b: 2}",
    "\n  <<: [{a: 1}, {a: 2, c: 3}]\n  d: 4",
    "\n  \"<<\": {a: 1}",
    "\n  1: a\n  0x10: b\n  1.50: c\n  yes: d\n  n: e",
    "\n  a: 1\n  a: 2",
    "!!str 80",
    "!!int \"80\"",
    "!!binary aGVsbG8=",
    "!local x",
    "!!set {a, b}",
    "@at",
    "`tick`",
    "%percent",
    "- dash",
    "a\tb",
    "\"tab\\tin\ttext\"",
    "\n  a:\t1",
    "10.0.0.0/8",
    "\u{e9}\u{65e5}\u{1f600}\u{a0}x",
];

/// Characters that mutations insert.
const CHARACTERS: [char; 28] = [
    ' ', '\n', '\t', ':', '-', '#', '\'', '"', '[', ']', '{', '}', ',', '&', '*', '!', '|', '>',
    '%', '@', '?', '~', '0', '\r', '\u{85}', '\u{2028}', '\u{feff}', '\\',
];

/// Numbers of a linear generator.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }
}

/// Returns an object with some values, in block style or as JSON.
fn object(numbers: &mut Numbers, name: &str) -> String {
    let mut text = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n");
    if numbers.one_in(8) {
        return format!(
            "{{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {{\"name\": \"{name}\"}},\n \"a\": [1, 2.50, 1e3, \
             null, true, \"\\u00e9\\n\", {{}}], \"b\": {{\"c\": \"yes\", \"c\": \"d\"}}}}\n"
        );
    }
    for index in 0..=numbers.below(4) {
        let value = VALUES[numbers.below(VALUES.len())];
        let space = if value.starts_with('\n') { "" } else { " " };
        text.push_str(&format!("f{index}:{space}{value}\n"));
        if numbers.one_in(6) {
            text.push_str("# comment\n\n");
        }
    }
    text
}

/// Returns a list of objects.
fn list(numbers: &mut Numbers) -> String {
    let items = (0..=numbers.below(3)).map(|index| {
        let item = object(numbers, &format!("item{index}"));
        let lines: Vec<String> = item.lines().map(|line| format!("  {line}\n")).collect();
        lines.concat().replacen("  ", "- ", 1)
    });
    let items: String = items.collect();
    format!("apiVersion: v1\nkind: List\nitems:\n{items}")
}

/// Returns the text of a file: documents with separators, changed at some places.
fn file(numbers: &mut Numbers) -> String {
    let mut text = String::new();
    if numbers.one_in(10) {
        text.push('\u{feff}');
    }
    if numbers.one_in(4) {
        text.push_str(
            ["---\n", "--- # comment\n", "# comment\n---\n", "%YAML 1.1\n---\n", "\n\n---\n"]
                [numbers.below(5)],
        );
    }
    for index in 0..=numbers.below(3) {
        if index > 0 {
            let separators = [
                "---\n",
                "---\n---\n",
                "--- \n",
                "---\t\n",
                "---#x\n",
                "\n---\n# only a comment\n---\n",
                "--- # c\n",
                "...\n---\n",
            ];
            text.push_str(separators[numbers.below(separators.len())]);
        }
        match numbers.one_in(6) {
            true => text.push_str(&list(numbers)),
            false => text.push_str(&object(numbers, &format!("o{index}"))),
        }
    }
    if numbers.one_in(3) {
        let characters: Vec<char> = text.chars().collect();
        let at = numbers.below(characters.len());
        let inserted = CHARACTERS[numbers.below(CHARACTERS.len())];
        let rest = at + usize::from(numbers.one_in(2));
        text = characters[..at].iter().chain(&[inserted]).chain(&characters[rest..]).collect();
    }
    if numbers.one_in(12) {
        text.push_str(["...\n", "...", "---", "---\n", "# end"][numbers.below(5)]);
    }
    if numbers.one_in(10) {
        text = text.replace('\n', "\r\n");
    }
    text
}

/// Returns the objects that kubectl reads in a file, and its error.
fn by_kubectl(kubectl: &KubectlBinary, path: &Path) -> (Vec<Json>, String) {
    let mut command = Command::new(kubectl.path());
    command.args(["annotate", "--local", "-o", "json", "-f"]).arg(path).arg("none-");
    let output = command.env_clear().output().unwrap();
    let objects = Deserializer::from_slice(&output.stdout).into_iter();
    let objects = objects.map(|object| without_annotations(object.unwrap())).collect();
    (objects, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Removes the empty annotations that `annotate` adds, and metadata without anything else.
fn without_annotations(mut object: Json) -> Json {
    if let Some(fields) = object.as_object_mut()
        && let Some(metadata) = fields.get_mut("metadata").and_then(Json::as_object_mut)
    {
        metadata.remove("annotations");
        if metadata.is_empty() {
            fields.remove("metadata");
        }
    }
    object
}

/// Returns the objects that netpold reads in a file before the first error, and the error.
fn by_netpold(bytes: &[u8]) -> (Vec<Json>, String) {
    let mut objects = Vec::new();
    let mut documents = Documents::new(bytes);
    while let Some(document) = documents.next(&mut |_, item| Some(item)) {
        match document {
            Ok(document) => flatten(json(&document.node), &mut objects),
            Err(error) => return (objects, error.to_string()),
        }
    }
    (objects, String::new())
}

fn flatten(object: Json, into: &mut Vec<Json>) {
    let is_list = object["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    if let Some(items) = object["items"].as_array().filter(|_| is_list) {
        items.iter().for_each(|item| flatten(item.clone(), into));
    } else if !object["kind"].is_null() {
        // kubectl names an object without a kind, and reads the next document.
        into.push(without_annotations(object));
    }
}

fn json(node: &DocumentNode) -> Json {
    match &node.value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Int(number) => Json::Number((*number).into()),
        Value::Float(number) => Number::from_f64(*number).map_or(Json::Null, Json::Number),
        Value::Text(text) => Json::String(text.clone()),
        Value::List(items) => Json::Array(items.iter().map(json).collect()),
        Value::Map(entries) => {
            let entries = entries.iter().map(|entry| (entry.key.clone(), json(&entry.node)));
            Json::Object(entries.collect::<Map<_, _>>())
        }
    }
}

/// Compares values; numbers beyond 53 bits by their value as floating-point numbers.
fn are_equal(one: &Json, other: &Json) -> bool {
    match (one, other) {
        (Json::Number(one), Json::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Json::Array(one), Json::Array(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| are_equal(one, other))
        }
        (Json::Object(one), Json::Object(other)) => {
            let has = |(key, value): (&String, &Json)| {
                other.get(key).is_some_and(|other| are_equal(value, other))
            };
            one.len() == other.len() && one.iter().all(has)
        }
        _ => one == other,
    }
}

/// Files that kubectl reads and netpold refuses on purpose: the text after the end of a document.
fn is_refused_on_purpose(error: &str) -> bool {
    error.contains("kubectl reads nothing after the end of a document")
}

/// Compares the readings of one file. Returns a description of the difference.
fn difference(kubectl: &KubectlBinary, folder: &Path, number: u32) -> Option<String> {
    let text = file(&mut Numbers(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let path = folder.join(format!("{number}.yaml"));
    fs::write(&path, &text).unwrap();
    let (theirs, refusal) = by_kubectl(kubectl, &path);
    let (ours, error) = by_netpold(text.as_bytes());
    if is_refused_on_purpose(&error) {
        return None;
    }
    let is_refused = refusal.contains("error");
    // kubectl reads nothing of a file after its first error.
    let are_enough =
        if is_refused { ours.len() >= theirs.len() } else { ours.len() == theirs.len() };
    let are_same = theirs.iter().zip(&ours).all(|(theirs, ours)| are_equal(theirs, ours));
    (!are_enough || !are_same || (!is_refused && !error.is_empty())).then(|| {
        format!(
            "file {number}:\n{text:?}\nkubectl: {theirs:?} {refusal}\nnetpold: {ours:?} {error}\n"
        )
    })
}

#[test]
fn generated_documents_are_read_as_kubectl_reads_them() {
    const TEST: &str = "generated_documents_are_read_as_kubectl_reads_them";
    let Some(kubectl) = KubectlBinary::find() else {
        return skip(TEST, "needs a kubectl (`cargo xtask setup`)");
    };
    let folder = TempDir::new().unwrap();
    let differences: Vec<String> = thread::scope(|scope| {
        let compare = |first: u32| {
            let numbers = (first..FILES).step_by(THREADS as usize);
            numbers
                .filter_map(|number| difference(&kubectl, folder.path(), number))
                .collect::<Vec<_>>()
        };
        let threads: Vec<_> =
            (0..THREADS).map(|first| scope.spawn(move || compare(first))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(
        differences.is_empty(),
        "{} of {FILES} differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}
