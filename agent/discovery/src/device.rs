//! Devices of the node other than veths to pods: exits and entries of packets between pods and Services, and ports of
//! bridges.

use std::collections::BTreeMap;

use netpold_dataplane::role::DeviceLink;

/// Link kinds (`IFLA_INFO_KIND`) without own enforcement: packets pass them on the way to another device, which
/// enforces, or they lead nowhere.
pub(super) const PASSED_ON: [&str; 5] = ["bridge", "vrf", "ifb", "dummy", "nlmon"];

/// Link kinds with a peer in another namespace, as veth.
const NAMESPACES: [&str; 1] = ["netkit"];

/// Link kinds that decapsulate packets to an address of the node without a secret, so that a pod can send through them.
const TUNNELS: [&str; 13] = [
    "vxlan",
    "geneve",
    "gre",
    "gretap",
    "erspan",
    "ip6gre",
    "ip6gretap",
    "ip6erspan",
    "ipip",
    "ip6tnl",
    "sit",
    "bareudp",
    "gtp",
];

/// `ARPHRD_*` of `linux/if_arp.h`.
const LOOPBACK: u16 = 772;
const ETHERNET: u16 = 1;
/// PPP, RAWIP, TUNNEL, TUNNEL6, SIT, IPGRE, IP6GRE, NONE: no link-layer header before the IP header.
const WITHOUT_HEADER: [u16; 8] = [512, 519, 768, 769, 776, 778, 823, 0xfffe];

/// Device of the node, other than a veth to another namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Interface name.
    pub name: String,
    /// First header of the device's packets; `None`: unsupported hardware type.
    pub link: Option<DeviceLink>,
    /// Whether packets leave the node through this device. Otherwise they only pass it and leave through another.
    pub is_exit: bool,
    /// Whether the underlying link is in another namespace (`IFLA_LINK_NETNSID`): a macvlan, VLAN or tunnel that
    /// delivers packets of that namespace to this node.
    pub leads_away: bool,
}

impl Device {
    /// Classifies a link other than a veth.
    pub(super) fn new(name: String, kind: &str, hardware_type: u16, leads_away: bool) -> Self {
        let is_exit = hardware_type != LOOPBACK && !PASSED_ON.contains(&kind);
        let (unpacks, is_pair) = (TUNNELS.contains(&kind), NAMESPACES.contains(&kind));
        let link = match hardware_type {
            ETHERNET if unpacks => Some(DeviceLink::EthernetTunnel),
            ETHERNET if is_pair => Some(DeviceLink::Veth),
            ETHERNET => Some(DeviceLink::Ethernet),
            other if WITHOUT_HEADER.contains(&other) && unpacks => Some(DeviceLink::IpTunnel),
            other if WITHOUT_HEADER.contains(&other) => Some(DeviceLink::Ip),
            _ => None,
        };
        Self { name, link, is_exit, leads_away }
    }

    /// Returns the device of a veth with both ends on the node.
    pub(super) fn inner(name: String) -> Self {
        Self { name, link: None, is_exit: false, leads_away: false }
    }
}

/// Links with a property of type `T` (device, bridge of a port), and their last reported state.
#[derive(Debug)]
pub(super) struct LinkTable<T> {
    known: BTreeMap<u32, T>,
    told: Option<BTreeMap<u32, T>>,
}

impl<T> Default for LinkTable<T> {
    fn default() -> Self {
        Self { known: BTreeMap::new(), told: None }
    }
}

impl<T: Clone + PartialEq> LinkTable<T> {
    /// Sets the property of a link; `None` removes it.
    pub(super) fn is(&mut self, index: u32, what: Option<T>) {
        match what {
            Some(what) => _ = self.known.insert(index, what),
            None => self.remove_link(index),
        }
    }

    /// Removes a link.
    pub(super) fn remove_link(&mut self, index: u32) {
        self.known.remove(&index);
    }

    /// Replaces all links.
    pub(super) fn are(&mut self, links: BTreeMap<u32, T>) {
        self.known = links;
    }

    /// Returns all links if they differ from the last reported state, and stores them as reported.
    pub(super) fn difference(&mut self) -> Option<BTreeMap<u32, T>> {
        self.difference_with(BTreeMap::new())
    }

    /// Same as [`LinkTable::difference`], with `others` added.
    pub(super) fn difference_with(&mut self, others: BTreeMap<u32, T>) -> Option<BTreeMap<u32, T>> {
        let mut now = others;
        now.extend(self.known.iter().map(|(index, it)| (*index, it.clone())));
        (self.told.as_ref() != Some(&now)).then(|| {
            self.told = Some(now.clone());
            now
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(kind: &str, hardware_type: u16) -> Option<Device> {
        Some(Device::new("x".into(), kind, hardware_type, false))
    }

    #[test]
    fn what_packets_leave_by() {
        let link = |kind, hardware_type| {
            device(kind, hardware_type).filter(|device| device.is_exit).map(|device| device.link)
        };
        for kind in ["", "bond", "vlan", "macvlan", "tun"] {
            assert_eq!(link(kind, 1), Some(Some(DeviceLink::Ethernet)), "{kind}");
        }
        for kind in ["vxlan", "geneve", "gretap"] {
            assert_eq!(link(kind, 1), Some(Some(DeviceLink::EthernetTunnel)), "{kind}");
        }
        assert_eq!(
            link("netkit", 1),
            Some(Some(DeviceLink::Veth)),
            "as a veth, another namespace's"
        );
        assert_eq!(link("wireguard", 0xfffe), Some(Some(DeviceLink::Ip)), "a pod has no key of it");
        for (kind, hardware_type) in [
            ("ipip", 768),
            ("sit", 776),
            ("gre", 778),
            ("ip6tnl", 769),
            ("vxlan", 0xfffe),
            ("gtp", 0xfffe),
        ] {
            assert_eq!(link(kind, hardware_type), Some(Some(DeviceLink::IpTunnel)), "{kind}");
        }
        for (kind, hardware_type) in
            [("", 772), ("bridge", 1), ("dummy", 1), ("ifb", 1), ("vrf", 1)]
        {
            assert_eq!(link(kind, hardware_type), None, "{kind}");
        }
        assert_eq!(link("", 32), Some(None), "InfiniBand");
    }

    #[test]
    fn only_differences_are_told() {
        let mut devices = LinkTable::default();
        assert_eq!(devices.difference(), Some(BTreeMap::new()), "that there are none, too");
        assert_eq!(devices.difference(), None);
        devices.is(3, device("vxlan", 1));
        devices.is(4, None);
        assert_eq!(devices.difference().map(|d| d.into_keys().collect()), Some(vec![3]));
        let inner = BTreeMap::from([(9, Device::inner("a".into()))]);
        let both = devices.difference_with(inner.clone()).map(|d| d.into_keys().collect());
        assert_eq!(both, Some(vec![3, 9]));
        assert_eq!(devices.difference_with(inner), None);
        devices.difference();
        devices.is(3, device("vxlan", 1));
        assert_eq!(devices.difference(), None);
        devices.remove_link(3);
        assert_eq!(devices.difference(), Some(BTreeMap::new()));
    }
}
