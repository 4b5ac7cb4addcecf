//! The role of every interface: a pod's veth, or a device by which packets leave the node.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::{Duration, Instant};

use netpold_core::bindings;
use netpold_core::compile::Compiler;
use netpold_core::model::Key;

use crate::dataplane::Dataplane;
use crate::dataplane::bridges::Bridge;
use crate::dataplane::role::{Link, Role};
use crate::endpoint::Device;
use crate::pattern::matches;

/// Some of the node's devices: those at which packets to Services are judged behind their translation, or those that
/// lead to other namespaces and are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeDevices {
    /// All.
    Auto,
    /// None. Where they are to judge, what leaves the node, and what pods that netpold does not know get, is judged
    /// at the sender only.
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

/// How long a new veth stays closed while no object or CNI result names its pod, on a node whose runtime keeps CNI
/// results. They come before the pod's containers; an agent that ends in between must not leave the veth open.
const HOLD: Duration = Duration::from_secs(10);

/// Veths that have gone whose names are known.
const GONE_MAX: usize = 1024;

/// A veth whose other side is in another namespace.
#[derive(Debug)]
struct Veth {
    name: String,
    /// Another one shows an interface that took over the index.
    incarnation: u64,
    /// When it was seen first.
    since: Instant,
    /// It is closed for [`HOLD`], unless its pod is known.
    held: bool,
}

/// Whether the runtime keeps CNI results, which say whose a new veth is before its pod's containers start.
///
/// Their directory alone does not say so: an image or a package may have made it. Nor does an empty one say the
/// opposite: after a boot, or on a new node, no pod has started yet, and the first one's veth would be open between
/// its creation and its result, for good if the agent ended there. So new veths wait as if there were results, until
/// a pod shows that there are none: it has been there for as long as veths wait, and no result has come. That is soon
/// on a node with any pod, and then veths of nobody (of a container engine beside Kubernetes) wait no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Results {
    /// There is no directory, or pods come without.
    None,
    /// There is a directory.
    Expected,
    /// There have been some.
    Kept,
}

/// The node's interfaces as discovery reports them.
#[derive(Debug)]
pub(super) struct NodeInterfaces {
    veths: BTreeMap<u32, Veth>,
    /// Names of veths that have gone, the latest.
    gone: BTreeMap<u32, String>,
    /// Veths that are not new: those of the first listing, or those that an earlier agent's programs judge.
    familiar: Familiar,
    results: Results,
    /// All others.
    devices: BTreeMap<u32, Device>,
    /// Interfaces that are ports of bridges, with their bridge.
    ports: BTreeMap<u32, u32>,
    judged: NodeDevices,
    /// Devices that lead to other namespaces and are the node's own all the same.
    trusted: NodeDevices,
    /// The role of each interface, and [`Compiler::endpoints_version`] that it holds for.
    roles: Option<(u64, BTreeMap<u32, Role>)>,
    /// When a veth is to be opened that was closed when the roles were assigned.
    due: Option<Instant>,
}

/// Which veths are not new.
#[derive(Debug)]
enum Familiar {
    /// All: the first listing is not complete.
    All,
    /// These, by interface index.
    Only(BTreeSet<u32>),
}

impl NodeInterfaces {
    /// None yet.
    pub(super) fn new() -> Self {
        let (veths, devices, ports) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self {
            veths,
            gone: BTreeMap::new(),
            familiar: Familiar::All,
            results: Results::None,
            devices,
            ports,
            judged: NodeDevices::Auto,
            trusted: NodeDevices::None,
            roles: None,
            due: None,
        }
    }

    /// An earlier agent's programs judge at these interfaces: any other veth is new.
    pub(super) fn inherit(&mut self, judged: BTreeSet<u32>) {
        self.familiar = Familiar::Only(judged);
    }

    /// All interfaces that were there at the start are known.
    pub(super) fn in_sync(&mut self) {
        if matches!(self.familiar, Familiar::All) {
            self.familiar = Familiar::Only(BTreeSet::new());
        }
    }

    /// There is a CNI result: new veths wait for theirs.
    pub(super) fn has_results(&mut self) {
        self.results = Results::Kept;
    }

    /// There is a directory for CNI results.
    pub(super) fn expect_results(&mut self) {
        if self.results == Results::None {
            self.results = Results::Expected;
        }
    }

    /// A veth appeared, or its addresses changed.
    pub(super) fn veth_is(&mut self, veth: &bindings::Veth, now: Instant) {
        let index = veth.index;
        if self.veths.get(&index).is_some_and(|it| it.incarnation != veth.incarnation) {
            self.veth_gone(index);
        }
        let is_new = match &self.familiar {
            Familiar::All => false,
            Familiar::Only(familiar) => !familiar.contains(&index),
        };
        // By other options a veth that is no pod's has no program, so it always looks new to an agent that starts.
        let held = is_new && self.results != Results::None && self.judged == NodeDevices::Auto;
        let (name, incarnation, since) = (veth.name.clone(), veth.incarnation, now);
        self.veths.entry(index).and_modify(|it| it.name.clone_from(&veth.name)).or_insert(Veth {
            name,
            incarnation,
            since,
            held,
        });
        self.roles = None;
    }

    pub(super) fn veth_gone(&mut self, index: u32) {
        self.gone.extend(self.veths.remove(&index).map(|veth| (index, veth.name)));
        if self.gone.len() > GONE_MAX {
            // The kernel counts indexes up.
            self.gone.pop_first();
        }
        if let Familiar::Only(familiar) = &mut self.familiar {
            familiar.remove(&index);
        }
        self.roles = None;
    }

    pub(super) fn devices_are(&mut self, devices: BTreeMap<u32, Device>) {
        for (index, device) in &devices {
            if device.is_exit && device.link.is_none() && self.judged.include(&device.name) {
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

    pub(super) fn trust(&mut self, devices: NodeDevices) {
        self.trusted = devices;
        self.roles = None;
    }

    /// The interfaces that hand packets on without having passed a program: all that lead to no other namespace, and
    /// what the operator trusts. `None` before the devices are listed, and where not all veths get a program.
    pub(super) fn own(&self) -> Option<BTreeSet<u32>> {
        if self.devices.is_empty() || self.judged != NodeDevices::Auto {
            return None;
        }
        let devices = self.devices.iter().filter(|(_, device)| !self.is_door(device));
        Some(devices.map(|(index, _)| *index).collect())
    }

    /// Whether a device lets another namespace in, and nobody has named it.
    fn is_door(&self, device: &Device) -> bool {
        device.leads_away && !self.trusted.include(&device.name)
    }

    /// Names of the devices by which nothing is handed on.
    pub(super) fn doors(&self) -> impl Iterator<Item = &str> {
        let doors = self.devices.values().filter(|device| self.is_door(device));
        doors.map(|device| device.name.as_str())
    }

    /// Devices that lead to no pod.
    pub(super) fn inner(&self) -> BTreeSet<u32> {
        let devices = self.devices.iter().filter(|(index, _)| !self.veths.contains_key(index));
        devices.filter(|(_, device)| !self.is_door(device)).map(|(index, _)| *index).collect()
    }

    /// Whether discovery knows an interface.
    pub(super) fn is_known(&self, index: u32) -> bool {
        self.veths.contains_key(&index) || self.devices.contains_key(&index)
    }

    /// The name of a pod's veth.
    pub(super) fn veth(&self, index: u32) -> Option<&str> {
        self.veths.get(&index).map(|veth| &*veth.name)
    }

    /// For messages: the name of a pod's veth, also of one that has gone lately; else its number.
    pub(super) fn label(&self, index: u32) -> String {
        let gone = self.gone.get(&index).map(String::as_str);
        match self.veth(index).or(gone) {
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
        // A door leaves no proof, and what comes by it is to have none.
        let is_door = |port: &u32| self.devices.get(port).is_some_and(|it| self.is_door(it));
        for (port, bridge) in self.ports.iter().filter(|(port, _)| !is_door(port)) {
            if let Some(bridge) = bridges.get_mut(bridge) {
                bridge.ports.insert(*port);
            }
        }
        bridges
    }

    /// Whether [`NodeInterfaces::roles`] is outdated.
    pub(super) fn have_changed(&self, compiler: &Compiler, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
            || self.roles.as_ref().is_none_or(|(of, _)| *of != compiler.endpoints_version())
    }

    /// When the roles are outdated though nothing happens.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Decides the role of each interface. A veth whose pod is not known is closed while it is new, then one of the
    /// node's devices, at which packets to Services are judged and no others.
    pub(super) fn assign_roles(
        &mut self,
        compiler: &Compiler,
        now: Instant,
    ) -> &BTreeMap<u32, Role> {
        let pods: BTreeMap<u32, Role> = compiler
            .endpoints()
            .map(|e| (e.ifindex, if e.slot.is_some() { Role::Pod(e.id) } else { Role::Closed }))
            .collect();
        self.look_for_results(compiler, now);
        let held = self.veths.iter().filter(|(index, _)| !pods.contains_key(index));
        let held = held.filter(|(_, veth)| veth.held && self.results != Results::None);
        let held = held.map(|(index, veth)| (*index, veth.since + HOLD));
        let held: BTreeMap<u32, Instant> = held.filter(|(_, until)| *until > now).collect();
        self.due = held.values().min().copied();
        let exits = self.devices.iter().filter(|(_, device)| device.is_exit);
        let devices = exits.map(|(index, it)| {
            let link = it.link.map(|link| if self.is_door(it) { link.of_exit() } else { link });
            (*index, &it.name, link)
        });
        let veths = self.veths.iter().map(|(index, it)| (*index, &it.name, Some(Link::Veth)));
        let bridges = self.bridges(compiler);
        let with_pods = |index: &u32| {
            let is_door = self.devices.get(index).is_some_and(|device| self.is_door(device));
            !is_door && self.ports.get(index).is_some_and(|bridge| bridges.contains_key(bridge))
        };
        let devices = devices.chain(veths).filter_map(|(index, name, link)| {
            let link = link?;
            if held.contains_key(&index) {
                return Some((index, Role::Closed));
            }
            if !self.judged.include(name) {
                // The guard has closed veths.
                return (link == Link::Veth).then_some((index, Role::Unjudged));
            }
            let is_port = link == Link::Ethernet && with_pods(&index);
            Some((index, Role::Device(if is_port { Link::Port } else { link })))
        });
        let bridges = bridges.keys().filter(|_| self.judged != NodeDevices::None);
        let bridges = bridges.map(|bridge| (*bridge, Role::Device(Link::Bridge)));
        let roles = devices.chain(bridges).chain(pods).collect();
        &self.roles.insert((compiler.endpoints_version(), roles)).1
    }

    /// Expects no results any more where a pod has been there for long without any.
    fn look_for_results(&mut self, compiler: &Compiler, now: Instant) {
        let is_old =
            |index: u32| self.veths.get(&index).is_some_and(|veth| veth.since + HOLD <= now);
        let mut pods = compiler.endpoints().filter(|endpoint| !endpoint.waiting);
        if self.results == Results::Expected && pods.any(|pod| is_old(pod.ifindex)) {
            tracing::info!("pods come without CNI results: new interfaces do not wait for them");
            self.results = Results::None;
        }
    }

    /// The roles that were assigned last.
    pub(super) fn roles(&self) -> Option<&BTreeMap<u32, Role>> {
        self.roles.as_ref().map(|(_, roles)| roles)
    }

    /// Names of the devices that the programs run at, sorted.
    pub(super) fn judging_devices(&self, dataplane: &Dataplane) -> Vec<String> {
        let devices = self.devices.iter().map(|(index, device)| (index, &device.name));
        let veths = self.veths.iter().map(|(index, veth)| (index, &veth.name));
        let mut names: Vec<String> = veths
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
    use netpold_core::options::Options;

    use super::*;

    #[test]
    fn a_device_on_top_of_another_namespaces_link_is_a_door() {
        let device = |name: &str, link, leads_away| Device {
            name: name.into(),
            link: Some(link),
            is_exit: true,
            leads_away,
        };
        let mut interfaces = NodeInterfaces::new();
        assert_eq!(interfaces.own(), None, "nothing is known yet");
        interfaces.devices_are(BTreeMap::from([
            (2, device("eth0", Link::Ethernet, false)),
            (3, device("door", Link::EthernetTunnel, true)),
        ]));
        let compiler = Compiler::new(Options::default());
        assert_eq!(interfaces.own(), Some([2].into()));
        assert_eq!(interfaces.doors().collect::<Vec<_>>(), ["door"]);
        let role = interfaces.assign_roles(&compiler, Instant::now())[&3];
        assert_eq!(role, Role::Device(Link::Ethernet), "nothing proves what comes by it");
        interfaces.trust("do*".parse().unwrap());
        assert_eq!(interfaces.own(), Some([2, 3].into()));
        assert_eq!(
            interfaces.assign_roles(&compiler, Instant::now())[&3],
            Role::Device(Link::EthernetTunnel)
        );
        interfaces.judge_at(NodeDevices::None);
        assert_eq!(interfaces.own(), None, "not every veth gets a program");
    }

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
