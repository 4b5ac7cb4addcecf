//! A node: a namespace that forwards between its pods and other nodes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use ipnet::{Ipv4Net, Ipv6Net};
use serde_json::{Value, json};

use crate::host::Host;

/// Connection of pods to their node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cni {
    /// A veth pair for each pod, a host route to the pod, a default route out of it.
    Ptp,
    /// veth pairs with the host sides as ports of a bridge.
    Bridge,
}

/// The bridge of [`Cni::Bridge`].
pub(crate) const BRIDGE: &str = "cni0";
/// IPv4 address of the router in every pod of [`Cni::Ptp`].
pub(crate) const PTP_GATEWAY: &str = "169.254.1.1";
pub(crate) const PTP_GATEWAY_V6: &str = "fe80::1";
/// Hardware address of the host side of every [`Cni::Ptp`] veth.
pub(crate) const PTP_MAC: [u8; 6] = [0xee; 6];
pub(crate) const BRIDGE_MAC: [u8; 6] = [0x0a, 0x58, 0xff, 0, 0, 1];
/// First number of automatic pod addresses; gateways and explicit choices of tests use lower ones.
const FIRST_POD: u32 = 10;

/// A node. It lives until it and all its pods are dropped.
#[derive(Debug)]
pub struct TestNode {
    pub(crate) inner: Arc<Inner>,
    pub(crate) next_pod: AtomicU32,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) host: Host,
    pub(crate) cni: Cni,
    pub(crate) cidr4: Ipv4Net,
    pub(crate) cidr6: Ipv6Net,
    pub(crate) address4: Ipv4Addr,
    pub(crate) address6: Ipv6Addr,
}

impl Deref for TestNode {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.inner.host
    }
}

impl TestNode {
    /// Makes a node that forwards both families, with an address of each (its InternalIPs, on its
    /// loopback) and no link to anywhere.
    ///
    /// # Errors
    /// Without root, or when a CIDR cannot be read.
    pub fn new(name: &str, cni: Cni, pod_cidr4: &str, pod_cidr6: &str) -> Result<Self> {
        static NUMBER: AtomicU16 = AtomicU16::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let low = u32::from(number) % 65_000 + 1;
        let address4 = Ipv4Addr::from(u32::from(Ipv4Addr::new(192, 168, 0, 0)) + low);
        let address6 = Ipv6Addr::from((0xfd00_c0de_u128 << 96) + u128::from(low));
        Self::with_addresses(name, cni, pod_cidr4, pod_cidr6, (address4, address6))
    }

    /// [`TestNode::new`] with given addresses.
    ///
    /// # Errors
    /// As [`TestNode::new`].
    pub fn with_addresses(
        name: &str,
        cni: Cni,
        pod_cidr4: &str,
        pod_cidr6: &str,
        (address4, address6): (Ipv4Addr, Ipv6Addr),
    ) -> Result<Self> {
        let inner = Inner {
            host: Host::new(name.into(), name)?,
            cni,
            cidr4: pod_cidr4.parse().with_context(|| format!("bad pod CIDR {pod_cidr4}"))?,
            cidr6: pod_cidr6.parse().with_context(|| format!("bad pod CIDR {pod_cidr6}"))?,
            address4,
            address6,
        };
        inner.set_up()?;
        Ok(Self { inner: Arc::new(inner), next_pod: AtomicU32::new(FIRST_POD) })
    }

    /// `InternalIP`s, IPv4 then IPv6.
    #[must_use]
    pub fn addresses(&self) -> [IpAddr; 2] {
        [self.inner.address4.into(), self.inner.address6.into()]
    }

    /// The address that pods on a [`Cni::Bridge`] node route through, in each family.
    #[must_use]
    pub fn bridge_addresses(&self) -> [IpAddr; 2] {
        let (v4, v6) = self.inner.bridge_gateway();
        [v4.into(), v6.into()]
    }

    /// Connection of pods to this node.
    #[must_use]
    pub fn cni(&self) -> Cni {
        self.inner.cni
    }

    /// The node as a Kubernetes object.
    #[must_use]
    pub fn manifest(&self) -> Value {
        let addresses = self.addresses().map(|a| json!({ "type": "InternalIP", "address": a }));
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": { "name": self.name(), "labels": BTreeMap::from([
                ("kubernetes.io/hostname", self.name()),
            ]) },
            "spec": {
                "podCIDR": self.inner.cidr4.to_string(),
                "podCIDRs": [self.inner.cidr4.to_string(), self.inner.cidr6.to_string()],
            },
            // Since Kubernetes 1.36 the API server passes WebSockets on to nodes that declare this; to others it speaks
            // SPDY, which the tests' kubelet does not.
            "status": { "addresses": addresses, "declaredFeatures": ["ExtendWebSocketsToKubelet"] },
        })
    }
}

impl Inner {
    fn set_up(&self) -> Result<()> {
        let netns = self.host.netns();
        netns.sysctls(&[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")])?;
        let mut batch = format!(
            "link set lo up\n\
             address add {}/32 dev lo\n\
             address add {}/128 dev lo nodad\n",
            self.address4, self.address6
        );
        if self.cni == Cni::Bridge {
            let (gateway4, gateway6) = self.bridge_gateway();
            let mac = mac_text(BRIDGE_MAC);
            write!(
                batch,
                "link add name {BRIDGE} address {mac} type bridge stp_state 0 mcast_snooping 0\n\
                 link set {BRIDGE} up\n\
                 address add {gateway4}/{} dev {BRIDGE}\n\
                 address add {gateway6}/{} dev {BRIDGE} nodad\n",
                self.cidr4.prefix_len(),
                self.cidr6.prefix_len()
            )?;
        }
        netns.ip(&batch)
    }

    /// The first address of each pod CIDR.
    pub(crate) fn bridge_gateway(&self) -> (Ipv4Addr, Ipv6Addr) {
        (
            Ipv4Addr::from(u32::from(self.cidr4.network()) + 1),
            Ipv6Addr::from(u128::from(self.cidr6.network()) + 1),
        )
    }
}

/// Connects two nodes by a veth pair and routes each node's addresses and pods over it. The link has only link-local
/// addresses.
///
/// # Errors
/// When a link or route cannot be made, as for nodes with overlapping pod CIDRs.
pub fn link_nodes(a: &TestNode, b: &TestNode) -> Result<()> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let link = format!("link{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    ensure!(!Arc::ptr_eq(&a.inner, &b.inner), "a node cannot be linked to itself");
    let far = b.netns().path();
    a.netns().ip(&format!(
        "link add name {link} type veth peer name {link} netns {}\n\
         link set {link} addrgenmode none\n\
         link set {link} up\n\
         address add fe80::a/64 dev {link} nodad\n",
        far.display()
    ))?;
    b.netns().ip(&format!(
        "link set {link} addrgenmode none\n\
         link set {link} up\n\
         address add fe80::b/64 dev {link} nodad\n{}",
        routes(&b.inner, &a.inner, &link, "fe80::a")
    ))?;
    a.netns().ip(&routes(&a.inner, &b.inner, &link, "fe80::b"))?;
    [a, b].iter().try_for_each(|node| node.netns().wait_running(&link))
}

fn routes(from: &Inner, to: &Inner, link: &str, via6: &str) -> String {
    let (own4, own6) = (from.address4, from.address6);
    format!(
        "route add {to4}/32 dev {link} src {own4}\n\
         route add {cidr4} via {to4} dev {link} src {own4}\n\
         route add {to6}/128 via {via6} dev {link} src {own6}\n\
         route add {cidr6} via {via6} dev {link} src {own6}\n",
        to4 = to.address4,
        to6 = to.address6,
        cidr4 = to.cidr4,
        cidr6 = to.cidr6
    )
}

/// `aa:bb:cc:dd:ee:ff`
pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
