//! Answers to denied packets: the annotation `netpold.io/deny`, read literally.

use netpold_core::model::{Action, Denial, Direction, Enforcement, Pod, Tier};

use super::Oracle;
use super::matching::selects;

impl Oracle {
    /// Whether a pod's packets are answered if policy denies them: all policies that may deny one must say so, by
    /// their own annotation or by that of the pod's namespace. Without any annotation they are not.
    #[must_use]
    pub fn rejects(&self, pod: &Pod, direction: Direction) -> bool {
        let namespace = self.namespaces.iter().find(|it| it.name == pod.key.namespace);
        let by_default = namespace.and_then(|namespace| namespace.denial);
        let mut said = Vec::new();
        for policy in &self.policies {
            let isolates = match direction {
                Direction::Ingress => policy.ingress.is_some(),
                Direction::Egress => policy.egress.is_some(),
            };
            if isolates
                && policy.enforcement == Enforcement::Enforce
                && policy.key.namespace == pod.key.namespace
                && selects(&policy.pod_selector, &pod.labels)
            {
                said.push(policy.denial);
            }
        }
        let isolated = !said.is_empty();
        for policy in &self.cluster_policies {
            let rules = match direction {
                Direction::Ingress => &policy.ingress,
                Direction::Egress => &policy.egress,
            };
            if rules.iter().any(|rule| rule.action == Action::Deny)
                && policy.enforcement == Enforcement::Enforce
                && (policy.tier == Tier::Admin || !isolated)
                && self.selects_namespace(&policy.subject.namespaces, pod)
                && selects(&policy.subject.pods, &pod.labels)
            {
                said.push(policy.denial);
            }
        }
        !said.is_empty() && said.iter().all(|it| it.or(by_default) == Some(Denial::Reject))
    }
}
