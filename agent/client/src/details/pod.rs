//! Pods, and workloads with pod templates.

use std::collections::{BTreeMap, BTreeSet};

use netpold_core::model::{Key, Labels, Protocol};
use netpold_kube::convert::{DEFAULT_NAMESPACE, protocol};

use super::fields::{
    ContainerProgram, Details, IgnoredPorts, Mesh, PastProxy, PodDetails, RunningContainers,
    WorkloadTemplate,
};
use super::shapes::{self, RawMetadata, RawObject, RawObjectSpec};

/// Linkerd's annotation of pods and namespaces.
const INJECT: &str = "linkerd.io/inject";

/// Multus' annotation of pods, which requests secondary networks.
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// Most words kept of a command line; those of other enforcers are shorter.
const WORDS: usize = 40;

/// Longest kept word in bytes: some words are scripts.
const WORD_MAX: usize = 4096;

impl IgnoredPorts {
    /// Adds the ranges of a list such as `8080,9000-9100`; other items are left out.
    fn add(&mut self, list: &str) {
        self.0.extend(list.split(',').filter_map(|item| {
            let (first, last) = item.trim().split_once('-').unwrap_or((item.trim(), item.trim()));
            Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
        }));
    }

    /// Adds the ranges between the ports of a list; `*` leaves out none.
    fn add_all_but(&mut self, list: &str) {
        if list.trim() == "*" {
            return;
        }
        let mut kept = Self::default();
        kept.add(list);
        kept.0.sort_unstable();
        let mut next = Some(0_u16);
        for (first, last) in kept.0 {
            if let (Some(from), Some(before)) = (next, first.checked_sub(1))
                && from <= before
            {
                self.0.push((from, before));
            }
            next = next.and_then(|from| Some(from.max(last.checked_add(1)?)));
        }
        self.0.extend(next.map(|from| (from, u16::MAX)));
    }
}

pub(super) fn key(metadata: &RawMetadata) -> Key {
    let namespace = metadata.namespace.clone().filter(|namespace| !namespace.is_empty());
    Key::new(namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()), metadata.name.clone())
}

impl Details {
    /// Returns the `containerPort` of a pod's `hostPort`.
    #[must_use]
    pub fn host_port(&self, pod: &Key, port: (Protocol, u16)) -> Option<u16> {
        self.pods.get(pod)?.host_ports.get(&port).copied()
    }

    pub(super) fn add_pod(&mut self, object: RawObject) {
        let RawObject { metadata, spec, status } = object;
        let key = key(&metadata);
        if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return;
        }
        if let Some(node) = spec.node_name.as_deref().filter(|node| !node.is_empty()) {
            for address in status.host_addresses() {
                self.add_node_address(node, address, "hostIP of its pods".to_owned());
            }
        }
        let details = pod_details(&metadata, &spec);
        if details != PodDetails::default() {
            self.pods.insert(key.clone(), details);
        }
        if spec.host_network == Some(true) {
            self.add_running("Pod", key, spec);
        }
    }

    /// Adds a workload of a kind with a pod template.
    pub(super) fn add_workload(&mut self, kind: &str, object: RawObject) {
        let key = key(&object.metadata);
        let mut metadata = object.metadata;
        let job = object.spec.job_template.and_then(|job| job.spec.template);
        let Some(template) = object.spec.template.or(job) else { return };
        let mut template = *template;
        let labels: Labels = template.metadata.labels();
        self.templates.push(WorkloadTemplate {
            workload: format!("{kind} {key}"),
            workload_labels: metadata.labels(),
            namespace: key.namespace.clone(),
            details: pod_details(&template.metadata, &template.spec),
            labels,
            host_network: template.spec.host_network == Some(true),
        });
        match kind {
            "DaemonSet" => self.add_running("DaemonSet", key, template.spec),
            "Deployment" if template.spec.host_network == Some(true) => {
                self.add_running("Deployment", key, template.spec);
            }
            _ => {}
        }
    }

    fn add_running(&mut self, kind: &'static str, key: Key, spec: RawObjectSpec) {
        let containers = spec.containers.into_iter().flatten().map(container).collect();
        let alike = |it: &&mut RunningContainers| {
            kind == "Pod"
                && it.kind == kind
                && it.key.namespace == key.namespace
                && it.containers == containers
        };
        match self.running.iter_mut().rev().find(alike) {
            Some(same) => same.count += 1,
            None => self.running.push(RunningContainers { kind, key, containers, count: 1 }),
        }
    }
}

fn container(mut container: shapes::RawContainer) -> ContainerProgram {
    let words = container.words().into_iter().take(WORDS);
    let words = words.map(|word| netpold_core::printable::cut(word, WORD_MAX)).collect();
    let variables = container.env.take().into_iter().flatten().map(|variable| variable.name);
    ContainerProgram {
        variables: variables.take(WORDS).collect(),
        name: container.name.unwrap_or_default(),
        image: container.image.unwrap_or_default(),
        words,
    }
}

fn pod_details(metadata: &RawMetadata, spec: &RawObjectSpec) -> PodDetails {
    PodDetails {
        ports: ports(spec),
        mesh: mesh(metadata, spec),
        past_proxy: past_proxy(metadata, spec),
        no_mesh: metadata.annotation(INJECT) == Some("disabled"),
        own_dns: matches!(spec.dns_policy.as_deref(), Some("Default" | "None")),
        no_token: spec.automount_service_account_token == Some(false),
        own_account: spec
            .service_account_name
            .as_ref()
            .and_then(shapes::Text::as_str)
            .is_some_and(|name| !["", "default"].contains(&name)),
        requests_networks: metadata.annotation(NETWORKS).is_some_and(|text| !text.is_empty()),
        host_ports: host_ports(spec),
    }
}

fn host_ports(spec: &RawObjectSpec) -> BTreeMap<(Protocol, u16), u16> {
    let containers = spec.containers.iter().chain(&spec.init_containers).flatten();
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let number = |port: &shapes::RawContainerPort| {
        let host = u16::try_from(port.host_port?).ok().filter(|port| *port > 0)?;
        let own = u16::try_from(port.container_port).ok()?;
        Some(((protocol(port.protocol.as_deref())?, host), own))
    };
    ports.filter_map(number).collect()
}

fn ports(spec: &RawObjectSpec) -> BTreeSet<(Protocol, u16)> {
    let containers = spec.containers.iter().chain(&spec.init_containers).flatten();
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let number = |port: &shapes::RawContainerPort| {
        Some((protocol(port.protocol.as_deref())?, u16::try_from(port.container_port).ok()?))
    };
    ports.filter_map(number).collect()
}

/// Finds the mesh by annotations of injectors and CNI plugins, and by containers. Labels are checked per group.
fn mesh(metadata: &RawMetadata, spec: &RawObjectSpec) -> Option<Mesh> {
    let mut containers = spec.containers.iter().chain(&spec.init_containers).flatten();
    let proxy = |it: &&shapes::RawContainer| {
        matches!(it.name.as_deref(), Some("istio-proxy" | "linkerd-proxy"))
    };
    if let Some(proxy) = containers.find(proxy) {
        let hbone = proxy.env.iter().flatten().any(|variable| {
            variable.name == "ISTIO_META_ENABLE_HBONE" && variable.value.as_deref() == Some("true")
        });
        return Some(match proxy.name.as_deref() {
            Some("linkerd-proxy") => Mesh::Linkerd,
            _ if hbone => Mesh::IstioHbone,
            _ => Mesh::Istio,
        });
    }
    if metadata.annotation("ambient.istio.io/redirection") == Some("enabled") {
        return Some(Mesh::Ambient);
    }
    injected(metadata)
}

/// Annotations with the ports that pass the proxy by, of the pod and of its peers.
const LEFT_OUT: [[&str; 2]; 2] = [
    ["config.linkerd.io/skip-inbound-ports", "config.linkerd.io/skip-outbound-ports"],
    [
        "traffic.sidecar.istio.io/excludeInboundPorts",
        "traffic.sidecar.istio.io/excludeOutboundPorts",
    ],
];
/// Istio's annotation with the only ports of the pod that the proxy takes.
const TAKEN: &str = "traffic.sidecar.istio.io/includeInboundPorts";
/// Options of Linkerd's init container, which also have the annotations of the namespace.
const IGNORED: [&str; 2] = ["--inbound-ports-to-ignore", "--outbound-ports-to-ignore"];

fn past_proxy(metadata: &RawMetadata, spec: &RawObjectSpec) -> PastProxy {
    let mut found = PastProxy::default();
    for names in LEFT_OUT {
        let [inbound, outbound] = names.map(|name| metadata.annotation(name).unwrap_or_default());
        found.inbound.add(inbound);
        found.outbound.add(outbound);
    }
    if let Some(taken) = metadata.annotation(TAKEN) {
        found.inbound.add_all_but(taken);
    }
    let containers = spec.init_containers.iter().flatten();
    for container in containers.filter(|it| it.name.as_deref() == Some("linkerd-init")) {
        let words: Vec<&str> =
            container.args.iter().flatten().filter_map(shapes::Text::as_str).collect();
        for pair in words.windows(2) {
            match pair[0] {
                option if option == IGNORED[0] => found.inbound.add(pair[1]),
                option if option == IGNORED[1] => found.outbound.add(pair[1]),
                _ => {}
            }
        }
    }
    found
}

/// Reads Linkerd's annotation of pods and namespaces.
pub(super) fn injected(metadata: &RawMetadata) -> Option<Mesh> {
    let inject = metadata.annotation(INJECT);
    matches!(inject, Some("enabled" | "ingress")).then_some(Mesh::Linkerd)
}
