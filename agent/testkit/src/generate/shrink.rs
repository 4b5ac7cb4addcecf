//! Reduces a failing cluster to the smallest that still fails.

use super::cluster::GeneratedCluster;
use netpold_core::model::{
    Change, ClusterPolicy, ClusterRule, EndpointSlice, Enforcement, IpBlock, Labels, Namespace,
    Node, Peer, Pod, Policy, PortMatch, Rule, Selector, Service,
};

/// Removes objects, then parts of objects, one at a time, while `fails` still holds.
#[must_use]
pub fn shrink(
    cluster: &GeneratedCluster,
    mut fails: impl FnMut(&GeneratedCluster) -> bool,
) -> GeneratedCluster {
    let mut smallest = cluster.clone();
    loop {
        let Some(next) = smaller(&smallest).find(|candidate| fails(candidate)) else {
            return smallest;
        };
        smallest = next;
    }
}

/// Reduces states that fail together, each with the others fixed.
#[must_use]
pub fn shrink_all(
    mut states: Vec<GeneratedCluster>,
    fails: impl Fn(&[GeneratedCluster]) -> bool,
) -> Vec<GeneratedCluster> {
    // Reducing one state may allow further reductions of the states before it.
    for _ in 0..2 {
        for number in 0..states.len() {
            let smallest = shrink(&states[number], |candidate| {
                let mut states = states.clone();
                states[number] = candidate.clone();
                fails(&states)
            });
            states[number] = smallest;
        }
    }
    states
}

/// All clusters that are one step smaller, whole objects first.
fn smaller(cluster: &GeneratedCluster) -> impl Iterator<Item = GeneratedCluster> {
    let without = (0..cluster.objects.len()).map(|index| {
        let mut next = cluster.clone();
        next.objects.remove(index);
        next
    });
    let reduced = cluster.objects.iter().enumerate().flat_map(move |(index, object)| {
        reductions(object).into_iter().map(move |object| {
            let mut next = cluster.clone();
            next.objects[index] = object;
            next
        })
    });
    without.chain(reduced)
}

fn reductions(object: &Change) -> Vec<Change> {
    match object {
        Change::Namespace(namespace) => fewer_labels(&namespace.labels)
            .map(|labels| Change::Namespace(Namespace { labels, ..namespace.clone() }))
            .collect(),
        Change::Node(node) => {
            let addresses =
                shorter(&node.addresses).map(|addresses| Node { addresses, ..node.clone() });
            let labels = fewer_labels(&node.labels).map(|labels| Node { labels, ..node.clone() });
            addresses.chain(labels).map(Change::Node).collect()
        }
        Change::Pod(pod) => smaller_pods(pod).into_iter().map(Change::Pod).collect(),
        Change::Policy(policy) => {
            smaller_policies(policy).into_iter().map(Change::Policy).collect()
        }
        Change::ClusterPolicy(policy) => {
            smaller_cluster_policies(policy).into_iter().map(Change::ClusterPolicy).collect()
        }
        Change::Service(service) => {
            let addresses = shorter(&service.addresses)
                .map(|addresses| Service { addresses, ..service.clone() });
            let ports = shorter(&service.ports).map(|ports| Service { ports, ..service.clone() });
            let served = service.unserved.then(|| Service { unserved: false, ..service.clone() });
            let networks =
                shorter(&service.networks).map(|networks| Service { networks, ..service.clone() });
            let smaller = addresses.chain(networks).chain(ports).chain(served);
            smaller.map(Change::Service).collect()
        }
        Change::EndpointSlice(slice) => {
            let addresses = shorter(&slice.addresses)
                .map(|addresses| EndpointSlice { addresses, ..slice.clone() });
            let ports = shorter(&slice.ports).map(|ports| EndpointSlice { ports, ..slice.clone() });
            let not_ready = shorter(&slice.not_ready)
                .map(|not_ready| EndpointSlice { not_ready, ..slice.clone() });
            let terminating = shorter(&slice.terminating)
                .map(|terminating| EndpointSlice { terminating, ..slice.clone() });
            let conditions = not_ready.chain(terminating);
            addresses.chain(ports).chain(conditions).map(Change::EndpointSlice).collect()
        }
        // No object of the API.
        Change::ClusterPolicyGone(_)
        | Change::NamespaceGone(_)
        | Change::NodeGone(_)
        | Change::PodGone(_)
        | Change::PolicyGone(_)
        | Change::ServiceGone(_)
        | Change::EndpointSliceGone(_)
        | Change::Interface(_)
        | Change::InterfaceGone(_)
        | Change::OwnAddresses(_) => Vec::new(),
    }
}

/// The lists with one item less.
fn shorter<T: Clone>(list: &[T]) -> impl Iterator<Item = Vec<T>> {
    (0..list.len()).map(|index| {
        let mut next = list.to_vec();
        next.remove(index);
        next
    })
}

/// Labels with one less.
fn fewer_labels(labels: &Labels) -> impl Iterator<Item = Labels> {
    labels.keys().map(|key| {
        let mut next = labels.clone();
        next.remove(key);
        next
    })
}

/// A modified copy of an object.
fn edited<T: Clone>(object: &T, edit: &dyn Fn(&mut T)) -> T {
    let mut next = object.clone();
    edit(&mut next);
    next
}

fn smaller_pods(pod: &Pod) -> Vec<Pod> {
    let change = |edit: &dyn Fn(&mut Pod)| edited(pod, edit);
    let mut all = Vec::new();
    all.extend(
        fewer_labels(&pod.labels).map(|labels| change(&|next| next.labels.clone_from(&labels))),
    );
    all.extend(
        shorter(&pod.addresses).map(|list| change(&|next| next.addresses.clone_from(&list))),
    );
    all.extend(
        shorter(&pod.secondary).map(|list| change(&|next| next.secondary.clone_from(&list))),
    );
    all.extend(shorter(&pod.ports).map(|list| change(&|next| next.ports.clone_from(&list))));
    all.push(change(&|next| next.terminating = false));
    all.push(change(&|next| next.created = 0));
    all.retain(|next| next != pod);
    all
}

fn smaller_policies(policy: &Policy) -> Vec<Policy> {
    let change = |edit: &dyn Fn(&mut Policy)| edited(policy, edit);
    let mut all = vec![
        change(&|next| next.ingress = None),
        change(&|next| next.egress = None),
        change(&|next| next.problems.clear()),
        change(&|next| next.enforcement = Enforcement::Enforce),
    ];
    all.retain(|next| next != policy);
    all.extend(
        smaller_selectors(&policy.pod_selector)
            .map(|s| change(&|next| next.pod_selector = s.clone())),
    );
    for rules in policy.ingress.iter().flat_map(|rules| smaller_rules(rules)) {
        all.push(change(&|next| next.ingress = Some(rules.clone())));
    }
    for rules in policy.egress.iter().flat_map(|rules| smaller_rules(rules)) {
        all.push(change(&|next| next.egress = Some(rules.clone())));
    }
    all
}

fn smaller_cluster_policies(policy: &ClusterPolicy) -> Vec<ClusterPolicy> {
    let change = |edit: &dyn Fn(&mut ClusterPolicy)| edited(policy, edit);
    let mut all = vec![
        change(&|next| next.ingress.clear()),
        change(&|next| next.egress.clear()),
        change(&|next| next.problems.clear()),
        change(&|next| next.priority = 0),
        change(&|next| next.enforcement = Enforcement::Enforce),
    ];
    all.extend(
        smaller_selectors(&policy.subject.namespaces)
            .map(|s| change(&|next| next.subject.namespaces = s.clone())),
    );
    all.extend(
        smaller_selectors(&policy.subject.pods)
            .map(|s| change(&|next| next.subject.pods = s.clone())),
    );
    for rules in smaller_cluster_rules(&policy.ingress) {
        all.push(change(&|next| next.ingress.clone_from(&rules)));
    }
    for rules in smaller_cluster_rules(&policy.egress) {
        all.push(change(&|next| next.egress.clone_from(&rules)));
    }
    all.retain(|next| next != policy);
    all
}

/// Keeps peers present: a rule without peers would match everything, and only Deny rules may.
fn smaller_cluster_rules(rules: &[ClusterRule]) -> Vec<Vec<ClusterRule>> {
    let mut all: Vec<Vec<ClusterRule>> = shorter(rules).collect();
    for (index, rule) in rules.iter().enumerate() {
        let simpler = simpler_rules(&rule.matches);
        for matches in simpler.into_iter().filter(|simpler| simpler.peers.is_some()) {
            let mut next = rules.to_vec();
            next[index].matches = matches;
            all.push(next);
        }
    }
    all
}

fn smaller_selectors(selector: &Selector) -> impl Iterator<Item = Selector> {
    shorter(&selector.requirements).map(|requirements| Selector { requirements })
}

fn smaller_rules(rules: &[Rule]) -> Vec<Vec<Rule>> {
    let mut all: Vec<Vec<Rule>> = shorter(rules).collect();
    for (index, rule) in rules.iter().enumerate() {
        for smaller in simpler_rules(rule) {
            let mut next = rules.to_vec();
            next[index] = smaller;
            all.push(next);
        }
    }
    all
}

fn simpler_rules(rule: &Rule) -> Vec<Rule> {
    let mut all = Vec::new();
    let with_peers = |peers| Rule { peers, ports: rule.ports.clone() };
    let with_ports = |ports| Rule { peers: rule.peers.clone(), ports };
    if let Some(peers) = &rule.peers {
        all.push(with_peers(None));
        all.extend(shorter(peers).map(|peers| with_peers(Some(peers))));
        for (index, peer) in peers.iter().enumerate() {
            for simpler in simpler_peers(peer) {
                let mut next = peers.clone();
                next[index] = simpler;
                all.push(with_peers(Some(next)));
            }
        }
    }
    if let Some(ports) = &rule.ports {
        all.push(with_ports(None));
        all.extend(shorter(ports).map(|ports| with_ports(Some(ports))));
        for (index, port) in ports.iter().enumerate() {
            if port.port != PortMatch::Any {
                let mut next = ports.clone();
                next[index].port = PortMatch::Any;
                all.push(with_ports(Some(next)));
            }
        }
    }
    all
}

fn simpler_peers(peer: &Peer) -> Vec<Peer> {
    match peer {
        Peer::Block(block) => shorter(&block.except)
            .map(|except| Peer::Block(IpBlock { except, ..block.clone() }))
            .collect(),
        Peer::Nodes(nodes) => smaller_selectors(nodes).map(Peer::Nodes).collect(),
        Peer::Domain(_) => Vec::new(),
        Peer::Pods { namespaces, pods } => {
            let mut all: Vec<Peer> = smaller_selectors(pods)
                .map(|pods| Peer::Pods { namespaces: namespaces.clone(), pods })
                .collect();
            let namespaces = namespaces.iter().flat_map(smaller_selectors);
            all.extend(namespaces.map(|s| Peer::Pods { namespaces: Some(s), pods: pods.clone() }));
            all
        }
    }
}
