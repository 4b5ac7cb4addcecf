//! Checks for target ports of Services that no container has.

use std::collections::BTreeMap;

use netpold_client::details::{PortReference, WrittenServicePort};
use netpold_core::model::{Key, Pod};

use crate::finding::{Check, Findings, Severity};
use crate::objects::{GroupedObjects, PodGroup, pods_text};

const NO_SUCH_NAME: Check = Check {
    name: "target-port-absent",
    severity: Severity::Warning,
    problem: "no container has the named targetPort of a Service: the port leads nowhere",
    fix: "name the port in the pod's spec.containers[].ports[].name, with the Service's protocol, or write its \
          number as targetPort",
};
const UNLISTED: Check = Check {
    name: "target-port-not-listed",
    severity: Severity::Info,
    problem: "no container lists the targetPort of a Service, which containers need not do",
    fix: "none, if a process listens there; otherwise correct the targetPort, or list the port",
};

/// Compares the Services' target ports with the selected pods. Pods on the host's network are left out.
pub(crate) fn examine(objects: &GroupedObjects<'_>, found: &mut Findings) {
    let mut groups: BTreeMap<&str, Vec<&PodGroup<'_>>> = BTreeMap::new();
    for group in &objects.groups {
        groups.entry(group.namespace).or_default().push(group);
    }
    for (key, service) in &objects.details.services {
        let Some(groups) = groups.get(key.namespace.as_str()) else { continue };
        let is_one = |group: &&&PodGroup<'_>| group.is_behind(key, service);
        let selected: Vec<&PodGroup<'_>> = groups.iter().filter(is_one).copied().collect();
        if let Some(first) = selected.first() {
            for port in &service.ports {
                one(objects, (key, port), &selected, first, found);
            }
        }
    }
}

fn one(
    objects: &GroupedObjects<'_>,
    (key, port): (&Key, &WrittenServicePort),
    selected: &[&PodGroup<'_>],
    first: &PodGroup<'_>,
    found: &mut Findings,
) {
    let mut pods = selected.iter().flat_map(|group| &group.pods);
    let at = || format!("Service {key}: port {}, targetPort", port.port);
    match &port.target {
        PortReference::Name(name) => {
            let named = |pod: &Pod| {
                let mut ports = pod.ports.iter();
                ports.any(|it| it.name == *name && it.protocol == port.protocol)
            };
            if !pods.any(|pod| named(pod)) {
                let place = format!("{} {name} ({}); {}", at(), port.protocol, pods_text(first));
                found.add(&NO_SUCH_NAME, objects.with_source(("Service", key), place));
            }
        }
        PortReference::Number(number) => {
            // Ports of a pod that lists none are unknown.
            let listed =
                |pod: &Pod| objects.pod(pod).map(|it| &it.ports).filter(|it| !it.is_empty());
            let wanted = (port.protocol, *number);
            if !pods.any(|pod| listed(pod).is_none_or(|ports| ports.contains(&wanted))) {
                let place = format!("{} {number} ({}); {}", at(), port.protocol, pods_text(first));
                found.add(&UNLISTED, objects.with_source(("Service", key), place));
            }
        }
    }
}
