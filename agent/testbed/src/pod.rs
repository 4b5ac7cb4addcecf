//! A pod: a namespace behind a veth of its node.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::ProbeProtocol;
use crate::host::Host;
use crate::node::{
    BRIDGE, BRIDGE_MAC, Cni, Inner, PTP_GATEWAY, PTP_GATEWAY_V6, PTP_MAC, TestNode, mac_text,
};

/// Name of the pod's side of its veth.
const INTERFACE: &str = "eth0";

/// Specification of a pod.
#[derive(Clone, Debug, Default)]
pub struct PodSpec {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) ports: Vec<(String, ProbeProtocol, u16)>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ifindex: Option<u32>,
}

impl PodSpec {
    /// A pod without labels, with the next free address of each family.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into(), ..Self::default() }
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.into(), value.into());
        self
    }

    /// Adds a named container port to the manifest; [`Host::serve`] serves it.
    #[must_use]
    pub fn port(mut self, name: &str, protocol: ProbeProtocol, port: u16) -> Self {
        self.ports.push((name.into(), protocol, port));
        self
    }

    /// Sets the addresses, for instance of one family only.
    #[must_use]
    pub fn addresses(mut self, addresses: &[IpAddr]) -> Self {
        self.addresses = addresses.to_vec();
        self
    }

    /// Sets the index of the host side of the veth, to reuse that of a former pod.
    #[must_use]
    pub const fn ifindex(mut self, index: u32) -> Self {
        self.ifindex = Some(index);
        self
    }
}

/// A pod. Dropping it ends its servers and removes its veth and namespace.
#[derive(Debug)]
pub struct TestPod {
    host: Host,
    spec: PodSpec,
    uid: String,
    interface: String,
    ifindex: u32,
    mac: [u8; 6],
    node: Arc<Inner>,
}

impl Deref for TestPod {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

impl TestNode {
    /// Adds a pod: a namespace behind a new veth.
    ///
    /// # Errors
    /// When a link or an address cannot be made.
    pub fn add_pod(&self, spec: &PodSpec) -> Result<TestPod> {
        let mut spec = spec.clone();
        if spec.addresses.is_empty() {
            let number = self.next_pod.fetch_add(1, Ordering::Relaxed);
            spec.addresses = vec![
                Ipv4Addr::from(u32::from(self.inner.cidr4.network()) + number).into(),
                Ipv6Addr::from(u128::from(self.inner.cidr6.network()) + u128::from(number)).into(),
            ];
        }
        TestPod::create(Arc::clone(&self.inner), spec)
    }
}

impl TestPod {
    pub(crate) fn create(node: Arc<Inner>, spec: PodSpec) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let [_, high, middle, low] = number.to_be_bytes();
        let name = format!("{}/{}", spec.namespace, spec.name);
        let mut pod = Self {
            host: Host::new(name, &format!("{}-{}", spec.namespace, spec.name))?,
            spec,
            uid: format!("00000000-0000-4000-8000-{:06x}{number:06x}", std::process::id()),
            interface: format!("veth{number}"),
            ifindex: 0,
            mac: [0x0a, 0x58, 0, high, middle, low],
            node,
        };
        pod.plug().with_context(|| format!("cannot connect pod {}", pod.name()))?;
        let index = pod.node.host.ifindex(&pod.interface)?;
        pod.ifindex = index.context("the new veth is not there")?;
        Ok(pod)
    }

    /// `metadata.namespace`
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.spec.namespace
    }

    /// `metadata.name`; [`Host::name`] includes the namespace.
    #[must_use]
    pub fn pod_name(&self) -> &str {
        &self.spec.name
    }

    /// `status.podIPs`
    #[must_use]
    pub fn addresses(&self) -> &[IpAddr] {
        &self.spec.addresses
    }

    /// The pod's first IPv4 address.
    #[must_use]
    pub fn ip4(&self) -> Option<IpAddr> {
        self.spec.addresses.iter().copied().find(IpAddr::is_ipv4)
    }

    /// The pod's first IPv6 address.
    #[must_use]
    pub fn ip6(&self) -> Option<IpAddr> {
        self.spec.addresses.iter().copied().find(IpAddr::is_ipv6)
    }

    /// Index of the host side of the pod's veth, in the node's namespace.
    #[must_use]
    pub const fn host_ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Name of the host side of the pod's veth.
    #[must_use]
    pub fn host_interface(&self) -> &str {
        &self.interface
    }

    /// Hardware address of the pod's `eth0`.
    #[must_use]
    pub const fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Hardware address of the pod's gateway.
    #[must_use]
    pub fn gateway_mac(&self) -> [u8; 6] {
        match self.node.cni {
            Cni::Ptp => PTP_MAC,
            Cni::Bridge => BRIDGE_MAC,
        }
    }

    /// Removes the pod; on return its veth is gone. Dropping a pod does the same but ignores errors.
    ///
    /// # Errors
    /// When the veth was gone already.
    pub fn delete(self) -> Result<()> {
        self.unplug()
    }

    /// Replaces the pod's addresses, on the same interface.
    ///
    /// # Errors
    /// When an address or route is refused.
    pub fn change_addresses(&mut self, addresses: &[IpAddr]) -> Result<()> {
        let flush = format!("address flush dev {INTERFACE} scope global\n");
        if self.node.cni == Cni::Ptp {
            let gone: String = self
                .addresses()
                .iter()
                .map(|a| format!("route del {a} dev {}\n", self.interface))
                .collect();
            self.node.host.netns().ip(&gone)?;
        }
        self.spec.addresses = addresses.to_vec();
        self.node.host.netns().ip(&self.host_routes()?)?;
        self.host.netns().ip(&(flush + &self.own_addresses()?))
    }

    /// Replaces the pod's labels, in the manifest.
    pub fn set_labels(&mut self, labels: &[(&str, &str)]) {
        self.spec.labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    }

    /// Sets an annotation, in the manifest.
    pub fn annotate(&mut self, key: &str, value: &str) {
        self.spec.annotations.insert(key.to_owned(), value.to_owned());
    }

    /// The pod as a Kubernetes object.
    #[must_use]
    pub fn manifest(&self) -> Value {
        let ports = self.spec.ports.iter().map(|(name, protocol, port)| {
            json!({ "name": name, "protocol": protocol.to_string(), "containerPort": port })
        });
        let ports: Vec<Value> = ports.collect();
        let addresses: Vec<Value> =
            self.addresses().iter().map(|a| json!({ "ip": a.to_string() })).collect();
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "namespace": self.spec.namespace,
                "name": self.spec.name,
                "uid": self.uid,
                "labels": self.spec.labels,
                "annotations": self.spec.annotations,
            },
            "spec": {
                "nodeName": self.node.host.name(),
                "containers": [{ "name": "main", "image": "example/main", "ports": ports }],
            },
            "status": {
                "phase": "Running",
                "hostIP": self.node.address4,
                "podIP": self.addresses().first(),
                "podIPs": addresses,
            },
        })
    }

    /// `metadata.uid` of [`TestPod::manifest`]; an API server assigns another one.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The CNI plugin's result as a container runtime's libcni caches it.
    #[must_use]
    pub fn cni_result(&self, uid: &str) -> Value {
        let ips = self.addresses().iter().map(|address| {
            let prefix = if address.is_ipv4() { 32 } else { 128 };
            json!({ "address": format!("{address}/{prefix}"), "interface": 1 })
        });
        let sandbox = self.host.netns().path();
        json!({
            "kind": "cniCacheV1",
            "containerId": self.uid,
            "config": "",
            "ifName": INTERFACE,
            "networkName": "testbed",
            "netns": sandbox,
            "cniArgs": [
                ["IgnoreUnknown", "1"],
                ["K8S_POD_NAMESPACE", self.spec.namespace],
                ["K8S_POD_NAME", self.spec.name],
                ["K8S_POD_UID", uid],
            ],
            "result": {
                "cniVersion": "1.0.0",
                "interfaces": [
                    { "name": self.interface, "mac": mac_text(PTP_MAC) },
                    { "name": INTERFACE, "mac": mac_text(self.mac), "sandbox": sandbox },
                ],
                "ips": ips.collect::<Vec<Value>>(),
                "dns": {},
            },
        })
    }

    fn plug(&self) -> Result<()> {
        let (veth, far) = (&self.interface, self.host.netns().path());
        let index = self.spec.ifindex.map(|i| format!("index {i}")).unwrap_or_default();
        let (near_mac, mac) = (mac_text(PTP_MAC), mac_text(self.mac));
        let mut near = match self.node.cni {
            Cni::Ptp => format!("link add name {veth} {index} address {near_mac} type veth"),
            Cni::Bridge => format!("link add name {veth} {index} type veth"),
        };
        writeln!(near, " peer name {INTERFACE} address {mac} netns {}", far.display())?;
        match self.node.cni {
            Cni::Ptp => write!(
                near,
                "link set {veth} addrgenmode none\n\
                 link set {veth} up\n\
                 address add {PTP_GATEWAY}/32 dev {veth} scope link\n\
                 address add {PTP_GATEWAY_V6}/64 dev {veth} nodad\n"
            )?,
            Cni::Bridge => writeln!(near, "link set {veth} master {BRIDGE} up")?,
        }
        near += &self.host_routes()?;
        self.node.host.netns().ip(&near)?;
        let up = format!("link set lo up\nlink set {INTERFACE} up\n");
        self.host.netns().ip(&(up + &self.own_addresses()?))?;
        self.host.netns().wait_running(INTERFACE)?;
        self.node.host.netns().wait_running(veth)?;
        match self.node.cni {
            Cni::Ptp => Ok(()),
            // The bridge comes up with its first port.
            Cni::Bridge => self.node.host.netns().wait_running(BRIDGE),
        }
    }

    fn unplug(&self) -> Result<()> {
        self.node.host.netns().ip(&format!("link del {}\n", self.interface))
    }

    /// Routes to the pod on its node; a bridge needs none.
    fn host_routes(&self) -> Result<String> {
        let mut batch = String::new();
        if self.node.cni == Cni::Bridge {
            return Ok(batch);
        }
        for address in self.addresses() {
            let own: IpAddr = match address {
                IpAddr::V4(_) => self.node.address4.into(),
                IpAddr::V6(_) => self.node.address6.into(),
            };
            writeln!(batch, "route add {address} dev {} src {own}", self.interface)?;
        }
        Ok(batch)
    }

    /// Addresses and default routes inside the pod.
    fn own_addresses(&self) -> Result<String> {
        let mut batch = String::new();
        let (gateway4, gateway6) = self.node.bridge_gateway();
        for address in self.addresses() {
            let (prefix, gateway) = match (self.node.cni, address) {
                (Cni::Ptp, IpAddr::V4(_)) => (32, PTP_GATEWAY.to_owned()),
                (Cni::Ptp, IpAddr::V6(_)) => (128, PTP_GATEWAY_V6.to_owned()),
                (Cni::Bridge, IpAddr::V4(_)) => {
                    (self.node.cidr4.prefix_len(), gateway4.to_string())
                }
                (Cni::Bridge, IpAddr::V6(_)) => {
                    (self.node.cidr6.prefix_len(), gateway6.to_string())
                }
            };
            let nodad = if address.is_ipv6() { "nodad" } else { "" };
            writeln!(batch, "address add {address}/{prefix} dev {INTERFACE} {nodad}")?;
            if gateway == PTP_GATEWAY {
                writeln!(batch, "route replace {gateway} dev {INTERFACE} scope link")?;
            }
            writeln!(batch, "route replace default via {gateway} dev {INTERFACE}")?;
        }
        Ok(batch)
    }
}

impl Drop for TestPod {
    fn drop(&mut self) {
        // After `delete` the veth is already gone. Otherwise the kernel would remove it too, but only some time after
        // the namespace.
        let _ = self.unplug();
    }
}
