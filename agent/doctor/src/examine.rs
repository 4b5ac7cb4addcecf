//! Checks of a cluster's objects that the API server accepts although they may be wrong.

use std::collections::{BTreeMap, BTreeSet};

use netpold_client::details::Details;
use netpold_client::details::complete;
use netpold_core::model::{Action, Change, ClusterPolicy, Direction, Key, Pod, Policy, Rule, Tier};
use netpold_kube::convert::DEFAULT_NAMESPACE;

use crate::finding::{Check, DoctorReport, Findings, Severity};
use crate::objects::{GroupedObjects, NamedPolicy, PodGroup, RulePlace};
use crate::{
    block_scope, blocks, callers, dns, enforcers, foreign, ingresses, mesh, names, node_ports,
    one_end, outside, ports, second, selectors, service_ports, services, some_endpoints,
    void_rules,
};

const NOT_UNDERSTOOD: Check = Check {
    name: "not-understood",
    severity: Severity::Error,
    problem: "part of a policy is invalid or unsupported: API servers refuse the policy, or traffic that it should allow is \
              denied",
    fix: "correct the field; `kubectl explain networkpolicy.spec` has its form",
};
const CLUSTER_NOT_UNDERSTOOD: &str =
    "correct the field; `kubectl explain clusternetworkpolicy.spec` has its form";
const ANNOTATION: Check = Check {
    name: "annotation-not-understood",
    severity: Severity::Error,
    problem: "an annotation of a policy has an unknown value, so that the default holds",
    fix: "write one of the values that the message names",
};
const UNKNOWN_KEY: Check = Check {
    name: "annotation-unknown",
    severity: Severity::Warning,
    problem: "a policy has an annotation or a label of netpold.io that means nothing: the policy is enforced as if without",
    fix: "write the annotation netpold.io/enforcement (audit, enforce) or netpold.io/deny (drop, reject)",
};
const OVER_BUDGET: Check = Check {
    name: "over-budget",
    severity: Severity::Error,
    problem: "a policy is too large and allows nothing",
    fix: "split it, or use labels and wider blocks instead of lists (deploy/limits.md)",
};
const EQUAL_PRIORITY: Check = Check {
    name: "equal-priority",
    severity: Severity::Warning,
    problem: "ClusterNetworkPolicies of one tier have the same priority: they are evaluated in the order of their \
              names",
    fix: "give each a priority of its own: spec.priority, 0 (first) to 1000",
};
const NO_AGENT: Check = Check {
    name: "no-agent",
    severity: Severity::Error,
    problem: "a node has no agent: no policy is enforced for its pods",
    fix: "see why the DaemonSet has no pod there: `kubectl -n netpold-system describe ds netpold`; its \
          tolerations and the node's taints",
};
const NO_OBJECTS: &str = "no Kubernetes object was read: nothing was checked";
const NO_PODS: &str =
    "no Pod among the objects: policies, rules and ports cannot be checked against pods";

/// Label of the agents' pods, and its value.
const AGENT: (&str, &str) = ("app.kubernetes.io/name", "netpold");

/// Checks a cluster's objects.
#[must_use]
pub fn examine(changes: Vec<Change>, details: &Details) -> DoctorReport {
    let mut found = Findings::default();
    if changes.is_empty() {
        found.unknown(NO_OBJECTS);
    }
    let cluster = complete::cluster(changes, details);
    let objects = GroupedObjects::new(&cluster, details);
    for policy in cluster.policies().values() {
        self::policy(&objects, policy, &mut found);
    }
    for policy in cluster.cluster_policies() {
        cluster_policy(&objects, policy, &mut found);
    }
    equal_priorities(&objects, &mut found);
    let has_policies =
        || !cluster.policies().is_empty() || cluster.cluster_policies().next().is_some();
    if !has_pods(&objects) && has_policies() {
        found.unknown(NO_PODS);
    }
    if !objects.groups.is_empty() {
        dns::examine(&objects, &mut found);
        names::examine(&objects, &mut found);
        mesh::examine(&objects, &mut found);
        services::examine(&objects, &mut found);
        callers::examine(&objects, &mut found);
        ingresses::examine(&objects, &mut found);
        outside::closed(&objects, &mut found);
        second::examine(&objects, &mut found);
    }
    agents(&objects, &mut found);
    enforcers::examine(details, &mut found);
    foreign::examine(details, &mut found);
    found.report()
}

/// Returns whether there are pods, possibly only finished ones and ones on the host's network.
fn has_pods(objects: &GroupedObjects<'_>) -> bool {
    objects.cluster.pods().values().next().is_some()
}

fn policy(objects: &GroupedObjects<'_>, policy: &Policy, found: &mut Findings) {
    let named = NamedPolicy::policy(policy, objects.details);
    understood(&named, &policy.problems, found);
    if let Some(excess) = objects.cluster.excess(&policy.key) {
        found.add(&OVER_BUDGET, named.at("", excess));
    }
    void_rules::examine(objects, policy, &named, found);
    blocks::written(objects, &named, found);
    let subject = objects.select(named.namespace(), None, &policy.pod_selector);
    if subject.is_empty() && has_pods(objects) {
        selectors::subject(objects, &named, (None, &policy.pod_selector), found);
    }
    for direction in Direction::BOTH {
        let rules = policy.rules(direction).unwrap_or_default();
        for (number, rule) in rules.iter().enumerate() {
            let place = RulePlace { policy: &named, direction, number, action: Action::Accept };
            self::rule(objects, &place, rule, &subject, found);
        }
    }
}

fn cluster_policy(objects: &GroupedObjects<'_>, policy: &ClusterPolicy, found: &mut Findings) {
    let named = NamedPolicy::cluster_policy(policy, objects.details);
    understood(&named, &policy.problems, found);
    blocks::written(objects, &named, found);
    let selector = &policy.subject;
    let subject = objects.select(None, Some(&selector.namespaces), &selector.pods);
    if subject.is_empty() && has_pods(objects) {
        selectors::subject(objects, &named, (Some(&selector.namespaces), &selector.pods), found);
    }
    for direction in Direction::BOTH {
        for (number, rule) in policy.rules(direction).iter().enumerate() {
            let place = RulePlace { policy: &named, direction, number, action: rule.action };
            self::rule(objects, &place, &rule.matches, &subject, found);
        }
    }
}

/// Checks a rule. Blocks need no pods; all other checks do.
fn rule(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    rule: &Rule,
    subject: &[&PodGroup<'_>],
    found: &mut Findings,
) {
    blocks::examine(objects, place, rule, subject, found);
    if objects.groups.is_empty() {
        return;
    }
    block_scope::examine(objects, place, rule, subject, found);
    selectors::peers(objects, place, rule, subject, found);
    one_end::examine(objects, place, rule, subject, found);
    outside::examine(objects, place, rule, subject, found);
    some_endpoints::examine(objects, place, rule, subject, found);
    ports::examine(objects, place, rule, subject, found);
    service_ports::examine(objects, place, rule, subject, found);
    node_ports::examine(objects, place, rule, subject, found);
}

fn understood(policy: &NamedPolicy<'_>, problems: &[String], found: &mut Findings) {
    for path in policy.unknown_keys() {
        found.add(&UNKNOWN_KEY, policy.at(&path, ""));
    }
    for problem in problems {
        let path = problem.split(": ").next().unwrap_or_default();
        let text = policy.with_source(format!("{}: {problem}", policy.text), path);
        match policy.namespace() {
            _ if path.starts_with("metadata.annotations.") => found.add(&ANNOTATION, text),
            Some(_) => found.add(&NOT_UNDERSTOOD, text),
            None => found.add_with_fix(&NOT_UNDERSTOOD, CLUSTER_NOT_UNDERSTOOD, text),
        }
    }
}

/// Reports policies of one tier and priority. The API leaves their order open only where some pod is the subject of
/// both, and both have rules of one direction.
fn equal_priorities(objects: &GroupedObjects<'_>, found: &mut Findings) {
    let mut equal: BTreeMap<(Tier, u16), Vec<&ClusterPolicy>> = BTreeMap::new();
    for policy in objects.cluster.cluster_policies() {
        equal.entry((policy.tier, policy.priority)).or_default().push(policy);
    }
    for ((tier, priority), policies) in equal.into_iter().filter(|(_, all)| all.len() > 1) {
        let mut names = BTreeSet::new();
        for direction in Direction::BOTH {
            let with_rules = policies.iter().filter(|policy| !policy.rules(direction).is_empty());
            let with_rules: Vec<&ClusterPolicy> = with_rules.copied().collect();
            let of_one_pod = |group: &PodGroup<'_>| -> Vec<&str> {
                let subjects = with_rules.iter().filter(|policy| group.is_subject(policy));
                subjects.map(|policy| &*policy.name).collect()
            };
            let several = objects.groups.iter().map(of_one_pod).filter(|names| names.len() > 1);
            names.extend(several.flatten());
        }
        if !names.is_empty() {
            let names: Vec<&str> = names.into_iter().collect();
            found.add(&EQUAL_PRIORITY, format!("{tier} {priority}: {}", names.join(", ")));
        }
    }
}

/// Reports nodes without an agent, if any node has one: manifests need not contain the agents' pods.
fn agents(objects: &GroupedObjects<'_>, found: &mut Findings) {
    let cluster = objects.cluster;
    let (label, value) = AGENT;
    let is_agent = |pod: &&Pod| {
        !pod.finished && !pod.node.is_empty() && pod.labels.get(label).is_some_and(|it| it == value)
    };
    let pods = cluster.pods().values().map(|pod| &**pod).filter(is_agent);
    let agents: BTreeSet<&str> = pods.map(|pod| pod.node.as_str()).collect();
    if agents.is_empty() {
        return;
    }
    for node in cluster.nodes().keys().filter(|node| !agents.contains(node.as_str())) {
        let key = Key::new(DEFAULT_NAMESPACE, node.as_str());
        found.add(&NO_AGENT, objects.with_source(("Node", &key), format!("Node {node}")));
    }
}
