//! Services of which no backend gets new connections: nothing answers there. Policy decides only as far as it treats every
//! possible backend alike.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use netpold_client::details::{Details, PortReference, WrittenService};
use netpold_core::cluster::{AddressOwner, Cluster};
use netpold_core::explain::{Explainer, Explanation, JudgedTemplate, ServiceBackend, Verdict};
use netpold_core::labels::NAMESPACE_NAME;
use netpold_core::model::{
    Direction, Enforcement, Key, Labels, Peer, Pod, PortMatch, Requirement, Rule, Selector,
    ServicePort,
};
use netpold_core::probe::{Party, Probe};

use super::services::{BackendPort, ServiceQuestion, of_pods, selected};
use netpold_core::first_names::first_names;

/// Most pods that a text names.
const NAMED: usize = 3;

/// Judges a Service without ready backends by the possible ones: those that are not ready, else the pods and templates that
/// the selector matches. Without any, or if their verdicts differ, the verdict is unknown, unless policy denies the sender
/// every backend that there may be.
pub(super) fn judge_possible_backends(
    cluster: &Cluster,
    explainer: Explainer<'_>,
    details: &Details,
    answer: Explanation,
) -> Explanation {
    let is_one = answer.backends.is_empty() && answer.verdict != Verdict::Unknown;
    let [key, ..] = &answer.services[..] else { return answer };
    if !is_one {
        return answer;
    }
    let key = key.clone();
    let possible = possible_backends(cluster, details, &key, &answer.probe);
    let (mut backends, mut templates) = (Vec::new(), answer.templates.clone());
    for target in &possible {
        let (backend, of_backend) = backend(cluster, explainer, &answer.probe, target);
        backends.push(backend);
        templates.extend(of_backend);
    }
    templates.dedup();
    let none = format!("Service {key} has no ready backend: nothing answers");
    let are_all = |verdict| !backends.is_empty() && backends.iter().all(|it| it.verdict == verdict);
    let answer = Explanation { egress: None, ingress: None, unanswered: true, templates, ..answer };
    for (verdict, word) in [(Verdict::Allow, "allowed"), (Verdict::Deny, "denied")] {
        if are_all(verdict) {
            let count = backends.len();
            let which = if count == 1 { "the possible one is" } else { "all possible ones are" };
            let note = Some(format!("{none} now; {which} {word}"));
            return Explanation { verdict, note, backends, ..answer };
        }
    }
    if backends.is_empty()
        && let Some(policies) = isolating_policies(cluster, details, &key, &answer.probe)
    {
        let names: Vec<String> = policies.iter().map(ToString::to_string).collect();
        let from = &answer.probe.from;
        let note = format!(
            "{none}; egress of {from} is isolated by {}, and no rule allows a backend that the Service may get",
            names.join(", ")
        );
        return Explanation { verdict: Verdict::Deny, note: Some(note), ..answer };
    }
    let reason = match backends.is_empty() {
        true => format!(
            "{none}, and no policy decides; {}",
            reason_without_backend(cluster, details, &key)
        ),
        false => {
            let allowed = backends.iter().filter(|it| it.verdict == Verdict::Allow).count();
            let all = backends.len();
            format!("{none}, and it depends on the possible one: {allowed} of {all} are allowed")
        }
    };
    let (reason, note) = (Some(reason), None);
    Explanation { verdict: Verdict::Unknown, reason, note, backends, ..answer }
}

/// Returns the port of a Service that a probe asks for.
fn probed_port<'c>(cluster: &'c Cluster, key: &Key, probe: &Probe) -> Option<&'c ServicePort> {
    let service = cluster.services().get(key)?;
    let is_at_node = match &probe.to {
        Party::Address(address) => {
            matches!(cluster.owner_of_address(*address), AddressOwner::Node { .. })
        }
        Party::Service(_) | Party::Pod(_) => false,
    };
    service.ports.iter().find(|port| {
        let number = if is_at_node { port.node_port } else { Some(port.port) };
        port.protocol.number() == probe.protocol.0 && number == Some(probe.port)
    })
}

fn possible_backends(
    cluster: &Cluster,
    details: &Details,
    key: &Key,
    probe: &Probe,
) -> BTreeSet<BackendPort> {
    let written = details.services.get(key);
    let Some(service) = cluster.services().get(key) else { return BTreeSet::new() };
    // Clients of a headless Service connect to its pods, at any port.
    let is_headless = written.is_some_and(|it| it.is_headless) && service.addresses.is_empty();
    let port = probed_port(cluster, key, probe);
    let mut found = BTreeSet::new();
    for slice in cluster.slices_of(key) {
        let behind = |port: &ServicePort| {
            let numbers = slice.ports.iter().filter(|of_slice| of_slice.is_behind(port));
            numbers.map(|of_slice| of_slice.port).collect::<Vec<u16>>()
        };
        let numbers = match is_headless {
            true => vec![probe.port],
            false => port.map(behind).unwrap_or_default(),
        };
        for address in &slice.addresses {
            found.extend(numbers.iter().map(|number| (Party::Address(*address), *number)));
        }
    }
    let number = if is_headless { Some(probe.port) } else { port.map(|port| port.port) };
    let (Some(written), Some(number), true) = (written, number, found.is_empty()) else {
        return found;
    };
    if written.selector.is_empty() {
        return found;
    }
    let kind = (probe.protocol, number);
    of_pods(
        &selected(cluster, key, written),
        &ServiceQuestion { service, written, kind, is_headless },
    )
}

fn backend(
    cluster: &Cluster,
    explainer: Explainer<'_>,
    probe: &Probe,
    (party, port): &BackendPort,
) -> (ServiceBackend, Vec<JudgedTemplate>) {
    let judged = explainer.explain(&Probe { to: party.clone(), port: *port, ..probe.clone() });
    let (address, pod) = match party {
        Party::Pod(key) => {
            let pod = cluster.pods().get(key);
            (pod.and_then(|pod| pod.addresses.first().copied()), Some(key.clone()))
        }
        Party::Address(address) => {
            (Some(*address), cluster.owner(*address).map(|pod| pod.key.clone()))
        }
        Party::Service(_) => (None, None),
    };
    let backend = ServiceBackend {
        address: address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        port: *port,
        pod,
        verdict: judged.verdict,
        egress: judged.egress,
        ingress: judged.ingress,
    };
    (backend, judged.templates)
}

/// Describes why a Service has no backend.
fn reason_without_backend(cluster: &Cluster, details: &Details, key: &Key) -> String {
    let Some(written) = details.services.get(key).filter(|it| !it.selector.is_empty()) else {
        return "it has no selector and no endpoint".to_owned();
    };
    let pods = selected(cluster, key, written);
    let selector: Vec<String> =
        written.selector.iter().map(|(label, value)| format!("{label}={value}")).collect();
    if pods.is_empty() {
        return format!("its selector {} matches no pod and no template", selector.join(","));
    }
    let missing =
        |name: &String| pods.iter().all(|pod| pod.ports.iter().all(|it| it.name != *name));
    let names: BTreeSet<&String> = written
        .ports
        .iter()
        .filter_map(|port| match &port.target {
            PortReference::Name(name) => Some(name),
            PortReference::Number(_) => None,
        })
        .filter(|name| missing(name))
        .collect();
    let pods = first_names(pods.iter().map(|pod| pod.title()), NAMED);
    match names.first() {
        Some(name) => format!("its targetPort {name} is not the name of a port of {pods}"),
        None => format!("its selector matches {pods}"),
    }
}

/// Returns the policies that isolate the egress of a sender, if none of their rules allows a backend that a Service may get.
fn isolating_policies(
    cluster: &Cluster,
    details: &Details,
    key: &Key,
    probe: &Probe,
) -> Option<Vec<Key>> {
    let sender: &Pod = match &probe.from {
        Party::Pod(key) => cluster.pods().get(key)?,
        Party::Address(address) => cluster.owner(*address)?,
        Party::Service(_) => return None,
    };
    let has_tiers = cluster.cluster_policies().any(|policy| !policy.egress.is_empty());
    if sender.host_network || has_tiers {
        return None;
    }
    let written = details.services.get(key);
    let target = written.and_then(|written| {
        if written.is_headless {
            return Some(probe.port);
        }
        let port = probed_port(cluster, key, probe)?;
        let mut ports = written.ports.iter();
        let written =
            ports.find(|it| it.port == i32::from(port.port) && it.protocol == port.protocol)?;
        match written.target {
            PortReference::Number(number) => Some(number),
            PortReference::Name(_) => None,
        }
    });
    let backend = FutureBackend { cluster, key, written, target, protocol: probe.protocol.0 };
    let mut isolating = Vec::new();
    for policy in cluster.policies_in(&sender.key.namespace) {
        let is_about = policy.enforcement == Enforcement::Enforce
            && policy.pod_selector.matches(&sender.labels);
        let Some(rules) = policy.rules(Direction::Egress).filter(|_| is_about) else { continue };
        if rules.iter().any(|rule| backend.may_match(&policy.key.namespace, rule)) {
            return None;
        }
        isolating.push(policy.key.clone());
    }
    (!isolating.is_empty()).then_some(isolating)
}

/// Backend that a Service may get.
struct FutureBackend<'a> {
    cluster: &'a Cluster,
    key: &'a Key,
    written: Option<&'a WrittenService>,
    /// Port; `None` if the pod's port names determine it.
    target: Option<u16>,
    protocol: u8,
}

impl FutureBackend<'_> {
    fn may_match(&self, namespace: &str, rule: &Rule) -> bool {
        let ports = rule.ports.as_ref().is_none_or(|ports| {
            ports.iter().filter(|port| port.protocol.number() == self.protocol).any(|port| {
                match (&port.port, self.target) {
                    (PortMatch::Range(first, last), Some(target)) => {
                        (*first..=*last).contains(&target)
                    }
                    _ => true,
                }
            })
        });
        let peers = rule.peers.as_ref();
        ports && peers.is_none_or(|peers| peers.iter().any(|peer| self.may_be(namespace, peer)))
    }

    fn may_be(&self, namespace: &str, peer: &Peer) -> bool {
        let Peer::Pods { namespaces, pods } = peer else { return true };
        // Without a selector, any pod of any namespace may be an endpoint.
        let Some(written) = self.written.filter(|it| !it.selector.is_empty()) else { return true };
        let own = &self.key.namespace;
        let in_namespace = match namespaces {
            None => own == namespace,
            Some(selector) => match self.cluster.namespaces().get(own) {
                Some(of_service) => selector.matches(&of_service.labels),
                None => may_match(selector, &BTreeMap::from([(NAMESPACE_NAME, own.as_str())])),
            },
        };
        let labels = written.selector.iter();
        let labels = labels.map(|(label, value)| (label.as_str(), value.as_str())).collect();
        in_namespace && may_match(pods, &labels)
    }
}

/// Returns whether an object with these labels and unknown others may match a selector.
fn may_match(selector: &Selector, known: &BTreeMap<&str, &str>) -> bool {
    selector.requirements.iter().all(|requirement| {
        let Some(value) = known.get(requirement.key()) else { return true };
        let labels: Labels =
            [(requirement.key().to_owned(), (*value).to_owned())].into_iter().collect();
        match requirement {
            Requirement::Exists(_) => true,
            Requirement::In(..) | Requirement::NotIn(..) | Requirement::DoesNotExist(_) => {
                requirement.matches(&labels)
            }
        }
    })
}
