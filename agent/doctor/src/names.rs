//! Checks for domain names that match no address: without a resolver, of Services with a cluster address, beyond the limit.

use std::collections::BTreeSet;

use netpold_core::model::{
    Action, ClusterPolicy, Direction, DomainName, Enforcement, Key, Peer, Pod, Service,
};
use netpold_core::probe::IpProtocol;

use crate::dns::{Server, asks_others, is_explicit, is_node_local, servers};
use crate::finding::{Check, Findings, Severity};
use crate::objects::{GroupedObjects, NamedPolicy, PodGroup, pods_text};

const NO_RESOLVER: Check = Check {
    name: "names-without-dns",
    severity: Severity::Warning,
    problem: "pods may reach domain names, but policies deny them the cluster's DNS by UDP: the names match no address",
    fix: "allow UDP 53 to the DNS before the rule that denies it; a domain name opens no resolver (deploy/names.md)",
};
const SERVICE_NAME: Check = Check {
    name: "name-of-service",
    severity: Severity::Warning,
    problem: "a domain name is that of a Service with a cluster address, which belongs to no name: it allows nothing",
    fix: "allow the Service's pods by namespaces or pods instead of domainNames",
};
const BEYOND_LIMIT: Check = Check {
    name: "names-beyond-limit",
    severity: Severity::Error,
    problem: "rules with domain names form more groups than the tables hold for a pod: the names of the last ones match \
              nothing",
    fix: "give neighbouring rules with domain names the same protocols, so that they form one group (deploy/names.md)",
};

/// Domain of Services where clusters have no other.
const SERVICES: &str = ".svc.cluster.local";

/// Checks the rules with domain names of all pods.
pub(crate) fn examine(objects: &GroupedObjects<'_>, found: &mut Findings) {
    let has_names = |policy: &&ClusterPolicy| {
        policy.egress.iter().any(|rule| rule.matches.domain_names().next().is_some())
    };
    let policies = objects.cluster.cluster_policies().map(|policy| &**policy);
    let mut policies: Vec<&ClusterPolicy> = policies.filter(has_names).collect();
    for policy in &policies {
        names_of_services(objects, policy, found);
    }
    policies.retain(|policy| policy.enforcement == Enforcement::Enforce);
    if policies.is_empty() {
        return;
    }
    without_resolver(objects, &policies, found);
    let mut beyond = BTreeSet::new();
    for group in &objects.groups {
        let Some(pod) = group.pods.first() else { continue };
        for (policy, rule) in objects.cluster.names_beyond_limit(pod) {
            let named = NamedPolicy::cluster_policy(policy, objects.details);
            let path = format!("spec.egress[{rule}]");
            if beyond.insert((policy.name.clone(), rule)) {
                found.add(&BEYOND_LIMIT, named.at(&path, &pods_text(group)));
            }
        }
    }
}

fn names_of_services(objects: &GroupedObjects<'_>, policy: &ClusterPolicy, found: &mut Findings) {
    let named = NamedPolicy::cluster_policy(policy, objects.details);
    for (number, rule) in policy.egress.iter().enumerate() {
        for name in rule.matches.domain_names().filter(|name| is_of_cluster_ip(objects, name)) {
            let path = format!("spec.egress[{number}]");
            found.add(&SERVICE_NAME, named.at(&path, &name.to_string()));
        }
    }
}

/// Returns whether a name is that of existing Services with cluster addresses, and of no other.
fn is_of_cluster_ip(objects: &GroupedObjects<'_>, name: &DomainName) -> bool {
    let text = name.to_string();
    let text = text.strip_prefix("*.").unwrap_or(&text);
    // With a leading dot, the domain of all namespaces has the suffix too.
    let dotted = format!(".{text}");
    let Some(below) = dotted.strip_suffix(SERVICES) else { return false };
    let services = objects.cluster.services().values();
    let below: Vec<&str> = below.split('.').filter(|label| !label.is_empty()).collect();
    let matches = |key: &Key| match (name.is_wildcard(), &below[..]) {
        (true, []) => true,
        (true, [namespace]) => key.namespace == *namespace,
        (false, [service, namespace]) => key.namespace == *namespace && key.name == *service,
        // Names of single pods exist below headless Services only.
        (true | false, _) => false,
    };
    let mut services = services.filter(|service| matches(&service.key)).peekable();
    // A headless Service's name resolves to pods, and an ExternalName's to another name.
    let is_translated = |service: &Service| {
        let mut addresses = service.addresses.iter();
        !service.addresses.is_empty()
            && addresses.all(|address| objects.cluster.service_at(*address).is_some())
    };
    services.peek().is_some() && services.all(|service| is_translated(service))
}

/// Checks that the subjects of names may ask the cluster's DNS by UDP. Pods that may ask another resolver are left out:
/// an agent's options may trust it.
fn without_resolver(
    objects: &GroupedObjects<'_>,
    policies: &[&ClusterPolicy],
    found: &mut Findings,
) {
    let servers: Vec<_> = servers(objects).into_iter().filter(|it| it.is_of_cluster).collect();
    let is_known = servers.iter().any(|server| !server.is_guess && !server.backends.is_empty());
    if !is_known || is_node_local(objects) {
        return;
    }
    for group in &objects.groups {
        let is_server = servers.iter().any(|server| server.is(group));
        if is_server || asks_others(objects, group) || names_a_resolver(objects, group) {
            continue;
        }
        let Some(policy) = policies.iter().find(|policy| group.is_subject(policy)) else {
            continue;
        };
        let asks = |pod: &&Pod| {
            let mut questions = servers.iter().flat_map(Server::questions);
            questions.any(|(_, at, port)| objects.may_send(pod, *at, IpProtocol::UDP, *port))
        };
        if !group.by_node.iter().all(asks) {
            let named = NamedPolicy::cluster_policy(policy, objects.details);
            found.add(&NO_RESOLVER, named.at("spec.egress", &pods_text(group)));
        }
    }
}

/// Returns whether a rule names the port of DNS at some block: it may be a resolver that the agents trust.
fn names_a_resolver(objects: &GroupedObjects<'_>, group: &PodGroup<'_>) -> bool {
    let isolating = objects.isolating(group, Direction::Egress);
    let rules = isolating.iter().flat_map(|(_, rules)| rules.iter());
    let tiers = objects
        .cluster
        .cluster_policies()
        .filter(|policy| policy.enforcement == Enforcement::Enforce && group.is_subject(policy));
    let tiers = tiers.flat_map(|policy| &policy.egress);
    let tiers = tiers.filter(|rule| rule.action != Action::Deny).map(|rule| &rule.matches);
    rules.chain(tiers).any(|rule| {
        let ports = rule.ports.iter().flatten().any(is_explicit);
        let mut peers = rule.peers.iter().flatten();
        ports && peers.any(|peer| matches!(peer, Peer::Block(_) | Peer::Nodes(_)))
    })
}
