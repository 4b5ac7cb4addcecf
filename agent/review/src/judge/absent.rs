//! Pods that are endpoints of Services and are not among the objects, as in an export of some namespaces, or of some kinds.
//!
//! A stand-in has the address. Its labels are those of the one template that the Service's selector matches, else those of
//! the selector; then any other label, and any name of its ports, is unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netpold_client::details::{Details, PortReference, WrittenService, is_selected};
use netpold_core::model::{Change, Key, Labels, NamedPort, Pod, SharedStr, SlicePort, WorkloadRef};

/// Kind of a stand-in's workload if no template gives its labels.
const KIND: &str = "Pod";
/// Suffix of a stand-in's name if a template has the name of the pod.
const SUFFIX: &str = ".endpoint";

/// Returns whether a pod is a stand-in with unknown labels.
pub(crate) fn is_absent(pod: &Pod) -> bool {
    pod.template().is_some_and(|workload| workload.kind == KIND)
}

/// Returns the stand-ins for endpoints of objects.
pub(super) fn stand_ins(objects: &[Change], details: &Details) -> Vec<Change> {
    let mut pods: BTreeMap<&Key, &Pod> = BTreeMap::new();
    let mut taken: BTreeSet<IpAddr> = BTreeSet::new();
    let mut behind: BTreeMap<(Key, IpAddr), Vec<NamedPort>> = BTreeMap::new();
    for object in objects {
        if let Change::Pod(pod) = object {
            pods.insert(&pod.key, pod);
            taken.extend(pod.all_addresses());
        } else if let Change::Node(node) = object {
            taken.extend(node.addresses.iter().copied());
        } else if let Change::EndpointSlice(slice) = object {
            let service = Key::new(slice.key.namespace.clone(), slice.service.clone());
            let written = details.services.get(&service);
            let port = |port: &SlicePort| NamedPort {
                name: target_name(written, &port.name),
                protocol: port.protocol,
                port: port.port,
            };
            let ports: Vec<NamedPort> = slice.ports.iter().map(port).collect();
            for address in &slice.addresses {
                let of_endpoint = behind.entry((service.clone(), *address)).or_default();
                of_endpoint.extend(ports.iter().cloned());
            }
        }
    }
    taken.extend(details.nodes.values().flatten().map(|it| it.address));
    let mut made: BTreeMap<Key, Pod> = BTreeMap::new();
    for ((service, address), ports) in behind {
        let Some(target) = details.endpoint_pods.get(&(service.clone(), address)) else { continue };
        let named = pods.get(&target.pod).copied();
        let real = named.filter(|pod| pod.template().is_none());
        // Of a pod without a status, only the endpoint has the address.
        let has_status = real.is_some_and(|pod| !pod.addresses.is_empty() || pod.host_network);
        if has_status || taken.contains(&address) {
            continue;
        }
        let mut key = target.pod.clone();
        if named.is_some() && real.is_none() {
            key.name.push_str(SUFFIX);
        }
        let written = details.services.get(&service).filter(|it| !it.selector.is_empty());
        let pod = made.entry(key.clone()).or_insert_with(|| {
            let mut pod = match real {
                Some(pod) => pod.clone(),
                None => by_labels(&key, written, pods.values().copied()),
            };
            if pod.node.is_empty() {
                pod.node = SharedStr::from(target.node.as_str());
            }
            pod
        });
        let is_real = real.is_some();
        // Several Services may have one pod: it has the labels of each selector.
        let selector = written.filter(|_| !is_real).into_iter().flat_map(|it| &it.selector);
        let labels = selector.map(|(label, value)| (label.clone(), value.clone()));
        let known = pod.labels.iter().map(|(label, value)| (label.clone(), value.clone()));
        pod.labels = labels.chain(known).collect();
        if !pod.addresses.contains(&address) {
            pod.addresses.push(address);
            pod.addresses.sort_unstable();
        }
        for port in ports {
            if is_absent(pod) && !pod.ports.contains(&port) {
                pod.ports.push(port);
            }
        }
    }
    made.into_values().map(Change::Pod).collect()
}

/// Returns the name of the containers' port behind a port of a Service; empty if the Service gives a number.
fn target_name(written: Option<&WrittenService>, name: &str) -> String {
    let mut ports = written.into_iter().flat_map(|it| &it.ports);
    match ports.find(|port| port.name == name).map(|port| &port.target) {
        Some(PortReference::Name(name)) => name.clone(),
        Some(PortReference::Number(_)) | None => String::new(),
    }
}

fn by_labels<'p>(
    key: &Key,
    written: Option<&WrittenService>,
    pods: impl Iterator<Item = &'p Pod>,
) -> Pod {
    let of_service = |pod: &&Pod| {
        pod.template().is_some_and(|workload| key.name.starts_with(workload.name.as_str()))
            && pod.key.namespace == key.namespace
            && written.is_some_and(|it| is_selected(&pod.labels, &it.selector))
    };
    let templates: Vec<&Pod> = pods.filter(of_service).collect();
    if let [template] = templates[..] {
        return Pod { key: key.clone(), uid: key.to_string(), ..template.clone() };
    }
    let workload = WorkloadRef {
        kind: KIND.to_owned(),
        name: key.name.clone(),
        is_template: true,
        is_indexed: false,
    };
    Pod {
        key: key.clone(),
        uid: key.to_string(),
        labels: Labels::new(),
        node: SharedStr::default(),
        addresses: Vec::new(),
        host_network: false,
        finished: false,
        terminating: false,
        created: 0,
        ports: Vec::new(),
        foreign_sources: false,
        secondary: Vec::new(),
        workload: Some(Box::new(workload)),
    }
}
