//! Conversion of Kubernetes objects to netpold's model: the only module that names Kubernetes types.
//!
//! It decides the meaning of absent and of empty fields, as the API defines them, and the values that are refused;
//! behind it every value has one meaning.

mod cluster_policy;
mod fields;
mod json;
mod networks;
mod policy;
mod refused;
mod selector;
mod service;
mod workload;

use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use netpold_core::bindings::mirrored_uid;
use netpold_core::labels::NAMESPACE_NAME;
use netpold_core::model::{
    Change, Denial, Enforcement, Key, Labels, NamedPort, Namespace, Node, Pod, Protocol,
};
use netpold_core::printable::cut;

use self::cluster_policy::cluster_network_policy;
pub use self::json::{ObjectIdentity, Read, read};
use self::policy::network_policy;
pub use self::refused::{UndecodableObject, refused};
use self::service::{endpoint_slice, service};
pub(crate) use self::workload::is_workload;
pub use self::workload::{ConvertedTemplate, template};
use crate::decode::{Mismatch, typed};
use crate::document::{self, ReadError};

/// Annotation of a pod (a gateway or a virtual machine) that may send from other addresses than its own, if the value
/// is `off`.
const CHECK_SOURCE: &str = "netpold.io/check-source";

/// Annotation of a policy: enforced or on trial.
const ENFORCEMENT: &str = "netpold.io/enforcement";

/// Annotation of a policy or a namespace: denied packets disappear or are answered.
const DENY: &str = "netpold.io/deny";

/// Kinds of `networking.k8s.io` besides NetworkPolicy; any other kind is a misspelling.
const NETWORKING_KINDS: [&str; 4] = ["Ingress", "IngressClass", "IPAddress", "ServiceCIDR"];

/// Kinds of `policy.networking.k8s.io` besides ClusterNetworkPolicy: its predecessors.
const POLICY_NETWORKING_KINDS: [&str; 2] = ["AdminNetworkPolicy", "BaselineAdminNetworkPolicy"];

/// Most problems of a policy that are named; the others are counted. A policy may have 60,000.
const NAMED: usize = 50;

/// Longest path or text of a [`FieldProblem`], in bytes: a value may be as long as a megabyte.
const PROBLEM_MAX: usize = 400;

/// A kind of objects that policies depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `v1`
    Namespace,
    /// `v1`
    Node,
    /// `v1`
    Pod,
    /// `v1`
    Service,
    /// `discovery.k8s.io/v1`
    EndpointSlice,
    /// `networking.k8s.io/v1`
    NetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha2`
    ClusterNetworkPolicy,
}

impl Kind {
    /// Returns whether a field unknown to the API changes the meaning of an object of the kind.
    const fn is_policy(self) -> bool {
        matches!(self, Self::NetworkPolicy | Self::ClusterNetworkPolicy)
    }
}

/// A part of an object that could not be interpreted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldProblem {
    /// Path of the field, as `spec.ingress[0].ports[1].endPort`.
    pub path: String,
    /// Description of the problem.
    pub text: String,
}

impl FieldProblem {
    fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: clipped(path.into()), text: clipped(text.into()) }
    }
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.text),
            path => write!(f, "{path}: {}", self.text),
        }
    }
}

impl From<Mismatch> for FieldProblem {
    fn from(mismatch: Mismatch) -> Self {
        Self::new(mismatch.path, mismatch.reason)
    }
}

impl From<FieldProblem> for Mismatch {
    fn from(problem: FieldProblem) -> Self {
        Self { path: problem.path, line: None, reason: problem.text }
    }
}

/// Prepares a text for a line of a log: limited in length, control characters escaped.
fn clipped(text: String) -> String {
    let text = cut(text, PROBLEM_MAX);
    if text.contains(char::is_control) {
        let shown =
            |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
        return text.chars().map(shown).collect();
    }
    text
}

/// A field that the API does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Path of the mapping that contains the field.
    pub inside: String,
    /// Path of the field, and the names of the known fields.
    pub problem: FieldProblem,
}

/// An object converted to netpold's model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The object, as a change that sets its current state.
    pub change: Change,
    /// Parts of the object that could not be interpreted.
    pub problems: Vec<FieldProblem>,
}

/// Content of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manifest {
    /// An object that policies depend on.
    Object(Box<Converted>),
    /// An object of another kind, by `apiVersion` and `kind`.
    Other(String, String),
}

/// Converts a manifest's object.
///
/// # Errors
/// The document is not a Kubernetes object, or a value has the wrong type.
pub fn manifest(node: &document::DocumentNode) -> Result<Manifest, ReadError> {
    let needed = |field: &str| {
        node.text(field).ok_or_else(|| {
            ReadError::new(node.line, format!("not a Kubernetes object: no `{field}`"))
        })
    };
    let (kind, version) = (needed("kind")?, needed("apiVersion")?);
    let kind = match (version, kind) {
        ("networking.k8s.io/v1", "NetworkPolicy") => Kind::NetworkPolicy,
        ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy") => Kind::ClusterNetworkPolicy,
        ("v1", "Namespace") => Kind::Namespace,
        ("v1", "Node") => Kind::Node,
        ("v1", "Pod") => Kind::Pod,
        ("v1", "Service") => Kind::Service,
        ("discovery.k8s.io/v1", "EndpointSlice") => Kind::EndpointSlice,
        _ => return other(node, version, kind),
    };
    let used = kind.shape().part_of(node);
    let unknown = fields::unknown(kind, node);
    let mut converted = object(kind, &used, &unknown).map_err(|mismatch| mismatch.at(node))?;
    if let Change::Pod(pod) = &mut converted.change {
        pod.workload = workload::owner(node, &pod.labels).map(Box::new);
    }
    if !kind.is_policy() {
        converted.problems.extend(fields::unknown_metadata(node).into_iter().map(|u| u.problem));
    }
    Ok(Manifest::Object(Box::new(converted)))
}

/// Converts the used part of an object; `unknown` are a policy's fields beyond the API's.
fn object(
    kind: Kind,
    node: &document::DocumentNode,
    unknown: &[Unknown],
) -> Result<Converted, Mismatch> {
    let converted = match kind {
        Kind::Namespace => namespace(&typed(node)?),
        Kind::Node => self::node(&typed(node)?),
        Kind::Pod => pod(&typed(node)?),
        Kind::Service => service(&typed(node)?),
        Kind::EndpointSlice => endpoint_slice(&typed(node)?),
        Kind::NetworkPolicy => network_policy(&typed(node)?, unknown),
        Kind::ClusterNetworkPolicy => return cluster_network_policy(node, unknown),
    };
    Ok(converted?)
}

/// Ignores objects of other kinds, unless they can only be one of the kinds above with a misspelled name or version.
fn other(node: &document::DocumentNode, version: &str, kind: &str) -> Result<Manifest, ReadError> {
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let expected = match kind {
        "NetworkPolicy" if !group.contains('.') || group.ends_with("k8s.io") => {
            "networking.k8s.io/v1"
        }
        "ClusterNetworkPolicy" if !group.contains('.') || group.ends_with("k8s.io") => {
            "policy.networking.k8s.io/v1alpha2"
        }
        "Namespace" | "Node" | "Pod" | "Service" if group.is_empty() => "v1",
        "EndpointSlice" if group.is_empty() || group == "discovery.k8s.io" => "discovery.k8s.io/v1",
        _ if group == "networking.k8s.io" && !NETWORKING_KINDS.contains(&kind) => {
            let reason = format!("kind: {version} has no {kind}, but NetworkPolicy");
            return Err(ReadError::new(node.line_of("kind"), reason));
        }
        _ if group == "policy.networking.k8s.io" && !POLICY_NETWORKING_KINDS.contains(&kind) => {
            let reason = format!("kind: {version} has no {kind}, but ClusterNetworkPolicy");
            return Err(ReadError::new(node.line_of("kind"), reason));
        }
        _ => return Ok(Manifest::Other(version.to_owned(), kind.to_owned())),
    };
    let reason = format!("apiVersion: {kind} is read as {expected}, not {version}");
    Err(ReadError::new(node.line_of("apiVersion"), reason))
}

fn namespace(namespace: &core::Namespace) -> Result<Converted, FieldProblem> {
    let name = name(&namespace.metadata)?;
    let mut labels = labels(&namespace.metadata);
    labels.insert(NAMESPACE_NAME.into(), name.clone());
    let mut problems = Vec::new();
    let denial = denial(&namespace.metadata, &mut problems);
    Ok(Converted { change: Change::Namespace(Namespace { name, labels, denial }), problems })
}

fn node(node: &core::Node) -> Result<Converted, FieldProblem> {
    let name = name(&node.metadata)?;
    let mut problems = Vec::new();
    let given = node.status.iter().flat_map(|s| s.addresses.iter().flatten()).enumerate();
    let addresses = given
        .filter(|(_, a)| a.type_ == "InternalIP" || a.type_ == "ExternalIP")
        .map(|(n, a)| (format!("status.addresses[{n}].address"), a.address.as_str()));
    let addresses = parse_addresses(addresses, &mut problems);
    let spec = node.spec.as_ref();
    let several = spec.and_then(|spec| spec.pod_cidrs.as_deref()).unwrap_or_default();
    let one = spec.and_then(|spec| spec.pod_cidr.as_ref()).filter(|_| several.is_empty());
    // An invalid block contains none of the pods' addresses.
    let pod_ranges = several.iter().chain(one).filter_map(|range| range.parse().ok()).collect();
    let labels = labels(&node.metadata);
    Ok(Converted { change: Change::Node(Node { name, addresses, labels, pod_ranges }), problems })
}

fn pod(pod: &core::Pod) -> Result<Converted, FieldProblem> {
    let key = key(&pod.metadata)?;
    let mirrored = mirror(&pod.metadata).map(|uid| mirrored_uid(uid, &key));
    let uid = mirrored.or_else(|| pod.metadata.uid.clone()).unwrap_or_else(|| key.to_string());
    let mut problems = Vec::new();
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    let created = pod.metadata.creation_timestamp.as_ref();
    let addresses = pod_addresses(pod, &mut problems);
    let host_network = pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or(false);
    // A hostNetwork pod has the interfaces of its node.
    let annotations = pod.metadata.annotations.as_ref().filter(|_| !host_network);
    let second = networks::second(annotations, &addresses, &mut problems);
    let change = Change::Pod(Pod {
        uid,
        labels: labels(&pod.metadata),
        node: pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default().into(),
        addresses,
        host_network,
        finished: matches!(phase, Some("Succeeded" | "Failed")),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        created: created.map_or(0, |t| t.0.as_second()),
        ports: named_ports(pod, &mut problems),
        foreign_sources: foreign_sources(&pod.metadata, &mut problems),
        second,
        workload: None,
        key,
    });
    Ok(Converted { change, problems })
}

/// Returns the UID by which the node identifies a static pod if this is its mirror pod: the kubelet sets it in an
/// annotation (`ConfigMirrorAnnotationKey`, `ConfigHashAnnotationKey`).
fn mirror(metadata: &ObjectMeta) -> Option<&str> {
    let annotation = |name| metadata.annotations.as_ref()?.get(name).map(String::as_str);
    annotation("kubernetes.io/config.mirror")?;
    annotation("kubernetes.io/config.hash")
}

/// Returns whether a pod may send from addresses that are not its own.
fn foreign_sources(metadata: &ObjectMeta, problems: &mut Vec<FieldProblem>) -> bool {
    let given = metadata.annotations.as_ref().and_then(|given| given.get(CHECK_SOURCE));
    match given.map(String::as_str) {
        None => false,
        Some("off") => true,
        Some(other) => {
            let path = format!("metadata.annotations.{CHECK_SOURCE}");
            problems.push(FieldProblem::new(path, format!("`{other}` is not `off`")));
            false
        }
    }
}

/// Returns whether a policy is enforced or on trial. An invalid value is reported, and the policy is enforced.
fn enforcement(metadata: &ObjectMeta, problems: &mut Vec<FieldProblem>) -> Enforcement {
    let given = metadata.annotations.as_ref().and_then(|given| given.get(ENFORCEMENT));
    let text = match given.map(String::as_str) {
        None | Some("enforce") => return Enforcement::Enforce,
        Some("audit") => return Enforcement::Audit,
        Some(other) => format!("`{other}` is not enforce or audit; the policy is enforced"),
    };
    problems.push(FieldProblem::new(format!("metadata.annotations.{ENFORCEMENT}"), text));
    Enforcement::Enforce
}

/// Returns the treatment of denied packets that an object asks for. An invalid value is reported, and they are dropped.
fn denial(metadata: &ObjectMeta, problems: &mut Vec<FieldProblem>) -> Option<Denial> {
    let given = metadata.annotations.as_ref()?.get(DENY)?;
    let text = match given.as_str() {
        "drop" => return Some(Denial::Drop),
        "reject" => return Some(Denial::Reject),
        other => format!("`{other}` is not drop or reject; denied packets are dropped"),
    };
    problems.push(FieldProblem::new(format!("metadata.annotations.{DENY}"), text));
    Some(Denial::Drop)
}

/// Keeps the first problems of a policy, and adds the number of the others.
fn limited(mut problems: Vec<FieldProblem>) -> Vec<FieldProblem> {
    let more = problems.len().saturating_sub(NAMED);
    if more > 0 {
        problems.truncate(NAMED);
        problems.push(FieldProblem::new("spec", format!("{more} more problems")));
    }
    problems
}

/// Returns `status.podIPs`, or `status.podIP` if that is absent or empty.
fn pod_addresses(pod: &core::Pod, problems: &mut Vec<FieldProblem>) -> Vec<IpAddr> {
    let Some(status) = &pod.status else { return Vec::new() };
    match status.pod_ips.as_deref() {
        Some(ips) if !ips.is_empty() => {
            let given = ips.iter().enumerate();
            let given = given.map(|(n, a)| (format!("status.podIPs[{n}].ip"), a.ip.as_str()));
            parse_addresses(given, problems)
        }
        _ => {
            let given = status.pod_ip.as_deref().filter(|ip| !ip.is_empty());
            parse_addresses(given.map(|ip| ("status.podIP".into(), ip)).into_iter(), problems)
        }
    }
}

fn parse_addresses<'a>(
    given: impl Iterator<Item = (String, &'a str)>,
    problems: &mut Vec<FieldProblem>,
) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for (path, text) in given {
        match text.parse::<IpAddr>() {
            // On the wire an IPv4-mapped address is an IPv4 address.
            Ok(address) => addresses.push(address.to_canonical()),
            Err(_) => problems.push(FieldProblem::new(path, format!("`{text}` is not an address"))),
        }
    }
    addresses.sort();
    addresses.dedup();
    addresses
}

/// Returns the named ports of containers and of sidecars, the init containers that keep running.
fn named_ports(pod: &core::Pod, problems: &mut Vec<FieldProblem>) -> Vec<NamedPort> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let sidecars = spec.init_containers.iter().flatten().enumerate();
    let sidecars = sidecars
        .filter(|(_, c)| c.restart_policy.as_deref() == Some("Always"))
        .map(|(n, c)| (format!("spec.initContainers[{n}]"), c));
    let containers = spec.containers.iter().enumerate();
    let containers = containers.map(|(n, c)| (format!("spec.containers[{n}]"), c));
    let mut ports = Vec::new();
    for (path, container) in containers.chain(sidecars) {
        for (index, port) in container.ports.iter().flatten().enumerate() {
            let path = format!("{path}.ports[{index}]");
            ports.extend(named_port(port, &path, problems));
        }
    }
    ports.sort();
    ports.dedup();
    ports
}

fn named_port(
    port: &core::ContainerPort,
    path: &str,
    problems: &mut Vec<FieldProblem>,
) -> Option<NamedPort> {
    let name = port.name.clone().filter(|name| !name.is_empty())?;
    let protocol = protocol(port.protocol.as_deref());
    let number = u16::try_from(port.container_port).ok().filter(|n| *n > 0);
    let mut check = |valid: bool, field: &str, text: String| {
        if !valid {
            problems.push(FieldProblem::new(format!("{path}.{field}"), text));
        }
    };
    let given = port.protocol.as_deref().unwrap_or_default();
    check(protocol.is_some(), "protocol", format!("`{given}` is not TCP, UDP or SCTP"));
    let given = port.container_port;
    check(number.is_some(), "containerPort", format!("{given} is not a port, 1 to 65535"));
    check(policy::is_port_name(&name), "name", format!("`{name}` is not a port name"));
    Some(NamedPort { name, protocol: protocol?, port: number? })
}

/// Returns the protocol of a field: absent means TCP; `None` if the API has no such protocol.
#[must_use]
pub fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name {
        None | Some("TCP") => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some("SCTP") => Some(Protocol::Sctp),
        Some(_) => None,
    }
}

fn name(metadata: &ObjectMeta) -> Result<String, FieldProblem> {
    let name = metadata.name.clone().filter(|name| !name.is_empty());
    name.ok_or_else(|| FieldProblem::new("metadata.name", "the object has no name"))
}

/// Namespace of an object that names none, as with `kubectl`.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Returns the key of a namespaced object.
fn key(metadata: &ObjectMeta) -> Result<Key, FieldProblem> {
    let namespace = metadata.namespace.clone().filter(|namespace| !namespace.is_empty());
    Ok(Key::new(namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.into()), name(metadata)?))
}

fn labels(metadata: &ObjectMeta) -> Labels {
    metadata.labels.iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests;
