//! Services and `v1` Endpoints: targets of ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1 as api;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use netpold_core::model::{Key, Labels};
use netpold_kube::convert::{DEFAULT_NAMESPACE, SERVICE_NAME_LABEL, protocol};

use super::fields::{
    Details, EndpointPod, EndpointsPort, Exposure, PortReference, WrittenService,
    WrittenServicePort,
};

/// Labels of name server Services: kubeadm and most distributions, and OpenShift's operator.
const DNS_LABELS: [(&str, &str); 3] = [
    ("k8s-app", "kube-dns"),
    ("k8s-app", "coredns"),
    ("dns.operator.openshift.io/owning-dns", "default"),
];

/// Annotations of Services whose load balancer sends to the pods: AWS, Alibaba and Tencent, Google.
const DIRECT: [(&str, &str); 5] = [
    ("service.beta.kubernetes.io/aws-load-balancer-nlb-target-type", "ip"),
    ("service.beta.kubernetes.io/aws-load-balancer-type", "nlb-ip"),
    ("service.beta.kubernetes.io/backend-type", "eni"),
    ("service.cloud.tencent.com/direct-access", "true"),
    ("cloud.google.com/neg", ""),
];

impl Exposure {
    fn of(metadata: &ObjectMeta, spec: &api::ServiceSpec) -> Self {
        let annotation = |key: &str| metadata.annotations.as_ref()?.get(key).map(String::as_str);
        let is_direct = DIRECT.iter().any(|(key, value)| {
            annotation(key).is_some_and(|text| value.is_empty() || text == *value)
        });
        let has_addresses = spec.external_ips.as_ref().is_some_and(|it| !it.is_empty());
        match spec.type_.as_deref() {
            Some("LoadBalancer")
                if is_direct || spec.allocate_load_balancer_node_ports == Some(false) =>
            {
                Self::Direct
            }
            _ if has_addresses => Self::Balanced,
            Some("LoadBalancer") => Self::Balanced,
            Some("NodePort") => Self::NodePort,
            _ => Self::None,
        }
    }
}

impl Details {
    /// Adds the pods of an EndpointSlice's endpoints.
    pub(super) fn add_endpoint_slice(&mut self, slice: discovery::EndpointSlice) {
        let namespace = of_api(&slice.metadata).namespace;
        let labels = slice.metadata.labels.unwrap_or_default();
        let Some(service) = labels.get(SERVICE_NAME_LABEL) else { return };
        let service = Key::new(namespace.clone(), service.clone());
        for endpoint in slice.endpoints {
            let node = endpoint.node_name.unwrap_or_default();
            let Some(pod) = endpoint.target_ref.and_then(|of| target_pod(of, &namespace)) else {
                continue;
            };
            for address in endpoint.addresses.iter().filter_map(|it| it.parse().ok()) {
                let endpoint = EndpointPod { pod: pod.clone(), node: node.clone() };
                self.endpoint_pods.insert((service.clone(), address), endpoint);
            }
        }
    }

    pub(super) fn add_service(&mut self, service: api::Service) {
        let (metadata, spec) = (service.metadata, service.spec.unwrap_or_default());
        let key = of_api(&metadata);
        self.services.remove(&key);
        self.external_names.remove(&key);
        if spec.type_.as_deref() == Some("ExternalName") {
            // An ExternalName leads to no pod, in spite of a selector.
            self.external_names.insert(key, spec.external_name.unwrap_or_default());
            return;
        }
        let exposure = Exposure::of(&metadata, &spec);
        let labels = metadata.labels.unwrap_or_default();
        let is_dns =
            DNS_LABELS.iter().any(|(key, value)| labels.get(*key).is_some_and(|it| it == value));
        let ports = spec.ports.into_iter().flatten().filter_map(target).collect();
        let selector = spec.selector.unwrap_or_default();
        let is_headless = spec.cluster_ip.as_deref() == Some("None");
        let has_external = spec.external_ips.is_some_and(|addresses| !addresses.is_empty());
        let is_external =
            has_external || matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer"));
        let keeps_client = spec.external_traffic_policy.as_deref() == Some("Local");
        let is_internal_local = spec.internal_traffic_policy.as_deref() == Some("Local");
        let service = WrittenService {
            selector,
            ports,
            is_dns,
            is_headless,
            is_external,
            exposure,
            keeps_client,
            is_internal_local,
        };
        self.services.insert(key, service);
    }

    pub(super) fn add_endpoints(&mut self, endpoints: api::Endpoints) {
        let key = of_api(&endpoints.metadata);
        let mut found = Vec::new();
        for subset in endpoints.subsets.into_iter().flatten() {
            let mut addresses: Vec<IpAddr> = Vec::new();
            for endpoint in subset.addresses.into_iter().flatten() {
                let Ok(address) = endpoint.ip.parse() else { continue };
                addresses.push(address);
                if let Some(pod) = endpoint.target_ref.and_then(|of| target_pod(of, &key.namespace))
                {
                    let node = endpoint.node_name.unwrap_or_default();
                    let endpoint = EndpointPod { pod, node };
                    self.endpoint_pods.insert((key.clone(), address), endpoint);
                }
            }
            for port in subset.ports.into_iter().flatten() {
                let number = u16::try_from(port.port).ok().filter(|port| *port > 0);
                let (Some(protocol), Some(number)) = (protocol(port.protocol.as_deref()), number)
                else {
                    continue;
                };
                let port = (port.name.unwrap_or_default(), protocol, number);
                found.push(EndpointsPort { addresses: addresses.clone(), port });
            }
        }
        self.endpoints.insert(key, found);
    }

    /// Returns no details; objects of files without a namespace will belong to this one.
    #[must_use]
    pub fn within(namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..Self::default() }
    }

    /// Removes the Services and Endpoints that other details contain, and those of these namespaces.
    pub fn remove(&mut self, named: &Self, namespaces: &BTreeSet<&str>) {
        let stays = |key: &Key| !namespaces.contains(key.namespace.as_str());
        let is_service =
            |key: &Key| named.services.contains_key(key) || named.external_names.contains_key(key);
        self.services.retain(|key, _| stays(key) && !is_service(key));
        self.external_names.retain(|key, _| stays(key) && !is_service(key));
        self.endpoints.retain(|key, _| stays(key) && !named.endpoints.contains_key(key));
    }
}

/// Returns the pod of an endpoint; `None` for an object of another kind.
fn target_pod(target: api::ObjectReference, namespace: &str) -> Option<Key> {
    let is_pod = target.kind.as_deref() == Some("Pod");
    let name = target.name.filter(|name| is_pod && !name.is_empty())?;
    Some(Key::new(target.namespace.unwrap_or_else(|| namespace.to_owned()), name))
}

/// Returns the key of an object of a Kubernetes type.
pub(super) fn of_api(metadata: &ObjectMeta) -> Key {
    let namespace = metadata.namespace.clone().filter(|namespace| !namespace.is_empty());
    let name = metadata.name.clone().unwrap_or_default();
    Key::new(namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()), name)
}

/// Converts a Service's port; `None` if a number or the protocol is invalid.
fn target(port: api::ServicePort) -> Option<WrittenServicePort> {
    let target = match port.target_port {
        None | Some(IntOrString::Int(0)) => PortReference::Number(u16::try_from(port.port).ok()?),
        Some(IntOrString::Int(number)) => PortReference::Number(u16::try_from(number).ok()?),
        Some(IntOrString::String(name)) => PortReference::Name(name),
    };
    let name = port.name.unwrap_or_default();
    let node_port = port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|it| *it > 0);
    Some(WrittenServicePort {
        name,
        node_port,
        port: port.port,
        protocol: protocol(port.protocol.as_deref())?,
        target,
    })
}

/// Returns whether labels match a Service's selector; an empty one matches nothing.
#[must_use]
pub fn is_selected(labels: &Labels, selector: &BTreeMap<String, String>) -> bool {
    !selector.is_empty()
        && selector.iter().all(|(key, value)| labels.get(key).is_some_and(|it| it == value))
}
