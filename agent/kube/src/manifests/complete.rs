//! Namespace and name of objects that are written without them, as `kubectl create` completes them.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::convert::is_workload;
use crate::decode::decode;
use crate::document::{DocumentNode, MappingEntry, Value};

/// Characters of generated names: `k8s.io/apimachinery/pkg/util/rand`.
const GENERATED: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Length of the generated part of a name: `k8s.io/apiserver/pkg/storage/names`.
const LENGTH: u32 = 5;

/// Sets the namespace of an object that names none, and the name of one that has only a `generateName`. The name is
/// `web-*` and five characters, for `generateName: web-`: no name of an API server's object, since these have no `*`. It
/// depends on the object's content alone, so that it is the same for each reader and on both sides of a comparison.
/// Workloads get no name: their stand-in pods have the `generateName`. Kinds without namespaces ignore the namespace.
pub fn complete(object: &mut DocumentNode, namespace: &str) {
    set_field(object, "namespace", namespace);
    if object.text("kind").is_some_and(is_workload) {
        return;
    }
    let prefix = object.get("metadata").and_then(|metadata| metadata.text("generateName"));
    if let Some(prefix) = prefix.filter(|prefix| !prefix.is_empty()).map(str::to_owned) {
        let name = format!("{prefix}*{}", suffix(object));
        set_field(object, "name", &name);
    }
}

/// Sets a field of `metadata` that is absent, null or empty.
fn set_field(object: &mut DocumentNode, key: &str, text: &str) {
    let Value::Map(entries) = &mut object.value else { return };
    let Some(metadata) = entries.iter_mut().find(|entry| entry.key == "metadata") else { return };
    let line = metadata.line;
    let Value::Map(fields) = &mut metadata.node.value else { return };
    let value = Value::Text(text.to_owned());
    match fields.iter_mut().find(|field| field.key == key) {
        Some(field) if field.node.value == Value::Null => field.node.value = value,
        Some(field) if field.node.value == Value::Text(String::new()) => field.node.value = value,
        Some(_) => {}
        None => {
            let node = DocumentNode { line, value };
            fields.push(MappingEntry { key: key.to_owned(), line, node });
        }
    }
}

/// Returns characters that distinguish the contents of objects, regardless of their lines and the order of their
/// fields.
fn suffix(object: &DocumentNode) -> String {
    let mut hasher = DefaultHasher::new();
    let content = decode::<serde_json::Value>(object).map(|content| content.to_string());
    content.unwrap_or_default().hash(&mut hasher);
    let (hash, base) = (hasher.finish(), GENERATED.len() as u64);
    let digit = |place| GENERATED[(hash / base.pow(place) % base) as usize];
    (0..LENGTH).map(|place| char::from(digit(place))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::parse;

    /// Returns namespace and name of an object after completion.
    fn completed(text: &str) -> (String, String) {
        let mut node = parse(text).unwrap().remove(0);
        complete(&mut node, "shop");
        let metadata = node.get("metadata").unwrap();
        let field = |key| metadata.text(key).unwrap_or_default().to_owned();
        (field("namespace"), field("name"))
    }

    fn generated(metadata: &str, spec: &str) -> String {
        let text = format!("kind: NetworkPolicy\nmetadata: {{{metadata}}}\nspec: {{{spec}}}\n");
        completed(&text).1
    }

    #[test]
    fn a_generated_name_is_of_the_content() {
        let name = generated("generateName: web-", "a: 1, b: 2");
        let suffix = name.strip_prefix("web-*").unwrap();
        assert!(suffix.len() == 5 && suffix.bytes().all(|it| GENERATED.contains(&it)), "{name}");
        assert!(generated("name: '', generateName: web-", "a: 1").starts_with("web-*"));
        assert_eq!(name, generated("generateName: web-", "\n  b: 2,\n  a: 1"), "other lines");
        assert_ne!(name, generated("generateName: web-", "a: 1, b: 3"));
        assert_eq!(generated("name: own, generateName: web-", ""), "own");
        assert_eq!(generated("generateName: ''", ""), "");
    }

    #[test]
    fn a_namespace_is_given_to_objects_without_one() {
        let of = |metadata: &str| completed(&format!("kind: Pod\nmetadata: {{{metadata}}}\n")).0;
        for metadata in ["", "namespace: ''", "namespace: null"] {
            assert_eq!(of(metadata), "shop", "{metadata}");
        }
        assert_eq!(of("namespace: other"), "other");
        let job = "kind: Job\nmetadata: {generateName: load-}\n";
        assert_eq!(completed(job), ("shop".to_owned(), String::new()), "its template has a name");
    }
}
