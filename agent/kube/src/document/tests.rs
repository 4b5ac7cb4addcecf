//! Comparison with `kubectl`: the expected values are those of its parser.

use super::*;

mod generated;

fn one(text: &str) -> DocumentNode {
    parse(text).unwrap().remove(0)
}

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

/// Reads each document, or its error.
fn each(bytes: &[u8]) -> Vec<Result<DocumentNode, String>> {
    let mut documents = Documents::new(bytes);
    let mut read = Vec::new();
    while let Some(document) = documents.next(&mut |_, item| Some(item)) {
        read.push(document.map(|d| d.node).map_err(|error| error.to_string()));
    }
    read
}

fn keys(node: &DocumentNode) -> Vec<&str> {
    let Value::Map(entries) = &node.value else { panic!("{node:?}") };
    entries.iter().map(|entry| entry.key.as_str()).collect()
}

#[test]
fn scalars_are_typed_as_kubectl_types_them() {
    let text = |text: &str| Value::Text(text.into());
    for (scalar, value) in [
        ("", Value::Null),
        ("~", Value::Null),
        ("NULL", Value::Null),
        ("true", Value::Bool(true)),
        ("y", Value::Bool(true)),
        ("Y", Value::Bool(true)),
        ("n", Value::Bool(false)),
        ("Yes", Value::Bool(true)),
        ("on", Value::Bool(true)),
        ("N", Value::Bool(false)),
        ("!!bool n", Value::Bool(false)),
        ("OFF", Value::Bool(false)),
        ("yEs", text("yEs")),
        ("80", Value::Int(80)),
        ("-1", Value::Int(-1)),
        ("+5", Value::Int(5)),
        ("0", Value::Int(0)),
        ("0644", Value::Int(0o644)),
        ("0o17", Value::Int(15)),
        ("0O17", Value::Int(15)),
        ("0x10", Value::Int(16)),
        ("-0X1f", Value::Int(-31)),
        ("0b11", Value::Int(3)),
        ("1_000", Value::Int(1000)),
        ("0x_1", Value::Int(1)),
        ("_1", text("_1")),
        ("089", Value::Int(89)),
        ("0x", text("0x")),
        ("9223372036854775807", Value::Int(i64::MAX)),
        ("-9223372036854775808", Value::Int(i64::MIN)),
        ("9223372036854775808", Value::Float(9_223_372_036_854_775_808.0)),
        ("1.5", Value::Float(1.5)),
        (".5", Value::Float(0.5)),
        ("1.", Value::Int(1)),
        ("80.0", Value::Int(80)),
        ("1e3", Value::Int(1000)),
        ("1e-3", Value::Float(0.001)),
        ("1e400", text("1e400")),
        ("1.2.3", text("1.2.3")),
        ("1:30", text("1:30")),
        ("10.0.0.0/8", text("10.0.0.0/8")),
        ("nan", text("nan")),
        ("infinity", text("infinity")),
        (".", text(".")),
        ("=", text("=")),
        ("'80'", text("80")),
        ("\"yes\"", text("yes")),
        ("!!str 80", text("80")),
        ("! 80", text("80")),
        ("!secret 80", text("80")),
        ("!!int \"80\"", Value::Int(80)),
        ("!!float 80", Value::Int(80)),
        ("!!bool yes", Value::Bool(true)),
        ("!!null ''", Value::Null),
        ("!!binary aGk=", text("hi")),
        ("2026-01-01", text("2026-01-01")),
        ("2026-01-01T00:00:00Z", text("2026-01-01T00:00:00Z")),
    ] {
        assert_eq!(one(&format!("a: {scalar}")).get("a").unwrap().value, value, "{scalar}");
    }
    for (scalar, reason) in [
        (".inf", "inf is not a JSON number; put it in quotes"),
        ("-.Inf", "-inf is not a JSON number; put it in quotes"),
        (".NaN", "NaN is not a JSON number; put it in quotes"),
        ("!!int x", "`x` is tagged !!int but is not one"),
        ("!!null x", "`x` is tagged !!null but is not one"),
        ("!!binary x", "!!binary is not base64"),
    ] {
        assert_eq!(error(&format!("\na: {scalar}")), format!("line 2: {reason}"));
    }
}

#[test]
fn keys_become_text_as_in_json() {
    let node = one(
        "1: a\n0x1F: b\n1.50: c\n1e7: d\n1e-5: e\ntrue: f\nn: g\n'80': h\n? x\n: i\n.inf: j\nz: &k kk\n*k : m\n",
    );
    assert_eq!(
        keys(&node),
        ["1", "31", "1.5", "1e+07", "1e-05", "true", "false", "80", "x", ".inf", "z", "kk"]
    );
    assert!(error("a: 1\n~: 2\n").starts_with("line 2: a key must not be empty"));
    assert!(error("a: 1\n? [x]\n: 2\n").starts_with("line 2: a key must be text"));
}

/// Files from real clusters: a bracket that closes at the key's column, after a quoted scalar.
#[test]
fn brackets_may_close_at_the_column_of_the_key() {
    for text in [
        "policyTypes: [\n\"Ingress\"\n]\n",
        "policyTypes: [\n  'Ingress'\n]\n",
        "spec:\n  policyTypes: [\n    \"Ingress\", \"Egress\"\n  ]\n  podSelector: {}\n",
        "spec:\n  selector: {\n    \"app\": \"a\"\n  }\n",
        "a: [{\n  b: \"c\"\n}]\n",
        "a: [ # why\n\"b\",\n\n  # and\n]\n",
    ] {
        assert_eq!(parse(text).map(|documents| documents.len()), Ok(1), "{text}");
    }
    assert_eq!(keys(&one("a: [\n\"x\"\n]\nb: 1\n")), ["a", "b"]);
}

#[test]
fn comments_need_no_white_space_behind_a_bracket_or_a_quote() {
    let node = one("a: \"x\"# one\nb: [# two\n'y'#three\n]# four\nc: a#b\n");
    assert_eq!(node.text("a"), Some("x"));
    assert_eq!(node.text("c"), Some("a#b"));
    assert_eq!(node.line_of("b[0]"), 3);
}

#[test]
fn documents_are_separate_and_empty_ones_left_out() {
    let documents = parse("---\n# nothing\n---\na: 1\n--- # c\nb: 2\n...\n---\n").unwrap();
    assert_eq!(documents.iter().map(|d| d.line).collect::<Vec<_>>(), [4, 6]);
    assert!(parse("").unwrap().is_empty());
    assert!(parse("# only\n---\n# comments\n---\nnull\n").unwrap().is_empty());
    assert_eq!(parse("\u{feff}a: 1").unwrap().len(), 1);
    assert_eq!(parse("a: 1\n---\n\u{feff}b: 2").unwrap()[1].line, 3);
    assert_eq!(parse("%YAML 1.2\n---\na: 1\n---\nb: 1\n").unwrap().len(), 2);
    // Content on the line of the separator, which kubectl refuses.
    assert_eq!(keys(&parse("a: 1\n--- {b: 2}\n").unwrap()[1]), ["b"]);
    // Text that kubectl silently ignores is an error.
    assert!(error("a: 1\n...\nb: 2\n").starts_with("line 3: kubectl reads nothing after"));
}

#[test]
fn each_document_is_read_on_its_own() {
    let read = each(b"a: 1\n---\nb: @x\n---\nc: %x\n---\nd: 4\n  e: 5\n--- # last\nf: 6\n");
    let lines: Vec<_> = read
        .iter()
        .map(|read| match read {
            Ok(node) => format!("{} {:?}", node.line, keys(node)),
            Err(error) => error.split(':').next().unwrap().to_owned(),
        })
        .collect();
    assert_eq!(lines, ["1 [\"a\"]", "line 3", "line 5", "line 8", "10 [\"f\"]"]);
}

#[test]
fn line_ends_of_other_systems_and_of_yaml_end_lines() {
    for end in ["\r\n", "\r", "\u{85}", "\u{2028}", "\u{2029}"] {
        let text = ["a:", "  b: \"c\"", "d: |", "  e", ""].join(end);
        let node = one(&text);
        assert_eq!(keys(&node), ["a", "d"], "{end:?}");
        assert_eq!(node.text("d"), Some("e\n"), "{end:?}");
    }
    // Lines are counted as in the file, not as in YAML.
    assert_eq!(one("a: 1\u{85}b: 2\u{2028}c: 3\nd: 4\n").line_of("d"), 2);
    assert_eq!(one("a: 1\u{85}b: 2\u{2028}c: 3\nd: 4\n").line_of("c"), 1);
}

#[test]
fn json_is_read_as_json() {
    let node = one(
        "{\n\t\"a\": [1, {\"b\": \"x\\u003c\\/y\"}],\n\t\"c\": null, \"d\": 80.0,\n\"e\":\n1\n}\n",
    );
    let Value::List(items) = &node.get("a").unwrap().value else { panic!("{node:?}") };
    assert_eq!(items[1].text("b"), Some("x</y"));
    assert_eq!(node.get("d").unwrap().value, Value::Float(80.0));
    let lines = ["a", "a[1].b", "c", "e"].map(|path| node.line_of(path));
    assert_eq!(lines, [2, 2, 3, 4]);
    assert_eq!(node.get("e").unwrap().line, 5);
    let long = "k".repeat(3000);
    assert_eq!(keys(&one(&format!("{{\"{long}\": 1}}"))), [long]);
}

#[test]
fn json_values_follow_each_other() {
    let documents = parse("{\"a\": 1}{\"b\":\n2}\n{\"c\": 3}\n---\nd: 4\n").unwrap();
    assert_eq!(documents.iter().map(|d| d.line).collect::<Vec<_>>(), [1, 1, 3, 5]);
    // YAML that begins like JSON.
    assert_eq!(keys(&one("{a: b, \"c\": d}\n")), ["a", "c"]);
    assert_eq!(keys(&one("{\"a\": 1} # comment\n")), ["a"]);
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
    let node = one("spec:\n  ingress:\n  - from: []\n    ports:\n    - port: 1\n    - port: 2\n");
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
    let node = one("x: &x {a: 1, b: 2}\nv: {<<: *x, b: 3}\nz: [*x]\nw: {<<: [{b: 4}, *x]}\n");
    let v = node.get("v").unwrap();
    assert_eq!(v.get("a").unwrap().value, Value::Int(1));
    assert_eq!(v.get("b").unwrap().value, Value::Int(3));
    let w = node.get("w").unwrap();
    assert_eq!(w.get("a").unwrap().value, Value::Int(1));
    assert_eq!(w.get("b").unwrap().value, Value::Int(4));
    assert_eq!(keys(&one("\"<<\": 1")), ["<<"]);
    assert_eq!(error("a: {<<: 1}"), "line 1: `<<` needs a mapping");
    assert_eq!(error("l: &l [{a: 1}]\na: {<<: *l}"), "line 2: `<<` needs a mapping");
}

/// As with kubectl the last one counts; the repetition is reported.
#[test]
fn keys_given_twice_are_doubts() {
    for (text, line, value) in [
        ("a: 1\nb: 2\na: 3\n", 3, 3),
        ("{\"a\": 1,\n\"a\": 2}", 2, 2),
        ("x: &x {a: 2}\na: 1\n<<: *x\n", 1, 2),
        ("1: 1\n\"1\": 5\na: 4", 2, 4),
    ] {
        let mut documents = Documents::new(text.as_bytes());
        let document = documents.next(&mut |_, item| Some(item)).unwrap().unwrap();
        assert_eq!(document.node.get("a").unwrap().value, Value::Int(value), "{text}");
        assert_eq!(document.doubts.iter().map(|doubt| doubt.line).collect::<Vec<_>>(), [line]);
        assert!(document.doubts[0].reason.contains("is given twice"), "{text}");
    }
    let many: String = (0..1000).map(|n| format!("k{n}: {n}\n")).collect();
    assert_eq!(keys(&one(&many)).len(), 1000);
    assert!(error(&format!("{many}k7: 1\n")).starts_with("line 1001: key `k7` is given twice"));
    assert_eq!(
        error("a: 1\nb: 2\na: 3\n"),
        "line 3: key `a` is given twice; as with kubectl, the last one counts"
    );
}

#[test]
fn what_is_refused_is_named_with_its_line() {
    assert!(error("a: 1\n  b: 2\n").starts_with("line 2: "), "{}", error("a: 1\n  b: 2\n"));
    assert!(error("a: [1, 2\nb: 3\n").starts_with("line "));
    assert!(error("a: *b\n").starts_with("line 1: "));
    assert_eq!(error("a: &a [*a]\n"), "line 1: alias of an anchor that is not complete here");
    let nested = |depth: usize| "a: ".to_owned() + &"[".repeat(depth) + &"]".repeat(depth);
    assert_eq!(error(&nested(200)), "line 1: nested deeper than 128");
    assert!(parse(&nested(MAX_DEPTH)).is_ok());
    assert!(error(&"[".repeat(100_000)).starts_with("line 1: "));
    assert!(error(&"{\"a\":".repeat(100_000)).starts_with("line 1: "));
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

#[test]
fn items_are_handed_out_one_by_one() {
    for text in [
        "kind: List\nitems:\n- a: 1\n- b: [1, {items: [2]}]\nlast: 1\n",
        "{\"kind\": \"List\", \"items\":\n[{\"a\": 1},\n{\"b\": {\"items\": [2]}}], \"last\": 1}",
    ] {
        let mut taken = Vec::new();
        let mut take = |before: &[MappingEntry], item: DocumentNode| {
            taken.push((before.len(), keys(&item).concat(), item.line));
            None
        };
        let document = Documents::new(text.as_bytes()).next(&mut take).unwrap().unwrap();
        assert_eq!(keys(&document.node), ["kind", "items", "last"]);
        assert_eq!(document.node.get("items").unwrap().value, Value::List(Vec::new()));
        let shown: Vec<_> =
            taken.iter().map(|(before, keys, _)| (*before, keys.as_str())).collect();
        assert_eq!(shown, [(1, "a"), (1, "b")]);
        assert_eq!(taken[1].2 - taken[0].2, 1);
    }
}

/// PowerShell writes UTF-16; comments of older files are in Latin-1. kubectl reads both.
#[test]
fn files_in_other_encodings_are_read_as_kubectl_reads_them() {
    let read = |bytes: &[u8]| -> Vec<DocumentNode> {
        each(bytes).into_iter().map(Result::unwrap).collect()
    };
    let file = "a: ä\n---\n{\"b\": \"🚀\"}\n";
    for unit in [u16::to_le_bytes, u16::to_be_bytes] {
        let units = std::iter::once(0xfeff).chain(file.encode_utf16());
        let nodes = read(&units.flat_map(unit).collect::<Vec<u8>>());
        assert_eq!((nodes[0].text("a"), nodes[1].text("b")), (Some("ä"), Some("🚀")));
        assert_eq!(nodes[1].line_of("b"), 3);
    }
    assert_eq!(text(b"\xff\xfea\0\n\0\xd8"), "a\n\u{fffd}");
    let nodes = read(b"# fa\xe7ade\na: 'x\xff'\n---\nb: z\n");
    assert_eq!((nodes[0].text("a"), nodes[1].text("b")), (Some("x\u{fffd}"), Some("z")));
    assert_eq!(nodes[1].line_of("b"), 4);
}
