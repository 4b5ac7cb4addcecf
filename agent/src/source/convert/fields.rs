//! The fields that netpold reads of each kind, and those that a policy does not have.
//!
//! Nothing else of an object is decoded: what a tenant can put into the rest (`managedFields` of the
//! year 10000, nested 200 deep) is no concern of policy. Of a policy also the fields that its API
//! does not have are named: an API server refuses them (or drops them, where validation is off);
//! ignored in silence they would turn a misspelt `from` into "everyone".

use super::networks::ANNOTATIONS;
use super::{Kind, Problem, Unknown};
use crate::source::document::{Entry, Node, Value};

/// The fields an object may have.
#[derive(Debug)]
pub(super) enum Shape {
    /// Taken as it is: a scalar, or a map with keys of the user's choice.
    Free,
    /// Not read.
    Skip,
    /// A mapping with these fields. Others mean something else than the object without them.
    Fields(&'static [(&'static str, &'static Shape)]),
    /// A mapping with these fields and others, which are not read.
    Used(&'static [(&'static str, &'static Shape)]),
    /// A list of these.
    Each(&'static Shape),
}

use Shape::{Each, Fields, Free, Skip, Used};

impl Shape {
    /// What of a document is read.
    pub(super) fn part_of(&self, node: &Node) -> Node {
        let value = match (self, &node.value) {
            (Each(shape), Value::List(items)) => {
                Value::List(items.iter().map(|item| shape.part_of(item)).collect())
            }
            (Fields(fields) | Used(fields), Value::Map(entries)) => {
                let parts = entries.iter().filter_map(|entry| {
                    let shape = field(fields, &entry.key).filter(|s| !matches!(s, Skip))?;
                    let (key, line) = (entry.key.clone(), entry.line);
                    Some(Entry { key, line, node: shape.part_of(&entry.node) })
                });
                Value::Map(parts.collect())
            }
            (_, value) => value.clone(),
        };
        Node { line: node.line, value }
    }
}

/// The shape of a field, if it is among these.
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
    // Removed from the API in 1.28, still found in what older clusters exported.
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

/// What is read of every object's metadata; `uid` and `resourceVersion` only of an API server's.
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
const READ_NAMESPACE: Shape = Used(&[("metadata", &READ_METADATA)]);
const READ_NODE: Shape = Used(&[
    ("metadata", &READ_METADATA),
    ("spec", &Used(&[("podCIDR", &Free), ("podCIDRs", &Each(&Free))])),
    ("status", &Used(&[("addresses", &Each(&Used(&[("type", &Free), ("address", &Free)])))])),
]);
const READ_CONTAINER: Shape = Used(&[
    ("restartPolicy", &Free),
    ("ports", &Each(&Used(&[("name", &Free), ("containerPort", &Free), ("protocol", &Free)]))),
]);
/// The annotations that netpold reads: its own, those by which the kubelet tells static pods, and those by which Multus
/// tells further networks.
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
    ("annotations", &Used(&[(super::ENFORCEMENT, &Free)])),
]);
const READ_POLICY: Shape = Used(&[("metadata", &READ_POLICY_METADATA), ("spec", &SPEC)]);
const READ_CLUSTER_POLICY: Shape =
    Used(&[("metadata", &READ_POLICY_METADATA), ("spec", &CLUSTER_SPEC)]);
/// Of a ClusterNetworkPolicy whose rules cannot be read: all but what they match.
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
/// Of a policy whose rules cannot be read: what it selects.
pub(super) const POLICY_SELECTOR: Shape = Used(&[(
    "spec",
    &Fields(&[
        ("podSelector", &SELECTOR),
        ("policyTypes", &Skip),
        ("ingress", &Skip),
        ("egress", &Skip),
    ]),
)]);
/// Of a policy whose rules cannot be read: in which directions it isolates.
pub(super) const POLICY_TYPES: Shape = Used(&[("spec", &Used(&[("policyTypes", &Free)]))]);

impl Kind {
    /// What is read of an object of the kind. Whatever a conversion looks at has to be here.
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

/// The fields of a policy's manifest that the API does not know, each with its full path. None of
/// other kinds.
pub(super) fn unknown(kind: Kind, object: &Node) -> Vec<Unknown> {
    match kind {
        Kind::NetworkPolicy => unknown_of(object, &POLICY),
        Kind::ClusterNetworkPolicy => unknown_of(object, &CLUSTER_POLICY),
        Kind::Namespace | Kind::Node | Kind::Pod | Kind::Service | Kind::EndpointSlice => {
            Vec::new()
        }
    }
}

/// The fields within a policy's `spec` that the API does not know. A newer server's metadata is of no
/// concern: it grants nothing and restricts nothing. None of other kinds.
pub(super) fn unknown_in_spec(kind: Kind, object: &Node) -> Vec<Unknown> {
    if kind.is_policy() { unknown_of(object, kind.shape()) } else { Vec::new() }
}

/// The same of what [`POLICY_SELECTOR`] takes.
pub(super) fn unknown_beside_rules(policy: &Node) -> Vec<Unknown> {
    unknown_of(policy, &POLICY_SELECTOR)
}

fn unknown_of(policy: &Node, shape: &Shape) -> Vec<Unknown> {
    let mut found = Vec::new();
    walk(policy, shape, "", &mut found);
    found
}

/// The fields of an object's `metadata` that the API does not know.
pub(super) fn unknown_metadata(object: &Node) -> Vec<Unknown> {
    let mut found = Vec::new();
    if let Some(metadata) = object.get("metadata") {
        walk(metadata, &METADATA, "metadata", &mut found);
    }
    found
}

fn walk(node: &Node, shape: &Shape, path: &str, found: &mut Vec<Unknown>) {
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
                        problem: Problem::new(below, not_known(fields)),
                    }),
                }
            }
        }
        // A wrong type is the decoder's to report.
        _ => {}
    }
}

fn not_known(fields: &[(&str, &Shape)]) -> String {
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    match names.as_slice() {
        names if names.len() > 5 => "no such field in metadata".into(),
        names => format!("no such field; there are {}", names.join(", ")),
    }
}
