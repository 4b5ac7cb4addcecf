//! Services: their ports, their backends without addresses, and backends that differ.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use netpold_client::details::complete::numbers;
use netpold_client::details::{Details, WrittenService, is_selected};
use netpold_core::cluster::{AddressOwner, Cluster};
use netpold_core::explain::{Explainer, Explanation, Judgement, ServiceBackend, Verdict};
use netpold_core::model::{self, Change, EndpointSlice, Key, Pod, ServicePort};
use netpold_core::probe::{IpProtocol, Party, Probe};

/// The Services with given EndpointSlices.
#[derive(Clone)]
pub(super) struct ServiceBackends {
    with_slices: BTreeSet<Key>,
    is_partial: bool,
}

/// Returns the Service that `svc/web` names: that of the namespace `own`, unless a namespace `svc` has pods.
pub(crate) fn service_named(cluster: &Cluster, party: Party, own: &str) -> Party {
    let Party::Pod(key) = &party else { return party };
    let is_word = matches!(&key.namespace[..], "svc" | "service" | "services");
    let service = Key::new(own, key.name.clone());
    let is_meant = is_word
        && cluster.pods_in(&key.namespace).next().is_none()
        && cluster.services().contains_key(&service);
    if is_meant { Party::Service(service) } else { party }
}

fn external_name(key: &Key, name: &str) -> String {
    format!(
        "Service {key} is an ExternalName: it has no address and no pods; its name resolves to {name} by DNS; give an \
         address of that name"
    )
}

/// One backend of a Service, and the port at which it gets the traffic.
pub(super) type BackendPort = (Party, u16);

impl ServiceBackends {
    /// `is_partial`: missing EndpointSlices are those that controllers make.
    pub(super) fn new(objects: &[Change], is_partial: bool) -> Self {
        let key =
            |slice: &EndpointSlice| Key::new(slice.key.namespace.clone(), slice.service.clone());
        let slices = objects.iter().filter_map(|object| {
            if let Change::EndpointSlice(slice) = object { Some(key(slice)) } else { None }
        });
        Self { with_slices: slices.collect(), is_partial }
    }

    /// Answers a probe to a Service, or to its address, that the explainer cannot answer: a Service without the port, or
    /// without an address, or with pods that have none. `None` for other probes.
    pub(super) fn explain(
        &self,
        cluster: &Cluster,
        explainer: Explainer<'_>,
        details: &Details,
        probe: &Probe,
    ) -> Option<Explanation> {
        let key = match &probe.to {
            Party::Service(key) => key.clone(),
            Party::Address(address) => {
                return self.explain_address(cluster, explainer, details, (probe, *address));
            }
            Party::Pod(_) => return None,
        };
        let key = &key;
        if let Some(name) = details.external_names.get(key) {
            return Some(Explanation::unknown(probe, external_name(key, name)));
        }
        let service = cluster.services().get(key)?;
        let written = details.services.get(key);
        let is_headless = written.is_some_and(|it| it.is_headless) && service.addresses.is_empty();
        if !is_headless && !probe.protocol.has_ports() {
            let protocol = probe.protocol;
            let reason = format!(
                "Service {key} has no address yet, and nothing translates {protocol}; name its pods instead"
            );
            return service.addresses.is_empty().then(|| Explanation::unknown(probe, reason));
        }
        if !is_headless && let Some(reason) = absent_port(service, probe) {
            return Some(Explanation::unknown(probe, reason));
        }
        let asked = ServiceQuestion {
            service,
            written: written?,
            kind: (probe.protocol, probe.port),
            is_headless,
        };
        Some(match self.targets(cluster, details, &asked)? {
            Ok(targets) => explain_targets(cluster, explainer, probe, &asked, &targets),
            Err(reason) => Explanation::unknown(probe, reason),
        })
    }

    /// Answers a probe to an address of a Service, or to a node port, with backends that have no addresses.
    fn explain_address(
        &self,
        cluster: &Cluster,
        explainer: Explainer<'_>,
        details: &Details,
        (probe, address): (&Probe, IpAddr),
    ) -> Option<Explanation> {
        let kind = (probe.protocol, probe.port);
        if let [key] = &explainer.services_at(address, kind.0, kind.1)[..] {
            let (service, written) = (cluster.services().get(key)?, details.services.get(key)?);
            let asked = ServiceQuestion { service, written, kind, is_headless: false };
            return Some(match self.targets(cluster, details, &asked)? {
                Ok(targets) => explain_targets(cluster, explainer, probe, &asked, &targets),
                Err(reason) => Explanation::unknown(probe, reason),
            });
        }
        if !matches!(cluster.owner_of_address(address), AddressOwner::Node { .. }) {
            return None;
        }
        let is_asked = |port: &&ServicePort| {
            port.protocol.number() == kind.0.0 && port.node_port == Some(kind.1)
        };
        cluster.services().values().find_map(|service| {
            let port = service.ports.iter().find(is_asked)?.port;
            let (key, kind) = (&service.key, (probe.protocol, port));
            let written = details.services.get(key)?;
            let asked = ServiceQuestion { service, written, kind, is_headless: false };
            let reason = match self.targets(cluster, details, &asked)? {
                Ok(targets) if targets.is_empty() => return None,
                Ok(_) => format!(
                    "it is a node port of Service {key}, whose backends have no addresses yet; ask for svc/{key} port {port}"
                ),
                Err(reason) => reason,
            };
            Some(Explanation::unknown(probe, reason))
        })
    }

    /// Returns the backends to judge in place of a Service, `None` if the explainer finds them, or the reason for which
    /// they are not known.
    fn targets(
        &self,
        cluster: &Cluster,
        details: &Details,
        asked: &ServiceQuestion<'_>,
    ) -> Option<Result<BTreeSet<BackendPort>, String>> {
        let key = &asked.service.key;
        let has_address = !asked.service.addresses.is_empty();
        if self.with_slices.contains(key) {
            return (!has_address).then(|| Ok(of_slices(cluster, asked)));
        }
        if !self.is_partial {
            return None;
        }
        if details.endpoints.contains_key(key) {
            return (!has_address).then(|| Ok(of_slices(cluster, asked)));
        }
        if asked.written.selector.is_empty() {
            let headless = if asked.is_headless { "is headless and " } else { "" };
            return Some(Err(format!(
                "Service {key} {headless}has no selector, and its EndpointSlices are not among the objects: its \
                 backends are not known"
            )));
        }
        let pods = selected(cluster, key, asked.written);
        let is_known = has_address && pods.iter().all(|pod| !pod.addresses.is_empty());
        (!is_known).then(|| Ok(of_pods(&pods, asked)))
    }
}

/// A question about a port of a Service.
pub(super) struct ServiceQuestion<'a> {
    pub(super) service: &'a model::Service,
    pub(super) written: &'a WrittenService,
    pub(super) kind: (IpProtocol, u16),
    /// Clients connect to the pods, at this port.
    pub(super) is_headless: bool,
}

impl ServiceQuestion<'_> {
    /// Describes the reason for which the backends are judged in place of the Service.
    fn reason(&self) -> &'static str {
        match (self.is_headless, self.service.addresses.is_empty()) {
            (true, _) => "is headless: clients connect to its pods, and nothing translates ports",
            (false, true) => "has no address yet: judged by its backends",
            (false, false) => "has no EndpointSlice yet: judged by the pods that it selects",
        }
    }
}

/// Returns the reason for which nothing is at a port of a Service.
fn absent_port(service: &model::Service, probe: &Probe) -> Option<String> {
    let (protocol, number) = (probe.protocol, probe.port);
    let is_present = service.ports.iter().any(|port| is_asked(port, (protocol, number)));
    (!is_present).then(|| {
        let key = &service.key;
        format!("Service {key} has no port {protocol} {number}{}", ports(&service.ports, protocol))
    })
}

fn is_asked(port: &ServicePort, (protocol, number): (IpProtocol, u16)) -> bool {
    port.protocol.number() == protocol.0 && port.port == number
}

/// Lists the ports of a Service, those of the protocol as numbers.
fn ports(ports: &[ServicePort], protocol: IpProtocol) -> String {
    let text = |port: &ServicePort| match port.protocol.number() == protocol.0 {
        true => port.port.to_string(),
        false => format!("{} {}", port.protocol, port.port),
    };
    let all: Vec<String> = ports.iter().map(text).collect();
    if all.is_empty() { String::new() } else { format!(" (it has {})", all.join(", ")) }
}

/// Returns the pods that a Service selects.
pub(super) fn selected<'c>(
    cluster: &'c Cluster,
    key: &Key,
    service: &WrittenService,
) -> Vec<&'c Pod> {
    let is_one = |pod: &&Pod| !pod.finished && is_selected(&pod.labels, &service.selector);
    cluster.pods_in(&key.namespace).map(|pod| &**pod).filter(is_one).collect()
}

pub(super) fn of_pods(pods: &[&Pod], asked: &ServiceQuestion<'_>) -> BTreeSet<BackendPort> {
    let (protocol, number) = asked.kind;
    let of_pod = |pod: &&Pod| -> Vec<BackendPort> {
        let target = |port| (Party::Pod(pod.key.clone()), port);
        if asked.is_headless {
            return vec![target(number)];
        }
        let ports =
            asked.written.ports.iter().filter(|port| {
                port.protocol.number() == protocol.0 && port.port == i32::from(number)
            });
        let ports = ports.flat_map(|port| numbers(&port.target, port.protocol, pod));
        ports.map(target).collect()
    };
    pods.iter().flat_map(of_pod).collect()
}

fn of_slices(cluster: &Cluster, asked: &ServiceQuestion<'_>) -> BTreeSet<BackendPort> {
    let (mut ready, mut serving) = (BTreeSet::new(), BTreeSet::new());
    for slice in cluster.slices_of(&asked.service.key) {
        let ports = slice.ports.iter().filter(|of_slice| {
            let mut ports = asked.service.ports.iter().filter(|port| of_slice.is_behind(port));
            ports.any(|port| is_asked(port, asked.kind))
        });
        let numbers: BTreeSet<u16> = match asked.is_headless {
            true => [asked.kind.1].into(),
            false => ports.map(|port| port.port).collect(),
        };
        let at = |address| numbers.iter().map(move |port| (Party::Address(address), *port));
        ready.extend(slice.ready().flat_map(at));
        serving.extend(slice.serving().flat_map(at));
    }
    // The name of a headless Service resolves to ready pods only.
    if ready.is_empty() && !asked.is_headless { serving } else { ready }
}

/// Judges a Service by its backends.
fn explain_targets(
    cluster: &Cluster,
    explainer: Explainer<'_>,
    probe: &Probe,
    asked: &ServiceQuestion<'_>,
    targets: &BTreeSet<BackendPort>,
) -> Explanation {
    let (key, note) = (&asked.service.key, asked.reason());
    let mut answer = Explanation::unknown(probe, String::new());
    answer.services = vec![key.clone()];
    let (mut unknown, mut reaches_itself) = (None, false);
    for (party, port) in targets {
        let of_backend = Probe { to: party.clone(), port: *port, ..probe.clone() };
        let judged = explainer.explain(&of_backend);
        for template in judged.templates {
            if !answer.templates.contains(&template) {
                answer.templates.push(template);
            }
        }
        if judged.verdict == Verdict::Unknown {
            unknown = unknown.or(judged.reason.map(|reason| format!("backend {party}: {reason}")));
        }
        // A template stands for any two of its pods.
        let judgements = [&judged.egress, &judged.ingress];
        reaches_itself |= judged.verdict == Verdict::Deny
            && *party == probe.from
            && !judgements.into_iter().flatten().any(Judgement::is_denied_by_tier);
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
        answer.backends.push(ServiceBackend {
            address: address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            port: *port,
            pod,
            verdict: judged.verdict,
            egress: judged.egress,
            ingress: judged.ingress,
        });
    }
    let all = answer.backends.len();
    let allowed = answer.backends.iter().filter(|it| it.verdict == Verdict::Allow).count();
    (answer.verdict, answer.reason) = match unknown {
        Some(reason) => (Verdict::Unknown, Some(reason)),
        None if allowed > 0 => (Verdict::Allow, None),
        None => (Verdict::Deny, None),
    };
    let count = match (allowed, all) {
        (_, 0) => "it has no ready backend: nothing answers".to_owned(),
        (0, _) => "none of its backends is allowed".to_owned(),
        (n, all) if n == all => "every backend is allowed".to_owned(),
        (n, all) => format!("its backends differ, {n} of {all} are allowed"),
    };
    let itself = match reaches_itself {
        true => format!(", but a pod of {} that is chosen itself is reached", probe.from),
        false => String::new(),
    };
    answer.note = Some(format!("Service {key} {note}; {count}{itself}"));
    answer
}

/// Returns the reason for which an allowed probe to a Service depends on the chosen backend.
pub(super) fn reason_unknown(cluster: &Cluster, answer: &Explanation) -> Option<String> {
    if answer.verdict != Verdict::Allow || answer.services.is_empty() {
        return None;
    }
    let is_elsewhere = is_at_other_node(cluster, answer);
    let is_closed = |backend: &&ServiceBackend| match is_elsewhere {
        // A rule for the address of that node suffices for the sender.
        true => backend.ingress.as_ref().is_some_and(|it| it.verdict == Verdict::Deny),
        false => backend.verdict == Verdict::Deny,
    };
    let (all, closed) = (answer.backends.len(), answer.backends.iter().filter(is_closed).count());
    let open = all - closed;
    let verb = if open == 1 { "is" } else { "are" };
    (closed > 0).then(|| format!("it depends on the backend: {open} of {all} {verb} allowed"))
}

/// Returns whether a pod asks for the node port of another node.
fn is_at_other_node(cluster: &Cluster, answer: &Explanation) -> bool {
    let Party::Address(address) = &answer.probe.to else { return false };
    let sender = answer.egress.as_ref().and_then(|egress| cluster.pods().get(&egress.pod));
    cluster.service_at(*address).is_none()
        && sender.is_some_and(|pod| !cluster.is_node_of(pod, *address))
}
