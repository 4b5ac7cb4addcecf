//! The role of every interface: a pod's veth, or a device by which packets leave the node.

use std::collections::BTreeMap;
use std::str::FromStr;

use netpold_core::compile::Compiler;
use netpold_core::model::Key;

use crate::dataplane::Dataplane;
use crate::dataplane::bridges::Bridge;
use crate::dataplane::role::{Link, Role};
use crate::endpoint::Device;
use crate::pattern::matches;

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

/// The node's interfaces as discovery reports them.
#[derive(Debug)]
pub(super) struct NodeInterfaces {
    /// Names of the veths whose other sides are in other namespaces.
    veths: BTreeMap<u32, String>,
    /// All others.
    devices: BTreeMap<u32, Device>,
    /// Interfaces that are ports of bridges, with their bridge.
    ports: BTreeMap<u32, u32>,
    judged: NodeDevices,
    /// The role of each interface, and [`Compiler::endpoints_version`] that it holds for.
    roles: Option<(u64, BTreeMap<u32, Role>)>,
}

impl NodeInterfaces {
    /// None yet.
    pub(super) fn new() -> Self {
        let (veths, devices, ports) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { veths, devices, ports, judged: NodeDevices::Auto, roles: None }
    }

    /// A veth appeared, or its addresses changed.
    pub(super) fn veth_is(&mut self, index: u32, name: String) {
        self.veths.insert(index, name);
        self.roles = None;
    }

    pub(super) fn veth_gone(&mut self, index: u32) {
        self.veths.remove(&index);
        self.roles = None;
    }

    pub(super) fn devices_are(&mut self, devices: BTreeMap<u32, Device>) {
        for (index, device) in &devices {
            if device.link.is_none() && self.judged.include(&device.name) {
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

    pub(super) fn ports_are(&mut self, ports: BTreeMap<u32, u32>) {
        self.ports = ports;
        self.roles = None;
    }

    pub(super) fn judge_at(&mut self, devices: NodeDevices) {
        self.judged = devices;
        self.roles = None;
    }

    /// The name of a pod's veth.
    pub(super) fn veth(&self, index: u32) -> Option<&str> {
        self.veths.get(&index).map(String::as_str)
    }

    /// For messages: the name of a pod's veth, its number if it has gone.
    pub(super) fn label(&self, index: u32) -> String {
        match self.veth(index) {
            Some(name) => format!("interface {name}"),
            None => format!("interface {index}"),
        }
    }

    /// The bridges with pods that policy isolates for egress, or whose sources are checked.
    pub(super) fn bridges(&self, compiler: &Compiler) -> BTreeMap<u32, Bridge> {
        let mut bridges = BTreeMap::<u32, Bridge>::new();
        for pod in compiler.endpoints().filter(|pod| pod.egress || pod.checked) {
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

    /// Whether [`NodeInterfaces::roles`] is outdated.
    pub(super) fn have_changed(&self, compiler: &Compiler) -> bool {
        self.roles.as_ref().is_none_or(|(of, _)| *of != compiler.endpoints_version())
    }

    /// Decides the role of each interface. A veth is one of the node's devices, at which packets to Services are
    /// judged and no others, until it is found to be a pod's.
    pub(super) fn assign_roles(&mut self, compiler: &Compiler) -> &BTreeMap<u32, Role> {
        let devices = self.devices.iter().map(|(index, it)| (*index, &it.name, it.link));
        let veths = self.veths.iter().map(|(index, name)| (*index, name, Some(Link::Veth)));
        let bridges = self.bridges(compiler);
        let with_pods =
            |index: &u32| self.ports.get(index).is_some_and(|bridge| bridges.contains_key(bridge));
        let devices = devices
            .chain(veths)
            .filter(|(_, name, _)| self.judged.include(name))
            .filter_map(|(index, _, link)| Some((index, link?)))
            .map(|(index, link)| {
                let is_port = link == Link::Ethernet && with_pods(&index);
                (index, Role::Device(if is_port { Link::Port } else { link }))
            });
        let pods = compiler.endpoints().map(|e| (e.ifindex, Role::Pod(e.id)));
        let bridges = bridges.keys().filter(|_| self.judged != NodeDevices::None);
        let bridges = bridges.map(|bridge| (*bridge, Role::Device(Link::Bridge)));
        let roles = devices.chain(bridges).chain(pods).collect();
        &self.roles.insert((compiler.endpoints_version(), roles)).1
    }

    /// The roles that were assigned last.
    pub(super) fn roles(&self) -> Option<&BTreeMap<u32, Role>> {
        self.roles.as_ref().map(|(_, roles)| roles)
    }

    /// Names of the devices that the programs run at, sorted.
    pub(super) fn judging_devices(&self, dataplane: &Dataplane) -> Vec<String> {
        let devices = self.devices.iter().map(|(index, device)| (index, &device.name));
        let mut names: Vec<String> = self
            .veths
            .iter()
            .chain(devices)
            .filter(|(index, _)| {
                matches!(dataplane.hooks().attached(**index), Some(Role::Device(_)))
            })
            .map(|(_, name)| name.clone())
            .collect();
        names.sort_unstable();
        names
    }
}

/// The pod of an endpoint number.
#[must_use]
pub fn pod_of(compiler: &Compiler, endpoint: u32) -> Option<Key> {
    compiler.endpoints().find(|e| e.id == endpoint && !e.waiting).map(|e| e.pod)
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
