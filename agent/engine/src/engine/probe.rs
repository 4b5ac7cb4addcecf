//! Answers probes from the objects, the tables and the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netpold_api::probe::{EndVerdict, NodeAnswer, SourceVerdict};
use netpold_core::cluster::Cluster;
use netpold_core::compile::EndpointInfo;
use netpold_core::explain::{Explainer, Explanation};
use netpold_core::model::{Direction, InterfaceOwner, Key};
use netpold_core::probe::{IpProtocol, Party, Probe};
use netpold_dataplane::ProbeRun;
use netpold_dataplane::conntrack::FlowKey;
use netpold_ebpf::direction::{Egress, Ingress};
use netpold_ebpf::event;
use netpold_ebpf::layout::{Ct4Key, Ct6Key, DropEvent};
use netpold_ebpf::reason::Reason;

use super::Engine;
use super::reconciler::Reconciler;
use crate::probe::packet::ProbePacket;
use crate::probe::tables::CompiledTables;

/// Maximum number of ends examined per probe.
const ENDS: usize = 64;
/// Incoming interface of packets sent neither by the node nor by one of its pods: the loopback interface never belongs
/// to a pod, and its packets need no proof.
const ELSEWHERE: u32 = 1;

/// A packet at a pod's interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ProbedPacket {
    pod: Key,
    direction: Direction,
    local: IpAddr,
    remote: IpAddr,
    port: u16,
    by_node: bool,
}

impl Engine {
    /// Answers a probe. Calls `expect` with the drop event of each packet before a program judges that packet.
    pub fn probe(&mut self, probe: &Probe, expect: &mut dyn FnMut(DropEvent)) -> NodeAnswer {
        let in_force = self.is_settled();
        let resolved = self.reconciler.resolved_or_none();
        let Reconciler { compiler, dataplane, .. } = &mut self.reconciler;
        let cluster = compiler.cluster();
        let explainer = Explainer::new(cluster).with_resolved(&resolved);
        let explanation = explainer.explain(probe);
        let local = EndpointsByPod::new(cluster, compiler.endpoints());
        let all = asked(cluster, &local, probe, &explanation);
        let all: Vec<(ProbedPacket, &EndpointInfo)> =
            all.into_iter().filter_map(|at| local.at(&at).map(|endpoint| (at, endpoint))).collect();
        let settings = dataplane.active().settings();
        let tables = settings.map(|settings| CompiledTables::new(compiler.desired(), settings));
        let mut ends = Vec::new();
        for (at, endpoint) in all.iter().take(ENDS) {
            let Some(tables) = &tables else { continue };
            let packet = packet(at, probe.protocol);
            let Some(frame) = packet.frame(endpoint.station) else { continue };
            let came_by = match (at.direction, at.by_node) {
                (Direction::Egress, _) => endpoint.ifindex,
                (Direction::Ingress, true) => 0,
                (Direction::Ingress, false) => ELSEWHERE,
            };
            let verdict = tables.judge(at.direction, endpoint.ifindex, came_by, &frame);
            let reason = verdict.reason();
            // The compiled tables lack the tables of resolved names, which the programs write.
            let may_be_named =
                reason == Reason::Policy && tables.has_names(at.direction, endpoint.slot);
            let shown = ProbeRun {
                direction: at.direction,
                ifindex: endpoint.ifindex,
                came_by,
                frame: &frame,
                flow: packet.may_leave_flow().then(|| flow(endpoint.id, at, &packet)),
                reason: if reason.is_drop() { reason } else { Reason::Policy },
            };
            expect(expected(&shown, endpoint.id));
            let kernel = dataplane.active_mut().show(&shown);
            let allowed =
                explainer.allows(&at.pod, at.direction, at.remote, probe.protocol, at.port);
            ends.push(EndVerdict {
                pod: at.pod.clone(),
                direction: at.direction,
                local: local.is_second(at).then_some(at.local),
                remote: at.remote,
                port: at.port,
                objects: allowed.map_or(SourceVerdict::Unknown, |allowed| {
                    SourceVerdict::from_passes(allowed || at.by_node)
                }),
                tables: if may_be_named {
                    SourceVerdict::Unknown
                } else {
                    SourceVerdict::from_passes(verdict.passes())
                },
                tables_reason: reason.as_str().to_owned(),
                kernel: kernel
                    .as_ref()
                    .map_or(SourceVerdict::Unknown, |passes| SourceVerdict::from_passes(*passes)),
                problem: kernel.err(),
            });
        }
        NodeAnswer {
            node: cluster.node_name().to_owned(),
            in_force,
            verdict: explanation.verdict.into(),
            lines: explanation.lines(),
            reason: explanation.reason,
            ends,
            left_out: all.len().saturating_sub(ENDS),
        }
    }
}

/// The node's endpoints by pod, with the addresses at each interface: a pod has an endpoint for each network.
struct EndpointsByPod<'c> {
    cluster: &'c Cluster,
    by_pod: BTreeMap<Key, Vec<LocalEndpoint>>,
}

struct LocalEndpoint {
    info: EndpointInfo,
    addresses: Vec<IpAddr>,
    /// Whether the interface is on a secondary network.
    is_second: bool,
}

impl<'c> EndpointsByPod<'c> {
    fn new(cluster: &'c Cluster, endpoints: impl Iterator<Item = EndpointInfo>) -> Self {
        let mut by_pod: BTreeMap<Key, Vec<LocalEndpoint>> = BTreeMap::new();
        for info in endpoints.filter(|endpoint| !endpoint.waiting) {
            let interface = cluster.interfaces().get(&info.ifindex);
            let addresses = interface.map(|it| cluster.addresses_at(it)).unwrap_or_default();
            let is_second = interface.is_some_and(
                |it| matches!(&it.owner, InterfaceOwner::Pod(bound) if bound.is_secondary),
            );
            let endpoint = LocalEndpoint { info, addresses, is_second };
            by_pod.entry(endpoint.info.pod.clone()).or_default().push(endpoint);
        }
        Self { cluster, by_pod }
    }

    fn endpoints_of(&self, pod: &Key) -> &[LocalEndpoint] {
        self.by_pod.get(pod).map_or(&[], Vec::as_slice)
    }

    /// Returns the endpoint with the address of a packet's local side; addresses of the pod's status are at the first
    /// interface. `None`: no program judges packets of this address.
    fn at(&self, at: &ProbedPacket) -> Option<&EndpointInfo> {
        let of_pod = self.endpoints_of(&at.pod);
        let known = of_pod.iter().find(|endpoint| endpoint.addresses.contains(&at.local));
        let is_first = !self.is_second(at);
        let first = || of_pod.iter().find(|endpoint| !endpoint.is_second && is_first);
        known.or_else(first).map(|endpoint| &endpoint.info)
    }

    /// Returns whether the local address of a packet is absent from the pod's status.
    fn is_second(&self, at: &ProbedPacket) -> bool {
        let pod = self.cluster.pods().get(&at.pod);
        pod.is_some_and(|pod| !pod.addresses.contains(&at.local))
    }
}

/// Returns both directions at every pod on the path.
fn asked(
    cluster: &Cluster,
    local: &EndpointsByPod<'_>,
    probe: &Probe,
    explanation: &Explanation,
) -> BTreeSet<ProbedPacket> {
    let mut asked = BTreeSet::new();
    let side = |party| side(cluster, local, party);
    let (from, to) = (side(&probe.from), side(&probe.to));
    for (sender, source) in &from {
        let same_family = |address: &IpAddr| address.is_ipv4() == source.is_ipv4();
        // Packets from the node always reach the pod: no policy denies them.
        let by_node = sender.is_none() && cluster.is_own_node(*source);
        let mut receives = |pod: &Key, local: IpAddr, port| {
            let at = ProbedPacket {
                pod: pod.clone(),
                direction: Direction::Ingress,
                local,
                remote: *source,
                port,
                by_node,
            };
            asked.insert(at)
        };
        for (receiver, destination) in to.iter().filter(|(_, to)| same_family(to)) {
            if sender.is_some() && sender == receiver {
                // A pod's packets to itself need not pass its interface.
                continue;
            }
            if let Some(pod) = receiver {
                receives(pod, *destination, probe.port);
            }
        }
        for backend in explanation.backends.iter().filter(|it| same_family(&it.address)) {
            if let Some(pod) = backend.pod.as_ref().filter(|pod| sender.as_ref() != Some(*pod)) {
                receives(pod, backend.address, backend.port);
            }
        }
        for (receiver, destination) in to.iter().filter(|(_, to)| same_family(to)) {
            if let Some(pod) = sender.as_ref().filter(|_| sender != receiver) {
                asked.insert(ProbedPacket {
                    pod: pod.clone(),
                    direction: Direction::Egress,
                    local: *source,
                    remote: *destination,
                    port: probe.port,
                    by_node: false,
                });
            }
        }
    }
    asked
}

/// Returns the addresses of a party, with the pod of each: of a pod those of its status, those that count on secondary
/// networks, and those at its interfaces on this node.
fn side(
    cluster: &Cluster,
    local: &EndpointsByPod<'_>,
    party: &Party,
) -> Vec<(Option<Key>, IpAddr)> {
    match party {
        Party::Address(address) => {
            let owner = cluster.owner(*address).map(|pod| pod.key.clone());
            vec![(owner, *address)]
        }
        Party::Pod(key) => {
            let pod = cluster.pods().get(key);
            let of_pod = pod.into_iter().flat_map(|pod| {
                pod.addresses.iter().copied().chain(cluster.secondary_addresses(pod))
            });
            let here =
                local.endpoints_of(key).iter().flat_map(|endpoint| &endpoint.addresses).copied();
            let addresses: BTreeSet<IpAddr> = of_pod.chain(here).collect();
            addresses.into_iter().map(|address| (Some(key.clone()), address)).collect()
        }
        Party::Service(key) => {
            cluster.service_addresses(key).iter().map(|address| (None, *address)).collect()
        }
    }
}

fn packet(at: &ProbedPacket, protocol: IpProtocol) -> ProbePacket {
    let (from, to) = match at.direction {
        Direction::Ingress => (at.remote, at.local),
        Direction::Egress => (at.local, at.remote),
    };
    ProbePacket { from, to, protocol, port: at.port, by_node: at.by_node }
}

/// Returns the flow that a packet may begin.
fn flow(endpoint: u32, at: &ProbedPacket, packet: &ProbePacket) -> FlowKey {
    let (source, destination) = packet.ports();
    let (local_port, remote_port) = match at.direction {
        Direction::Ingress => (destination, source),
        Direction::Egress => (source, destination),
    };
    let protocol = u32::from(packet.number());
    match at.remote {
        IpAddr::V4(remote) => {
            let remote = remote.to_bits();
            FlowKey::V4(Ct4Key { endpoint, remote, local_port, remote_port, protocol })
        }
        IpAddr::V6(remote) => {
            let (remote, reserved) = (remote.octets(), 0);
            FlowKey::V6(Ct6Key { endpoint, local_port, remote_port, remote, protocol, reserved })
        }
    }
}

/// Returns the event of a packet if it is dropped.
fn expected(shown: &ProbeRun<'_>, endpoint: u32) -> DropEvent {
    let mut event = DropEvent { ifindex: shown.ifindex, endpoint, ..DropEvent::default() };
    match shown.direction {
        Direction::Ingress => event::describe::<Ingress, _>(&shown.frame, &mut event),
        Direction::Egress => event::describe::<Egress, _>(&shown.frame, &mut event),
    }
    event
}
