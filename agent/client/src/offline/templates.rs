//! Pod templates in place of pods.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use netpold_core::cluster::ObjectKey;
use netpold_core::labels::{OF_PODS, OF_RELEASES};
use netpold_core::model::{Change, Key, Labels, NamedPort, Pod, WorkloadRef};

use super::owner::{Owner, is_generated, is_run, job, owner};

/// Kinds in order of precedence, when templates of several workloads claim the same name.
const KINDS: [&str; 7] = [
    "Deployment",
    "StatefulSet",
    "DaemonSet",
    "ReplicaSet",
    "ReplicationController",
    "CronJob",
    "Job",
];

/// Returns whether a change is a pod template.
#[must_use]
pub fn is_template(change: &Change) -> bool {
    matches!(change, Change::Pod(pod) if pod.template().is_some())
}

/// Replaces each pod template by a stand-in pod if its workload has no running pods, and drops the template otherwise.
/// The stand-in has the workload's name, or `kind.name` if a pod or another workload has that name.
#[must_use]
pub fn stand_in(objects: Vec<Change>) -> Vec<Change> {
    let (mut templates, mut objects): (Vec<Change>, Vec<Change>) =
        objects.into_iter().partition(is_template);
    // The latest of several runs of a CronJob comes first.
    templates.sort_by_key(|template| Reverse(ObjectKey::of(template)));
    let schedules: HashSet<(&str, &str)> =
        templates.iter().filter_map(as_pod).filter_map(schedule).collect();
    for object in &mut objects {
        if let Change::Pod(pod) = object {
            set_schedule(pod, &schedules);
        }
    }
    let pods = || objects.iter().filter_map(as_pod);
    let running = RunningPods::new(pods().filter(|pod| !pod.finished));
    let mut wanted: BTreeMap<(String, OwnerKey, Option<TemplateTraits>), Pod> = BTreeMap::new();
    for template in templates.iter().filter_map(as_pod) {
        let Some(owner) = owner(template) else { continue };
        let is_guessed =
            is_run(template) && !schedules.contains(&(template.key.namespace.as_str(), owner.name));
        if running.has(template, is_guessed) {
            continue;
        }
        let traits = is_guessed.then(|| TemplateTraits::of(template));
        let key = (template.key.namespace.clone(), OwnerKey::of(owner), traits);
        // The Deployment's template takes precedence over its ReplicaSets', the CronJob's over its Jobs'.
        let is_better = |known: &Pod| rank(template) < rank(known);
        if wanted.get(&key).is_none_or(is_better) {
            wanted.insert(key, template.clone());
        }
    }
    let mut wanted: Vec<Pod> = wanted.into_values().collect();
    wanted.sort_by_key(|pod| (rank(pod).1, pod.key.clone()));
    let mut taken: BTreeSet<Key> = pods().map(|pod| pod.key.clone()).collect();
    for mut template in wanted {
        let workload = template.workload.as_ref().map(|workload| workload.name.clone());
        let plain = Key::new(template.key.namespace.clone(), workload.unwrap_or_default());
        if taken.insert(plain.clone()) {
            template.key = plain;
        }
        template.uid = template.key.to_string();
        objects.push(Change::Pod(template));
    }
    objects
}

/// Returns namespace and name of the CronJob that a template is of.
fn schedule(template: &Pod) -> Option<(&str, &str)> {
    let workload = template.template().filter(|workload| workload.kind == "CronJob")?;
    Some((&template.key.namespace, &workload.name))
}

/// Makes a CronJob among the objects the workload of a pod of its runs: labels and owner name the run's Job only.
fn set_schedule(pod: &mut Pod, schedules: &HashSet<(&str, &str)>) {
    let name = owner(pod).filter(|_| is_run(pod)).map(|owner| owner.name.to_owned());
    let known = |name: &String| schedules.contains(&(pod.key.namespace.as_str(), name.as_str()));
    if let Some(name) = name.filter(known) {
        let kind = "CronJob".to_owned();
        pod.workload =
            Some(Box::new(WorkloadRef { kind, name, is_template: false, is_indexed: false }));
    }
}

/// Ranks templates: the workload's own before others of the same workload, then by kind.
fn rank(template: &Pod) -> (bool, usize) {
    let workload = template.template();
    let own = workload.map(|it| format!("{}.{}", it.kind.to_lowercase(), it.name));
    let kind = workload.and_then(|it| KINDS.iter().position(|kind| **kind == it.kind));
    (own.as_ref() != Some(&template.key.name), kind.unwrap_or(KINDS.len()))
}

fn as_pod(change: &Change) -> Option<&Pod> {
    if let Change::Pod(pod) = change { Some(pod) } else { None }
}

/// Owned copy of an [`Owner`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct OwnerKey(String, String);

impl OwnerKey {
    fn of(owner: Owner<'_>) -> Self {
        Self(owner.kind.to_owned(), owner.name.to_owned())
    }
}

/// Properties of a template's pods that policies depend on: labels, ports and whether the pods use the host's network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TemplateTraits(Labels, Vec<NamedPort>, bool);

impl TemplateTraits {
    fn of(template: &Pod) -> Self {
        let labels = template.labels.iter().filter(|(key, _)| !OF_PODS.contains(&key.as_str()));
        let labels = labels.map(|(key, value)| (key.clone(), value.clone())).collect();
        Self(labels, template.ports.clone(), template.host_network)
    }
}

/// Pods of running workloads.
struct RunningPods<'p> {
    owned: HashSet<(&'p str, Owner<'p>)>,
    /// Pods of Jobs that may be runs of one workload.
    runs: Vec<&'p Pod>,
    /// Pods without a known workload, by namespace.
    others: HashMap<&'p str, Vec<&'p Pod>>,
}

impl<'p> RunningPods<'p> {
    fn new(pods: impl Iterator<Item = &'p Pod>) -> Self {
        let (mut owned, mut others) = (HashSet::new(), HashMap::<&str, Vec<&Pod>>::new());
        let mut runs = Vec::new();
        for pod in pods {
            runs.extend(is_run(pod).then_some(pod));
            let namespace = pod.key.namespace.as_str();
            if let Some(owner) = owner(pod) {
                owned.insert((namespace, owner));
            } else {
                others.entry(namespace).or_default().push(pod);
            }
        }
        Self { owned, runs, others }
    }

    /// Returns whether a pod of the template's workload runs; `is_guessed` is set for a run of an unknown CronJob.
    fn has(&self, template: &Pod, is_guessed: bool) -> bool {
        let namespace = template.key.namespace.as_str();
        let others = self.others.get(namespace).into_iter().flatten();
        if is_guessed {
            let is_alike = |pod: &&Pod| is_as_made(pod, template) || job(pod) == job(template);
            let mut alike = self.runs.iter().filter(|pod| is_alike(pod));
            return alike
                .any(|pod| pod.key.namespace == namespace && owner(pod) == owner(template));
        }
        owner(template).is_some_and(|owner| self.owned.contains(&(namespace, owner)))
            || others.into_iter().any(|pod| is_of(pod, template))
    }
}

/// Returns whether a pod belongs to the template's workload; a pod without a known workload matches by name and labels.
fn is_of(pod: &Pod, template: &Pod) -> bool {
    let Some(workload) = owner(template).filter(|_| pod.key.namespace == template.key.namespace)
    else {
        return false;
    };
    if let Some(owner) = owner(pod) {
        // Each run is a Job of its own.
        return owner == workload && (!is_run(template) || job(pod) == job(template));
    }
    let changes = |key: &str| OF_PODS.contains(&key) || OF_RELEASES.contains(&key);
    let mut labels = template.labels.iter().filter(|(key, _)| !changes(key)).peekable();
    let rest = pod.key.name.strip_prefix(workload.name).and_then(|rest| rest.strip_prefix('-'));
    // A Deployment's pods have the hash of their template and a suffix.
    rest.is_some_and(|rest| rest.split('-').count() <= 2 && rest.split('-').all(is_generated))
        && labels.peek().is_some()
        && labels.all(|(key, value)| pod.labels.get(key) == Some(value))
}

/// Returns whether a pod equals its template in all properties that policies depend on.
fn is_as_made(pod: &Pod, template: &Pod) -> bool {
    let labels = template.labels.iter().filter(|(key, _)| !OF_PODS.contains(&key.as_str()));
    let mut labels = labels.map(|(key, value)| pod.labels.get(key) == Some(value));
    labels.all(|same| same)
        && pod.ports == template.ports
        && pod.host_network == template.host_network
}

/// Applies changes to the objects. A changed template removes pods that differ from it, a deleted one all its pods.
#[must_use]
pub fn apply(before: &[Change], changes: &[Change]) -> Vec<Change> {
    let mut after: BTreeMap<ObjectKey, Change> =
        before.iter().map(|object| (ObjectKey::of(object), object.clone())).collect();
    for change in changes {
        let key = ObjectKey::of(change);
        let former = match change.is_object() {
            true => after.insert(key, change.clone()),
            false => after.remove(&key),
        };
        let former = former.filter(is_template);
        let Some(template) = Some(change).filter(|change| is_template(change)).or(former.as_ref())
        else {
            continue;
        };
        let Some(template) = as_pod(template) else { continue };
        let is_same = former.as_ref() == Some(change);
        let is_replaced = |object: &Change| {
            as_pod(object).is_some_and(|pod| {
                let made = change.is_object() && is_as_made(pod, template);
                pod.template().is_none() && is_of(pod, template) && !made
            })
        };
        if !is_same {
            after.retain(|_, object| !is_replaced(object));
        }
    }
    after.into_values().collect()
}

/// Returns the pods of a template's workload, which disappear if the template is deleted.
pub fn pods_of<'c>(
    objects: &'c [Change],
    template: &'c Change,
) -> impl Iterator<Item = &'c Change> {
    let template = as_pod(template).filter(|pod| pod.template().is_some());
    objects.iter().filter(move |object| {
        as_pod(object).is_some_and(|pod| {
            pod.template().is_none() && template.is_some_and(|template| is_of(pod, template))
        })
    })
}

#[cfg(test)]
mod tests;
