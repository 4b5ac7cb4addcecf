//! Which pods are one workload, by what a policy's selectors can say of them.

use std::collections::BTreeMap;
use std::fmt;

use netpold_core::model::{Pod, Requirement, Selector};
use serde::{Deserialize, Serialize};

use crate::offline::{OF_PODS, OF_RELEASES};

/// Labels whose values name a workload; the first that it has.
const NAMING: [&str; 7] = [
    "app.kubernetes.io/name",
    "app",
    "k8s-app",
    "name",
    "component",
    "run",
    "batch.kubernetes.io/job-name",
];
/// Longest labels of a workload, in bytes: of one with more nothing is recorded.
const BYTES_MAX: usize = 2048;

/// Pods of a namespace with equal labels, apart from those that change with each revision, release or pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Workload {
    /// `metadata.namespace`
    pub namespace: String,
    /// The labels; none: no selector tells these pods from others.
    pub labels: BTreeMap<String, String>,
}

impl Workload {
    /// The workload that a pod is of; `None` if its labels are too long to be recorded.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Self> {
        let without = |dropped: &[&[&str]]| {
            let kept = pod.labels.iter();
            let kept = kept.filter(|(key, _)| !dropped.iter().any(|d| d.contains(&key.as_str())));
            kept.map(|(key, value)| (key.clone(), value.clone())).collect::<BTreeMap<_, _>>()
        };
        let mut labels = without(&[&OF_PODS, &OF_RELEASES]);
        // Better labels that change than none.
        if labels.is_empty() {
            labels = without(&[&OF_PODS]);
        }
        if labels.is_empty() {
            labels = without(&[&["pod-template-hash", "controller-revision-hash"]]);
        }
        let bytes: usize = labels.iter().map(|(key, value)| key.len() + value.len()).sum();
        (bytes <= BYTES_MAX).then(|| Self { namespace: pod.key.namespace.clone(), labels })
    }

    /// Whether a policy's `podSelector` of these labels selects a pod with those of another workload.
    #[must_use]
    pub fn selects(&self, other: &Self) -> bool {
        self.namespace == other.namespace
            && self.labels.iter().all(|(key, value)| other.labels.get(key) == Some(value))
    }

    /// The selector of the labels.
    #[must_use]
    pub fn selector(&self) -> Selector {
        let equal =
            |(key, value): (&String, &String)| Requirement::In(key.clone(), vec![value.clone()]);
        Selector { requirements: self.labels.iter().map(equal).collect() }
    }

    /// A name for objects about it, of lower case letters, digits and `-`; others may have the same.
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

/// `shop app=web,tier=front`
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
        Workload::of(&objects::pod("x", "p", labels, &[])).unwrap()
    }

    #[test]
    fn what_changes_with_revisions_and_releases_is_left_out() {
        let web = of(&[("app", "web"), ("pod-template-hash", "5f6"), ("helm.sh/chart", "web-1.2")]);
        assert_eq!(web, of(&[("app", "web"), ("pod-template-hash", "77"), ("chart", "web-1.3")]));
        assert_eq!(web.to_string(), "x app=web");
        assert_eq!(of(&[("job-name", "sync-1")]).to_string(), "x job-name=sync-1");
        assert_eq!(of(&[("pod-template-hash", "1")]).to_string(), "x (no labels)");
        let long = "v".repeat(BYTES_MAX);
        assert_eq!(Workload::of(&objects::pod("x", "p", &[("a", &long)], &[])), None);
    }

    #[test]
    fn names_are_those_of_objects() {
        let part = [("app.kubernetes.io/name", "Shop.API"), ("app.kubernetes.io/component", "db")];
        assert_eq!(of(&part).name(), "shop-api-db");
        assert_eq!(of(&[("app", "-\n-")]).name(), "workload");
        assert_eq!(of(&[]).name(), "workload");
    }

    #[test]
    fn a_selector_selects_those_with_more_labels() {
        let (web, canary) = (of(&[("app", "web")]), of(&[("app", "web"), ("canary", "1")]));
        assert!(web.selects(&canary) && !canary.selects(&web));
        assert!(of(&[]).selects(&web));
    }
}
