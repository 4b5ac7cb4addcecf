//! Conversion of a Pod.

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use netpold_core::bindings::mirrored_uid;
use netpold_core::model::{Change, NamedPort, Pod};

use super::converted::Converted;
use super::metadata::{foreign_sources, key, labels, mirror};
use super::networks;
use super::port::{is_port_name, protocol};
use super::problem::FieldProblem;

pub(super) fn pod(pod: &core::Pod) -> Result<Converted, FieldProblem> {
    let key = key(&pod.metadata)?;
    let mirrored = mirror(&pod.metadata).map(|uid| mirrored_uid(uid, &key));
    let uid = mirrored.or_else(|| pod.metadata.uid.clone()).unwrap_or_else(|| key.to_string());
    let mut problems = Vec::new();
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    let created = pod.metadata.creation_timestamp.as_ref();
    let addresses = pod_addresses(pod, &mut problems);
    let host_network = pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or(false);
    // A hostNetwork pod has the interfaces of its node.
    let annotations = pod.metadata.annotations.as_ref().filter(|_| !host_network);
    let second = networks::second(annotations, &addresses, &mut problems);
    let change = Change::Pod(Pod {
        uid,
        labels: labels(&pod.metadata),
        node: pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default().into(),
        addresses,
        host_network,
        finished: matches!(phase, Some("Succeeded" | "Failed")),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        created: created.map_or(0, |t| t.0.as_second()),
        ports: named_ports(pod, &mut problems),
        foreign_sources: foreign_sources(&pod.metadata, &mut problems),
        secondary: second,
        workload: None,
        key,
    });
    Ok(Converted { change, problems })
}

/// Returns `status.podIPs`, or `status.podIP` if that is absent or empty.
fn pod_addresses(pod: &core::Pod, problems: &mut Vec<FieldProblem>) -> Vec<IpAddr> {
    let Some(status) = &pod.status else { return Vec::new() };
    match status.pod_ips.as_deref() {
        Some(ips) if !ips.is_empty() => {
            let given = ips.iter().enumerate();
            let given = given.map(|(n, a)| (format!("status.podIPs[{n}].ip"), a.ip.as_str()));
            parse_addresses(given, problems)
        }
        _ => {
            let given = status.pod_ip.as_deref().filter(|ip| !ip.is_empty());
            parse_addresses(given.map(|ip| ("status.podIP".into(), ip)).into_iter(), problems)
        }
    }
}

pub(super) fn parse_addresses<'a>(
    given: impl Iterator<Item = (String, &'a str)>,
    problems: &mut Vec<FieldProblem>,
) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for (path, text) in given {
        match text.parse::<IpAddr>() {
            // On the wire an IPv4-mapped address is an IPv4 address.
            Ok(address) => addresses.push(address.to_canonical()),
            Err(_) => problems.push(FieldProblem::new(path, format!("`{text}` is not an address"))),
        }
    }
    addresses.sort();
    addresses.dedup();
    addresses
}

/// Returns the named ports of containers and of sidecars, the init containers that keep running.
fn named_ports(pod: &core::Pod, problems: &mut Vec<FieldProblem>) -> Vec<NamedPort> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let sidecars = spec.init_containers.iter().flatten().enumerate();
    let sidecars = sidecars
        .filter(|(_, c)| c.restart_policy.as_deref() == Some("Always"))
        .map(|(n, c)| (format!("spec.initContainers[{n}]"), c));
    let containers = spec.containers.iter().enumerate();
    let containers = containers.map(|(n, c)| (format!("spec.containers[{n}]"), c));
    let mut ports = Vec::new();
    for (path, container) in containers.chain(sidecars) {
        for (index, port) in container.ports.iter().flatten().enumerate() {
            let path = format!("{path}.ports[{index}]");
            ports.extend(named_port(port, &path, problems));
        }
    }
    ports.sort();
    ports.dedup();
    ports
}

fn named_port(
    port: &core::ContainerPort,
    path: &str,
    problems: &mut Vec<FieldProblem>,
) -> Option<NamedPort> {
    let name = port.name.clone().filter(|name| !name.is_empty())?;
    let protocol = protocol(port.protocol.as_deref());
    let number = u16::try_from(port.container_port).ok().filter(|n| *n > 0);
    let mut check = |valid: bool, field: &str, text: String| {
        if !valid {
            problems.push(FieldProblem::new(format!("{path}.{field}"), text));
        }
    };
    let given = port.protocol.as_deref().unwrap_or_default();
    check(protocol.is_some(), "protocol", format!("`{given}` is not TCP, UDP or SCTP"));
    let given = port.container_port;
    check(number.is_some(), "containerPort", format!("{given} is not a port, 1 to 65535"));
    check(is_port_name(&name), "name", format!("`{name}` is not a port name"));
    Some(NamedPort { name, protocol: protocol?, port: number? })
}
