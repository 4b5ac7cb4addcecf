//! Workloads: pods that a policy's selectors do not distinguish.

use std::collections::BTreeMap;
use std::fmt;

use netpold_core::labels::{OF_PODS, OF_RELEASES};
use netpold_core::model::{Pod, Requirement, Selector};
use netpold_core::owner::owner;
use serde::{Deserialize, Serialize};

/// Labels with the name of a workload, in order of precedence.
const NAMING: [&str; 7] = [
    "app.kubernetes.io/name",
    "app",
    "k8s-app",
    "name",
    "component",
    "run",
    "batch.kubernetes.io/job-name",
];
/// Longest labels of a workload, in bytes; flows of longer ones are not recorded.
const BYTES_MAX: usize = 2048;

/// Longest name of a workload, in characters.
const NAME_MAX: usize = 63;

/// Name of a pod's workload, in the namespace of the pod: its controller as far as the pod's labels and name show it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkloadName {
    /// `Deployment`, `StatefulSet`, `DaemonSet` or `Job`; empty for a name from [`Workload::name`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Name of the controller, at most 63 characters.
    pub name: String,
}

impl WorkloadName {
    /// Returns the name of a pod's workload; `None` for a pod without controller and labels.
    #[must_use]
    pub fn of_pod(pod: &Pod) -> Option<Self> {
        let cut = |name: &str| name.chars().take(NAME_MAX).collect();
        if let Some(owner) = owner(pod) {
            return Some(Self { kind: owner.kind.to_owned(), name: cut(owner.name) });
        }
        let workload = Workload::of_pod(pod).filter(|workload| !workload.labels.is_empty())?;
        Some(Self { kind: String::new(), name: cut(&workload.name()) })
    }
}

/// Pods of a namespace with equal labels, apart from labels that change per revision, release or pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Workload {
    /// `metadata.namespace`
    pub namespace: String,
    /// Labels; if empty, no selector distinguishes these pods from others.
    pub labels: BTreeMap<String, String>,
}

impl Workload {
    /// Returns the workload of a pod; `None` if its labels are too long.
    #[must_use]
    pub fn of_pod(pod: &Pod) -> Option<Self> {
        let without = |dropped: &[&[&str]]| {
            let kept = pod.labels.iter();
            let kept = kept.filter(|(key, _)| !dropped.iter().any(|d| d.contains(&key.as_str())));
            kept.map(|(key, value)| (key.clone(), value.clone())).collect::<BTreeMap<_, _>>()
        };
        let mut labels = without(&[&OF_PODS, &OF_RELEASES]);
        // Changing labels are better than none.
        if labels.is_empty() {
            labels = without(&[&OF_PODS]);
        }
        if labels.is_empty() {
            labels = without(&[&["pod-template-hash", "controller-revision-hash"]]);
        }
        let bytes: usize = labels.iter().map(|(key, value)| key.len() + value.len()).sum();
        (bytes <= BYTES_MAX).then(|| Self { namespace: pod.key.namespace.clone(), labels })
    }

    /// Returns whether a `podSelector` of these labels selects the pods of another workload.
    #[must_use]
    pub fn selects(&self, other: &Self) -> bool {
        self.namespace == other.namespace
            && self.labels.iter().all(|(key, value)| other.labels.get(key) == Some(value))
    }

    /// Returns the selector of the labels.
    #[must_use]
    pub fn selector(&self) -> Selector {
        let equal =
            |(key, value): (&String, &String)| Requirement::In(key.clone(), vec![value.clone()]);
        Selector { requirements: self.labels.iter().map(equal).collect() }
    }

    /// Returns a name for objects, of lower-case letters, digits and `-`. Other workloads may have the same name.
    #[must_use]
    pub fn name(&self) -> String {
        let named = NAMING.iter().find_map(|key| self.labels.get(*key));
        let value = named.or_else(|| self.labels.values().next()).map_or("", String::as_str);
        let part = self.labels.get("app.kubernetes.io/component").filter(|part| *part != value);
        let text = match part {
            Some(part) => format!("{value}-{part}"),
            None => value.to_owned(),
        };
        let name = text.to_lowercase();
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let name: String = name.chars().take(40).map(plain).collect();
        let name = name.trim_matches('-');
        if name.is_empty() { "workload".to_owned() } else { name.to_owned() }
    }
}

/// Formats as `shop app=web,tier=front`.
impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels: Vec<String> = self.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        match labels[..] {
            [] => write!(f, "{} (no labels)", self.namespace),
            _ => write!(f, "{} {}", self.namespace, labels.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use netpold_testkit::objects;

    use super::*;

    fn of(labels: &[(&str, &str)]) -> Workload {
        Workload::of_pod(&objects::pod("x", "p", labels, &[])).unwrap()
    }

    #[test]
    fn what_changes_with_revisions_and_releases_is_left_out() {
        let web = of(&[("app", "web"), ("pod-template-hash", "5f6"), ("helm.sh/chart", "web-1.2")]);
        assert_eq!(web, of(&[("app", "web"), ("pod-template-hash", "77"), ("chart", "web-1.3")]));
        assert_eq!(web.to_string(), "x app=web");
        assert_eq!(of(&[("job-name", "sync-1")]).to_string(), "x job-name=sync-1");
        assert_eq!(of(&[("pod-template-hash", "1")]).to_string(), "x (no labels)");
        let long = "v".repeat(BYTES_MAX);
        assert_eq!(Workload::of_pod(&objects::pod("x", "p", &[("a", &long)], &[])), None);
    }

    #[test]
    fn names_are_those_of_objects() {
        let part = [("app.kubernetes.io/name", "Shop.API"), ("app.kubernetes.io/component", "db")];
        assert_eq!(of(&part).name(), "shop-api-db");
        assert_eq!(of(&[("app", "-\n-")]).name(), "workload");
        assert_eq!(of(&[]).name(), "workload");
    }

    #[test]
    fn a_workload_has_the_name_of_its_controller_or_of_its_labels() {
        let name = |pod: &str, labels: &[(&str, &str)]| {
            let name = WorkloadName::of_pod(&objects::pod("x", pod, labels, &[]))?;
            Some(format!("{}/{}", name.kind, name.name))
        };
        let hash = [("pod-template-hash", "5f6"), ("app", "shop")];
        assert_eq!(name("web-5f6-abcde", &hash).unwrap(), "Deployment/web");
        assert_eq!(name("web", &[("app", "shop")]).unwrap(), "/shop");
        assert_eq!(name("web", &[]), None);
        let long = "j".repeat(200);
        assert_eq!(name("web", &[("job-name", &long)]).unwrap().len(), "Job/".len() + NAME_MAX);
    }

    #[test]
    fn a_selector_selects_those_with_more_labels() {
        let (web, canary) = (of(&[("app", "web")]), of(&[("app", "web"), ("canary", "1")]));
        assert!(web.selects(&canary) && !canary.selects(&web));
        assert!(of(&[]).selects(&web));
    }
}
