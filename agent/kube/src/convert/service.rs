//! Conversion of Service and EndpointSlice: the frontends at which nodes translate packets, and the backends.
//!
//! The same objects as in kube-proxy are ignored: Services and slices with a label that excludes them. Services without
//! a cluster address have no translated address; a load balancer's address counts unless its `ipMode` is `Proxy`.
//! Addresses are parsed as in kube-proxy, since a backend that only kube-proxy accepts may be one that policy denies.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use netpold_core::model::{Change, EndpointSlice, Key, Protocol, Service, ServicePort, SlicePort};

use super::converted::Converted;
use super::metadata::key;
use super::port;
use super::problem::FieldProblem;

/// Label of an EndpointSlice that names its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// Labels that exclude Services and EndpointSlices from the nodes' proxy, regardless of their value (by kube-proxy's
/// source, the selector of its informers).
const UNSERVED_LABELS: [&str; 2] =
    ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"];

/// Returns whether the nodes' proxy ignores an object.
fn is_unserved(metadata: &ObjectMeta) -> bool {
    let labels = metadata.labels.as_ref();
    labels.is_some_and(|labels| UNSERVED_LABELS.iter().any(|label| labels.contains_key(*label)))
}

/// Converts a Service.
///
/// # Errors
/// The Service has no name.
pub(super) fn service(service: &core::Service) -> Result<Converted, FieldProblem> {
    let key = key(&service.metadata)?;
    let mut problems = Vec::new();
    let default = core::ServiceSpec::default();
    let spec = service.spec.as_ref().unwrap_or(&default);
    let has_cluster_ip = spec.type_.as_deref() != Some("ExternalName")
        && cluster_ips(spec).iter().any(|(_, ip)| is_given(ip));
    let addresses = if has_cluster_ip {
        addresses(spec, service.status.as_ref(), &mut problems)
    } else {
        Vec::new()
    };
    let given = cluster_ips(spec);
    let given: Vec<IpAddr> = given.iter().filter_map(|(_, ip)| ip.parse().ok()).collect();
    let cluster = addresses.iter().copied().filter(|a| given.contains(a)).collect();
    let given = spec.ports.iter().flatten().enumerate();
    let ports = given.filter_map(|(n, port)| {
        service_port(port, has_cluster_ip, &format!("spec.ports[{n}]"), &mut problems)
    });
    let mut ports: Vec<ServicePort> = ports.collect();
    ports.sort();
    ports.dedup();
    let unserved = is_unserved(&service.metadata);
    let (networks, beyond) = (Vec::new(), Vec::new());
    let service = Service { key, addresses, cluster, networks, beyond, ports, unserved };
    Ok(Converted { change: Change::Service(service), problems })
}

/// Returns `clusterIPs`, or `clusterIP` if that is absent or empty.
fn cluster_ips(spec: &core::ServiceSpec) -> Vec<(String, &str)> {
    match spec.cluster_ips.as_deref() {
        Some(ips) if !ips.is_empty() => {
            let given = ips.iter().enumerate();
            given.map(|(n, ip)| (format!("spec.clusterIPs[{n}]"), ip.as_str())).collect()
        }
        _ => spec.cluster_ip.iter().map(|ip| ("spec.clusterIP".into(), ip.as_str())).collect(),
    }
}

/// Returns whether the text is an address and not `None`, the value of a headless Service.
fn is_given(ip: &str) -> bool {
    !ip.is_empty() && ip != "None"
}

fn addresses(
    spec: &core::ServiceSpec,
    status: Option<&core::ServiceStatus>,
    problems: &mut Vec<FieldProblem>,
) -> Vec<IpAddr> {
    let mut given = cluster_ips(spec);
    given.retain(|(_, ip)| is_given(ip));
    let external = spec.external_ips.iter().flatten().enumerate();
    given.extend(external.map(|(n, ip)| (format!("spec.externalIPs[{n}]"), ip.as_str())));
    let balancer = status.and_then(|status| status.load_balancer.as_ref());
    for (n, item) in balancer.iter().flat_map(|b| b.ingress.iter().flatten()).enumerate() {
        // With `Proxy`, packets go to the load balancer, and nodes do not translate them.
        if let Some(ip) = item.ip.as_deref().filter(|ip| !ip.is_empty())
            && item.ip_mode.as_deref() != Some("Proxy")
        {
            given.push((format!("status.loadBalancer.ingress[{n}].ip"), ip));
        }
    }
    let mut addresses: Vec<IpAddr> =
        given.iter().filter_map(|(path, text)| address(path, text, problems)).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

/// Parses an address to which packets can be sent.
fn address(path: &str, text: &str, problems: &mut Vec<FieldProblem>) -> Option<IpAddr> {
    let problem = match parsed(text) {
        None => format!("`{text}` is not an address"),
        Some(ip) if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() => {
            format!("{text} cannot be the address of a Service or of a backend")
        }
        Some(ip) => return Some(ip),
    };
    problems.push(FieldProblem::new(path, problem));
    None
}

/// Parses an address like the API server and kube-proxy (`ParseIPSloppy`): parts of IPv4 may have leading zeros and are
/// decimal, IPv4-mapped IPv6 is IPv4.
fn parsed(text: &str) -> Option<IpAddr> {
    let (front, dotted) = text.rfind(':').map_or(("", text), |at| text.split_at(at + 1));
    let decimal = |part: &str| match part.trim_start_matches('0') {
        "" if part.is_empty() => String::new(),
        "" => "0".to_owned(),
        digits => digits.to_owned(),
    };
    let ip = if dotted.contains('.') {
        let parts: Vec<String> = dotted.split('.').map(decimal).collect();
        format!("{front}{}", parts.join(".")).parse()
    } else {
        text.parse::<IpAddr>()
    };
    ip.ok().map(|ip| ip.to_canonical())
}

fn service_port(
    port: &core::ServicePort,
    has_node_port: bool,
    path: &str,
    problems: &mut Vec<FieldProblem>,
) -> Option<ServicePort> {
    let protocol = protocol(port.protocol.as_deref(), path, problems);
    let number = number(port.port, &format!("{path}.port"), problems);
    let node_port = port.node_port.filter(|number| has_node_port && *number != 0);
    let node_port =
        node_port.and_then(|port| self::number(port, &format!("{path}.nodePort"), problems));
    let name = port.name.clone().unwrap_or_default();
    Some(ServicePort { name, protocol: protocol?, port: number?, node_port })
}

fn protocol(name: Option<&str>, path: &str, problems: &mut Vec<FieldProblem>) -> Option<Protocol> {
    let known = port::protocol(name);
    if known.is_none() {
        let text = format!("`{}` is not TCP, UDP or SCTP", name.unwrap_or_default());
        problems.push(FieldProblem::new(format!("{path}.protocol"), text));
    }
    known
}

fn number(number: i32, path: &str, problems: &mut Vec<FieldProblem>) -> Option<u16> {
    let port = u16::try_from(number).ok().filter(|n| *n > 0);
    if port.is_none() {
        problems.push(FieldProblem::new(path, format!("{number} is not a port, 1 to 65535")));
    }
    port
}

/// Converts an EndpointSlice.
///
/// # Errors
/// The slice has no name.
pub(super) fn endpoint_slice(slice: &discovery::EndpointSlice) -> Result<Converted, FieldProblem> {
    let key: Key = key(&slice.metadata)?;
    let mut problems = Vec::new();
    let labels = slice.metadata.labels.as_ref();
    let service = labels.and_then(|labels| labels.get(SERVICE_NAME_LABEL));
    let service = service.filter(|_| !is_unserved(&slice.metadata));
    let mut ports = slice_ports(slice, &mut problems);
    ports.sort();
    ports.dedup();
    let backends = backends(slice, &mut problems);
    let in_phase = |phases: [EndpointPhase; 2]| {
        let found = backends.iter().filter(|(_, phase)| phases.contains(phase));
        found.map(|(address, _)| *address).collect()
    };
    let slice = EndpointSlice {
        key,
        service: service.cloned().unwrap_or_default(),
        ports,
        addresses: backends.keys().copied().collect(),
        not_ready: in_phase([EndpointPhase::NotReady, EndpointPhase::Ended]),
        terminating: in_phase([EndpointPhase::Serving, EndpointPhase::Ended]),
    };
    Ok(Converted { change: Change::EndpointSlice(slice), problems })
}

/// Reads the ports. A port without a number means every port; no Service's port can be translated to it.
fn slice_ports(
    slice: &discovery::EndpointSlice,
    problems: &mut Vec<FieldProblem>,
) -> Vec<SlicePort> {
    let given = slice.ports.iter().flatten().enumerate();
    let ports = given.filter_map(|(n, port)| {
        let path = format!("ports[{n}]");
        let protocol = protocol(port.protocol.as_deref(), &path, problems);
        let number = number(port.port?, &format!("{path}.port"), problems);
        let name = port.name.clone().unwrap_or_default();
        Some(SlicePort { name, protocol: protocol?, port: number? })
    });
    ports.collect()
}

/// Conditions of an endpoint, as the nodes' proxy reads them. If several endpoints have an address, the first counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EndpointPhase {
    /// Receives new connections.
    Ready,
    /// Terminating and still serving: receives new connections while none is ready.
    Serving,
    /// Keeps its existing connections only.
    NotReady,
    /// Terminating, and keeps its existing connections only.
    Ended,
}

impl EndpointPhase {
    /// Absent conditions: ready, serving and not terminating.
    fn of(endpoint: &discovery::Endpoint) -> Self {
        let conditions = endpoint.conditions.as_ref();
        let given =
            |read: fn(&discovery::EndpointConditions) -> Option<bool>| conditions.and_then(read);
        if given(|it| it.ready).unwrap_or(true) {
            return Self::Ready;
        }
        let is_serving = given(|it| it.serving).unwrap_or(true);
        match given(|it| it.terminating).unwrap_or(false) {
            true if is_serving => Self::Serving,
            true => Self::Ended,
            false => Self::NotReady,
        }
    }
}

/// Returns the endpoints' addresses of the slice's own family.
fn backends(
    slice: &discovery::EndpointSlice,
    problems: &mut Vec<FieldProblem>,
) -> BTreeMap<IpAddr, EndpointPhase> {
    let mut all = BTreeMap::new();
    let is_v4 = match slice.address_type.as_str() {
        "IPv4" => true,
        "IPv6" => false,
        other => {
            let text = format!("`{other}` is not IPv4 or IPv6; the slice's endpoints are ignored");
            problems.push(FieldProblem::new("addressType", text));
            return all;
        }
    };
    for (n, endpoint) in slice.endpoints.iter().enumerate() {
        let phase = EndpointPhase::of(endpoint);
        for (m, text) in endpoint.addresses.iter().enumerate() {
            let path = format!("endpoints[{n}].addresses[{m}]");
            let Some(address) = address(&path, text, problems) else { continue };
            if address.is_ipv4() == is_v4 {
                let first = all.entry(address).or_insert(phase);
                *first = phase.min(*first);
            } else {
                let text = format!("{text} is not of the slice's family, {}", slice.address_type);
                problems.push(FieldProblem::new(path, text));
            }
        }
    }
    all
}
