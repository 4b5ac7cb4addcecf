//! The objects in one file's text.

use std::collections::BTreeMap;

use netpold_core::cluster::ObjectKey;
use netpold_core::model::Change;
use tracing::debug;

use crate::source::SourceProblem;
use crate::source::convert::{Converted, Manifest, manifest, template};
use crate::source::document::{Entry, Node, ReadError, Value, parse};

/// An object and the line where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) change: Change,
    pub(super) line: u32,
}

/// What a good file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) objects: BTreeMap<ObjectKey, Object>,
    /// What pod templates would make: see [`template`].
    pub(super) templates: BTreeMap<ObjectKey, Object>,
    /// What of the objects was not understood.
    pub(super) problems: Vec<SourceProblem>,
}

/// Read a file's text: all of it or nothing. Objects that name no namespace are in that one.
pub(super) fn read(file: &str, bytes: &[u8], namespace: &str) -> Result<Content, ReadError> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let line = bytes[..e.valid_up_to()].split(|byte| *byte == b'\n').count();
        ReadError::new(u32::try_from(line).unwrap_or(u32::MAX), "not UTF-8 text")
    })?;
    let mut content = Content::default();
    for document in parse(text)? {
        content.add(file, document, namespace)?;
    }
    Ok(content)
}

impl Content {
    fn add(&mut self, file: &str, mut node: Node, namespace: &str) -> Result<(), ReadError> {
        if let Some(kind) = node.text("kind").and_then(|kind| kind.strip_suffix("List"))
            && node.get("items").is_some()
        {
            let (kind, version) = (kind.to_owned(), node.text("apiVersion").map(str::to_owned));
            return self.add_list(file, node, (&kind, version.as_deref()), namespace);
        }
        place(&mut node, namespace);
        match manifest(&node)? {
            Manifest::Object(object) => self.take(file, &node, *object, false),
            Manifest::Other(version, kind) => match template(&node) {
                Some(template) => self.take(file, &node, template, true),
                None => debug!("{file}:{}: {kind} of {version} is not used", node.line),
            },
        }
        Ok(())
    }

    fn take(&mut self, file: &str, node: &Node, object: Converted, is_template: bool) {
        let key = ObjectKey::of(&object.change);
        let name = match is_template {
            true => workload_name(node),
            false => key.to_string(),
        };
        for problem in object.problems {
            let line = node.line_of(&problem.path);
            self.problem(file, line, format!("{name}: {problem}"));
        }
        let object = Object { change: object.change, line: node.line };
        let objects = if is_template { &mut self.templates } else { &mut self.objects };
        if let Some(former) = objects.insert(key, object) {
            let text = format!("{name} is here again; the one in line {} wins", node.line);
            self.problem(file, former.line, text);
        }
    }

    /// The items of a `List`, or of a `PodList`, whose items need not say what they are.
    fn add_list(
        &mut self,
        file: &str,
        list: Node,
        (kind, version): (&str, Option<&str>),
        namespace: &str,
    ) -> Result<(), ReadError> {
        let Value::Map(entries) = list.value else { return Ok(()) };
        let Some(items) = entries.into_iter().find(|e| e.key == "items") else { return Ok(()) };
        let items = match items.node.value {
            Value::List(items) => items,
            Value::Null => Vec::new(),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) | Value::Map(_) => {
                return Err(ReadError::new(items.line, "items: is no list"));
            }
        };
        for mut item in items {
            inherit(&mut item, "kind", Some(kind).filter(|kind| !kind.is_empty()));
            inherit(&mut item, "apiVersion", version.filter(|_| !kind.is_empty()));
            self.add(file, item, namespace)?;
        }
        Ok(())
    }

    fn problem(&mut self, file: &str, line: u32, text: String) {
        self.problems.push(SourceProblem { file: file.to_owned(), line, text });
    }
}

/// Puts an object that names no namespace into one. Kinds without namespaces do not look.
fn place(object: &mut Node, namespace: &str) {
    let Value::Map(entries) = &mut object.value else { return };
    let Some(metadata) = entries.iter_mut().find(|entry| entry.key == "metadata") else { return };
    let line = metadata.line;
    let Value::Map(fields) = &mut metadata.node.value else { return };
    let value = Value::Text(namespace.to_owned());
    match fields.iter_mut().find(|field| field.key == "namespace") {
        Some(field) if field.node.value == Value::Null => field.node.value = value,
        Some(field) if field.node.value == Value::Text(String::new()) => field.node.value = value,
        Some(_) => {}
        None => {
            let node = Node { line, value };
            fields.push(Entry { key: "namespace".to_owned(), line, node });
        }
    }
}

/// `Deployment shop/web`
fn workload_name(node: &Node) -> String {
    let metadata = node.get("metadata");
    let text = |field: &str| metadata.and_then(|metadata| metadata.text(field)).unwrap_or_default();
    let name = if text("name").is_empty() { text("generateName") } else { text("name") };
    format!("{} {}/{name}", node.text("kind").unwrap_or_default(), text("namespace"))
}

fn inherit(item: &mut Node, key: &str, text: Option<&str>) {
    let (line, Some(text)) = (item.line, text) else { return };
    if item.get(key).is_none()
        && let Value::Map(entries) = &mut item.value
    {
        let node = Node { line, value: Value::Text(text.to_owned()) };
        entries.push(Entry { key: key.to_owned(), line, node });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Vec<String> {
        read("f", text.as_bytes(), "default")
            .unwrap()
            .objects
            .keys()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn lists_of_both_kinds_are_opened() {
        let list = "
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: x}}
- apiVersion: v1
  kind: PodList
  items:
  - metadata: {name: a, namespace: x}
  - metadata: {name: b, namespace: x}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicyList
items:
- metadata: {name: p, namespace: x}
---
{apiVersion: v1, kind: NodeList, items: }
";
        assert_eq!(ids(list), ["Namespace x", "Pod x/a", "Pod x/b", "NetworkPolicy x/p"]);
    }

    #[test]
    fn objects_without_a_namespace_are_where_they_are_put() {
        let text = "
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: n}}
- {apiVersion: v1, kind: Pod, metadata: {name: a}}
- {apiVersion: v1, kind: Pod, metadata: {name: b, namespace: }}
- {apiVersion: v1, kind: Pod, metadata: {name: c, namespace: ''}}
- {apiVersion: v1, kind: Pod, metadata: {name: d, namespace: y}}
";
        let content = read("f", text.as_bytes(), "x").unwrap();
        let ids: Vec<String> = content.objects.keys().map(ToString::to_string).collect();
        assert_eq!(ids, ["Namespace n", "Pod x/a", "Pod x/b", "Pod x/c", "Pod y/d"]);
        assert_eq!(content.problems, []);
    }

    #[test]
    fn problems_have_the_line_of_their_field() {
        let text = "---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: p
spec:
  podSelector: {}
  ingres:
  - {}
  egress:
  - ports:
    - port: 0
";
        let content = read("f.yaml", text.as_bytes(), "default").unwrap();
        let problems: Vec<String> = content.problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            problems,
            [
                "f.yaml:8: NetworkPolicy default/p: spec.ingres: no such field; there are \
                 podSelector, policyTypes, ingress, egress",
                "f.yaml:12: NetworkPolicy default/p: spec.egress[0].ports[0].port: \
                 0 is not a port, 1 to 65535",
            ]
        );
    }

    #[test]
    fn twice_in_one_file_the_last_wins_and_is_reported() {
        let pod = |label: &str| {
            format!(
                "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: a, labels: {{l: {label}}}}}}}\n"
            )
        };
        let content = read("f", (pod("one") + &pod("two")).as_bytes(), "default").unwrap();
        let Change::Pod(found) = &content.objects.values().next().unwrap().change else { panic!() };
        assert_eq!(found.labels.get("l").unwrap(), "two");
        assert_eq!(
            content.problems[0].to_string(),
            "f:2: Pod default/a is here again; the one in line 4 wins"
        );
    }

    #[test]
    fn one_bad_object_refuses_the_file() {
        let text = "{apiVersion: v1, kind: Namespace, metadata: {name: x}}\n---\nkind: Pod\n";
        let error = read("f", text.as_bytes(), "default").unwrap_err();
        assert_eq!(error.to_string(), "line 3: not a Kubernetes object: no `apiVersion`");
        let error = read("f", b"a: 1\nb: \xff\n", "default").unwrap_err();
        assert_eq!(error.to_string(), "line 2: not UTF-8 text");
    }

    const SAMPLE: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: &m {name: p, namespace: x}
spec:
  podSelector: {matchLabels: {a: b}}
  policyTypes: [Ingress]
  ingress:
  - from:
    - ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}
    ports: [{port: 80, endPort: 90}]
---
{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"\\u0061\"}}
";

    proptest::proptest! {
        /// Whatever becomes of a manifest, it is read or refused with a line that it has.
        #[test]
        fn damaged_manifests_are_read_or_refused(
            edits in proptest::collection::vec((0..SAMPLE.len(), proptest::num::u8::ANY, 0..3), 1..6)
        ) {
            let mut bytes = SAMPLE.as_bytes().to_vec();
            for (at, byte, edit) in edits {
                let at = at.min(bytes.len().saturating_sub(1));
                match edit {
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, b"{}[]:-#&*'\"\n ,<\\u"[usize::from(byte) % 17]),
                    _ => bytes.truncate(at.max(1)),
                }
            }
            // To YAML a lone carriage return ends a line too.
            let lines = bytes.split(|b| matches!(b, b'\n' | b'\r')).count();
            if let Err(error) = read("f", &bytes, "default") {
                proptest::prop_assert!((1..=lines + 1).contains(&(error.line as usize)), "{}", error);
            }
        }
    }
}
