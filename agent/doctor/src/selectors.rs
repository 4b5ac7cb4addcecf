//! Checks for policies that select no pod, and for peers that match none.

use std::net::IpAddr;

use netpold_core::labels::{JOB_NAME, NAMESPACE_NAME};
use netpold_core::model::{Direction, Labels, Peer, Pod, Requirement, Rule, Selector};

use crate::finding::{Check, Findings, Severity};
use crate::host_peers::SYSTEM;
use crate::objects::{GroupedObjects, NamedPolicy, PodGroup, RulePlace};
use crate::{host_peers, service_peers};

const SELECTS_NOTHING: Check = Check {
    name: "selects-nothing",
    severity: Severity::Warning,
    problem: "a policy selects no pod",
    fix: "compare its selector with the pods' labels: `kubectl get pods -n NAMESPACE --show-labels`; delete the \
          policy if its pods no longer exist",
};
/// Fix of [`SELECTS_NOTHING`] in a ClusterNetworkPolicy.
const BY_NAMESPACES: &str = "compare its selectors with the labels: `kubectl get ns --show-labels`, `kubectl get pods -A --show-labels`; each \
     Namespace has the label kubernetes.io/metadata.name; delete the policy if its pods no longer exist";
/// Fix of [`SELECTS_NOTHING`] for a chart.
const OF_OTHER_CHARTS: &str = "none, if another chart or an operator creates its pods; otherwise compare its selector with the labels of the pod \
     templates";
/// Fix of [`SELECTS_NOTHING`] for the name of a Job.
const OF_A_JOB: &str = "none, if the Job is created again; otherwise delete the policy";
const SELECTS_HOSTS: Check = Check {
    name: "selects-host-network",
    severity: Severity::Warning,
    problem: "all pods that a policy selects use the host's network: NetworkPolicy does not apply to them",
    fix: "restrict the nodes' own ports with the nodes' firewall, or run the pods without hostNetwork",
};
const NO_POD_THERE: Check = Check {
    name: "namespace-without-pods",
    severity: Severity::Warning,
    problem: "a policy is in a namespace that has no pods of its own network",
    fix: "a NetworkPolicy counts only for pods of its own namespace: put it beside them with \
          metadata.namespace",
};
const PEER_WITHOUT_PODS: Check = Check {
    name: "peer-without-pods",
    severity: Severity::Warning,
    problem: "no pod is the peer of a rule: it {} nothing",
    fix: "compare the selectors with the labels: `kubectl get pods -A --show-labels`, `kubectl get ns \
          --show-labels`; pods of other namespaces need a namespaceSelector beside the podSelector",
};
/// Problem of [`PEER_WITHOUT_PODS`] where the rule has other peers.
const ONE_OF_PEERS: &str = "no pod is one of the peers of a rule: this peer {} nothing";
const PEER_ON_HOSTS: Check = Check {
    name: "peer-on-host-network",
    severity: Severity::Warning,
    problem: "all pods that are the peer of a rule use the host's network: their packets have the nodes' addresses, which \
              no selector matches",
    fix: "name the nodes' addresses, - ipBlock: {cidr: ADDRESS/32} for each, and those of the CNI's tunnel where there is \
          one (`netpold explain` knows them); a pod's own node is always allowed",
};
const PARTLY_ON_HOSTS: Check = Check {
    name: "peer-partly-on-host-network",
    severity: Severity::Info,
    problem: "some of the pods that are the peer of a rule use the host's network: their packets have the nodes' addresses, \
              which no selector matches",
    fix: "none, if only the others are meant; else name the nodes' addresses, - ipBlock: {cidr: ADDRESS/32} for each",
};
/// [`PEER_ON_HOSTS`] beside pods of Jobs.
const ALL_BUT_JOBS: Check = Check {
    problem: "all pods that are the peer of a rule, apart from those of Jobs, use the host's network: their packets have the \
              nodes' addresses, which no selector matches",
    ..PEER_ON_HOSTS
};
/// [`PEER_ON_HOSTS`] for the API server, beside other pods.
const API_SERVER_ON_HOSTS: Check = Check {
    problem: "a rule for pods has the port of the API server, which uses the host's network: no selector matches its \
              address",
    ..PEER_ON_HOSTS
};
/// Fixes of [`PEER_ON_HOSTS`] and [`PARTLY_ON_HOSTS`] in a ClusterNetworkPolicy, by direction.
const BY_NETWORKS: &str = "name the nodes' addresses, - networks: [ADDRESS/32], or the nodes by their labels, - nodes: {...}; a pod's own node is \
                           always allowed";
const ONLY_IN_POLICIES: &str = "none in this kind, which cannot name nodes as senders: NetworkPolicies decide about them, - ipBlock: {cidr: \
                                ADDRESS/32} for each address; a pod's own node is always allowed";
const NO_NODE: Check = Check {
    name: "peer-without-nodes",
    severity: Severity::Warning,
    problem: "no node is the peer of a rule",
    fix: "compare the selector with the nodes' labels: `kubectl get nodes --show-labels`",
};

/// Fix of [`NO_POD_THERE`] for a namespace that may get its pods later.
const NO_POD_YET: &str = "none, if pods of the namespace come later, or if it is being deleted";

/// Shortest value of a label that counts as similar to one that contains it.
const SIMILAR: usize = 3;
/// Most addresses named at one place.
const NAMED: usize = 3;

/// Pods that match a selector but are in no group: on the host's network, finished, or of a workload without pods now.
enum UngroupedPods<'o> {
    /// Pods on the host's network; empty if only a pod template matches.
    Hosts(Vec<&'o Pod>),
    /// Finished pods, or a workload without pods at present.
    Between,
    Nowhere,
}

/// Reports the subject of a policy without pods. `namespaces` is `None` for a NetworkPolicy.
pub(crate) fn subject(
    objects: &GroupedObjects<'_>,
    policy: &NamedPolicy<'_>,
    (namespaces, pods): (Option<&Selector>, &Selector),
    found: &mut Findings,
) {
    match elsewhere(objects, policy.namespace(), namespaces, pods) {
        UngroupedPods::Between => {}
        UngroupedPods::Hosts(hosts) => {
            let what = format!("{}{}", text(pods), hosts_text(&hosts));
            found.add(
                &SELECTS_HOSTS,
                policy.with_source(format!("{}: {what}", policy.text), "spec.podSelector"),
            );
        }
        UngroupedPods::Nowhere => {
            let is_here = |group: &&PodGroup<'_>| policy.namespace() == Some(group.namespace);
            if namespaces.is_none() && !objects.groups.iter().any(|group| is_here(&group)) {
                found.add(&no_pod_there(objects, policy, pods), policy.at("", ""));
                return;
            }
            let is_ending = policy.namespace().is_some_and(|own| is_terminating(objects, own));
            let near = near_miss(objects, policy.namespace(), namespaces, pods);
            let of_workload = workload_with(objects, policy.namespace(), namespaces, pods);
            let place = match namespaces {
                Some(namespaces) => {
                    let lead = unlabelled(objects, namespaces).unwrap_or_default();
                    let names = labels(namespaces);
                    let place =
                        format!("{}: {} of namespaces {names}{lead}", policy.text, text(pods));
                    policy.with_source(place, "spec.subject")
                }
                None => {
                    let lead = of_workload.as_ref().or(near.as_ref().map(|near| &near.text));
                    let lead = lead.map_or("", String::as_str);
                    let place = format!("{}: {}{lead}", policy.text, text(pods));
                    policy.with_source(place, "spec.podSelector")
                }
            };
            let is_near = near.is_some_and(|near| near.is_same_release || near.is_same_component)
                || of_workload.is_some();
            let is_unknown = namespaces.is_some_and(|it| has_unknown_labels(objects, it, pods));
            let fix = if namespaces.is_some() { BY_NAMESPACES } else { SELECTS_NOTHING.fix };
            let check = Check { fix, ..SELECTS_NOTHING };
            if names_job(pods) {
                found.add(&Check { severity: Severity::Info, fix: OF_A_JOB, ..check }, place);
            } else if objects.is_partial && !is_near {
                found.add_with_fix(&objects.check(&SELECTS_NOTHING), OF_OTHER_CHARTS, place);
            } else if is_ending || is_unknown || made_by_controller(objects, pods).is_some() {
                found.add(&Check { severity: Severity::Info, ..check }, place);
            } else {
                found.add(&check, place);
            }
        }
    }
}

/// Returns the check for a policy in a namespace without pods: information only, unless the namespace is not among the
/// objects, or pods of another namespace have the selected labels.
fn no_pod_there(objects: &GroupedObjects<'_>, policy: &NamedPolicy<'_>, pods: &Selector) -> Check {
    let own = policy.namespace().unwrap_or_default();
    let namespaces = objects.cluster.namespaces();
    let is_absent = !namespaces.is_empty() && !namespaces.contains_key(own);
    let is_meant_elsewhere = !is_terminating(objects, own)
        && !pods.requirements.is_empty()
        && objects.groups.iter().any(|group| pods.matches(group.labels));
    if is_absent || is_meant_elsewhere {
        objects.check(&NO_POD_THERE)
    } else {
        Check { severity: Severity::Info, fix: NO_POD_YET, ..NO_POD_THERE }
    }
}

fn is_terminating(objects: &GroupedObjects<'_>, namespace: &str) -> bool {
    objects.details.terminating.contains(namespace)
}

/// Pods that have all labels of a selector but one.
struct NearMiss {
    /// `; Pod shop/web-0 has app=webserver`
    text: String,
    /// Whether they have another label of the selector, and one of the two values is a longer form of the other one.
    is_same_release: bool,
    /// Whether they have at least two other labels of the selector, and one of the two values has the words of the other one.
    is_same_component: bool,
}

/// Returns the pods that have all labels of a selector but one, which they have with another value. If it is the only
/// label, the values must be similar.
fn near_miss(
    objects: &GroupedObjects<'_>,
    own: Option<&str>,
    namespaces: Option<&Selector>,
    pods: &Selector,
) -> Option<NearMiss> {
    let every = Selector { requirements: Vec::new() };
    let misses = objects.select(own, namespaces, &every).into_iter().filter_map(|group| {
        let mut missed = pods.requirements.iter().filter(|it| !it.matches(group.labels));
        let (Requirement::In(key, values), None) = (missed.next()?, missed.next()) else {
            return None;
        };
        let [value] = &values[..] else { return None };
        let other = group.labels.get(key)?;
        let is_part = |part: &str, whole: &str| {
            part.len() >= SIMILAR && whole.split(['-', '.', '_']).any(|word| word.starts_with(part))
                || part.len() >= SIMILAR && format!("-{whole}-").contains(&format!("-{part}-"))
        };
        let is_similar = is_part(value, other) || is_part(other, value);
        let is_near = is_similar || pods.requirements.len() > 2;
        let first = group.pods.first()?;
        let text = format!("; {} has {key}={other}", first.title());
        // `web` and `web-worker` may be two components, `web` and `webserver` hardly.
        let is_longer = |part: &str, whole: &str| {
            let rest = whole.strip_prefix(part);
            part.len() >= SIMILAR && rest.is_some_and(|it| it.starts_with(char::is_alphanumeric))
        };
        let is_variant = is_longer(value, other) || is_longer(other, value);
        let is_same_release = is_variant && pods.requirements.len() > 1;
        let is_same_component = is_similar && pods.requirements.len() > 2;
        is_near.then_some(NearMiss { text, is_same_release, is_same_component })
    });
    let mut misses: Vec<NearMiss> = misses.collect();
    misses.sort_by_key(|near| !near.is_same_release);
    misses.into_iter().next()
}

/// Returns whether a selector has the name of a Job: its pods are gone when the Job is.
fn names_job(pods: &Selector) -> bool {
    pods.requirements.iter().any(|it| JOB_NAME.contains(&it.key()))
}

/// Describes a workload that has the labels of a selector itself, while its pods do not.
fn workload_with(
    objects: &GroupedObjects<'_>,
    own: Option<&str>,
    namespaces: Option<&Selector>,
    pods: &Selector,
) -> Option<String> {
    let is_there = |namespace: &str| match namespaces {
        Some(selector) => selector.matches(&objects.cluster.namespace_labels(namespace)),
        None => own == Some(namespace),
    };
    let mut given = pods.requirements.iter();
    let has_label = given.any(|it| matches!(it, Requirement::In(..) | Requirement::Exists(_)));
    let mut templates = objects.details.templates.iter();
    let found = templates.find(|template| {
        has_label && is_there(&template.namespace) && pods.matches(&template.workload_labels)
    })?;
    Some(format!("; {} itself has these labels, its pods do not", found.workload))
}

/// Returns a label of a selector that a controller sets on the pods of some template.
fn made_by_controller<'s>(objects: &GroupedObjects<'_>, pods: &'s Selector) -> Option<&'s str> {
    let mut keys = pods.requirements.iter().map(Requirement::key);
    keys.find(|key| {
        let mut pods = objects.groups.iter().flat_map(|group| &group.pods);
        pods.any(|pod| pod.is_set_later(key))
    })
}

/// Finds the pods of a selector that are in no group.
fn elsewhere<'o>(
    objects: &'o GroupedObjects<'_>,
    own: Option<&str>,
    namespaces: Option<&Selector>,
    pods: &Selector,
) -> UngroupedPods<'o> {
    let cluster = objects.cluster;
    let matches = |namespace: &str, labels: &Labels| {
        let is_there = match namespaces {
            Some(selector) => selector.matches(&cluster.namespace_labels(namespace)),
            None => own == Some(namespace),
        };
        is_there && pods.matches(labels)
    };
    let others = cluster.pods().values().map(|pod| &**pod);
    let others = others.filter(|pod| pod.finished || pod.host_network);
    let others: Vec<&Pod> = others.filter(|pod| matches(&pod.key.namespace, &pod.labels)).collect();
    let templates = objects.details.templates.iter();
    let mut templates = templates.filter(|it| matches(&it.namespace, &it.labels)).peekable();
    let on_hosts = templates.peek().is_some();
    let between = objects.groups.iter().any(|group| may_match(group, (own, namespaces, pods)))
        || others.iter().any(|pod| !pod.host_network)
        || templates.any(|template| !template.host_network);
    let hosts: Vec<&Pod> = others.into_iter().filter(|pod| pod.host_network).collect();
    match (between, hosts.is_empty() && !on_hosts) {
        (true, _) => UngroupedPods::Between,
        (false, false) => UngroupedPods::Hosts(hosts),
        (false, true) => UngroupedPods::Nowhere,
    }
}

/// Returns whether a selector may match the pods of a template, by labels that their controller sets.
fn may_match(
    group: &PodGroup<'_>,
    (own, namespaces, pods): (Option<&str>, Option<&Selector>, &Selector),
) -> bool {
    let set_later =
        |requirement: &Requirement| group.pods.iter().any(|pod| pod.may_meet_later(requirement));
    let (later, known): (Vec<_>, Vec<_>) =
        pods.requirements.iter().cloned().partition(|requirement| set_later(requirement));
    !later.is_empty() && group.is_in(own, namespaces, &Selector { requirements: known })
}

/// Reports the peers of a rule that match nothing.
pub(crate) fn peers(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    rule: &Rule,
    subject: &[&PodGroup<'_>],
    found: &mut Findings,
) {
    let own = place.policy.namespace();
    for (number, peer) in rule.peers.iter().flatten().enumerate() {
        let at = |what: &str| place.at(&place.peer(number), what);
        match peer {
            Peer::Pods { namespaces, pods } => {
                let namespaces = namespaces.as_ref();
                let is_host_allowed = |hosts: &[&Pod]| {
                    host_peers::are_in_blocks(objects, place, rule, subject, hosts)
                };
                let who = peer_text((namespaces, pods));
                let beside = |is_between: bool, found: &mut Findings| {
                    let hosts = host_peers::beside_pods(objects, own, namespaces, pods);
                    if !hosts.is_empty() && !is_host_allowed(&hosts) {
                        let is_every = pods.requirements.is_empty();
                        let whose = if is_every { who.clone() } else { text(pods) };
                        let what = format!("{whose}{}", hosts_text(&hosts));
                        // Nobody selects every pod of a namespace for the sake of its Jobs.
                        let is_meant = is_between && is_every;
                        let check = if is_meant { &ALL_BUT_JOBS } else { &PARTLY_ON_HOSTS };
                        found.add(&in_kind(place, check), at(&what));
                    }
                };
                let selected = objects.select(own, namespaces, pods);
                if !selected.is_empty() {
                    beside(selected.iter().all(|group| is_of_jobs(group)), found);
                    let peer = (namespaces, pods);
                    if let Some(service) =
                        service_peers::api_server(objects, place, (rule, peer), subject)
                    {
                        let text = at(&format!("{who}{}", service.text));
                        found.add_with_fix(&API_SERVER_ON_HOSTS, &service.fix, text);
                    }
                    continue;
                }
                match elsewhere(objects, own, namespaces, pods) {
                    UngroupedPods::Between => beside(true, found),
                    UngroupedPods::Hosts(hosts) if is_host_allowed(&hosts) => {}
                    UngroupedPods::Hosts(hosts) => {
                        let what = format!("{who}{}", hosts_text(&hosts));
                        found.add(&in_kind(place, &PEER_ON_HOSTS), at(&what));
                    }
                    UngroupedPods::Nowhere => {
                        let peer = (namespaces, pods);
                        if let Some(service) =
                            service_peers::without_pods(objects, place, (rule, peer), subject)
                        {
                            let text = at(&format!("{who}{}", service.text));
                            let check = &PEER_WITHOUT_PODS;
                            found.add_of_with_fix(check, place.effect(), &service.fix, text);
                            continue;
                        }
                        let mut check = objects.check(&PEER_WITHOUT_PODS);
                        if rule.peers.iter().flatten().count() > 1 {
                            check.problem = ONE_OF_PEERS;
                        }
                        let made = made_by_controller(objects, pods);
                        let unlabelled = namespaces.and_then(|it| unlabelled(objects, it));
                        let of_workload = workload_with(objects, own, namespaces, pods);
                        if unlabelled.is_some() || of_workload.is_some() {
                            check.severity = PEER_WITHOUT_PODS.severity;
                        } else if may_have_pods(objects, own, peer)
                            || is_optional(objects, own, rule, peer)
                            || made.is_some()
                        {
                            check.severity = Severity::Info;
                        }
                        let near = near_miss(objects, own, namespaces, pods);
                        if objects.is_partial
                            && near.as_ref().is_some_and(|it| it.is_same_release)
                            && made.is_none()
                        {
                            check.severity = PEER_WITHOUT_PODS.severity;
                        }
                        let made = made.map(|key| format!("; no workload has such a {key}"));
                        let near = near.map(|near| near.text);
                        let lead = unlabelled.or(of_workload).or(made).or(near).unwrap_or_default();
                        found.add_of(&check, place.effect(), at(&format!("{who}{lead}")));
                    }
                }
            }
            Peer::Nodes(selector) => {
                let mut nodes = objects.cluster.nodes().values();
                if nodes.len() > 0 && !nodes.any(|node| selector.matches(&node.labels)) {
                    found.add(&NO_NODE, at(&labels(selector)));
                }
            }
            Peer::Block(_) | Peer::Domain(_) => {}
        }
    }
}

/// Returns whether a group stands for pods of Jobs that do not run now.
fn is_of_jobs(group: &PodGroup<'_>) -> bool {
    let is_job = |pod: &&Pod| {
        pod.template().is_some_and(|workload| matches!(workload.kind.as_str(), "Job" | "CronJob"))
    };
    group.pods.iter().all(is_job)
}

/// Replaces the fix of a check in a ClusterNetworkPolicy, which has no `ipBlock`.
fn in_kind(place: &RulePlace<'_>, check: &Check) -> Check {
    let fix = match (place.policy.namespace(), place.direction) {
        (Some(_), _) => check.fix,
        (None, Direction::Egress) => BY_NETWORKS,
        (None, Direction::Ingress) => ONLY_IN_POLICIES,
    };
    Check { fix, ..*check }
}

/// Describes a Namespace that a selector gives as the value of a label, which the Namespace lacks, as in `name: shop`.
fn unlabelled(objects: &GroupedObjects<'_>, selector: &Selector) -> Option<String> {
    let cluster = objects.cluster;
    selector.requirements.iter().find_map(|requirement| {
        let Requirement::In(key, values) = requirement else { return None };
        let lacks = |name: &&String| {
            cluster.namespaces().contains_key(*name)
                && !cluster.namespace_labels(name).contains_key(key)
        };
        let name = values.iter().find(lacks)?;
        Some(format!("; Namespace {name} has no label {key}, but {NAMESPACE_NAME}={name}"))
    })
}

/// Returns whether a peer is one of several that need not have pods: another peer of the rule has pods, and either no pod of
/// any namespace has these labels, or no namespace has a label of the selector, by which namespaces opt in. A pod elsewhere
/// with the labels shows a namespaceSelector that is missing.
fn is_optional(
    objects: &GroupedObjects<'_>,
    own: Option<&str>,
    rule: &Rule,
    (namespaces, pods): (Option<&Selector>, &Selector),
) -> bool {
    let has_pods = |peer: &Peer| {
        let Peer::Pods { namespaces, pods } = peer else { return false };
        objects.groups.iter().any(|group| group.is_in(own, namespaces.as_ref(), pods))
    };
    let is_everywhere = namespaces.is_none_or(|namespaces| namespaces.requirements.is_empty());
    let has_label = |key: &str| {
        let mut all = objects.cluster.namespaces().keys();
        all.any(|name| objects.cluster.namespace_labels(name).contains_key(key))
    };
    let is_by_label = namespaces.is_some_and(|namespaces| {
        let mut wanted = namespaces.requirements.iter();
        wanted.any(|it| {
            matches!(it, Requirement::In(..) | Requirement::Exists(_)) && !has_label(it.key())
        })
    });
    rule.peers.iter().flatten().any(has_pods)
        && (is_by_label
            || is_everywhere && !objects.groups.iter().any(|group| pods.matches(group.labels)))
}

/// Returns whether pods of a peer may exist later or elsewhere: a namespace that the selector matches has no pods at
/// present, or a namespace that it may match, or its labels, are not among the objects.
pub(crate) fn may_have_pods(
    objects: &GroupedObjects<'_>,
    own: Option<&str>,
    (namespaces, pods): (Option<&Selector>, &Selector),
) -> bool {
    let cluster = objects.cluster;
    let has_pods = |name: &str| objects.groups.iter().any(|group| group.namespace == name);
    let Some(selector) = namespaces else {
        return own.is_some_and(|own| !has_pods(own));
    };
    let is_here = |name: &String| cluster.namespaces().contains_key(name) || has_pods(name);
    let may_be_absent = selector.requirements.iter().all(|requirement| {
        let Requirement::In(key, names) = requirement else { return true };
        key != NAMESPACE_NAME || !names.iter().all(is_here)
    });
    // GroupedObjects of some namespaces: every cluster has this one.
    if may_be_absent && !is_here(&SYSTEM.to_owned()) {
        return true;
    }
    if cluster.namespaces().is_empty() {
        return selector.requirements.iter().any(|it| it.key() != NAMESPACE_NAME);
    }
    let mut names = cluster.namespaces().keys();
    names.any(|name| selector.matches(&cluster.namespace_labels(name)) && !has_pods(name))
        || has_unknown_labels(objects, selector, pods)
}

/// Returns whether pods with these labels are in a namespace without a Namespace among the objects, so that the selector of
/// namespaces may match it.
fn has_unknown_labels(
    objects: &GroupedObjects<'_>,
    namespaces: &Selector,
    pods: &Selector,
) -> bool {
    let may_be = |name: &str| {
        let labels = objects.cluster.namespace_labels(name);
        let mut requirements = namespaces.requirements.iter();
        requirements.all(|it| it.key() != NAMESPACE_NAME || it.matches(&labels))
    };
    namespaces.requirements.iter().any(|it| it.key() != NAMESPACE_NAME)
        && objects.groups.iter().any(|group| {
            !objects.cluster.namespaces().contains_key(group.namespace)
                && may_be(group.namespace)
                && pods.matches(group.labels)
        })
}

/// Formats `; Pod edge/a and 2 more at 192.168.0.1/32, 192.168.0.2/32`.
fn hosts_text(hosts: &[&Pod]) -> String {
    let Some(first) = hosts.first() else { return String::new() };
    let mut addresses: Vec<_> = hosts.iter().flat_map(|pod| &pod.addresses).collect();
    addresses.sort();
    addresses.dedup();
    let block = |address: &&IpAddr| ipnet::IpNet::from(**address).to_string();
    let shown: Vec<String> = addresses.iter().take(NAMED).map(block).collect();
    let more = match addresses.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more addresses"),
    };
    let like = match hosts.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let at = if shown.is_empty() { "" } else { " at " };
    format!("; Pod {}{like}{at}{}{more}", first.key, shown.join(", "))
}

/// Formats the pods of a peer, as `pods app=web of namespaces team=a`.
pub(crate) fn peer_text((namespaces, pods): (Option<&Selector>, &Selector)) -> String {
    match namespaces {
        Some(selector) => format!("{} of namespaces {}", text(pods), labels(selector)),
        None => format!("{} of this namespace", text(pods)),
    }
}

/// Formats the pods of a selector, as `pods app=web,!canary`.
fn text(selector: &Selector) -> String {
    match &selector.requirements[..] {
        [] => "every pod".to_owned(),
        _ => format!("pods {}", labels(selector)),
    }
}

/// Formats a selector, as `app=web,!canary`.
fn labels(selector: &Selector) -> String {
    let requirement = |requirement: &Requirement| match requirement {
        Requirement::In(key, values) => format!("{key}={}", values.join("|")),
        Requirement::NotIn(key, values) => format!("{key}!={}", values.join("|")),
        Requirement::Exists(key) => key.clone(),
        Requirement::DoesNotExist(key) => format!("!{key}"),
    };
    let all: Vec<String> = selector.requirements.iter().map(requirement).collect();
    if all.is_empty() { "of any labels".to_owned() } else { all.join(",") }
}
