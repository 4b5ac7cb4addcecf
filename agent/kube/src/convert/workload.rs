//! Workload objects in manifests: their pod templates, and the owners of pods.
//!
//! Workloads of an API server are not read: it has the pods themselves.

use netpold_core::labels::JOB_NAME;
use netpold_core::model::{Change, Labels, WorkloadRef};

use super::converted::{Converted, Kind};
use super::object::object;
use super::problem::FieldProblem;
use crate::document::{DocumentNode, MappingEntry, Value};

/// Kinds whose pods belong to a ReplicaSet, and the label of these pods with the end of the ReplicaSet's name.
const OF_REPLICA_SETS: [(&str, &str); 2] =
    [("Deployment", "pod-template-hash"), ("Rollout", "rollouts-pod-template-hash")];

/// Groups of `apiVersion`, the kind, and the path of its pod template.
const TEMPLATES: [(&[&str], &str, &[&str]); 10] = [
    (&["apps", "extensions"], "Deployment", &["spec", "template"]),
    (&["apps", "extensions"], "ReplicaSet", &["spec", "template"]),
    (&["apps", "extensions", "apps.kruise.io"], "DaemonSet", &["spec", "template"]),
    (&["apps", "apps.kruise.io"], "StatefulSet", &["spec", "template"]),
    (&["apps.kruise.io"], "CloneSet", &["spec", "template"]),
    (&["argoproj.io"], "Rollout", &["spec", "template"]),
    (&["apps.openshift.io"], "DeploymentConfig", &["spec", "template"]),
    (&[""], "ReplicationController", &["spec", "template"]),
    (&["batch"], "Job", &["spec", "template"]),
    (&["batch"], "CronJob", &["spec", "jobTemplate", "spec", "template"]),
];

/// Pod template of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertedTemplate {
    /// The stand-in pod.
    pub converted: Converted,
    /// Whether the template could be decoded; otherwise the pod has no labels and ports.
    pub understood: bool,
}

/// Returns the stand-in pod of a workload's pod template: a pod without address and node, named by the workload's kind
/// and name, such as `deployment.web`. The template also counts with `replicas: 0`, or suspended: the policies apply as
/// soon as that changes. `None` for an object of another kind, for one without a name, and for one without replicas
/// that another workload owns: the ReplicaSet of a Deployment's former revision.
#[must_use]
pub fn template(node: &DocumentNode) -> Option<ConvertedTemplate> {
    let (version, kind) = (node.text("apiVersion")?, node.text("kind")?);
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let is_of =
        |(groups, name, _): &&(&[&str], &str, &[&str])| *name == kind && groups.contains(&group);
    let (_, _, path) = TEMPLATES.iter().find(is_of)?;
    let metadata = node.get("metadata")?;
    let generated = || metadata.text("generateName").map(|name| name.trim_end_matches('-'));
    let name = metadata.text("name").or_else(generated).filter(|name| !name.is_empty())?;
    let owner = owner(node, &Labels::new()).filter(|owner| is_workload(&owner.kind));
    let replicas = node.get("spec").and_then(|spec| spec.get("replicas"));
    if owner.is_some() && replicas.is_some_and(|replicas| replicas.value == Value::Int(0)) {
        return None;
    }
    let own = || WorkloadRef {
        kind: kind.to_owned(),
        name: name.to_owned(),
        is_template: true,
        is_indexed: false,
    };
    let mut workload = owner.map_or_else(own, |owner| WorkloadRef { is_template: true, ..owner });
    // The mode of a Job is a field next to its template.
    let job = path
        .split_last()
        .and_then(|(_, above)| above.iter().try_fold(node, |node, field| node.get(field)));
    workload.is_indexed = job.and_then(|job| job.text("completionMode")) == Some("Indexed");
    let prefix = path.join(".");
    let pod = path.iter().try_fold(node, |node, field| node.get(field));
    let is_missing = pod.is_none_or(|pod| pod.value == Value::Null);
    // A Rollout may refer to a Deployment instead, by `workloadRef`.
    if is_missing && kind == "Rollout" {
        return None;
    }
    let pod = as_pod(node, pod, format!("{}.{name}", kind.to_lowercase()));
    let at_template = |problem: FieldProblem| match problem.path.as_str() {
        "" => FieldProblem::new(prefix.clone(), problem.text),
        path => FieldProblem::new(format!("{prefix}.{path}"), problem.text),
    };
    let decoded = object(Kind::Pod, &Kind::Pod.shape().part_of(&pod), &[]);
    let understood = decoded.is_ok() && !is_missing;
    let mut converted = match decoded {
        Ok(converted) => converted,
        Err(mismatch) => {
            // A workload without labels and ports must still be listed.
            let bare = as_pod(node, None, format!("{}.{name}", kind.to_lowercase()));
            let mut converted = object(Kind::Pod, &Kind::Pod.shape().part_of(&bare), &[]).ok()?;
            converted.problems.push(mismatch.into());
            converted
        }
    };
    if is_missing {
        converted.problems.push(FieldProblem::new("", "is missing"));
    }
    if let Some(problem) = converted.problems.last_mut().filter(|_| !understood) {
        problem.text.push_str("; the template's pods are taken to have no labels and ports");
    }
    converted.problems = converted.problems.into_iter().map(at_template).collect();
    if let Change::Pod(pod) = &mut converted.change {
        pod.node = String::new().into();
        pod.addresses.clear();
        (pod.finished, pod.terminating) = (false, false);
        if kind == "Job" {
            for label in JOB_NAME {
                pod.labels.insert(label.to_owned(), name.to_owned());
            }
        }
        pod.workload = Some(Box::new(workload));
    }
    Some(ConvertedTemplate { converted, understood })
}

/// Returns whether a kind has a pod template.
pub(crate) fn is_workload(kind: &str) -> bool {
    TEMPLATES.iter().any(|(_, name, _)| *name == kind)
}

/// Builds a Pod with the labels, annotations and spec of a template, in the namespace of its workload.
fn as_pod(workload: &DocumentNode, template: Option<&DocumentNode>, name: String) -> DocumentNode {
    let line = template.map_or(workload.line, |template| template.line);
    let entry =
        |key: &str, node: DocumentNode| MappingEntry { key: key.to_owned(), line: node.line, node };
    let mut metadata = vec![entry("name", DocumentNode { line, value: Value::Text(name) })];
    let namespace = workload.get("metadata").and_then(|metadata| metadata.get("namespace"));
    metadata.extend(namespace.map(|node| entry("namespace", node.clone())));
    for field in ["labels", "annotations"] {
        let given = template.and_then(|template| template.get("metadata")?.get(field));
        metadata.extend(given.map(|node| entry(field, node.clone())));
    }
    let mut pod = vec![entry("metadata", DocumentNode { line, value: Value::Map(metadata) })];
    let spec = template.and_then(|template| template.get("spec"));
    pod.extend(spec.map(|node| entry("spec", node.clone())));
    DocumentNode { line, value: Value::Map(pod) }
}

/// Returns the workload in an object's `ownerReferences`: for a Deployment's or Rollout's pods that, not the ReplicaSet.
pub(super) fn owner(object: &DocumentNode, labels: &Labels) -> Option<WorkloadRef> {
    let Value::List(references) = &object.get("metadata")?.get("ownerReferences")?.value else {
        return None;
    };
    let is_controller = |reference: &&DocumentNode| {
        reference.get("controller").is_some_and(|it| it.value == Value::Bool(true))
    };
    let reference = references.iter().find(is_controller).or_else(|| references.first())?;
    let (kind, name) = (reference.text("kind")?, reference.text("name")?);
    let above =
        OF_REPLICA_SETS.iter().filter(|_| kind == "ReplicaSet").find_map(|(kind, label)| {
            Some((*kind, name.strip_suffix(labels.get(*label)?.as_str())?.strip_suffix('-')?))
        });
    let (kind, name) = above.unwrap_or((kind, name));
    Some(WorkloadRef {
        kind: kind.to_owned(),
        name: name.to_owned(),
        is_template: false,
        is_indexed: false,
    })
}
