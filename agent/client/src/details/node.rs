//! Node addresses beyond `status.addresses`: from annotations of CNIs, and from pod CIDRs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use super::fields::{Details, NodeAddress};
use super::shapes::{RawMetadata, RawObject};

/// Annotations with addresses of tunnels, with or without a prefix length, and the device of each: the node's routes to pods of
/// other nodes may lead through it.
const TUNNELS: [(&str, &str); 11] = [
    ("projectcalico.org/IPv4IPIPTunnelAddr", "Calico's IP-in-IP tunnel, tunl0"),
    ("projectcalico.org/IPv4VXLANTunnelAddr", "Calico's VXLAN tunnel, vxlan.calico"),
    ("projectcalico.org/IPv6VXLANTunnelAddr", "Calico's VXLAN tunnel, vxlan-v6.calico"),
    ("projectcalico.org/IPv4WireguardInterfaceAddr", "Calico's WireGuard device"),
    ("projectcalico.org/IPv6WireguardInterfaceAddr", "Calico's WireGuard device"),
    ("network.cilium.io/ipv4-cilium-host", "device cilium_host"),
    ("network.cilium.io/ipv6-cilium-host", "device cilium_host"),
    ("io.cilium.network.ipv4-cilium-host", "device cilium_host"),
    ("io.cilium.network.ipv6-cilium-host", "device cilium_host"),
    ("ovn.kubernetes.io/ip_address", "Kube-OVN's device ovn0"),
    ("kilo.squat.ai/wireguard-ip", "Kilo's WireGuard device"),
];
/// Annotations with other addresses, and the use of each.
const ADDRESSES: [(&str, &str); 7] = [
    ("projectcalico.org/IPv4Address", "the node's address in Calico"),
    ("projectcalico.org/IPv6Address", "the node's address in Calico"),
    ("flannel.alpha.coreos.com/public-ip", "the outer address of Flannel's tunnel"),
    ("flannel.alpha.coreos.com/public-ip-overwrite", "the outer address of Flannel's tunnel"),
    ("flannel.alpha.coreos.com/public-ipv6", "the outer address of Flannel's tunnel"),
    ("k3s.io/internal-ip", "the node's internal address in k3s"),
    ("alpha.kubernetes.io/provided-node-ip", "--node-ip of the kubelet"),
];
/// Annotation of Flannel with its backend, and the backends with a device at the first address of the podCIDR.
const FLANNEL: &str = "flannel.alpha.coreos.com/backend-type";
const FLANNEL_TUNNELS: [&str; 4] = ["vxlan", "wireguard", "ipip", "udp"];
/// Annotation of OVN-Kubernetes with the node's subnets; the management device has the second host address.
const OVN_SUBNETS: &str = "k8s.ovn.org/node-subnets";

/// Part of the kubelet's version in k3s.
const K3S: &str = "+k3s";
/// Annotation of k3s with the arguments of its server or agent, those of its configuration file included.
const K3S_ARGUMENTS: &str = "k3s.io/node-args";

#[derive(Deserialize)]
#[serde(untagged)]
enum Subnets {
    One(String),
    Many(Vec<String>),
}

impl Details {
    pub(super) fn add_node(&mut self, object: &RawObject) {
        let node = &object.metadata.name;
        if object.status.kubelet_version().contains(K3S) {
            let arguments = object.metadata.annotation(K3S_ARGUMENTS).unwrap_or_default();
            let is_off = arguments.contains("disable-network-policy");
            self.k3s_nodes.insert(node.clone(), is_off);
        }
        let mut add = |address: IpAddr, use_: String| self.add_node_address(node, address, use_);
        let mut tunnels = Vec::new();
        for (index, (name, use_)) in TUNNELS.iter().chain(&ADDRESSES).enumerate() {
            let value = object.metadata.annotation(name).unwrap_or_default();
            for address in value.split(',').filter_map(address) {
                add(address, (*use_).to_owned());
                tunnels.extend((index < TUNNELS.len()).then_some(address));
            }
        }
        for subnet in ovn_subnets(&object.metadata) {
            if let Some(address) = host(subnet, 2) {
                add(address, "OVN-Kubernetes' device ovn-k8s-mp0".to_owned());
                tunnels.push(address);
            }
        }
        let backend = object.metadata.annotation(FLANNEL).unwrap_or_default();
        let is_flannel = FLANNEL_TUNNELS.contains(&backend);
        let spec = &object.spec;
        let several = spec.pod_cidrs.iter().flatten();
        for cidr in several.chain(&spec.pod_cidr).filter_map(|cidr| cidr.parse::<IpNet>().ok()) {
            let cidr = cidr.trunc();
            if let Some(first) = host(cidr, 0) {
                add(first, format!("the first of its podCIDR {cidr}, as Flannel's tunnel has"));
                tunnels.extend(is_flannel.then_some(first));
            }
            if let Some(first) = host(cidr, 1) {
                add(first, format!("the gateway or bridge of its podCIDR {cidr}"));
            }
        }
        tunnels.sort_unstable();
        tunnels.dedup();
        self.tunnels.insert(node.clone(), tunnels);
    }

    /// Adds an address of a node, unless it is known.
    pub(super) fn add_node_address(&mut self, node: &str, address: IpAddr, use_: String) {
        let found = self.nodes.entry(node.to_owned()).or_default();
        if !found.iter().any(|known| known.address == address) {
            found.push(NodeAddress { address, use_ });
        }
    }

    /// Returns the node that has an address, and the address's use.
    #[must_use]
    pub fn node_of(&self, address: IpAddr) -> Option<(&str, &str)> {
        self.nodes.iter().find_map(|(node, addresses)| {
            let found = addresses.iter().find(|it| it.address == address)?;
            Some((node.as_str(), found.use_.as_str()))
        })
    }
}

/// Parses an address, with or without a prefix length.
fn address(text: &str) -> Option<IpAddr> {
    text.trim().split('/').next()?.parse().ok()
}

/// Returns the address at an offset from a block's first.
fn host(cidr: IpNet, number: u32) -> Option<IpAddr> {
    if cidr.max_prefix_len() - cidr.prefix_len() < 2 {
        return None;
    }
    Some(match cidr.network() {
        IpAddr::V4(first) => (u32::from(first).checked_add(number)?).to_be_bytes().into(),
        IpAddr::V6(first) => (u128::from(first).checked_add(number.into())?).to_be_bytes().into(),
    })
}

fn ovn_subnets(metadata: &RawMetadata) -> Vec<IpNet> {
    let text = metadata.annotation(OVN_SUBNETS).unwrap_or_default();
    let networks: BTreeMap<String, Subnets> = serde_json::from_str(text).unwrap_or_default();
    let subnets = networks.into_values().flat_map(|subnets| match subnets {
        Subnets::One(one) => vec![one],
        Subnets::Many(many) => many,
    });
    subnets.filter_map(|subnet| subnet.parse().ok()).collect()
}
