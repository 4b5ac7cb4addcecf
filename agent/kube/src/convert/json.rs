//! Objects of an API server: JSON, decoded only as far as its fields are used.
//!
//! The rest is skipped without recursion, regardless of depth and content. A NetworkPolicy of a newer server may have
//! unknown fields, or known ones of another shape. They must not be ignored: a peer with one more condition grants less
//! than the peer without it.

use std::fmt;

use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use netpold_core::model::{Change, ClusterPolicy};
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::cluster_policy::cluster_network_policy;
use super::converted::{Converted, Kind};
use super::fields::{self, Shape};
use super::object::object;
use super::policy::network_policy;
use super::problem::FieldProblem;
use crate::decode::typed;
use crate::document::{DocumentNode, MappingEntry, Value};

/// Deepest nesting of a used value; Kubernetes objects stay under 20.
const MAX_DEPTH: usize = 64;
/// Maximum number of used values of one object; etcd's limit of 1.5 MB leaves room for fewer.
const MAX_VALUES: usize = 1_000_000;
/// Length in bytes beyond which an error's path drops its inner steps.
const STEPS_MAX: usize = 80;

/// Result of reading an object.
#[derive(Debug)]
pub struct Read {
    /// Identity of the object.
    pub identity: ObjectIdentity,
    /// Current state of the object; none if it cannot be decoded, except for the fail-closed state of a policy.
    pub change: Option<Change>,
    /// Parts of the object that could not be interpreted.
    pub problems: Vec<FieldProblem>,
    /// Whether the object could not be decoded.
    pub undecoded: bool,
}

/// Identity of an object, as far as it can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectIdentity {
    /// `metadata.namespace`
    pub namespace: Option<String>,
    /// `metadata.name`
    pub name: Option<String>,
    /// `metadata.uid`
    pub uid: Option<String>,
    /// `metadata.resourceVersion`
    pub version: Option<String>,
    /// `metadata.generation`
    pub generation: Option<i64>,
}

/// Reads an object of a kind. `whole`: the text was not truncated for its size.
#[must_use]
pub fn read(kind: Kind, json: &[u8], whole: bool) -> Read {
    let decoded = if whole {
        decoded(kind, json)
    } else {
        Err(FieldProblem::new("", format!("the object is larger than {} bytes", json.len())))
    };
    match decoded {
        Ok((identity, Converted { change, problems })) => {
            Read { identity, change: Some(change), problems, undecoded: false }
        }
        Err(problem) => undecoded(kind, json, problem),
    }
}

fn decoded(kind: Kind, json: &[u8]) -> Result<(ObjectIdentity, Converted), FieldProblem> {
    let node = node(json, kind.shape())?;
    let unknown = fields::unknown_in_spec(kind, &node);
    let converted = object(kind, &node, &unknown)?;
    let metadata = node.get("metadata");
    let text = |field: &str| metadata.and_then(|m| m.text(field)).map(str::to_owned);
    let identity = ObjectIdentity {
        namespace: text("namespace"),
        name: text("name"),
        uid: text("uid"),
        version: text("resourceVersion"),
        generation: metadata.and_then(|of| typed(of.get("generation")?).ok()),
    };
    Ok((identity, converted))
}

fn undecoded(kind: Kind, json: &[u8], problem: FieldProblem) -> Read {
    let identity = ObjectIdentity::parse_identity(json);
    let (change, problems) = closed(kind, &identity, problem, |shape| node(json, shape).ok());
    Read { identity, change, problems, undecoded: true }
}

/// Returns the state of an object that cannot be decoded: none, except for policies. A NetworkPolicy isolates the pods
/// that it selects, as far as the selector can be read, and grants nothing; in a ClusterNetworkPolicy, Accept rules
/// match nothing and all others deny everything. `part` reads the part of the object that a shape covers.
pub(super) fn closed(
    kind: Kind,
    identity: &ObjectIdentity,
    problem: FieldProblem,
    part: impl Fn(&'static Shape) -> Option<DocumentNode>,
) -> (Option<Change>, Vec<FieldProblem>) {
    let worded = |outcome: &str| {
        let text = format!("{}; the policy cannot be decoded{outcome}", problem.text);
        FieldProblem::new(problem.path.clone(), text)
    };
    let left = match kind {
        Kind::NetworkPolicy => without_rules(identity, part),
        Kind::ClusterNetworkPolicy => without_matches(part),
        Kind::Namespace | Kind::Node | Kind::Pod | Kind::Service | Kind::EndpointSlice => None,
    };
    let Some(Converted { change, mut problems }) = left else { return (None, vec![problem]) };
    if let Change::Policy(mut policy) = change {
        let problem = worded(" and grants nothing");
        policy.problems.push(problem.to_string());
        problems.push(problem);
        return (Some(Change::Policy(policy)), problems);
    }
    let problem = worded(": its Accept rules match nothing, the others deny everything");
    let change = if let Change::ClusterPolicy(policy) = change {
        Change::ClusterPolicy(ClusterPolicy { problems: vec![problem.to_string()], ..policy })
    } else {
        change
    };
    (Some(change), vec![problem])
}

/// Returns the readable part of a ClusterNetworkPolicy that cannot be decoded: its rules by their actions alone, if
/// these can be read.
fn without_matches(part: impl Fn(&'static Shape) -> Option<DocumentNode>) -> Option<Converted> {
    let actions = part(&fields::CLUSTER_ACTIONS)?;
    let unknown = fields::unknown_in_spec(Kind::ClusterNetworkPolicy, &actions);
    cluster_network_policy(&actions, &unknown).ok()
}

/// Returns the readable part of a policy that cannot be decoded: it selects every pod of its namespace if its selector
/// cannot be read, and isolates both directions if its policy types cannot.
fn without_rules(
    identity: &ObjectIdentity,
    part: impl Fn(&'static Shape) -> Option<DocumentNode>,
) -> Option<Converted> {
    let selecting = part(&fields::POLICY_SELECTOR);
    let unknown = selecting.as_ref().map(fields::unknown_beside_rules).unwrap_or_default();
    let selector = selecting.as_ref().and_then(|node| node.get("spec")?.get("podSelector"));
    let directions = part(&fields::POLICY_TYPES);
    let types = directions.as_ref().and_then(|node| node.get("spec")?.get("policyTypes"));
    let types: Option<Vec<String>> = types.and_then(|node| typed(node).ok());
    let types = types.filter(|types| !types.is_empty());
    let policy = NetworkPolicy {
        metadata: ObjectMeta {
            name: identity.name.clone(),
            namespace: identity.namespace.clone(),
            uid: identity.uid.clone(),
            generation: identity.generation,
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: selector.and_then(|node| typed::<LabelSelector>(node).ok()),
            policy_types: types.or_else(|| Some(vec!["Ingress".into(), "Egress".into()])),
            ..NetworkPolicySpec::default()
        }),
    };
    network_policy(&policy, &unknown).ok()
}

impl ObjectIdentity {
    /// Reads the identity; stops at invalid JSON, or after the metadata.
    #[must_use]
    pub fn parse_identity(json: &[u8]) -> Self {
        let mut identity = Self::default();
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        // Reading the whole object reports the same error.
        let _ = deserializer.deserialize_any(Top(&mut identity));
        identity
    }
}

/// Visitor of an object, up to the end of its metadata.
struct Top<'i>(&'i mut ObjectIdentity);

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "metadata" {
                map.next_value_seed(Metadata(self.0))?;
                return Err(de::Error::custom("all that is needed was read"));
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

struct Metadata<'i>(&'i mut ObjectIdentity);

impl<'de> DeserializeSeed<'de> for Metadata<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Metadata<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metadata")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let field = match key.as_str() {
                "namespace" => &mut self.0.namespace,
                "name" => &mut self.0.name,
                "uid" => &mut self.0.uid,
                "resourceVersion" => &mut self.0.version,
                "generation" => {
                    self.0.generation = Some(map.next_value()?);
                    continue;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *field = Some(map.next_value::<String>()?);
        }
        Ok(())
    }
}

/// Reads the part of a JSON text that a shape covers, as a document without lines.
fn node(json: &[u8], shape: &'static Shape) -> Result<DocumentNode, FieldProblem> {
    let mut context = ObjectContext { path: String::new(), values: 0 };
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let seed = ShapeSeed { shape, depth: 0, context: &mut context };
    let read = seed.deserialize(&mut deserializer).and_then(|node| {
        deserializer.end()?;
        Ok(node)
    });
    read.map_err(|error| {
        let text = error.to_string();
        // The JSON is one line, so its position is dropped: the path is more useful.
        let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
        FieldProblem::new(context.path, reason)
    })
}

/// State shared by the values of one object.
struct ObjectContext {
    /// Path of an error, collected from the inside out.
    path: String,
    values: usize,
}

impl ObjectContext {
    fn within(&mut self, step: &str) {
        // For a deeply nested value, the outermost steps identify its place.
        if self.path.len() > STEPS_MAX {
            "[...]".clone_into(&mut self.path);
        }
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{step}{dot}{}", self.path);
    }
}

/// A value being read.
struct ShapeSeed<'c> {
    shape: &'static Shape,
    depth: usize,
    context: &'c mut ObjectContext,
}

impl ShapeSeed<'_> {
    fn checked_node<E: de::Error>(self, value: Value) -> Result<DocumentNode, E> {
        self.context.values += 1;
        if self.context.values > MAX_VALUES {
            return Err(E::custom(format_args!("the object has more than {MAX_VALUES} values")));
        }
        Ok(DocumentNode { line: 0, value })
    }

    fn check_depth<E: de::Error>(&self) -> Result<(), E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom(format_args!("nested deeper than {MAX_DEPTH}")));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for ShapeSeed<'_> {
    type Value = DocumentNode;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<DocumentNode, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ShapeSeed<'_> {
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
        let value = i64::try_from(value).map_or(Value::Float(value as f64), Value::Int);
        self.checked_node(value)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<DocumentNode, E> {
        self.checked_node(Value::Float(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<DocumentNode, E> {
        self.checked_node(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<DocumentNode, A::Error> {
        self.check_depth()?;
        let shape = if let Shape::Each(shape) = self.shape { shape } else { &Shape::Free };
        let mut items = Vec::new();
        loop {
            let seed = ShapeSeed { shape, depth: self.depth + 1, context: self.context };
            match list.next_element_seed(seed) {
                Ok(Some(item)) => items.push(item),
                Ok(None) => return self.checked_node(Value::List(items)),
                Err(error) => {
                    self.context.within(&format!("[{}]", items.len()));
                    return Err(error);
                }
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DocumentNode, A::Error> {
        self.check_depth()?;
        let mut entries = Vec::new();
        while let Some(field) = map.next_key_seed(KeyOf(self.shape))? {
            let (key, node) = match field {
                Field::Ignored => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
                Field::Named(key) => {
                    map.next_value::<IgnoredAny>()?;
                    (key, Ok(DocumentNode { line: 0, value: Value::Null }))
                }
                Field::Read(key, shape) => {
                    let seed = ShapeSeed { shape, depth: self.depth + 1, context: self.context };
                    (key, map.next_value_seed(seed))
                }
            };
            match node {
                Ok(node) => entries.push(MappingEntry { key, line: 0, node }),
                Err(error) => {
                    self.context.within(&key);
                    return Err(error);
                }
            }
        }
        if let Some(key) = twice(&entries) {
            self.context.within(key);
            return Err(de::Error::custom("is given twice"));
        }
        self.checked_node(Value::Map(entries))
    }
}

/// Returns a key of more than one entry.
fn twice(entries: &[MappingEntry]) -> Option<&str> {
    let mut keys: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
    keys.sort_unstable();
    keys.windows(2).find_map(|pair| match pair {
        [one, next] if one == next => Some(*one),
        _ => None,
    })
}

/// Seed for a key of a mapping of that shape.
struct KeyOf(&'static Shape);

/// Treatment of a key's value.
enum Field {
    /// Read with the given shape.
    Read(String, &'static Shape),
    /// Kept as a name without a value: an unknown field.
    Named(String),
    /// Skipped.
    Ignored,
}

impl<'de> DeserializeSeed<'de> for KeyOf {
    type Value = Field;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Field, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyOf {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<Field, E> {
        let (Shape::Fields(fields) | Shape::Used(fields)) = self.0 else {
            return Ok(Field::Read(key.to_owned(), &Shape::Free));
        };
        Ok(match fields::field(fields, key) {
            Some(Shape::Skip) => Field::Ignored,
            Some(shape) => Field::Read(key.to_owned(), shape),
            None if matches!(self.0, Shape::Used(_)) => Field::Ignored,
            None => Field::Named(key.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests;
