//! The policies about one pod.

use std::sync::Arc;

use crate::cluster::cluster_policies::ClusterPolicies;
use crate::cluster::namespaces::Namespaces;
use crate::cluster::policies::Policies;
use crate::model::{Action, ClusterPolicy, Denial, Direction, Enforcement, Pod, Policy, Tier};

/// The policies about a pod in a direction; if its labels are unknown, all policies that may select pods of its
/// namespace.
#[derive(Clone, Copy, Debug)]
pub struct PodPolicies<'c, 'p> {
    pub(super) policies: &'c Policies,
    pub(super) cluster_policies: &'c ClusterPolicies,
    pub(super) namespaces: &'c Namespaces,
    pub(super) pod: &'p Pod,
    pub(super) labelled: bool,
    pub(super) direction: Direction,
    /// Treatment of packets that policies without an annotation deny, in namespaces without one.
    pub(super) fallback: Denial,
}

impl<'c, 'p> PodPolicies<'c, 'p> {
    /// The NetworkPolicies that select the pod in this direction, audited ones included; by name.
    pub(crate) fn selecting(self) -> impl Iterator<Item = &'c Arc<Policy>> + use<'c, 'p> {
        self.policies.in_namespace(&self.pod.key.namespace).filter(move |policy| {
            let selects = !self.labelled || policy.pod_selector.matches(&self.pod.labels);
            selects && policy.rules(self.direction).is_some()
        })
    }

    /// The NetworkPolicies that isolate the pod; without audited ones.
    pub(crate) fn isolating(self) -> Vec<Arc<Policy>> {
        self.selecting().filter(|it| it.enforcement == Enforcement::Enforce).cloned().collect()
    }

    /// The ClusterNetworkPolicies with rules for the pod, audited ones included; in order of evaluation.
    pub(crate) fn of_cluster(self) -> impl Iterator<Item = &'c Arc<ClusterPolicy>> + use<'c, 'p> {
        let is_needed = !self.cluster_policies.is_empty();
        let namespace = is_needed.then(|| self.namespaces.labels(&self.pod.key.namespace));
        self.cluster_policies.iter().filter(move |policy| {
            let subject = &policy.subject;
            !policy.rules(self.direction).is_empty()
                && namespace.as_ref().is_some_and(|labels| subject.namespaces.matches(labels))
                && (!self.labelled || subject.pods.matches(&self.pod.labels))
        })
    }

    /// The enforced ClusterNetworkPolicies with rules for the pod, in order of evaluation.
    pub(crate) fn tiers(self) -> Vec<Arc<ClusterPolicy>> {
        self.of_cluster().filter(|it| it.enforcement == Enforcement::Enforce).cloned().collect()
    }

    /// Treatment of the pod's denied packets: reject only if every policy that may deny a packet has reject. These are
    /// the NetworkPolicies that isolate the pod, and the ClusterNetworkPolicies with a Deny rule, of the Baseline tier
    /// only if no NetworkPolicy isolates the pod. `with_trials`: audited policies are included.
    #[must_use]
    pub fn denial(self, with_trials: bool) -> Denial {
        let namespace = self.namespaces.denial(&self.pod.key.namespace);
        let fallback = namespace.unwrap_or(self.fallback);
        let counts = move |enforcement| with_trials || enforcement == Enforcement::Enforce;
        let isolating = self.selecting().filter(|policy| counts(policy.enforcement));
        let mut isolating = isolating.map(|policy| policy.denial).peekable();
        let isolated = isolating.peek().is_some();
        let tiers = self.of_cluster().filter(|policy| {
            let mut rules = policy.rules(self.direction).iter();
            counts(policy.enforcement)
                && (policy.tier == Tier::Admin || !isolated)
                && rules.any(|rule| rule.action == Action::Deny)
        });
        let mut all = isolating.chain(tiers.map(|policy| policy.denial)).peekable();
        let any = all.peek().is_some();
        match any && all.all(|denial| denial.unwrap_or(fallback) == Denial::Reject) {
            true => Denial::Reject,
            false => Denial::Drop,
        }
    }

    /// The audited policies of both kinds.
    pub(crate) fn on_trial(
        self,
    ) -> (
        impl Iterator<Item = &'c Arc<Policy>> + use<'c, 'p>,
        impl Iterator<Item = &'c Arc<ClusterPolicy>> + use<'c, 'p>,
    ) {
        (
            self.selecting().filter(|policy| policy.enforcement == Enforcement::Audit),
            self.of_cluster().filter(|policy| policy.enforcement == Enforcement::Audit),
        )
    }

    /// Whether an audited policy selects the pod.
    #[must_use]
    pub fn is_on_trial(self) -> bool {
        let (mut policies, mut of_cluster) = self.on_trial();
        policies.next().is_some() || of_cluster.next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        ClusterRule, Key, Labels, Namespace, NamespacedPods, PolicyVersion, Requirement, Rule,
        Selector,
    };

    fn web() -> Selector {
        Selector { requirements: vec![Requirement::In("app".into(), vec!["web".into()])] }
    }

    fn policy(name: &str, pod_selector: Selector, enforcement: Enforcement) -> Policy {
        Policy {
            key: Key::new("shop", name),
            pod_selector,
            ingress: Some(Vec::new()),
            enforcement,
            ..Policy::default()
        }
    }

    fn of_cluster(name: &str, enforcement: Enforcement) -> ClusterPolicy {
        let matches = Rule { peers: None, ports: None };
        ClusterPolicy {
            name: name.to_owned(),
            tier: Tier::Admin,
            priority: 1,
            subject: NamespacedPods { namespaces: Selector::default(), pods: web() },
            ingress: vec![ClusterRule { name: String::new(), action: Action::Deny, matches }],
            egress: Vec::new(),
            problems: Vec::new(),
            version: PolicyVersion::default(),
            enforcement,
            denial: None,
        }
    }

    /// Sets up policies of the pod's namespace and of the cluster, with their annotations.
    fn denial(
        policies: &[(Enforcement, Option<Denial>)],
        tiers: &[(Tier, Action, Option<Denial>)],
        (namespace, fallback): (Option<Denial>, Denial),
    ) -> Denial {
        let (mut all, mut of_all) = (Policies::default(), ClusterPolicies::default());
        for (number, (enforcement, denial)) in policies.iter().enumerate() {
            let policy = policy(&number.to_string(), web(), *enforcement);
            let key = policy.key.clone();
            let new = all.weighed(Policy { denial: *denial, ..policy });
            all.set(&key, new);
        }
        for (number, (tier, action, denial)) in tiers.iter().enumerate() {
            let mut policy = of_cluster(&number.to_string(), Enforcement::Enforce);
            (policy.tier, policy.denial) = (*tier, *denial);
            policy.ingress[0].action = *action;
            of_all.set(&policy.name.clone(), Some(Arc::new(policy)));
        }
        let mut namespaces = Namespaces::default();
        let (name, labels) = ("shop".to_owned(), Labels::new());
        namespaces.set("shop", Some(Namespace { name, labels, denial: namespace }));
        let labels = Labels::from_iter([("app".to_owned(), "web".to_owned())]);
        let pod = Pod { key: Key::new("shop", "pod"), labels, ..Pod::default() };
        let about = PodPolicies {
            policies: &all,
            cluster_policies: &of_all,
            namespaces: &namespaces,
            pod: &pod,
            labelled: true,
            direction: Direction::Ingress,
            fallback,
        };
        about.denial(false)
    }

    #[test]
    fn answers_need_the_consent_of_all_policies() {
        let (drop, reject) = (Denial::Drop, Denial::Reject);
        let enforced = |denial| (Enforcement::Enforce, denial);
        let by_default = (None, drop);
        assert_eq!(denial(&[], &[], (Some(reject), reject)), drop, "nothing denies");
        assert_eq!(denial(&[enforced(None)], &[], by_default), drop);
        assert_eq!(denial(&[enforced(None)], &[], (None, reject)), reject, "the agent's default");
        assert_eq!(denial(&[enforced(None)], &[], (Some(drop), reject)), drop, "the namespace");
        assert_eq!(denial(&[enforced(None)], &[], (Some(reject), drop)), reject);
        let mine = enforced(Some(reject));
        assert_eq!(denial(&[mine, mine], &[], by_default), reject);
        assert_eq!(denial(&[mine, enforced(None)], &[], by_default), drop);
        assert_eq!(denial(&[mine, enforced(None)], &[], (Some(reject), drop)), reject);
        assert_eq!(denial(&[mine, enforced(Some(drop))], &[], (Some(reject), drop)), drop);
        assert_eq!(denial(&[mine, (Enforcement::Audit, Some(drop))], &[], by_default), reject);
        let tier = |tier, action, denial| (tier, action, denial);
        let (admin, baseline, deny) = (Tier::Admin, Tier::Baseline, Action::Deny);
        assert_eq!(denial(&[], &[tier(admin, deny, Some(reject))], by_default), reject);
        assert_eq!(denial(&[mine], &[tier(admin, deny, None)], by_default), drop);
        assert_eq!(denial(&[mine], &[tier(admin, Action::Accept, None)], by_default), reject);
        assert_eq!(denial(&[mine], &[tier(baseline, deny, None)], by_default), reject);
        assert_eq!(denial(&[], &[tier(baseline, deny, None)], by_default), drop);
    }

    #[test]
    fn every_policy_of_the_namespace_is_about_a_pod_without_known_labels() {
        let (enforce, audit) = (Enforcement::Enforce, Enforcement::Audit);
        let (mut policies, mut cluster_policies) =
            (Policies::default(), ClusterPolicies::default());
        let namespaced = [
            policy("all", Selector::default(), enforce),
            policy("trial", web(), audit),
            policy("web", web(), enforce),
        ];
        for policy in namespaced {
            let key = policy.key.clone();
            let new = policies.weighed(policy);
            policies.set(&key, new);
        }
        for policy in [of_cluster("tier", enforce), of_cluster("tier-trial", audit)] {
            cluster_policies.set(&policy.name.clone(), Some(Arc::new(policy)));
        }
        let labels = |app: &str| Labels::from_iter([("app".to_owned(), app.to_owned())]);
        let pod = |app| Pod { key: Key::new("shop", "pod"), labels: labels(app), ..Pod::default() };
        let namespaces = Namespaces::default();
        let look = |pod: &Pod, labelled: bool, direction: Direction| {
            let (policies, cluster_policies, namespaces) =
                (&policies, &cluster_policies, &namespaces);
            let fallback = Denial::Drop;
            let about = PodPolicies {
                policies,
                cluster_policies,
                namespaces,
                pod,
                labelled,
                direction,
                fallback,
            };
            let names = about.isolating().into_iter().map(|policy| policy.key.name.clone());
            let tiers = about.tiers().into_iter().map(|policy| policy.name.clone());
            (names.chain(tiers).collect::<Vec<_>>().join(" "), about.is_on_trial())
        };
        let told = |names: &str, on_trial| (names.to_owned(), on_trial);
        assert_eq!(look(&pod("web"), true, Direction::Ingress), told("all web tier", true));
        assert_eq!(look(&pod("db"), true, Direction::Ingress), told("all", false));
        assert_eq!(look(&pod("db"), false, Direction::Ingress), told("all web tier", true));
        assert_eq!(look(&pod("web"), true, Direction::Egress), told("", false));
    }
}
