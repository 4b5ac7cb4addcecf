//! Checks for pods that may send but reach no name server, and for name servers that admit no pod.

mod allowance;
mod cut_off;
mod server;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use netpold_core::explain::Verdict;
use netpold_core::model::{ClusterPolicy, Direction, Key, Peer, Pod, Rule};
use netpold_core::probe::IpProtocol;

pub(crate) use self::allowance::is_explicit;
use self::allowance::{is_resolver, may_be_dns, may_need_names};

pub(crate) use self::server::{Server, is_node_local, servers};
use crate::finding::{Check, Findings, Severity};
use crate::objects::{GroupedObjects, NamedPolicy, PodGroup, pods_text, some_pods_text};
use netpold_core::first_names::first_names;

const NO_DNS: Check = Check {
    name: "no-dns",
    severity: Severity::Warning,
    problem: "policies allow pods some egress, but no DNS (UDP 53)",
    fix: "add an egress rule: - {to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: \
          kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{protocol: UDP, port: \
          53}, {protocol: TCP, port: 53}]}",
};
const CLOSED: Check = Check {
    name: "dns-server-closed",
    severity: Severity::Warning,
    problem: "the cluster's DNS server is closed to pods: its policies allow no queries from them",
    fix: "",
};

/// [`NO_DNS`] where a ClusterNetworkPolicy denies it.
const DENIED_DNS: Check = Check { problem: "a ClusterNetworkPolicy denies pods DNS", ..NO_DNS };

/// [`NO_DNS`] in a cluster with node-local caches of unknown addresses.
const BY_CACHE_ALONE: Check = Check {
    severity: Severity::Info,
    problem: "policies allow pods some egress, but no DNS beside the cache of their node, whose addresses are not among the \
              objects",
    fix: "none, if pods ask the cache at an address of its own, such as 169.254.20.10; otherwise ",
    ..NO_DNS
};
/// Address outside of every cluster (TEST-NET-1, RFC 5737), and a port: pods that may not even send there need no names.
const OUTSIDE: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 443);

/// Most groups of pods named at one place, and most backends of a name server judged.
const NAMED: usize = 3;
const ASKED: usize = 8;

/// Checks the pods that some policy isolates, and the name servers.
pub(crate) fn examine(objects: &GroupedObjects<'_>, found: &mut Findings) {
    let servers = servers(objects);
    let local = is_node_local(objects);
    let is_unknown = local && server::has_unknown_cache(objects);
    for group in &objects.groups {
        let is_server = servers.iter().any(|server| server.is(group));
        if !is_server && (!local || is_unknown) && !asks_others(objects, group) {
            senders(objects, group, &servers, local, found);
        }
    }
    for server in servers.iter().filter(|server| server.is_of_cluster) {
        closed(objects, server, &servers, found);
        cut_off::examine(objects, server, found);
    }
}

/// Returns whether a group contains pods of a name server.
pub(crate) fn is_name_server(objects: &GroupedObjects<'_>, group: &PodGroup<'_>) -> bool {
    servers(objects).iter().any(|server| server.is(group))
}

/// Returns whether all pods of the group have a `dnsPolicy` without the cluster's name server.
pub(crate) fn asks_others(objects: &GroupedObjects<'_>, group: &PodGroup<'_>) -> bool {
    group.pods.iter().all(|pod| objects.pod(pod).is_some_and(|details| details.own_dns))
}

/// Checks the egress of a group of pods.
fn senders(
    objects: &GroupedObjects<'_>,
    group: &PodGroup<'_>,
    servers: &[Server<'_>],
    has_cache: bool,
    found: &mut Findings,
) {
    let isolating = objects.isolating(group, Direction::Egress);
    if isolating.is_empty() {
        if !has_cache {
            denied_by_tier(objects, group, servers, found);
        }
        return;
    }
    let rules: Vec<&Rule> = isolating.iter().flat_map(|(_, rules)| rules.iter()).collect();
    // Pods that may send nothing, or only to addresses, need no names.
    if !rules.iter().any(|rule| may_need_names(rule)) {
        return;
    }
    let reaches = |pod: &Pod, server: &Server<'_>| {
        server.questions().take(ASKED).any(|(protocol, address, port)| {
            let protocol = IpProtocol(protocol.number());
            let explainer = &objects.explainer;
            let judged = explainer.judge(&pod.key, Direction::Egress, *address, protocol, *port);
            let Some(judged) = judged else { return true };
            // Another server than the cluster's counts only where a rule names its port.
            let is_meant = judged.allowed_by.as_ref().is_none_or(|rule| rule.port.is_some());
            judged.verdict == Verdict::Allow && (server.is_of_cluster || is_meant)
        })
    };
    let is_known = servers.iter().any(|server| server.is_of_cluster);
    let is_guess = servers.iter().any(|server| server.is_guess);
    let is_dns = |rule: &&Rule| match (is_known, is_guess) {
        (false, _) => may_be_unknown_server(objects, group, rule),
        (true, false) => is_resolver(rule),
        (true, true) => is_resolver(rule) || is_for_unknown(objects, group, rule),
    };
    let fails = |pod: &&Pod| !servers.iter().any(|server| reaches(pod, server));
    let failing: Vec<&Pod> = group.by_node.iter().copied().filter(fails).collect();
    if failing.is_empty() || rules.iter().any(is_dns) {
        return;
    }
    let pods = some_pods_text(&group.beside(&failing));
    // The NetworkPolicies may well allow DNS: a rule of an Admin tier decides before them.
    if let Some(policy) = failing.iter().find_map(|pod| refusing_questions(objects, pod, servers)) {
        if !has_cache {
            let named = NamedPolicy::cluster_policy(policy, objects.details);
            let fix = accept_first(servers, |server| server.accept_from(objects));
            found.add_with_fix(&DENIED_DNS, &fix, named.at("spec.egress", &pods));
        }
        return;
    }
    let text = |names: &str| format!("{pods}: {names}");
    let place = objects.place_of(isolating.iter().map(|(policy, _)| *policy), "spec.egress", text);
    let fix = match servers.iter().find(|server| server.is_of_cluster) {
        Some(server) => format!("add an egress rule: {}", server.egress_rule(objects)),
        None => NO_DNS.fix.to_owned(),
    };
    if has_cache {
        let fix = format!("{}{fix}", BY_CACHE_ALONE.fix);
        found.add_with_fix(&BY_CACHE_ALONE, &fix, place);
    } else {
        found.add_with_fix(&NO_DNS, &fix, place);
    }
}

/// Returns the fix where a ClusterNetworkPolicy denies DNS: rules of NetworkPolicies are not evaluated then.
fn accept_first<'o>(servers: &[Server<'o>], rule: impl Fn(&Server<'o>) -> String) -> String {
    let rule = servers.iter().find(|server| server.is_of_cluster).map(rule).unwrap_or_default();
    format!(
        "put this rule before the rule that denies DNS, by its place or its policy's priority: {rule}"
    )
}

/// Checks pods that no NetworkPolicy isolates: a ClusterNetworkPolicy may deny them DNS, and allow them the Internet.
fn denied_by_tier(
    objects: &GroupedObjects<'_>,
    group: &PodGroup<'_>,
    servers: &[Server<'_>],
    found: &mut Findings,
) {
    let (outside, port) = OUTSIDE;
    let sends = |pod: &&&Pod| objects.may_send(pod, outside, IpProtocol::TCP, port);
    let mut senders = group.by_node.iter().filter(sends);
    if let Some(policy) = senders.find_map(|pod| refusing_questions(objects, pod, servers)) {
        let named = NamedPolicy::cluster_policy(policy, objects.details);
        let fix = accept_first(servers, |server| server.accept_from(objects));
        found.add_with_fix(&DENIED_DNS, &fix, named.at("spec.egress", &pods_text(group)));
    }
}

/// Returns the first ClusterNetworkPolicy that denies a pod DNS, if such policies deny every question to the cluster's name
/// servers.
fn refusing_questions<'o>(
    objects: &'o GroupedObjects<'_>,
    pod: &Pod,
    servers: &[Server<'_>],
) -> Option<&'o ClusterPolicy> {
    let questions = servers.iter().filter(|it| it.is_of_cluster).flat_map(Server::questions);
    let policies = questions.take(ASKED).map(|(protocol, address, port)| {
        let at = (IpProtocol(protocol.number()), *port);
        objects.denying(&pod.key, Direction::Egress, *address, at)
    });
    policies.collect::<Option<Vec<_>>>()?.first().copied()
}

/// Returns whether a rule may allow DNS where no name server of the cluster is among the objects. Without ports, a rule for
/// pods of an application's namespace is none if such pods are among the objects.
fn may_be_unknown_server(objects: &GroupedObjects<'_>, group: &PodGroup<'_>, rule: &Rule) -> bool {
    let has_explicit = rule.ports.iter().flatten().any(is_explicit);
    let is_known = |peer: &Peer| match peer {
        Peer::Pods { namespaces: None, pods } => {
            !server::has_servers(group.namespace)
                && !objects.select(Some(group.namespace), None, pods).is_empty()
        }
        Peer::Pods { .. } | Peer::Block(_) | Peer::Nodes(_) | Peer::Domain(_) => false,
    };
    let is_for_known = rule.peers.as_ref().is_some_and(|peers| peers.iter().all(is_known));
    may_be_dns(rule) && (has_explicit || !is_for_known)
}

/// Returns whether a rule may allow DNS to pods that are not among the objects.
fn is_for_unknown(objects: &GroupedObjects<'_>, group: &PodGroup<'_>, rule: &Rule) -> bool {
    let own = Some(group.namespace);
    may_be_dns(rule)
        && rule.peers.iter().flatten().any(|peer| match peer {
            Peer::Pods { namespaces, pods } => {
                objects.select(own, namespaces.as_ref(), pods).is_empty()
            }
            Peer::Block(_) | Peer::Nodes(_) | Peer::Domain(_) => false,
        })
}

/// Checks the ingress of the name server's own pods, from every group that asks the server.
fn closed(
    objects: &GroupedObjects<'_>,
    server: &Server<'_>,
    servers: &[Server<'_>],
    found: &mut Findings,
) {
    let own: Vec<&PodGroup<'_>> = objects.groups.iter().filter(|group| server.is(group)).collect();
    let caches = refused_caches(objects, server);
    let isolating: BTreeSet<_> = own
        .iter()
        .flat_map(|group| objects.isolating(group, Direction::Ingress))
        .map(|(policy, _)| &policy.key)
        .collect();
    if own.is_empty() || isolating.is_empty() && objects.cluster.cluster_policies().next().is_none()
    {
        return;
    }
    let askers = objects
        .groups
        .iter()
        .filter(|group| !servers.iter().any(|it| it.is(group)) && !asks_others(objects, group));
    let mut refused = Vec::new();
    let mut count = 0;
    for group in askers {
        count += 1;
        if !admits(objects, server, group) {
            refused.push(group);
        }
    }
    // A guessed name server may serve others than pods.
    let is_open = || {
        own.iter()
            .flat_map(|it| objects.isolating(it, Direction::Ingress))
            .any(|(_, rules)| !rules.is_empty())
    };
    if server.is_guess && (refused.len() < count || is_open()) {
        return;
    }
    let nobody = count == 0
        && own.iter().all(|group| {
            let rules = objects.isolating(group, Direction::Ingress);
            !rules.is_empty() && rules.iter().all(|(_, rules)| rules.is_empty())
        });
    if refused.is_empty() && caches.is_empty() && !nobody {
        return;
    }
    let who = match refused.len() {
        0 if !caches.is_empty() => format!(
            "not allowed: the caches of other nodes ({}), which use the host's network",
            some_pods_text(&caches)
        ),
        0 => "no pod is allowed".to_owned(),
        all if all == count => "no other pod is allowed".to_owned(),
        _ => {
            let refused = refused.iter().map(|it| pods_text(it));
            format!("not allowed: {}", first_names(refused, NAMED))
        }
    };
    if let Some(policy) = refused.first().and_then(|group| refusing(objects, server, group)) {
        let named = NamedPolicy::cluster_policy(policy, objects.details);
        let place = named.at("spec.ingress", &format!("{}: {who}", server.text()));
        let fix = accept_first(servers, Server::accept_pods);
        found.add_with_fix(&CLOSED, &fix, place);
        return;
    }
    let policies = isolating.iter().filter_map(|key| objects.cluster.policies().get(*key));
    let place = objects.place_of(policies.map(|policy| &**policy), "", |names| {
        let by = if names.is_empty() { String::new() } else { format!(" by {names}") };
        format!("{}: {who}{by}", server.text())
    });
    let rule = server.ingress_rule(!caches.is_empty());
    let fix = format!("add an ingress rule for the name server's pods: {rule}");
    found.add_with_fix(&CLOSED, &fix, place);
}

/// Returns the node-local caches that no pod of the name server admits: their questions come from the addresses of their
/// nodes, which no selector matches.
fn refused_caches<'o>(objects: &'o GroupedObjects<'_>, server: &Server<'_>) -> Vec<&'o Pod> {
    let is_admitted = |cache: &Pod| {
        let questions = server.backends.iter().filter_map(|(protocol, address, port)| {
            let pod = objects.cluster.owner(*address)?;
            let same = |it: &&IpAddr| it.is_ipv4() == address.is_ipv4();
            let from = *cache.addresses.iter().find(same)?;
            let protocol = IpProtocol(protocol.number());
            let is_beside = objects.cluster.is_node_of(pod, from);
            let explainer = &objects.explainer;
            let allows = explainer.allows(&pod.key, Direction::Ingress, from, protocol, *port)?;
            Some(allows || is_beside)
        });
        let mut questions = questions.take(ASKED).peekable();
        questions.peek().is_none() || questions.any(|admitted| admitted)
    };
    server::caches(objects).filter(|cache| !is_admitted(cache)).collect()
}

/// Question at a pod of the name server: the pod, the asker's address, protocol and port.
type NameServerProbe<'o> = (&'o Key, IpAddr, (IpProtocol, u16));

/// Returns the questions of a group at the pods of the name server.
fn questions_of<'o>(
    objects: &'o GroupedObjects<'_>,
    server: &'o Server<'_>,
    group: &'o PodGroup<'_>,
) -> impl Iterator<Item = NameServerProbe<'o>> {
    let asker = group.pods.iter().find(|pod| !pod.addresses.is_empty());
    server.questions().filter_map(move |(protocol, address, port)| {
        let pod = objects.cluster.owner(*address)?;
        let same = |it: &&IpAddr| it.is_ipv4() == address.is_ipv4();
        let from = asker?.addresses.iter().find(same)?;
        Some((&pod.key, *from, (IpProtocol(protocol.number()), *port)))
    })
}

/// Returns the ClusterNetworkPolicy that closes the name server to a group, if there is one.
fn refusing<'o>(
    objects: &'o GroupedObjects<'_>,
    server: &Server<'_>,
    group: &PodGroup<'_>,
) -> Option<&'o ClusterPolicy> {
    let mut questions = questions_of(objects, server, group);
    questions.find_map(|(pod, from, at)| objects.denying(pod, Direction::Ingress, from, at))
}

/// Returns whether some pod of the name server admits a group.
fn admits(objects: &GroupedObjects<'_>, server: &Server<'_>, group: &PodGroup<'_>) -> bool {
    let of_pods = questions_of(objects, server, group).filter_map(|(pod, from, at)| {
        let (protocol, port) = at;
        objects.explainer.allows(pod, Direction::Ingress, from, protocol, port)
    });
    let mut of_pods = of_pods.take(ASKED).peekable();
    // Servers on the host's network, or of another address family, are not judged.
    of_pods.peek().is_none() || of_pods.any(|admitted| admitted)
}
