//! Objects of a simulated cluster, as large as real pods of a Deployment and real reports of a kubelet.

mod pod;
mod values;

use serde_json::{Value, json};

pub(super) use pod::PodPhase;
use pod::{managed_fields, spec, status};
use values::{TIME, address, digits, uid};

/// Pods per node.
pub(super) const PODS_PER_NODE: u32 = 20;
/// Pods per namespace.
const PODS_PER_NAMESPACE: u32 = 100;
/// Pods per Service, and so endpoints per slice.
pub(super) const PODS_PER_SERVICE: u32 = 50;
/// Images in a kubelet's report (`nodeStatusMaxImages`).
const IMAGES: u32 = 50;

/// An etcd key and an object; `None` deletes the key.
pub(super) type Entry = (String, Option<String>);

/// Size of a cluster.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(super) struct ClusterSize {
    pub(super) nodes: u32,
    pub(super) pods: u32,
    pub(super) policies: u32,
}

impl ClusterSize {
    /// A cluster with [`PODS_PER_NODE`] and one policy per four pods, at most 5,000.
    pub(super) fn of(nodes: u32) -> Self {
        let pods = nodes * PODS_PER_NODE;
        Self { nodes, pods, policies: (pods / 4).min(5000) }
    }

    /// Number of namespaces.
    pub(super) fn namespaces(&self) -> u32 {
        self.pods.div_ceil(PODS_PER_NAMESPACE)
    }

    /// Number of Services, each with one slice.
    pub(super) fn services(&self) -> u32 {
        self.pods / PODS_PER_SERVICE
    }

    /// All objects.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        let namespaces = (0..self.namespaces()).map(namespace);
        let nodes = (0..self.nodes).map(|number| node(number, 0));
        let services = (0..self.services()).flat_map(|n| [self.service(n), self.slice(n)]);
        let policies = (0..self.policies).map(|number| self.policy(number));
        let pods = (0..self.pods).map(|number| self.pod(number, PodPhase::Running, 0));
        namespaces.chain(nodes).chain(services).chain(policies).chain(pods)
    }

    fn namespace_of(&self, number: u32) -> String {
        format!("team-{}", number % self.namespaces())
    }

    fn service(&self, number: u32) -> Entry {
        let (namespace, name) = (self.namespace_of(number), format!("web-{number}"));
        let key = format!("/registry/services/specs/{namespace}/{name}");
        let object = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": metadata(&namespace, &name, 3 << 32 | u64::from(number)),
            "spec": {
                "type": "ClusterIP", "clusterIP": format!("10.96.{}.{}", number / 250, number % 250 + 1),
                "selector": { "app.kubernetes.io/name": name },
                "sessionAffinity": "None",
                "ports": [{ "name": "http", "port": 80, "protocol": "TCP", "targetPort": "http" }],
            },
            "status": { "loadBalancer": {} },
        });
        (key, Some(object.to_string()))
    }

    /// The EndpointSlice of a Service.
    fn slice(&self, number: u32) -> Entry {
        let (namespace, name) = (self.namespace_of(number), format!("web-{number}-x7k2p"));
        let key = format!("/registry/endpointslices/{namespace}/{name}");
        let endpoints = (0..PODS_PER_SERVICE).map(|n| {
            let pod = number + n * self.services();
            json!({
                "addresses": [address(pod)],
                "conditions": { "ready": true, "serving": true, "terminating": false },
                "targetRef": {
                    "kind": "Pod", "namespace": namespace, "name": pod_name(pod, 0),
                    "uid": uid(u64::from(pod)), "resourceVersion": "123456789",
                },
                "topology": {
                    "kubernetes.io/hostname": self.node_of(pod),
                    "topology.kubernetes.io/zone": "eu-central-1a",
                },
            })
        });
        let endpoints: Vec<Value> = endpoints.collect();
        let mut about = metadata(&namespace, &name, 4 << 32 | u64::from(number));
        about["labels"] = json!({
            "kubernetes.io/service-name": format!("web-{number}"),
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        });
        let object = json!({
            "apiVersion": "discovery.k8s.io/v1beta1", "kind": "EndpointSlice",
            "metadata": about, "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        });
        (key, Some(object.to_string()))
    }

    fn policy(&self, number: u32) -> Entry {
        let (namespace, name) = (self.namespace_of(number), format!("allow-{number}"));
        let key = format!("/registry/networkpolicies/{namespace}/{name}");
        let app = format!("web-{}", number % self.services().max(1));
        let peer = json!({ "podSelector": { "matchLabels": { "tier": "front" } } });
        let object = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": metadata(&namespace, &name, 5 << 32 | u64::from(number)),
            "spec": {
                "podSelector": { "matchLabels": { "app.kubernetes.io/name": app } },
                "policyTypes": ["Ingress"],
                "ingress": [{ "from": [peer], "ports": [{ "port": 8080, "protocol": "TCP" }] }],
            },
        });
        (key, Some(object.to_string()))
    }

    fn node_of(&self, pod: u32) -> String {
        node_name(pod % self.nodes)
    }

    /// Key of pod `number` in its `round`-th life.
    pub(super) fn pod_key(&self, number: u32, round: u32) -> String {
        format!("/registry/pods/{}/{}", self.namespace_of(number), pod_name(number, round))
    }

    /// A pod in this phase; `round` distinguishes successive pods.
    pub(super) fn pod(&self, number: u32, phase: PodPhase, round: u32) -> Entry {
        let namespace = self.namespace_of(number);
        let name = pod_name(number, round);
        let app = format!("web-{}", number % self.services().max(1));
        let mut about = metadata(&namespace, &name, u64::from(round) << 40 | u64::from(number));
        about["generateName"] = json!(format!("{app}-6d5f7c9b8d-"));
        about["labels"] = json!({
            "app.kubernetes.io/name": app, "app.kubernetes.io/instance": format!("{app}-production"),
            "app.kubernetes.io/version": "1.42.0", "app.kubernetes.io/managed-by": "Helm",
            "tier": if number.is_multiple_of(3) { "front" } else { "back" },
            "pod-template-hash": "6d5f7c9b8d",
        });
        about["annotations"] = json!({
            "checksum/config": "8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4",
            "prometheus.io/scrape": "true", "prometheus.io/port": "9090", "prometheus.io/path": "/metrics",
        });
        about["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-6d5f7c9b8d"),
            "uid": uid(u64::from(number % self.services().max(1))), "controller": true, "blockOwnerDeletion": true,
        }]);
        if phase == PodPhase::Terminating {
            about["deletionTimestamp"] = json!(TIME);
            about["deletionGracePeriodSeconds"] = json!(30);
        }
        about["managedFields"] = managed_fields(phase);
        let mut spec = spec(&name);
        if phase != PodPhase::Created {
            spec["nodeName"] = json!(self.node_of(number));
        }
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec,
            "status": status(number, phase),
        });
        (self.pod_key(number, round), Some(object.to_string()))
    }
}

fn pod_name(number: u32, round: u32) -> String {
    let random = digits(u64::from(round) << 32 | u64::from(number), 5);
    format!("web-{}-6d5f7c9b8d-{random}{number}", number % 97)
}

pub(super) fn node_name(number: u32) -> String {
    format!("ip-10-12-{}-{}.eu-central-1.compute.internal", number / 250, number % 250)
}

fn metadata(namespace: &str, name: &str, number: u64) -> Value {
    let mut metadata = json!({ "name": name, "uid": uid(number), "creationTimestamp": TIME });
    if !namespace.is_empty() {
        metadata["namespace"] = json!(namespace);
    }
    metadata
}

fn namespace(number: u32) -> Entry {
    let name = format!("team-{number}");
    let mut about = metadata("", &name, 1 << 32 | u64::from(number));
    about["labels"] =
        json!({ "kubernetes.io/metadata.name": name, "team": format!("t{}", number % 10) });
    let object = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": about,
        "spec": { "finalizers": ["kubernetes"] }, "status": { "phase": "Active" },
    });
    (format!("/registry/namespaces/{name}"), Some(object.to_string()))
}

/// A Node as in its kubelet's `report`-th report.
pub(super) fn node(number: u32, report: u32) -> Entry {
    let name = node_name(number);
    let heartbeat = format!("2026-11-23T{:02}:{:02}:00Z", 10 + report / 60 % 12, report % 60);
    let conditions = [
        (
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ];
    let conditions = conditions.map(|(kind, status, reason, message)| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": heartbeat, "lastTransitionTime": TIME,
        })
    });
    let images = (0..IMAGES).map(|n| {
        let digest = digits(1 << 51 | u64::from(n + number % 10), 64);
        json!({
            "names": [
                format!("registry.example.com/platform/service-{n}@sha256:{digest}"),
                format!("registry.example.com/platform/service-{n}:v1.{n}.0"),
            ],
            "sizeBytes": 100_000_000 + n,
        })
    });
    let images: Vec<Value> = images.collect();
    let mut about = metadata("", &name, 2 << 32 | u64::from(number));
    about["labels"] = json!({
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": "m5.2xlarge", "topology.kubernetes.io/region": "eu-central-1",
        "topology.kubernetes.io/zone": "eu-central-1a",
    });
    about["annotations"] = json!({
        "node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/controller-managed-attach-detach": "true",
    });
    let resources = json!({
        "cpu": "8", "ephemeral-storage": "104845292Ki", "hugepages-1Gi": "0", "hugepages-2Mi": "0",
        "memory": "32386544Ki", "pods": "58",
    });
    let object = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": about,
        "spec": { "podCIDR": "10.64.0.0/24", "podCIDRs": ["10.64.0.0/24"], "providerID": format!("aws:///eu-central-1a/i-{number:017x}") },
        "status": {
            "addresses": [
                { "type": "InternalIP", "address": format!("10.12.{}.{}", number / 250, number % 250) },
                { "type": "Hostname", "address": name },
            ],
            "allocatable": resources, "capacity": resources, "conditions": conditions, "images": images,
            "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
            "nodeInfo": {
                "architecture": "amd64", "bootID": uid(1), "containerRuntimeVersion": "containerd://2.1.4",
                "kernelVersion": "6.12.48", "kubeProxyVersion": "v1.34.1", "kubeletVersion": "v1.34.1",
                "machineID": "ec2a7b3f9d4e4c1f8a6b5c4d3e2f1a0b", "operatingSystem": "linux",
                "osImage": "Debian GNU/Linux 13 (trixie)", "systemUUID": uid(2),
            },
        },
    });
    (format!("/registry/minions/{name}"), Some(object.to_string()))
}
