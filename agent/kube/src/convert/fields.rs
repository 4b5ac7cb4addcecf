//! The fields of each kind that netpold reads, and detection of a policy's unknown fields.
//!
//! No other part of an object is decoded: the rest, which a tenant can fill at will (`managedFields` of the year 10000,
//! nested 200 deep), does not affect policy. Unknown fields of a policy are reported: an API server refuses them (or
//! drops them if validation is off); silently ignored, they would turn a misspelt `from` into "everyone".

use super::converted::Kind;
use super::metadata::{DENY, ENFORCEMENT};
use super::networks::ANNOTATIONS;
use super::problem::{FieldProblem, Unknown};
use crate::document::{DocumentNode, MappingEntry, Value};

/// Shape of the fields of an object.
#[derive(Debug)]
pub(super) enum Shape {
    /// Read unchanged: a scalar, or a map with arbitrary keys.
    Free,
    /// Not read.
    Skip,
    /// A mapping with these fields. Any other field changes the meaning of the object.
    Fields(&'static [(&'static str, &'static Shape)]),
    /// A mapping with these fields and others, which are not read.
    Used(&'static [(&'static str, &'static Shape)]),
    /// A list of items of this shape.
    Each(&'static Shape),
}

use Shape::{Each, Fields, Free, Skip, Used};

impl Shape {
    /// Returns the part of a document that the shape covers.
    pub(super) fn part_of(&self, node: &DocumentNode) -> DocumentNode {
        let value = match (self, &node.value) {
            (Each(shape), Value::List(items)) => {
                Value::List(items.iter().map(|item| shape.part_of(item)).collect())
            }
            (Fields(fields) | Used(fields), Value::Map(entries)) => {
                let parts = entries.iter().filter_map(|entry| {
                    let shape = field(fields, &entry.key).filter(|s| !matches!(s, Skip))?;
                    let (key, line) = (entry.key.clone(), entry.line);
                    Some(MappingEntry { key, line, node: shape.part_of(&entry.node) })
                });
                Value::Map(parts.collect())
            }
            (_, value) => value.clone(),
        };
        DocumentNode { line: node.line, value }
    }
}

/// Returns the shape of a field, if it is among these.
pub(super) fn field(
    fields: &'static [(&'static str, &'static Shape)],
    key: &str,
) -> Option<&'static Shape> {
    fields.iter().find(|(name, _)| *name == key).map(|(_, shape)| *shape)
}

const SELECTOR: Shape = Fields(&[("matchLabels", &Free), ("matchExpressions", &Each(&EXPRESSION))]);
const EXPRESSION: Shape = Fields(&[("key", &Free), ("operator", &Free), ("values", &Free)]);
const BLOCK: Shape = Fields(&[("cidr", &Free), ("except", &Free)]);
const PORT: Shape = Fields(&[("protocol", &Free), ("port", &Free), ("endPort", &Free)]);
const PEER: Shape =
    Fields(&[("podSelector", &SELECTOR), ("namespaceSelector", &SELECTOR), ("ipBlock", &BLOCK)]);
const INGRESS: Shape = Fields(&[("from", &Each(&PEER)), ("ports", &Each(&PORT))]);
const EGRESS: Shape = Fields(&[("to", &Each(&PEER)), ("ports", &Each(&PORT))]);
const SPEC: Shape = Fields(&[
    ("podSelector", &SELECTOR),
    ("policyTypes", &Free),
    ("ingress", &Each(&INGRESS)),
    ("egress", &Each(&EGRESS)),
]);
const METADATA: Shape = Fields(&[
    ("name", &Free),
    ("namespace", &Free),
    ("labels", &Free),
    ("annotations", &Free),
    ("uid", &Free),
    ("creationTimestamp", &Free),
    ("deletionTimestamp", &Free),
    ("deletionGracePeriodSeconds", &Free),
    ("finalizers", &Free),
    ("generateName", &Free),
    ("generation", &Free),
    ("managedFields", &Free),
    ("ownerReferences", &Free),
    ("resourceVersion", &Free),
    ("selfLink", &Free),
]);
const POLICY: Shape = Fields(&[
    ("apiVersion", &Free),
    ("kind", &Free),
    ("metadata", &METADATA),
    ("spec", &SPEC),
    // Removed from the API in 1.28, but still found in exports of older clusters.
    ("status", &Free),
]);

const NAMESPACED_PODS: Shape =
    Fields(&[("namespaceSelector", &SELECTOR), ("podSelector", &SELECTOR)]);
const SUBJECT: Shape = Fields(&[("namespaces", &SELECTOR), ("pods", &NAMESPACED_PODS)]);
const DESTINATION: Shape =
    Fields(&[("number", &Free), ("range", &Fields(&[("start", &Free), ("end", &Free)]))]);
const PROTOCOL_PORT: Shape = Fields(&[("destinationPort", &DESTINATION)]);
const PROTOCOL: Shape = Fields(&[
    ("tcp", &PROTOCOL_PORT),
    ("udp", &PROTOCOL_PORT),
    ("sctp", &PROTOCOL_PORT),
    ("destinationNamedPort", &Free),
]);
const CLUSTER_INGRESS: Shape = Fields(&[
    ("name", &Free),
    ("action", &Free),
    ("from", &Each(&SUBJECT)),
    ("protocols", &Each(&PROTOCOL)),
]);
const CLUSTER_EGRESS: Shape = Fields(&[
    ("name", &Free),
    ("action", &Free),
    ("to", &Each(&CLUSTER_DESTINATION)),
    ("protocols", &Each(&PROTOCOL)),
]);
const CLUSTER_DESTINATION: Shape = Fields(&[
    ("namespaces", &SELECTOR),
    ("pods", &NAMESPACED_PODS),
    ("nodes", &SELECTOR),
    ("networks", &Free),
    ("domainNames", &Free),
]);
const CLUSTER_SPEC: Shape = Fields(&[
    ("tier", &Free),
    ("priority", &Free),
    ("subject", &SUBJECT),
    ("ingress", &Each(&CLUSTER_INGRESS)),
    ("egress", &Each(&CLUSTER_EGRESS)),
]);
const CLUSTER_POLICY: Shape = Fields(&[
    ("apiVersion", &Free),
    ("kind", &Free),
    ("metadata", &METADATA),
    ("spec", &CLUSTER_SPEC),
    ("status", &Free),
]);

/// Fields read of every object's metadata; `uid` and `resourceVersion` only of an API server's objects.
const READ_METADATA: Shape = Used(&[
    ("name", &Free),
    ("namespace", &Free),
    ("uid", &Free),
    ("resourceVersion", &Free),
    ("generation", &Free),
    ("labels", &Free),
    ("creationTimestamp", &Free),
    ("deletionTimestamp", &Free),
]);
const READ_NAMESPACE: Shape = Used(&[(
    "metadata",
    &Used(&[
        ("name", &Free),
        ("namespace", &Free),
        ("uid", &Free),
        ("resourceVersion", &Free),
        ("labels", &Free),
        ("annotations", &Used(&[(DENY, &Free)])),
        ("creationTimestamp", &Free),
        ("deletionTimestamp", &Free),
    ]),
)]);
const READ_NODE: Shape = Used(&[
    ("metadata", &READ_METADATA),
    ("spec", &Used(&[("podCIDR", &Free), ("podCIDRs", &Each(&Free))])),
    ("status", &Used(&[("addresses", &Each(&Used(&[("type", &Free), ("address", &Free)])))])),
]);
const READ_CONTAINER: Shape = Used(&[
    ("restartPolicy", &Free),
    ("ports", &Each(&Used(&[("name", &Free), ("containerPort", &Free), ("protocol", &Free)]))),
]);
/// Annotations that netpold reads: its own, the kubelet's for static pods, and Multus's for further networks.
const READ_ANNOTATIONS: Shape = Used(&[
    ("netpold.io/check-source", &Free),
    ("kubernetes.io/config.mirror", &Free),
    ("kubernetes.io/config.hash", &Free),
    (ANNOTATIONS[0], &Free),
    (ANNOTATIONS[1], &Free),
]);
const READ_POD_METADATA: Shape = Used(&[
    ("name", &Free),
    ("namespace", &Free),
    ("uid", &Free),
    ("resourceVersion", &Free),
    ("labels", &Free),
    ("annotations", &READ_ANNOTATIONS),
    ("creationTimestamp", &Free),
    ("deletionTimestamp", &Free),
]);
const READ_POD: Shape = Used(&[
    ("metadata", &READ_POD_METADATA),
    (
        "spec",
        &Used(&[
            ("nodeName", &Free),
            ("hostNetwork", &Free),
            ("containers", &Each(&READ_CONTAINER)),
            ("initContainers", &Each(&READ_CONTAINER)),
        ]),
    ),
    (
        "status",
        &Used(&[("phase", &Free), ("podIP", &Free), ("podIPs", &Each(&Used(&[("ip", &Free)])))]),
    ),
]);
const READ_SERVICE_PORT: Shape =
    Used(&[("name", &Free), ("protocol", &Free), ("port", &Free), ("nodePort", &Free)]);
const READ_BALANCER: Shape =
    Used(&[("ingress", &Each(&Used(&[("ip", &Free), ("ipMode", &Free)])))]);
const READ_SERVICE: Shape = Used(&[
    ("metadata", &READ_METADATA),
    (
        "spec",
        &Used(&[
            ("type", &Free),
            ("clusterIP", &Free),
            ("clusterIPs", &Free),
            ("externalIPs", &Free),
            ("ports", &Each(&READ_SERVICE_PORT)),
        ]),
    ),
    ("status", &Used(&[("loadBalancer", &READ_BALANCER)])),
]);
const READ_CONDITIONS: Shape =
    Used(&[("ready", &Free), ("serving", &Free), ("terminating", &Free)]);
const READ_ENDPOINT_SLICE: Shape = Used(&[
    ("metadata", &READ_METADATA),
    ("addressType", &Free),
    ("endpoints", &Each(&Used(&[("addresses", &Free), ("conditions", &READ_CONDITIONS)]))),
    ("ports", &Each(&Used(&[("name", &Free), ("protocol", &Free), ("port", &Free)]))),
]);
const READ_POLICY_METADATA: Shape = Used(&[
    ("name", &Free),
    ("namespace", &Free),
    ("uid", &Free),
    ("resourceVersion", &Free),
    ("generation", &Free),
    ("annotations", &Used(&[(ENFORCEMENT, &Free), (DENY, &Free)])),
]);
const READ_POLICY: Shape = Used(&[("metadata", &READ_POLICY_METADATA), ("spec", &SPEC)]);
const READ_CLUSTER_POLICY: Shape =
    Used(&[("metadata", &READ_POLICY_METADATA), ("spec", &CLUSTER_SPEC)]);
/// Part of a ClusterNetworkPolicy with unreadable rules: everything except the rules' matches.
pub(super) const CLUSTER_ACTIONS: Shape = Used(&[
    ("metadata", &READ_POLICY_METADATA),
    (
        "spec",
        &Fields(&[
            ("tier", &Free),
            ("priority", &Free),
            ("subject", &SUBJECT),
            ("ingress", &Each(&Used(&[("name", &Free), ("action", &Free)]))),
            ("egress", &Each(&Used(&[("name", &Free), ("action", &Free)]))),
        ]),
    ),
]);
/// Part of a policy with unreadable rules: its pod selector.
pub(super) const POLICY_SELECTOR: Shape = Used(&[(
    "spec",
    &Fields(&[
        ("podSelector", &SELECTOR),
        ("policyTypes", &Skip),
        ("ingress", &Skip),
        ("egress", &Skip),
    ]),
)]);
/// Part of a policy with unreadable rules: the directions that it isolates.
pub(super) const POLICY_TYPES: Shape = Used(&[("spec", &Used(&[("policyTypes", &Free)]))]);

impl Kind {
    /// Returns the shape of the fields read for the kind. It must cover every field that the conversion uses.
    pub(super) const fn shape(self) -> &'static Shape {
        match self {
            Self::Namespace => &READ_NAMESPACE,
            Self::Node => &READ_NODE,
            Self::Pod => &READ_POD,
            Self::Service => &READ_SERVICE,
            Self::EndpointSlice => &READ_ENDPOINT_SLICE,
            Self::NetworkPolicy => &READ_POLICY,
            Self::ClusterNetworkPolicy => &READ_CLUSTER_POLICY,
        }
    }
}

/// Returns the fields of a policy's manifest that the API does not have, each with its full path; empty for other
/// kinds.
pub(super) fn unknown(kind: Kind, object: &DocumentNode) -> Vec<Unknown> {
    match kind {
        Kind::NetworkPolicy => unknown_of(object, &POLICY),
        Kind::ClusterNetworkPolicy => unknown_of(object, &CLUSTER_POLICY),
        Kind::Namespace | Kind::Node | Kind::Pod | Kind::Service | Kind::EndpointSlice => {
            Vec::new()
        }
    }
}

/// Returns the fields within a policy's `spec` that the API does not have; empty for other kinds. Unknown metadata of a
/// newer server is ignored: it neither grants nor restricts.
pub(super) fn unknown_in_spec(kind: Kind, object: &DocumentNode) -> Vec<Unknown> {
    if kind.is_policy() { unknown_of(object, kind.shape()) } else { Vec::new() }
}

/// Returns the unknown fields of the part that [`POLICY_SELECTOR`] covers.
pub(super) fn unknown_beside_rules(policy: &DocumentNode) -> Vec<Unknown> {
    unknown_of(policy, &POLICY_SELECTOR)
}

fn unknown_of(policy: &DocumentNode, shape: &Shape) -> Vec<Unknown> {
    let mut found = Vec::new();
    walk(policy, shape, "", &mut found);
    found
}

/// Returns the fields of an object's `metadata` that the API does not have.
pub(super) fn unknown_metadata(object: &DocumentNode) -> Vec<Unknown> {
    let mut found = Vec::new();
    if let Some(metadata) = object.get("metadata") {
        walk(metadata, &METADATA, "metadata", &mut found);
    }
    found
}

fn walk(node: &DocumentNode, shape: &Shape, path: &str, found: &mut Vec<Unknown>) {
    match (shape, &node.value) {
        (Each(shape), Value::List(items)) => {
            for (index, item) in items.iter().enumerate() {
                walk(item, shape, &format!("{path}[{index}]"), found);
            }
        }
        (Fields(fields) | Used(fields), Value::Map(entries)) => {
            for entry in entries {
                let dot = if path.is_empty() { "" } else { "." };
                let below = format!("{path}{dot}{}", entry.key);
                match field(fields, &entry.key) {
                    Some(shape) => walk(&entry.node, shape, &below, found),
                    None if matches!(shape, Used(_)) => {}
                    None => found.push(Unknown {
                        inside: path.to_owned(),
                        problem: FieldProblem::new(below, not_known(fields)),
                    }),
                }
            }
        }
        // The decoder reports wrong types.
        _ => {}
    }
}

fn not_known(fields: &[(&str, &Shape)]) -> String {
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    match names.as_slice() {
        names if names.len() > 5 => "unknown field of metadata".into(),
        names => format!("unknown field; known fields: {}", names.join(", ")),
    }
}
