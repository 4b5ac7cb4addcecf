//! Checks of a cluster's objects that the API server accepts although they may be wrong.

use std::collections::BTreeMap;

use netpold_core::cluster::Cluster;
use netpold_core::model::{Change, ClusterPolicy, Direction, Key, Pod, Policy, Rule, Tier};
use netpold_kube::convert::DEFAULT_NAMESPACE;

use super::details::Details;
use super::finding::{Check, Findings, Report, Severity};
use super::objects::{Group, Named, Objects, Place};
use super::{
    blocks, complete, dns, enforcers, foreign, mesh, names, ports, selectors, service_ports,
    services, void_rules,
};

const NOT_UNDERSTOOD: Check = Check {
    name: "not-understood",
    severity: Severity::Error,
    problem: "part of a policy is invalid or unsupported: traffic that it should allow is denied",
    fix: "correct the field; `kubectl explain networkpolicy.spec` has its form",
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
const NO_PODS: &str =
    "no Pod among the objects: policies, rules and ports cannot be checked against pods";

/// Label of the agents' pods, and its value.
const AGENT: (&str, &str) = ("app.kubernetes.io/name", "netpold");

/// Checks a cluster's objects.
#[must_use]
pub fn examine(changes: Vec<Change>, details: &Details) -> Report {
    let cluster = complete::cluster(changes, details);
    let objects = Objects::new(&cluster, details);
    let mut found = Findings::default();
    for policy in cluster.policies().values() {
        self::policy(&objects, policy, &mut found);
    }
    for policy in cluster.cluster_policies() {
        cluster_policy(&objects, policy, &mut found);
    }
    equal_priorities(&cluster, &mut found);
    if objects.groups.is_empty() {
        if !cluster.policies().is_empty() || cluster.cluster_policies().next().is_some() {
            found.unknown(NO_PODS);
        }
    } else {
        dns::examine(&objects, &mut found);
        names::examine(&objects, &mut found);
        mesh::examine(&objects, &mut found);
        services::examine(&objects, &mut found);
    }
    agents(&objects, &mut found);
    enforcers::examine(details, &mut found);
    foreign::examine(details, &mut found);
    found.report()
}

fn policy(objects: &Objects<'_>, policy: &Policy, found: &mut Findings) {
    let named = Named::policy(policy, objects.details);
    understood(&named, &policy.problems, found);
    if let Some(excess) = objects.cluster.excess(&policy.key) {
        found.add(&OVER_BUDGET, named.at("", excess));
    }
    void_rules::examine(objects, policy, &named, found);
    blocks::written(&named, found);
    let subject = objects.select(named.namespace, None, &policy.pod_selector);
    if subject.is_empty() && !objects.groups.is_empty() {
        selectors::subject(objects, &named, (None, &policy.pod_selector), found);
    }
    for direction in Direction::BOTH {
        let rules = policy.rules(direction).unwrap_or_default();
        for (number, rule) in rules.iter().enumerate() {
            let place = Place { policy: &named, direction, number };
            self::rule(objects, &place, rule, &subject, found);
        }
    }
}

fn cluster_policy(objects: &Objects<'_>, policy: &ClusterPolicy, found: &mut Findings) {
    let named = Named::cluster_policy(policy, objects.details);
    understood(&named, &policy.problems, found);
    blocks::written(&named, found);
    let selector = &policy.subject;
    let subject = objects.select(None, Some(&selector.namespaces), &selector.pods);
    if subject.is_empty() && !objects.groups.is_empty() {
        selectors::subject(objects, &named, (Some(&selector.namespaces), &selector.pods), found);
    }
    for direction in Direction::BOTH {
        for (number, rule) in policy.rules(direction).iter().enumerate() {
            let place = Place { policy: &named, direction, number };
            self::rule(objects, &place, &rule.matches, &subject, found);
        }
    }
}

/// Checks a rule. Blocks need no pods; all other checks do.
fn rule(
    objects: &Objects<'_>,
    place: &Place<'_>,
    rule: &Rule,
    subject: &[&Group<'_>],
    found: &mut Findings,
) {
    blocks::examine(objects, place, rule, subject, found);
    if objects.groups.is_empty() {
        return;
    }
    selectors::peers(objects, place, rule, found);
    ports::examine(objects, place, rule, subject, found);
    service_ports::examine(objects, place, rule, subject, found);
}

fn understood(policy: &Named<'_>, problems: &[String], found: &mut Findings) {
    for problem in problems {
        let path = problem.split(": ").next().unwrap_or_default();
        let text = format!("{}: {problem}", policy.text);
        found.add(&NOT_UNDERSTOOD, policy.with_source(text, path));
    }
}

fn equal_priorities(cluster: &Cluster, found: &mut Findings) {
    let mut equal: BTreeMap<(Tier, u16), Vec<&str>> = BTreeMap::new();
    for policy in cluster.cluster_policies() {
        equal.entry((policy.tier, policy.priority)).or_default().push(&policy.name);
    }
    for ((tier, priority), mut names) in equal.into_iter().filter(|(_, names)| names.len() > 1) {
        names.sort_unstable();
        found.add(&EQUAL_PRIORITY, format!("{tier} {priority}: {}", names.join(", ")));
    }
}

/// Reports nodes without an agent, if any node has one: manifests need not contain the agents' pods.
fn agents(objects: &Objects<'_>, found: &mut Findings) {
    let cluster = objects.cluster;
    let (label, value) = AGENT;
    let is_agent = |pod: &&Pod| {
        !pod.finished && !pod.node.is_empty() && pod.labels.get(label).is_some_and(|it| it == value)
    };
    let pods = cluster.pods().values().map(|pod| &**pod).filter(is_agent);
    let agents: std::collections::BTreeSet<&str> = pods.map(|pod| pod.node.as_str()).collect();
    if agents.is_empty() {
        return;
    }
    for node in cluster.nodes().keys().filter(|node| !agents.contains(node.as_str())) {
        let key = Key::new(DEFAULT_NAMESPACE, node.as_str());
        found.add(&NO_AGENT, objects.with_source(("Node", &key), format!("Node {node}")));
    }
}
