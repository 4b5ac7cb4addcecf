//! Parser of assertions in YAML or JSON, with the line of each error.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use ipnet::IpNet;
use netpold_api::source::SourceProblem;
use netpold_client::arguments::PartyArg;
use netpold_client::offline::{self, STANDARD_INPUT};
use netpold_core::model::{Change, DomainName, Requirement, Selector};
use netpold_core::probe::{IpProtocol, Party};
use netpold_kube::document::{self, DocumentNode, MappingEntry, ReadError, Value, parse};
use netpold_kube::manifests::Undecoded;

use super::assertion::{Assertion, AssumedAddresses, NamespaceChoice, SideSelection};

/// Fields of an assertion.
const FIELDS: [&str; 6] = ["name", "from", "to", "port", "protocol", "expect"];

/// Content of files of assertions.
#[derive(Debug, Default)]
pub(super) struct AssertionFiles {
    pub(super) assertions: Vec<Assertion>,
    /// Kubernetes objects beside the assertions, with the pods of pod templates.
    pub(super) objects: Vec<Change>,
    /// Those of them that cannot be decoded.
    pub(super) undecoded: Vec<Undecoded>,
    /// Documents that cannot be read, and may hold any object.
    pub(super) unread: Vec<SourceProblem>,
    /// Documents of assertions that cannot be read, as `file:line: reason`.
    pub(super) unread_assertions: Vec<String>,
}

/// Reads files, or standard input. `namespace` is the default for pods named without one and for objects without one.
///
/// # Errors
/// A file cannot be read or has unexpected content, with `file:line`; or no file contains an assertion that can be read.
pub(super) fn read(files: &[PathBuf], namespace: &str) -> Result<AssertionFiles> {
    let mut all = AssertionFiles::default();
    let mut names = Vec::new();
    for file in files {
        let (name, bytes) = match offline::is_standard_input(file) {
            true => (STANDARD_INPUT.to_owned(), offline::standard_input("--file")?),
            false => (file.display().to_string(), offline::content(file)?.to_vec()),
        };
        let text = document::text(&bytes);
        let FileParts { assertions, objects, unread } = FileParts::split(&text);
        let describe = |error: ReadError| {
            let hint = offline::template_hint(text.as_bytes());
            format!("{name}:{}: {}{hint}", error.line, error.reason)
        };
        all.unread_assertions.extend(unread.into_iter().map(describe));
        let assertions = read_text(&name, &assertions, namespace);
        all.assertions.extend(assertions.map_err(|error| anyhow!(describe(error)))?);
        if !objects.trim().is_empty() {
            let reviewed = offline::review_text(&name, objects.as_bytes(), namespace).reported();
            all.objects.extend(reviewed.objects);
            all.undecoded.extend(reviewed.undecoded);
            all.unread.extend(reviewed.unread);
        }
        names.push(name);
    }
    if all.assertions.is_empty() {
        if let Some(unread) = all.unread_assertions.first() {
            return Err(anyhow!("{unread}"));
        }
        let names = names.join(", ");
        return Err(anyhow!("{names}: no assertion found; list them under `assertions:`"));
    }
    Ok(all)
}

/// Documents of a file: those of assertions, and those of Kubernetes objects. In each part, the other's lines are empty,
/// so that line numbers stay correct.
#[derive(Debug, Default, PartialEq)]
struct FileParts {
    assertions: String,
    /// Objects, and documents of unknown content that cannot be read: they may hold any object.
    objects: String,
    /// Errors of the documents of assertions that cannot be read.
    unread: Vec<ReadError>,
}

impl FileParts {
    /// Splits a text.
    fn split(text: &str) -> Self {
        let mut parts = Self::default();
        let (mut document, mut line) = (Vec::new(), 0);
        for text in text.split_inclusive('\n') {
            let is_separator = text.trim_end() == "---" || text.starts_with("--- ");
            if is_separator && !document.is_empty() {
                parts.add(&document, line);
                line += document.len() as u32;
                document.clear();
            }
            document.push(text);
        }
        parts.add(&document, line);
        parts
    }

    /// Adds the lines of a document, which follow on line `before`.
    fn add(&mut self, document: &[&str], before: u32) {
        let (text, empty) = (document.concat(), "\n".repeat(document.len()));
        let (own, other) = match parse(&text) {
            Err(error) if is_of_assertions(&text) => {
                self.unread.push(ReadError::new(before + error.line, error.reason));
                self.assertions.push_str(&empty);
                self.objects.push_str(&empty);
                return;
            }
            Ok(nodes) if !nodes.first().is_some_and(is_object) => {
                (&mut self.assertions, &mut self.objects)
            }
            Ok(_) | Err(_) => (&mut self.objects, &mut self.assertions),
        };
        own.push_str(&text);
        other.push_str(&empty);
    }
}

fn is_object(document: &DocumentNode) -> bool {
    document.get("kind").is_some() && document.get("assertions").is_none()
}

/// Returns whether a document that cannot be read is one of assertions.
fn is_of_assertions(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("assertions:"))
        || text.contains("assertions") && !text.contains("kind")
}

fn read_text(file: &str, text: &str, namespace: &str) -> Result<Vec<Assertion>, ReadError> {
    let mut assertions = Vec::new();
    for document in parse(text)? {
        let Value::Map(entries) = &document.value else {
            return Err(ReadError::new(document.line, "`assertions:` with a list is expected"));
        };
        check_fields(entries, &["assertions"])?;
        let Some(list) = document.get("assertions") else {
            return Err(ReadError::new(document.line, "assertions: is missing"));
        };
        let Value::List(items) = &list.value else {
            return Err(ReadError::new(list.line, "assertions: is not a list"));
        };
        for item in items {
            assertions.push(assertion(file, item, namespace)?);
        }
    }
    Ok(assertions)
}

fn check_fields(entries: &[MappingEntry], fields: &[&str]) -> Result<(), ReadError> {
    match entries.iter().find(|entry| !fields.contains(&entry.key.as_str())) {
        Some(entry) => {
            let text = format!("{}: unknown field; known fields: {}", entry.key, fields.join(", "));
            Err(ReadError::new(entry.line, text))
        }
        None => Ok(()),
    }
}

fn assertion(file: &str, item: &DocumentNode, namespace: &str) -> Result<Assertion, ReadError> {
    let Value::Map(entries) = &item.value else {
        return Err(ReadError::new(item.line, "an assertion has fields from, to, port and expect"));
    };
    check_fields(entries, &FIELDS)?;
    let side = |field: &str| {
        let node = item.get(field);
        let node = node.ok_or_else(|| ReadError::new(item.line, format!("{field}: is missing")))?;
        selected(field, node, namespace)
    };
    let (from, to) = (side("from")?, side("to")?);
    let text_of = match from {
        SideSelection::One(Party::Service(_)) => {
            Some("from: a Service sends nothing; name its pods")
        }
        SideSelection::Name { .. } => Some("from: a domain name sends nothing; name pods"),
        SideSelection::One(_) | SideSelection::Pods { .. } => None,
    };
    if let Some(text) = text_of {
        return Err(ReadError::new(item.line_of("from"), text));
    }
    let expect = text(item, "expect")?
        .ok_or_else(|| ReadError::new(item.line, "expect: is missing: allow or deny"))?;
    let allow = match expect {
        "allow" => true,
        "deny" => false,
        other => {
            let text = format!("expect: {other:?} is neither allow nor deny");
            return Err(ReadError::new(item.line_of("expect"), text));
        }
    };
    let protocol = protocol(item)?;
    let port = port(item, protocol)?;
    let name = text(item, "name")?.unwrap_or_default().to_owned();
    let place = format!("{file}:{}", item.line);
    Ok(Assertion { place, name, from, to, protocol, port, allow })
}

fn text<'n>(item: &'n DocumentNode, field: &str) -> Result<Option<&'n str>, ReadError> {
    match (item.text(field), item.entry(field)) {
        (Some(text), _) => Ok(Some(text)),
        (None, None) => Ok(None),
        (None, Some(entry)) => Err(ReadError::new(entry.line, format!("{field}: is not text"))),
    }
}

fn protocol(item: &DocumentNode) -> Result<IpProtocol, ReadError> {
    let Some(entry) = item.entry("protocol") else { return Ok(IpProtocol::TCP) };
    let read = match &entry.node.value {
        Value::Int(number) => number.to_string().parse::<IpProtocol>(),
        Value::Text(text) => text.parse(),
        Value::Null | Value::Bool(_) | Value::Float(_) | Value::List(_) | Value::Map(_) => {
            return Err(ReadError::new(entry.line, "protocol: is neither a name nor a number"));
        }
    };
    read.map_err(|error| ReadError::new(entry.line, format!("protocol: {error}")))
}

fn port(item: &DocumentNode, protocol: IpProtocol) -> Result<u16, ReadError> {
    let Some(entry) = item.entry("port") else {
        return match protocol.has_ports() {
            true => {
                Err(ReadError::new(item.line, format!("port: is missing: {protocol} has ports")))
            }
            false => Ok(0),
        };
    };
    if !protocol.has_ports() {
        let text = format!("port: {protocol} has no ports: remove it");
        return Err(ReadError::new(entry.line, text));
    }
    let number =
        if let Value::Int(number) = entry.node.value { u16::try_from(number).ok() } else { None };
    let number = number.filter(|number| *number > 0);
    number.ok_or_else(|| ReadError::new(entry.line, "port: is not a number from 1 to 65535"))
}

fn selected(field: &str, node: &DocumentNode, namespace: &str) -> Result<SideSelection, ReadError> {
    let entries = match &node.value {
        Value::Text(text) => {
            let who = text
                .parse::<PartyArg>()
                .map_err(|error| ReadError::new(node.line, format!("{field}: {error}")))?;
            return Ok(SideSelection::One(who.in_namespace(namespace)));
        }
        Value::Map(entries) => entries,
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::List(_) => {
            let text = format!(
                "{field}: is neither namespace/pod, svc/namespace/name nor an address, nor has it \
                 fields namespace and labels, or name"
            );
            return Err(ReadError::new(node.line, text));
        }
    };
    if node.entry("name").is_some() || node.entry("at").is_some() {
        check_fields(entries, &["name", "at"])?;
        return named(field, node);
    }
    check_fields(entries, &["namespace", "labels"])?;
    let namespaces = match text(node, "namespace")? {
        Some("*") => NamespaceChoice::All,
        Some(name) => NamespaceChoice::Named(name.to_owned()),
        None => {
            let text = format!("{field}: namespace is missing: \"*\" is every one");
            return Err(ReadError::new(node.line, text));
        }
    };
    let mut requirements = Vec::new();
    if let Some(labels) = node.entry("labels") {
        let Value::Map(entries) = &labels.node.value else {
            return Err(ReadError::new(labels.line, format!("{field}: labels is not a mapping")));
        };
        for entry in entries {
            let Value::Text(value) = &entry.node.value else {
                let text = format!("{field}: label {} is not text: put it in quotes", entry.key);
                return Err(ReadError::new(entry.line, text));
            };
            requirements.push(Requirement::In(entry.key.clone(), vec![value.clone()]));
        }
        requirements.sort();
    }
    Ok(SideSelection::Pods { namespaces, labels: Selector { requirements } })
}

/// Reads a domain name and the addresses to which it is assumed to resolve.
fn named(field: &str, node: &DocumentNode) -> Result<SideSelection, ReadError> {
    let Some(name) = text(node, "name")? else {
        return Err(ReadError::new(node.line, format!("{field}: name is missing")));
    };
    let name = DomainName::try_from(name.to_owned()).map_err(|error| {
        ReadError::new(node.line_of("name"), format!("{field}: name: {name:?} {error}"))
    })?;
    let Some(at) = node.entry("at") else {
        return Ok(SideSelection::Name { name, at: AssumedAddresses::Any });
    };
    let invalid = || {
        let text = format!(
            "{field}: at is neither public nor an address, a block such as 203.0.113.0/24, or a list of these"
        );
        ReadError::new(at.line, text)
    };
    let items = match &at.node.value {
        Value::Text(text) if text == "public" => {
            return Ok(SideSelection::Name { name, at: AssumedAddresses::Public });
        }
        Value::Text(_) => std::slice::from_ref(&at.node),
        Value::List(items) if !items.is_empty() => &items[..],
        Value::Null
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Float(_)
        | Value::List(_)
        | Value::Map(_) => return Err(invalid()),
    };
    let block = |item: &DocumentNode| {
        let Value::Text(text) = &item.value else { return None };
        let address = text.parse::<IpAddr>().map(IpNet::from).ok();
        address.or_else(|| text.parse::<IpNet>().ok()).map(|block| block.trunc())
    };
    let blocks: Option<Vec<IpNet>> = items.iter().map(block).collect();
    Ok(SideSelection::Name { name, at: AssumedAddresses::Blocks(blocks.ok_or_else(invalid)?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(fields: &str) -> String {
        let text = format!("assertions:\n- {{{fields}}}\n");
        read_text("a.yaml", &text, "x").unwrap_err().to_string()
    }

    #[test]
    fn what_stands_in_a_file() {
        let text = "assertions:\n\
            - {name: one, from: a, to: 10.0.0.1, port: 80, expect: allow}\n\
            - from: {namespace: x, labels: {app: web, tier: \"1\"}}\n  to: svc/x/s\n  protocol: udp\n  port: 53\n  expect: deny\n\
            - {from: {namespace: \"*\"}, to: x/a, protocol: ICMP, expect: deny}\n\
            - {from: a, to: {name: \"*.A.example.\", at: public}, port: 1, expect: deny}\n\
            - {from: a, to: {name: b.example, at: [192.0.2.1, 2001:db8::1/32]}, port: 1, expect: deny}\n";
        let all = read_text("a.yaml", text, "x").unwrap();
        let titles: Vec<_> = all.iter().map(|a| (a.place.as_str(), a.title())).collect();
        let expected = [
            ("a.yaml:2", "one"),
            ("a.yaml:3", "deny pods of x with app=web, tier=1 to svc/x/s, UDP 53"),
            ("a.yaml:8", "deny pods of every namespace to x/a, ICMP"),
            ("a.yaml:9", "deny x/a to *.a.example at public addresses, TCP 1"),
            ("a.yaml:10", "deny x/a to b.example at 192.0.2.1/32 and 2001:db8::/32, TCP 1"),
        ];
        assert_eq!(all[0].from.to_string(), "x/a");
        assert_eq!(titles, expected.map(|(place, title)| (place, title.to_owned())));
    }

    #[test]
    fn objects_stand_beside_assertions() {
        let text = "# both\nassertions: []\n---\n# Source: x\napiVersion: v1\nkind: Pod\n--- # more\nassertions: [a]\n";
        let FileParts { assertions, objects, unread } = FileParts::split(text);
        assert_eq!(assertions, "# both\nassertions: []\n\n\n\n\n--- # more\nassertions: [a]\n");
        assert_eq!(objects, "\n\n---\n# Source: x\napiVersion: v1\nkind: Pod\n\n\n");
        assert!(unread.is_empty());
        let parts = FileParts::split("{kind: Pod}\n---\nassertions: [\n---\n{kind: Pod\n");
        assert_eq!(parts.objects, "{kind: Pod}\n\n\n---\n{kind: Pod\n");
        assert_eq!(parts.assertions, "\n".repeat(5));
        assert_eq!(parts.unread.iter().map(|error| error.line).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (fields, message) in [
            ("to: x/a, port: 80, expect: deny", "from: is missing"),
            ("from: x/a, to: x/b, port: 80", "expect: is missing: allow or deny"),
            (
                "from: x/a, to: x/b, port: 80, expect: open",
                "expect: \"open\" is neither allow nor deny",
            ),
            ("from: x/a, to: x/b, expect: deny", "port: is missing: TCP has ports"),
            ("from: x/a, to: x/b, port: 0, expect: deny", "port: is not a number from 1 to 65535"),
            (
                "from: x/a, to: x/b, port: http, expect: deny",
                "port: is not a number from 1 to 65535",
            ),
            (
                "from: x/a, to: x/b, port: 1, protocol: ICMP, expect: deny",
                "port: ICMP has no ports: remove it",
            ),
            (
                "from: x/a, to: x/b, port: 1, protocol: TCPX, expect: deny",
                "protocol: \"TCPX\" is not a protocol",
            ),
            (
                "from: A, to: x/b, port: 1, expect: deny",
                "from: \"A\" is neither namespace/pod nor an address",
            ),
            ("from: svc/x/a, to: x/b, port: 1, expect: deny", "from: a Service sends nothing"),
            (
                "from: {name: a.b}, to: x/b, port: 1, expect: deny",
                "from: a domain name sends nothing",
            ),
            ("from: x/a, to: {at: public}, port: 1, expect: deny", "to: name is missing"),
            (
                "from: x/a, to: {name: com}, port: 1, expect: deny",
                "to: name: \"com\" is not a domain",
            ),
            (
                "from: x/a, to: {name: a.b, at: private}, port: 1, expect: deny",
                "to: at is neither public nor an address",
            ),
            (
                "from: x/a, to: {name: a.b, labels: {}}, port: 1, expect: deny",
                "labels: unknown field; known fields: name, at",
            ),
            ("from: x/a, to: {labels: {a: b}}, port: 1, expect: deny", "to: namespace is missing"),
            (
                "from: x/a, to: {namespace: x, labels: {a: 1}}, port: 1, expect: deny",
                "to: label a is not text",
            ),
            (
                "from: x/a, to: {namespace: x, pods: {}}, port: 1, expect: deny",
                "pods: unknown field; known fields: namespace, labels",
            ),
            (
                "form: x/a",
                "form: unknown field; known fields: name, from, to, port, protocol, expect",
            ),
        ] {
            let error = error(fields);
            assert!(
                error.starts_with(&format!("line 2: {message}")),
                "{message:?} is not {error:?}"
            );
        }
        assert!(read_text("a", "assertions: {}", "x").is_err());
        assert!(read_text("a", "expectations: []", "x").is_err());
        assert!(read_text("a", "- from: a", "x").is_err());
    }
}
