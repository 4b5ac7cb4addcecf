//! Checks for pods of a service mesh: policies without the mesh's port, or without a way to its control plane.
//!
//! Between members, the proxies send to a port of the mesh instead of the application's port: 15008 (HBONE) in Istio's
//! ambient mode, 4143 in Linkerd. A rule for the application's port alone allows none of these packets.

mod control_plane;

use netpold_client::details::complete::is_stand_in;
use netpold_client::details::{IgnoredPorts, Mesh, PastProxy};
use netpold_core::explain::Verdict;
use netpold_core::model::{Direction, Labels, Peer, PortMatch, PortRule, Protocol, Rule};
use netpold_core::probe::IpProtocol;

use crate::finding::{Check, Findings, Severity};
use crate::objects::{GroupedObjects, NamedPolicy, PodGroup, pods_text};

const MESH_PORT: Check = Check {
    name: "mesh-port",
    severity: Severity::Warning,
    problem: "pods are in the mesh {}, and their policies allow ports of applications, but not the mesh's",
    fix: "add the port to the rules' ports, beside the applications': Istio's ambient mode {protocol: TCP, port: 15008}, \
          Linkerd {protocol: TCP, port: 4143}",
};

/// Label that puts pods and namespaces into Istio's ambient mode.
const DATAPLANE: &str = "istio.io/dataplane-mode";

/// Ports at which members of meshes receive.
const HBONE: u16 = 15008;
const LINKERD: u16 = 4143;

/// Most groups of members for which rules of ClusterNetworkPolicies are judged.
const ASKED: usize = 32;

/// Checks every group that some policy isolates.
pub(crate) fn examine(objects: &GroupedObjects<'_>, found: &mut Findings) {
    let meshes: Vec<Option<Mesh>> =
        objects.groups.iter().map(|group| mesh(objects, group)).collect();
    if meshes.iter().all(Option::is_none) {
        return;
    }
    control_plane::examine(objects, &meshes, found);
    // Sidecars use HBONE only towards members of ambient mode.
    let has_ambient = meshes.contains(&Some(Mesh::Ambient));
    let port = |mesh: Option<Mesh>| match mesh? {
        Mesh::Ambient => Some(("Istio", HBONE)),
        Mesh::IstioHbone if has_ambient => Some(("Istio", HBONE)),
        Mesh::IstioHbone | Mesh::Istio => None,
        Mesh::Linkerd => Some(("Linkerd", LINKERD)),
    };
    let ports: Vec<_> = meshes.into_iter().map(port).collect();
    for (group, own) in objects.groups.iter().zip(&ports) {
        let Some((name, number)) = own else { continue };
        for direction in Direction::BOTH {
            let members = objects.groups.iter().zip(&ports);
            let members = members.filter(|(_, port)| *port == own).map(|(group, _)| group);
            let members: Vec<&PodGroup<'_>> = members.collect();
            if let Some(place) = lacks(objects, group, direction, *number, &members) {
                found.add_of(&MESH_PORT, name, place);
            }
        }
    }
}

/// Returns the place of the first rule for members of the mesh, if no rule has the mesh's port.
fn lacks(
    objects: &GroupedObjects<'_>,
    group: &PodGroup<'_>,
    direction: Direction,
    number: u16,
    members: &[&PodGroup<'_>],
) -> Option<String> {
    let isolating = objects.isolating(group, direction);
    let own = Some(group.namespace);
    let is_member = |peer: &Peer| match peer {
        Peer::Pods { namespaces, pods } => {
            members.iter().any(|member| member.is_in(own, namespaces.as_ref(), pods))
        }
        // Blocks may hold the members' addresses.
        Peer::Block(_) | Peer::Nodes(_) | Peer::Domain(_) => true,
    };
    let mut rules = isolating.iter().flat_map(|(_, rules)| rules.iter());
    let is_open = |rule: &Rule| {
        let peers = rule.peers.as_ref();
        allows(rule, number) && peers.is_none_or(|peers| peers.iter().any(is_member))
    };
    if rules.any(is_open) {
        return None;
    }
    let is_for_member = |rule: &Rule| match &rule.peers {
        // An unrestricted ingress peer may be a member; unrestricted egress is mostly for outside addresses.
        None => direction == Direction::Ingress,
        Some(peers) => peers.iter().any(|peer| match peer {
            Peer::Pods { namespaces, pods } => {
                members.iter().any(|member| member.is_in(own, namespaces.as_ref(), pods))
            }
            Peer::Block(_) | Peer::Nodes(_) | Peer::Domain(_) => false,
        }),
    };
    for (policy, rules) in isolating {
        for (index, rule) in rules.iter().enumerate() {
            if is_tcp(rule)
                && is_for_member(rule)
                && !passes_proxies(objects, (group, direction), rule, members)
                && !is_accepted(objects, (group, direction), (rule, number), members)
            {
                let named = NamedPolicy::policy(policy, objects.details);
                let path = format!("spec.{direction}[{index}].ports");
                let what = format!("no TCP {number} ({})", pods_text(group));
                return Some(named.at(&path, &what));
            }
        }
    }
    None
}

/// Returns the members that a rule for the group has as peers.
fn peers_of<'g>(
    group: &PodGroup<'_>,
    rule: &Rule,
    members: &[&'g PodGroup<'g>],
) -> Vec<&'g PodGroup<'g>> {
    let own = Some(group.namespace);
    let is_peer = |member: &PodGroup<'_>| match &rule.peers {
        None => true,
        Some(peers) => peers.iter().any(|peer| {
            matches!(peer, Peer::Pods { namespaces, pods }
                if member.is_in(own, namespaces.as_ref(), pods))
        }),
    };
    members.iter().copied().filter(|it| is_peer(it)).collect()
}

/// Returns whether rules of ClusterNetworkPolicies accept the mesh's port between the group and the members that the rule
/// has as peers.
fn is_accepted(
    objects: &GroupedObjects<'_>,
    (group, direction): (&PodGroup<'_>, Direction),
    (rule, number): (&Rule, u16),
    members: &[&PodGroup<'_>],
) -> bool {
    let Some(pod) = group.pods.first() else { return false };
    if objects.cluster.cluster_policies().next().is_none() {
        return false;
    }
    let mut remotes = peers_of(group, rule, members)
        .into_iter()
        .take(ASKED)
        .filter_map(|peer| peer.pods.iter().find(|peer| peer.key != pod.key))
        .flat_map(|peer| &peer.addresses)
        .peekable();
    remotes.peek().is_some()
        && remotes.all(|remote| {
            let judged =
                objects.explainer.judge(&pod.key, direction, *remote, IpProtocol::TCP, number);
            judged.is_some_and(|it| it.verdict == Verdict::Allow && it.tiers.decided_by.is_some())
        })
}

/// Returns whether the packets of every TCP port of a rule pass the proxies by: at the receivers or at the senders, which
/// are the group and the members that the rule has as peers.
fn passes_proxies(
    objects: &GroupedObjects<'_>,
    (group, direction): (&PodGroup<'_>, Direction),
    rule: &Rule,
    members: &[&PodGroup<'_>],
) -> bool {
    let peers = peers_of(group, rule, members);
    let (receivers, senders) = match direction {
        Direction::Ingress => (vec![group], peers),
        Direction::Egress => (peers, vec![group]),
    };
    let pass = |groups: &[&PodGroup<'_>],
                port: &PortRule,
                side: fn(&PastProxy) -> &IgnoredPorts| {
        let mut pods = groups.iter().flat_map(|group| &group.pods).peekable();
        pods.peek().is_some()
            && pods.all(|pod| {
                let Some(details) = objects.pod(pod) else { return false };
                let numbers: Vec<(u16, u16)> = match &port.port {
                    PortMatch::Any => vec![(0, u16::MAX)],
                    PortMatch::Range(first, last) => vec![(*first, *last)],
                    PortMatch::Named(name) => {
                        let receiver = receivers.iter().flat_map(|group| &group.pods);
                        let ports = receiver.flat_map(|pod| &pod.ports);
                        ports.filter(|it| it.name == *name).map(|it| (it.port, it.port)).collect()
                    }
                };
                let ranges = side(&details.past_proxy);
                !numbers.is_empty()
                    && numbers.iter().all(|(first, last)| ranges.contain(*first, *last))
            })
    };
    let mut ports = rule.ports.iter().flatten().filter(|port| port.protocol == Protocol::Tcp);
    ports.all(|port| {
        pass(&receivers, port, |it| &it.inbound) || pass(&senders, port, |it| &it.outbound)
    })
}

fn is_tcp(rule: &Rule) -> bool {
    rule.ports.iter().flatten().any(|port| port.protocol == Protocol::Tcp)
}

fn allows(rule: &Rule, number: u16) -> bool {
    let has = |port: &PortRule| {
        port.protocol == Protocol::Tcp
            && match &port.port {
                PortMatch::Any => true,
                PortMatch::Range(first, last) => (*first..=*last).contains(&number),
                PortMatch::Named(name) => name.contains("hbone") || name == "linkerd-proxy",
            }
    };
    rule.ports.as_ref().is_none_or(|ports| ports.iter().any(has))
}

/// Returns the mesh of a group: from the containers, else from the labels of pods and namespace.
fn mesh(objects: &GroupedObjects<'_>, group: &PodGroup<'_>) -> Option<Mesh> {
    let of_pods = group.pods.iter().find_map(|pod| objects.pod(pod)?.mesh);
    let mode = |labels: &Labels| labels.get(DATAPLANE).cloned();
    let labelled = || {
        let mode = mode(group.labels).or_else(|| mode(&group.namespace_labels));
        (mode.as_deref() == Some("ambient")).then_some(Mesh::Ambient)
    };
    // The proxy of a pod that runs is among its containers.
    let is_planned = || {
        let mut addresses = group.pods.iter().flat_map(|pod| &pod.addresses);
        addresses.all(|address| is_stand_in(*address))
    };
    let is_left_out =
        || group.pods.iter().any(|pod| objects.pod(pod).is_some_and(|details| details.no_mesh));
    let of_namespace = || {
        let mesh = objects.details.meshed.get(group.namespace).copied();
        mesh.filter(|_| is_planned() && !is_left_out())
    };
    of_pods.or_else(labelled).or_else(of_namespace)
}

/// Returns whether a port is that of the mesh whose members these pods are: the proxy listens there, not a container.
pub(crate) fn is_port(
    objects: &GroupedObjects<'_>,
    pods: &[&PodGroup<'_>],
    (protocol, number): (Protocol, u16),
) -> bool {
    protocol == Protocol::Tcp
        && pods.iter().any(|group| match mesh(objects, group) {
            Some(Mesh::Ambient | Mesh::IstioHbone) => number == HBONE,
            Some(Mesh::Linkerd) => number == LINKERD,
            Some(Mesh::Istio) | None => false,
        })
}
