//! Role of every interface: a pod's veth, or a device by which packets leave the node.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::{Duration, Instant};

use netpold_core::bindings;
use netpold_core::cluster::is_subject;
use netpold_core::compile::{Compiler, EndpointInfo};
use netpold_core::model::Key;
use netpold_core::pattern::matches;
use netpold_dataplane::Dataplane;
use netpold_dataplane::bridges::Bridge;
use netpold_dataplane::role::{DeviceLink, Role};

use netpold_discovery::Device;

/// A selection of the node's devices: those that judge packets to Services after translation, or trusted ones that lead
/// to other namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeDevices {
    /// All devices.
    Auto,
    /// No device. As judging devices: packets that leave the node, or reach pods unknown to netpold, are judged at the
    /// sender only.
    None,
    /// Devices with one of these names; a name may end in `*`.
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

/// Parses a device's name or prefix of names.
fn pattern(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('*').unwrap_or(text);
    if text.is_empty() || name.contains(['*', '/']) || name.contains(char::is_whitespace) {
        return Err(format!(
            "{text:?} is neither a device name nor a prefix of names followed by `*`; give auto, none, or a \
             comma-separated list of those"
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

/// Time for which a new veth stays closed while no object or CNI result names its pod, on a node with CNI results on
/// disk. A result precedes the pod's containers, and an agent that ends in between must not leave the veth open.
const HOLD: Duration = Duration::from_secs(10);
/// Longest time that such a veth stays closed while a pod of this node lacks an interface: the veth may be that pod's,
/// and its CNI plugins may take long on a busy node. The kubelet gives up a sandbox after four minutes.
const HOLD_MAX: Duration = Duration::from_mins(4);

/// Maximum number of kept names of removed veths.
const GONE_MAX: usize = 1024;

/// A veth with its other side in another namespace.
#[derive(Debug)]
struct TrackedVeth {
    name: String,
    /// Number of the veth that has this index; a new number shows that the index was reused.
    incarnation: u64,
    /// Time of discovery.
    since: Instant,
    /// Whether the veth is closed for [`HOLD`], at most [`HOLD_MAX`], while its pod is unknown.
    held: bool,
}

/// Whether the runtime keeps CNI results, which name the pod of a new veth before the pod's containers start.
///
/// A directory alone is not proof: an image or a package may have created it. An empty directory is not disproof: after
/// a boot, or on a new node, no pod has started yet. The first pod's veth would then be open between its creation and
/// its result, and for good if the agent ended in between. So new veths wait until a pod has existed for [`HOLD`]
/// without any result. On a node with pods this takes little time, and then veths without a pod (of a container engine
/// next to Kubernetes) no longer wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CniResults {
    /// No directory, or pods come without results.
    None,
    /// A directory, but no result yet.
    Expected,
    /// At least one result was read.
    Kept,
}

/// The node's interfaces as discovery reports them.
#[derive(Debug)]
pub(super) struct NodeInterfaces {
    veths: BTreeMap<u32, TrackedVeth>,
    /// Names of the latest removed veths.
    gone: BTreeMap<u32, String>,
    /// Veths that are not new: those of the first listing, or those judged by an earlier agent's programs.
    familiar: FamiliarVeths,
    results: CniResults,
    /// All other interfaces.
    devices: BTreeMap<u32, Device>,
    /// Bridge of each interface that is a bridge port.
    ports: BTreeMap<u32, u32>,
    judged: NodeDevices,
    /// Devices that lead to other namespaces and still belong to the node.
    trusted: NodeDevices,
    /// Role of each interface, with its [`Compiler::endpoints_version`].
    roles: Option<(u64, BTreeMap<u32, Role>)>,
    /// Earliest time at which a veth closed as new must open.
    due: Option<Instant>,
}

/// The veths that are not new.
#[derive(Debug)]
enum FamiliarVeths {
    /// All veths: the first listing is incomplete.
    All,
    /// These veths, by interface index.
    Only(BTreeSet<u32>),
}

impl NodeInterfaces {
    /// Creates an empty set of interfaces.
    pub(super) fn new() -> Self {
        let (veths, devices, ports) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self {
            veths,
            gone: BTreeMap::new(),
            familiar: FamiliarVeths::All,
            results: CniResults::None,
            devices,
            ports,
            judged: NodeDevices::Auto,
            trusted: NodeDevices::None,
            roles: None,
            due: None,
        }
    }

    /// Sets the interfaces that are not new: those judged by an earlier agent's programs, or those before the guard.
    pub(super) fn inherit(&mut self, judged: BTreeSet<u32>) {
        self.familiar = FamiliarVeths::Only(judged);
    }

    /// Marks the first listing as complete: later veths are new.
    pub(super) fn in_sync(&mut self) {
        if matches!(self.familiar, FamiliarVeths::All) {
            self.familiar = FamiliarVeths::Only(BTreeSet::new());
        }
    }

    /// Records that CNI results exist: new veths wait for theirs.
    pub(super) fn has_results(&mut self) {
        self.results = CniResults::Kept;
    }

    /// Records that a directory for CNI results exists.
    pub(super) fn expect_results(&mut self) {
        if self.results == CniResults::None {
            self.results = CniResults::Expected;
        }
    }

    /// Adds a veth, or replaces its attributes.
    pub(super) fn set_veth(&mut self, veth: &bindings::Veth, now: Instant) {
        let index = veth.index;
        if self.veths.get(&index).is_some_and(|it| it.incarnation != veth.incarnation) {
            self.remove_veth(index);
        }
        let is_new = match &self.familiar {
            FamiliarVeths::All => false,
            FamiliarVeths::Only(familiar) => !familiar.contains(&index),
        };
        // With other options, a veth without a pod has no program, so a restarted agent would always treat it as new.
        let held = is_new && self.results != CniResults::None && self.judged == NodeDevices::Auto;
        let (name, incarnation, since) = (veth.name.clone(), veth.incarnation, now);
        self.veths
            .entry(index)
            .and_modify(|it| it.name.clone_from(&veth.name))
            .or_insert(TrackedVeth { name, incarnation, since, held });
        self.roles = None;
    }

    pub(super) fn remove_veth(&mut self, index: u32) {
        self.gone.extend(self.veths.remove(&index).map(|veth| (index, veth.name)));
        if self.gone.len() > GONE_MAX {
            // The kernel assigns increasing indexes.
            self.gone.pop_first();
        }
        if let FamiliarVeths::Only(familiar) = &mut self.familiar {
            familiar.remove(&index);
        }
        self.roles = None;
    }

    pub(super) fn set_devices(&mut self, devices: BTreeMap<u32, Device>) {
        for (index, device) in &devices {
            if device.is_exit && device.link.is_none() && self.judged.include(&device.name) {
                tracing::warn!(
                    ifindex = index,
                    device = device.name,
                    "cannot parse packets that leave by this device: traffic of pods to Services by it is judged at \
                     the pods only"
                );
            }
        }
        self.devices = devices;
        self.roles = None;
    }

    pub(super) fn set_ports(&mut self, ports: BTreeMap<u32, u32>) {
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

    /// Returns the interfaces from which packets are accepted without having passed a program: all that lead to no
    /// other namespace, and trusted ones. `None` before the devices are listed, and where not all veths get a program.
    pub(super) fn trusted_interfaces(&self) -> Option<BTreeSet<u32>> {
        if self.devices.is_empty() || self.judged != NodeDevices::Auto {
            return None;
        }
        let devices =
            self.devices.iter().filter(|(_, device)| !self.leads_to_foreign_namespace(device));
        Some(devices.map(|(index, _)| *index).collect())
    }

    /// Returns whether a device admits packets of another namespace and is not trusted.
    fn leads_to_foreign_namespace(&self, device: &Device) -> bool {
        device.leads_away && !self.trusted.include(&device.name)
    }

    /// Returns the names of untrusted devices that lead to other namespaces; their packets are refused.
    pub(super) fn foreign_devices(&self) -> impl Iterator<Item = &str> {
        let doors = self.devices.values().filter(|device| self.leads_to_foreign_namespace(device));
        doors.map(|device| device.name.as_str())
    }

    /// Returns the devices that lead to no pod.
    pub(super) fn inner(&self) -> BTreeSet<u32> {
        let devices = self.devices.iter().filter(|(index, _)| !self.veths.contains_key(index));
        devices
            .filter(|(_, device)| !self.leads_to_foreign_namespace(device))
            .map(|(index, _)| *index)
            .collect()
    }

    /// Returns whether discovery has reported an interface.
    pub(super) fn is_known(&self, index: u32) -> bool {
        self.veths.contains_key(&index) || self.devices.contains_key(&index)
    }

    /// Returns the name of a pod's veth.
    pub(super) fn veth(&self, index: u32) -> Option<&str> {
        self.veths.get(&index).map(|veth| &*veth.name)
    }

    /// Returns the name of a pod's veth for messages, also of a recently removed one; otherwise its number.
    pub(super) fn label(&self, index: u32) -> String {
        let gone = self.gone.get(&index).map(String::as_str);
        match self.veth(index).or(gone) {
            Some(name) => format!("interface {name}"),
            None => format!("interface {index}"),
        }
    }

    /// Returns the bridges with pods that are isolated for egress or have their sources checked.
    pub(super) fn bridges(&self, compiler: &Compiler) -> BTreeMap<u32, Bridge> {
        let mut bridges = BTreeMap::<u32, Bridge>::new();
        for pod in compiler.endpoints().filter(|pod| pod.egress || pod.checked) {
            if let Some(bridge) = self.ports.get(&pod.ifindex) {
                bridges.entry(*bridge).or_default().isolated |= pod.egress;
            }
        }
        // A door leaves no proof, and its packets must not carry one.
        let is_door = |port: &u32| {
            self.devices.get(port).is_some_and(|it| self.leads_to_foreign_namespace(it))
        };
        for (port, bridge) in self.ports.iter().filter(|(port, _)| !is_door(port)) {
            if let Some(bridge) = bridges.get_mut(bridge) {
                bridge.ports.insert(*port);
            }
        }
        bridges
    }

    /// Returns whether [`NodeInterfaces::roles`] is outdated.
    pub(super) fn have_changed(&self, compiler: &Compiler, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
            || self.roles.as_ref().is_none_or(|(of, _)| *of != compiler.endpoints_version())
    }

    /// Returns the time at which the roles become outdated without any event.
    pub(super) fn next_change(&self) -> Option<Instant> {
        self.due
    }

    /// Assigns the role of each interface. A veth with an unknown pod is closed while it is new; later it is one of the
    /// node's devices, which judge only packets to Services.
    ///
    /// `restored`: pods may exist that the compiler does not have.
    pub(super) fn assign_roles(
        &mut self,
        compiler: &Compiler,
        restored: bool,
        now: Instant,
    ) -> &BTreeMap<u32, Role> {
        let pods: BTreeMap<u32, Role> = compiler
            .endpoints()
            .map(|e| (e.ifindex, if e.slot.is_some() { Role::Pod(e.id) } else { Role::Closed }))
            .collect();
        self.look_for_results(compiler, now);
        let held = self.veths.iter().filter(|(index, _)| !pods.contains_key(index));
        let held = held.filter(|(_, veth)| veth.held && self.results != CniResults::None);
        let awaits = LazyCell::new(|| restored || awaits_interface(compiler));
        let until = |veth: &TrackedVeth| match now.saturating_duration_since(veth.since) {
            age if age < HOLD => Some(veth.since + HOLD),
            // The end of the wait changes no endpoint, so the roles are assigned again every HOLD.
            age if age < HOLD_MAX && *awaits => Some(now + HOLD),
            _ => None,
        };
        let held = held.filter_map(|(index, veth)| Some((*index, until(veth)?)));
        let held: BTreeMap<u32, Instant> = held.collect();
        self.due = held.values().min().copied();
        let exits = self.devices.iter().filter(|(_, device)| device.is_exit);
        let devices = exits.map(|(index, it)| {
            let link = it.link.map(|link| {
                if self.leads_to_foreign_namespace(it) { link.of_exit() } else { link }
            });
            (*index, &it.name, link)
        });
        let veths = self.veths.iter().map(|(index, it)| (*index, &it.name, Some(DeviceLink::Veth)));
        let bridges = self.bridges(compiler);
        let with_pods = |index: &u32| {
            let is_door = self
                .devices
                .get(index)
                .is_some_and(|device| self.leads_to_foreign_namespace(device));
            !is_door && self.ports.get(index).is_some_and(|bridge| bridges.contains_key(bridge))
        };
        let devices = devices.chain(veths).filter_map(|(index, name, link)| {
            let link = link?;
            if held.contains_key(&index) {
                return Some((index, Role::Closed));
            }
            if !self.judged.include(name) {
                // The guard has closed veths; the role reopens them.
                return (link == DeviceLink::Veth).then_some((index, Role::Unjudged));
            }
            let is_port = link == DeviceLink::Ethernet && with_pods(&index);
            Some((index, Role::Device(if is_port { DeviceLink::Port } else { link })))
        });
        let bridges = bridges.keys().filter(|_| self.judged != NodeDevices::None);
        let bridges = bridges.map(|bridge| (*bridge, Role::Device(DeviceLink::Bridge)));
        let roles = devices.chain(bridges).chain(pods).collect();
        &self.roles.insert((compiler.endpoints_version(), roles)).1
    }

    /// Gives up CNI results once a pod has existed for [`HOLD`] without any.
    fn look_for_results(&mut self, compiler: &Compiler, now: Instant) {
        let is_old =
            |index: u32| self.veths.get(&index).is_some_and(|veth| veth.since + HOLD <= now);
        let mut pods = compiler.endpoints().filter(|endpoint| !endpoint.waiting);
        if self.results == CniResults::Expected && pods.any(|pod| is_old(pod.ifindex)) {
            tracing::info!("pods start without CNI results: new interfaces do not wait for them");
            self.results = CniResults::None;
        }
    }

    /// Returns the last assigned roles.
    pub(super) fn roles(&self) -> Option<&BTreeMap<u32, Role>> {
        self.roles.as_ref().map(|(_, roles)| roles)
    }

    /// Returns the names of the devices with programs, sorted.
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

/// Returns whether a pod of this node has no interface.
fn awaits_interface(compiler: &Compiler) -> bool {
    let cluster = compiler.cluster();
    let bound: Vec<EndpointInfo> = compiler.endpoints().collect();
    let mut pods = cluster.pods().values().filter(|pod| pod.node == cluster.node_name());
    pods.any(|pod| is_subject(pod) && !bound.iter().any(|endpoint| endpoint.is_of(pod)))
}

/// Returns the pod of an endpoint number.
#[must_use]
pub fn pod_of(compiler: &Compiler, endpoint: u32) -> Option<Key> {
    compiler.endpoints().find(|e| e.id == endpoint && !e.waiting).map(|e| e.pod)
}

#[cfg(test)]
mod tests {
    use netpold_core::model::{Change, Pod};
    use netpold_core::options::Options;
    use netpold_testkit::objects;

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
        assert_eq!(interfaces.trusted_interfaces(), None, "nothing is known yet");
        interfaces.set_devices(BTreeMap::from([
            (2, device("eth0", DeviceLink::Ethernet, false)),
            (3, device("door", DeviceLink::EthernetTunnel, true)),
        ]));
        let compiler = Compiler::new(Options::default());
        assert_eq!(interfaces.trusted_interfaces(), Some([2].into()));
        assert_eq!(interfaces.foreign_devices().collect::<Vec<_>>(), ["door"]);
        let role = interfaces.assign_roles(&compiler, false, Instant::now())[&3];
        assert_eq!(role, Role::Device(DeviceLink::Ethernet), "nothing proves what comes by it");
        interfaces.trust("do*".parse().unwrap());
        assert_eq!(interfaces.trusted_interfaces(), Some([2, 3].into()));
        assert_eq!(
            interfaces.assign_roles(&compiler, false, Instant::now())[&3],
            Role::Device(DeviceLink::EthernetTunnel)
        );
        interfaces.judge_at(NodeDevices::None);
        assert_eq!(interfaces.trusted_interfaces(), None, "not every veth gets a program");
    }

    #[test]
    fn a_new_veth_stays_closed_while_a_pod_of_the_node_lacks_an_interface() {
        let options = Options { node: "n".into(), ..Options::default() };
        let mut compiler = Compiler::new(options);
        let mut interfaces = NodeInterfaces::new();
        interfaces.has_results();
        interfaces.in_sync();
        let begin = Instant::now();
        let veth = bindings::Veth { index: 7, name: "veth7".into(), ..bindings::Veth::default() };
        interfaces.set_veth(&veth, begin);
        let mut role = |compiler: &Compiler, restored, seconds| {
            let now = begin + Duration::from_secs(seconds);
            interfaces.assign_roles(compiler, restored, now)[&7]
        };
        let open = Role::Device(DeviceLink::Veth);
        assert_eq!([9, 10].map(|age| role(&compiler, false, age)), [Role::Closed, open]);
        assert_eq!(role(&compiler, true, 10), Role::Closed, "pods may be unknown");
        let pod = objects::pod("x", "a", &[], &[]);
        let mut pod = Pod { node: "n".into(), host_network: true, ..pod };
        compiler.ingest(Change::Pod(pod.clone()));
        assert_eq!(role(&compiler, false, 10), open, "it is the node's");
        pod.host_network = false;
        compiler.ingest(Change::Pod(pod));
        assert_eq!([10, 239].map(|age| role(&compiler, false, age)), [Role::Closed; 2]);
        assert_eq!(role(&compiler, false, 240), open, "no sandbox takes that long");
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
