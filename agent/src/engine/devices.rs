//! What every interface is: pods' veths, and the devices by which packets leave the node otherwise.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::dataplane::bridges::Bridge;
use crate::dataplane::role::{Link, Role};
use crate::endpoint::Device;
use crate::pattern::matches;

use super::Engine;

/// At which of the node's devices packets to Services are judged behind their translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeDevices {
    /// All.
    Auto,
    /// None: what leaves the node, and what pods that netpold does not know get, is judged at the
    /// sender only.
    None,
    /// Those with one of these names, each of which may end in `*`.
    Named(Vec<String>),
}

impl FromStr for NodeDevices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            names => names.split(',').map(pattern).collect::<Result<_, _>>().map(Self::Named),
        }
    }
}

/// A device's name, or the beginning of names.
fn pattern(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('*').unwrap_or(text);
    if text.is_empty() || name.contains(['*', '/']) || name.contains(char::is_whitespace) {
        return Err(format!(
            "{text:?} is neither a device's name nor the beginning of names with a `*` behind it; \
             give auto, none, or several of those with commas between them"
        ));
    }
    Ok(text.to_owned())
}

impl NodeDevices {
    fn include(&self, name: &str) -> bool {
        match self {
            Self::Auto => true,
            Self::None => false,
            Self::Named(patterns) => patterns.iter().any(|pattern| matches(pattern, name)),
        }
    }
}

impl Engine {
    /// Takes in the devices that are not veths.
    pub fn devices_are(&mut self, devices: BTreeMap<u32, Device>) {
        for (index, device) in &devices {
            if device.link.is_none() && self.judges_at(&device.name) {
                tracing::warn!(
                    ifindex = index,
                    device = device.name,
                    "packets that leave by this device cannot be read: what pods send to Services \
                     by it is judged at the pods only"
                );
            }
        }
        self.devices = devices;
        self.roles = None;
    }

    /// Takes in which interfaces are ports of bridges.
    pub fn ports_are(&mut self, ports: BTreeMap<u32, u32>) {
        self.ports = ports;
        self.roles = None;
        // A new port is waited for by nobody: its packets lack the proof until its program is there.
        self.tell_bridges();
    }

    /// The bridges with pods that policy isolates for egress, or whose sources are checked.
    fn bridges(&self) -> BTreeMap<u32, Bridge> {
        let mut bridges = BTreeMap::<u32, Bridge>::new();
        for pod in self.compiler.endpoints().filter(|pod| pod.egress || pod.checked) {
            if let Some(bridge) = self.ports.get(&pod.ifindex) {
                bridges.entry(*bridge).or_default().isolated |= pod.egress;
            }
        }
        for (port, bridge) in &self.ports {
            if let Some(bridge) = bridges.get_mut(bridge) {
                bridge.ports.insert(*port);
            }
        }
        bridges
    }

    /// Tells the dataplane of the bridges, before anything is attached.
    pub(super) fn tell_bridges(&mut self) {
        let bridges = self.bridges();
        self.dataplane.bridges_are(bridges);
    }

    /// Says at which devices to judge.
    pub fn judge_at(&mut self, devices: NodeDevices) {
        self.node_devices = devices;
        self.roles = None;
    }

    fn judges_at(&self, name: &str) -> bool {
        self.node_devices.include(name)
    }

    /// What every interface should be. A veth is the node's, in which nobody judges but for what is
    /// sent there to Services, until it is found to be a pod's.
    pub(super) fn roles(&self) -> BTreeMap<u32, Role> {
        let devices = self.devices.iter().map(|(index, it)| (*index, &it.name, it.link));
        let veths = self.names.iter().map(|(index, name)| (*index, name, Some(Link::Veth)));
        let bridges = self.bridges();
        let with_pods =
            |index: &u32| self.ports.get(index).is_some_and(|bridge| bridges.contains_key(bridge));
        let devices = devices
            .chain(veths)
            .filter(|(_, name, _)| self.judges_at(name))
            .filter_map(|(index, _, link)| Some((index, link?)))
            .map(|(index, link)| match link {
                Link::Ethernet if with_pods(&index) => (index, Role::Device(Link::Port)),
                _ => (index, Role::Device(link)),
            });
        let pods = self.compiler.endpoints().map(|e| (e.ifindex, Role::Pod(e.id)));
        devices.chain(pods).collect()
    }

    /// Names of the devices that the programs run at, sorted.
    pub(super) fn judging_devices(&self) -> Vec<String> {
        let name = |index| {
            self.names.get(index).or_else(|| self.devices.get(index).map(|device| &device.name))
        };
        let roles = self.names.keys().chain(self.devices.keys());
        let mut names: Vec<String> = roles
            .filter(|index| matches!(self.dataplane.attached(**index), Some(Role::Device(_))))
            .filter_map(|index| name(index).cloned())
            .collect();
        names.sort_unstable();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_by_name() {
        let parse = |text: &str| text.parse::<NodeDevices>();
        assert_eq!(parse("auto"), Ok(NodeDevices::Auto));
        assert_eq!(parse("none"), Ok(NodeDevices::None));
        let named = parse("eth0,wl*").unwrap();
        for (name, included) in
            [("eth0", true), ("eth01", false), ("wlan0", true), ("bond0", false)]
        {
            assert_eq!(named.include(name), included, "{name}");
        }
        for text in ["", "eth0,", "*th", "a*b", "eth 0", "a/b"] {
            assert!(parse(text).unwrap_err().contains("give auto, none"), "{text:?}");
        }
        assert!(parse("*").unwrap().include("any"));
    }
}
