//! Metadata of an object: its key and labels, and the annotations that netpold defines.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use netpold_core::model::{Denial, Enforcement, Key, Labels};

use super::problem::FieldProblem;

/// Annotation of a pod (a gateway or a virtual machine) that may send from other addresses than its own, if the value
/// is `off`.
const CHECK_SOURCE: &str = "netpold.io/check-source";

/// Annotation of a policy: enforced or audited.
pub(super) const ENFORCEMENT: &str = "netpold.io/enforcement";

/// Annotation of a policy or a namespace: denied packets disappear or are answered.
pub(super) const DENY: &str = "netpold.io/deny";

/// Namespace of an object that names none, as with `kubectl`.
pub const DEFAULT_NAMESPACE: &str = "default";

pub(super) fn name(metadata: &ObjectMeta) -> Result<String, FieldProblem> {
    let name = metadata.name.clone().filter(|name| !name.is_empty());
    name.ok_or_else(|| FieldProblem::new("metadata.name", "the object has no name"))
}

/// Returns the key of a namespaced object.
pub(super) fn key(metadata: &ObjectMeta) -> Result<Key, FieldProblem> {
    let namespace = metadata.namespace.clone().filter(|namespace| !namespace.is_empty());
    Ok(Key::new(namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.into()), name(metadata)?))
}

pub(super) fn labels(metadata: &ObjectMeta) -> Labels {
    metadata.labels.iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Returns the treatment of denied packets that an object asks for. An invalid value is reported, and they are dropped.
pub(super) fn denial(metadata: &ObjectMeta, problems: &mut Vec<FieldProblem>) -> Option<Denial> {
    let given = metadata.annotations.as_ref()?.get(DENY)?;
    let text = match given.as_str() {
        "drop" => return Some(Denial::Drop),
        "reject" => return Some(Denial::Reject),
        other => format!("`{other}` is not drop or reject; denied packets are dropped"),
    };
    problems.push(FieldProblem::new(format!("metadata.annotations.{DENY}"), text));
    Some(Denial::Drop)
}

/// Returns whether a policy is enforced or audited. An invalid value is reported, and the policy is enforced.
pub(super) fn enforcement(metadata: &ObjectMeta, problems: &mut Vec<FieldProblem>) -> Enforcement {
    let given = metadata.annotations.as_ref().and_then(|given| given.get(ENFORCEMENT));
    let text = match given.map(String::as_str) {
        None | Some("enforce") => return Enforcement::Enforce,
        Some("audit") => return Enforcement::Audit,
        Some(other) => format!("`{other}` is not enforce or audit; the policy is enforced"),
    };
    problems.push(FieldProblem::new(format!("metadata.annotations.{ENFORCEMENT}"), text));
    Enforcement::Enforce
}

/// Returns the UID by which the node identifies a static pod if this is its mirror pod: the kubelet sets it in an
/// annotation (`ConfigMirrorAnnotationKey`, `ConfigHashAnnotationKey`).
pub(super) fn mirror(metadata: &ObjectMeta) -> Option<&str> {
    let annotation = |name| metadata.annotations.as_ref()?.get(name).map(String::as_str);
    annotation("kubernetes.io/config.mirror")?;
    annotation("kubernetes.io/config.hash")
}

/// Returns whether a pod may send from addresses that are not its own.
pub(super) fn foreign_sources(metadata: &ObjectMeta, problems: &mut Vec<FieldProblem>) -> bool {
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
