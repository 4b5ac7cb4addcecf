//! `netpold diff --live`: open connections that a change cuts.
//!
//! The flows of the pods' veths are the source: a connection has a flow at each end that is a pod of an asked node. The
//! sender's flow has the original destination, for instance a Service's address. Ends are joined by addresses and
//! ports. A connection to a Service is joined with the backend that has a flow from the same address and port, or with
//! the backend in the conntrack of the sender's node. Both ends are judged, in the clusters before and after.
//!
//! The verdict may depend on the backend if the backend of a Service's connection is unknown: the node has no
//! conntrack, or the connection comes from outside the asked nodes. The same holds for a connection that the node
//! masqueraded to a pod of its own: an explanation covers traffic of the node itself, which always passes, but not
//! traffic that only has the node's address.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use netpold_api::flows::{FlowState, FlowsAnswer, ListedFlow, TranslatedFlow};
use netpold_client::flows::address_and_port;
use netpold_core::cluster::Cluster;
use netpold_core::explain::Explainer;
use netpold_core::model::{Direction, Key};
use netpold_core::probe::{IpProtocol, Party, Probe};
use serde::Serialize;

/// Effect of a change on the open connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionEffects {
    /// Number of judged connections.
    pub open: usize,
    /// Connections that the change cuts.
    pub cut: Vec<ConnectionGroup>,
    /// Connections that depend on an unknown backend of a Service.
    pub unsure: Vec<ConnectionGroup>,
    /// Number of connections of pods that exist in one cluster only: they were not judged.
    pub gone: usize,
    /// Reasons why connections are unknown.
    pub problems: Vec<String>,
}

/// Connections from one party to a port of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConnectionGroup {
    /// Initiator: `namespace/pod`, or an address.
    pub from: String,
    /// Responder: `namespace/pod`, `svc/namespace/name` or an address.
    pub to: String,
    /// IP protocol.
    pub protocol: IpProtocol,
    /// Destination port; 0 where the protocol has none.
    pub port: u16,
    /// Connections of the group.
    pub connections: Vec<OpenConnection>,
}

/// Open connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct OpenConnection {
    /// Address and port of the initiator.
    pub from: String,
    /// Address and port of the responder.
    pub to: String,
    /// Original destination address and port, if the node translated them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_to: Option<String>,
}

/// Address and port.
type AddressPort = (IpAddr, u16);
/// Protocol, initiator, responder.
type ConnectionTuple = (IpProtocol, AddressPort, AddressPort);

/// Knowledge about a connection from its flows.
#[derive(Clone, Debug, Default)]
struct ConnectionFlows {
    from: Option<Key>,
    to: Option<Key>,
    from_node: bool,
    /// Address to judge instead of the destination, for a connection to the sender's own node.
    node: Option<IpAddr>,
    sent_to: Option<AddressPort>,
    /// Translation by the sender's node.
    translated: Option<TranslatedFlow>,
}

/// Fate of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionFate {
    Kept,
    Cut,
    Unsure,
    Gone,
}

/// Key of connections with the same judgement.
type ConnectionKey = (IpAddr, IpAddr, IpProtocol, u16, bool, Option<(IpAddr, AddressPort)>);

/// Judges the effect of a change from one cluster to another on the flows of these nodes.
#[must_use]
pub fn cuts(before: &Cluster, after: &Cluster, flows: &[FlowsAnswer]) -> ConnectionEffects {
    let mut judge = ConnectionJudge::new(before, after);
    let mut found = ConnectionEffects::default();
    let mut seen: BTreeMap<ConnectionTuple, ConnectionFlows> = BTreeMap::new();
    for answer in flows {
        for flow in answer.flows.iter().filter(|flow| flow.state != FlowState::Closed) {
            add_flow(before, flow, &mut seen);
        }
        let left_out: u64 = answer.left_out.iter().map(|pod| pod.flows).sum();
        if left_out > 0 {
            let node = &answer.node;
            found.problems.push(format!("node {node}: {left_out} flows were not listed"));
        }
        let problems = answer.problems.iter();
        found.problems.extend(problems.map(|problem| format!("node {}: {problem}", answer.node)));
    }
    judge.join_translated(&mut seen);
    let mut groups = [BTreeMap::new(), BTreeMap::new()];
    for (tuple, seen) in &seen {
        found.open += 1;
        let list = match judge.fate(tuple, seen) {
            ConnectionFate::Kept => continue,
            ConnectionFate::Gone => {
                found.open -= 1;
                found.gone += 1;
                continue;
            }
            ConnectionFate::Cut => &mut groups[0],
            ConnectionFate::Unsure => &mut groups[1],
        };
        let (protocol, from, to) = *tuple;
        let (to, sent_to) = match seen.translated {
            Some(on) if seen.sent_to.is_none() => (parse_end(on.to), Some(to)),
            Some(_) | None => (to, seen.sent_to),
        };
        let names = (judge.name(seen.from.as_ref(), from.0), judge.name(seen.to.as_ref(), to.0));
        let of: &mut Vec<OpenConnection> = list.entry((names, protocol, to.1)).or_default();
        of.push(OpenConnection {
            from: address_and_port(from.0, from.1),
            to: address_and_port(to.0, to.1),
            sent_to: sent_to.map(|(address, port)| address_and_port(address, port)),
        });
    }
    let [cut, unsure] = groups.map(|groups| {
        let group = |(((from, to), protocol, port), connections)| ConnectionGroup {
            from,
            to,
            protocol,
            port,
            connections,
        };
        groups.into_iter().map(group).collect()
    });
    ConnectionEffects { cut, unsure, ..found }
}

fn parse_end(address: SocketAddr) -> AddressPort {
    (address.ip(), address.port())
}

/// Records a flow under the tuple that the flow at the other end has, too.
fn add_flow(
    before: &Cluster,
    flow: &ListedFlow,
    seen: &mut BTreeMap<ConnectionTuple, ConnectionFlows>,
) {
    let same_family = |address: &&IpAddr| address.is_ipv4() == flow.remote.is_ipv4();
    let of = |addresses: &[IpAddr]| addresses.iter().find(same_family).copied();
    let pod = before.pods().get(&flow.pod);
    let Some(local) = flow.local.or_else(|| of(&pod?.addresses)) else { return };
    let (local, remote) = ((local, flow.local_port), (flow.remote, flow.remote_port));
    for direction in &flow.began {
        match direction {
            Direction::Egress => {
                let at = seen.entry((flow.protocol, local, remote)).or_default();
                at.from = Some(flow.pod.clone());
                let node = pod.filter(|_| flow.to_own_node).map(|pod| &pod.node);
                let node = node.and_then(|node| before.nodes().get(node.as_str()));
                at.node = node.and_then(|node| of(&node.addresses));
                at.translated = flow.translated;
            }
            Direction::Ingress => {
                let at = seen.entry((flow.protocol, remote, local)).or_default();
                at.to = Some(flow.pod.clone());
                at.from_node |= flow.from_node;
            }
        }
    }
}

/// Judge of connections in two clusters.
struct ConnectionJudge<'c> {
    before: &'c Cluster,
    explainers: [Explainer<'c>; 2],
    nodes: BTreeSet<IpAddr>,
    fates: HashMap<ConnectionKey, ConnectionFate>,
    backends: HashMap<(IpAddr, IpProtocol, u16), Vec<AddressPort>>,
}

impl<'c> ConnectionJudge<'c> {
    fn new(before: &'c Cluster, after: &'c Cluster) -> Self {
        let nodes = before.nodes().values().flat_map(|node| node.addresses.iter().copied());
        Self {
            before,
            explainers: [Explainer::new(before), Explainer::new(after)],
            nodes: nodes.collect(),
            fates: HashMap::new(),
            backends: HashMap::new(),
        }
    }

    /// Joins a sender's flow to a Service and the backend's flow into one connection.
    fn join_translated(&mut self, seen: &mut BTreeMap<ConnectionTuple, ConnectionFlows>) {
        let mut to_pods: BTreeMap<(IpProtocol, AddressPort), Vec<AddressPort>> = BTreeMap::new();
        for ((protocol, from, to), at) in seen.iter() {
            if at.to.is_some() {
                to_pods.entry((*protocol, *from)).or_default().push(*to);
            }
        }
        let (mut joined, mut masqueraded) = (Vec::new(), Vec::new());
        for ((protocol, from, to), at) in seen.iter().filter(|(_, at)| at.to.is_none()) {
            if let Some(on) = at.translated {
                // The backend's flow is the same connection.
                if parse_end(on.from) == *from {
                    joined.push(((*protocol, *from, *to), parse_end(on.to)));
                } else {
                    masqueraded.push((*protocol, parse_end(on.from), parse_end(on.to)));
                }
                continue;
            }
            let Some(candidates) = to_pods.get(&(*protocol, *from)) else { continue };
            let backends = self.backends(from.0, at.node.unwrap_or(to.0), *protocol, to.1);
            if let Some(backend) = candidates.iter().find(|end| backends.contains(end)) {
                joined.push(((*protocol, *from, *to), *backend));
            }
        }
        for tuple in masqueraded {
            seen.remove(&tuple);
        }
        for ((protocol, from, sent_to), backend) in joined {
            // The backend's flow is unknown if the backend's node was not asked.
            if !seen.contains_key(&(protocol, from, backend)) {
                continue;
            }
            let sender = seen.remove(&(protocol, from, sent_to)).and_then(|at| at.from);
            if let Some(at) = seen.get_mut(&(protocol, from, backend)) {
                at.from = at.from.take().or(sender);
                at.sent_to = Some(sent_to);
            }
        }
    }

    /// Returns the backends to which the node may translate packets to this address and port.
    fn backends(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        protocol: IpProtocol,
        port: u16,
    ) -> Vec<AddressPort> {
        if !self.nodes.contains(&to) && self.before.service_at(to).is_none() {
            return Vec::new();
        }
        let explainer = self.explainers[0];
        let backends = || {
            let (from, to) = (Party::Address(from), Party::Address(to));
            let answer = explainer.explain(&Probe { from, to, protocol, port });
            answer.backends.iter().map(|backend| (backend.address, backend.port)).collect()
        };
        self.backends.entry((to, protocol, port)).or_insert_with(backends).clone()
    }

    fn fate(
        &mut self,
        (protocol, from, to): &ConnectionTuple,
        seen: &ConnectionFlows,
    ) -> ConnectionFate {
        let port = if protocol.has_ports() { to.1 } else { 0 };
        let address = seen.node.unwrap_or(to.0);
        let on = seen.translated.map(|on| (on.from.ip(), parse_end(on.to)));
        let kind = (from.0, address, *protocol, port, seen.from_node, on);
        if let Some(fate) = self.fates.get(&kind) {
            return *fate;
        }
        let ends = [(from.0, seen.from.as_ref()), (address, seen.to.as_ref())];
        let direct = self.fate_of(ends, *protocol, port, seen.from_node);
        let mut fate = direct;
        if let (ConnectionFate::Kept, Some(on)) = (direct, on) {
            fate = self.fate_on(ends[0], on, *protocol);
        } else if direct == ConnectionFate::Kept && seen.to.is_none() {
            let backends = self.backends(from.0, address, *protocol, port);
            let fates = backends.into_iter().map(|(address, port)| {
                self.fate_of([ends[0], (address, None)], *protocol, port, false)
            });
            let fates: Vec<ConnectionFate> = fates.collect();
            let cut = fates.iter().filter(|fate| **fate == ConnectionFate::Cut).count();
            fate = match cut {
                0 => ConnectionFate::Kept,
                all if all == fates.len() => ConnectionFate::Cut,
                _ => ConnectionFate::Unsure,
            };
        }
        self.fates.insert(kind, fate);
        fate
    }

    /// Returns the fate of a connection that the sender's node translates to this source address and destination.
    fn fate_on(
        &self,
        sender: (IpAddr, Option<&Key>),
        (source, (to, port)): (IpAddr, AddressPort),
        protocol: IpProtocol,
    ) -> ConnectionFate {
        let receiver = (to, None);
        let direct = self.fate_of([sender, receiver], protocol, port, false);
        if source == sender.0 {
            return direct;
        }
        let node = self.before.owner(to).and_then(|pod| self.before.nodes().get(pod.node.as_str()));
        let sent = self.fate_of([sender, receiver], protocol, port, true);
        let received = match node.is_some_and(|node| node.addresses.contains(&source)) {
            true if direct == ConnectionFate::Kept => ConnectionFate::Kept,
            true => ConnectionFate::Unsure,
            false => self.fate_of([(source, None), receiver], protocol, port, false),
        };
        match (sent, received) {
            (ConnectionFate::Cut, _) | (_, ConnectionFate::Cut) => ConnectionFate::Cut,
            (ConnectionFate::Gone, _) | (_, ConnectionFate::Gone) => ConnectionFate::Gone,
            (ConnectionFate::Unsure, _) | (_, ConnectionFate::Unsure) => ConnectionFate::Unsure,
            (ConnectionFate::Kept, ConnectionFate::Kept) => ConnectionFate::Kept,
        }
    }

    /// Returns the fate of an untranslated connection, or of the untranslated part of a path.
    fn fate_of(
        &self,
        [(from, sender), (to, receiver)]: [(IpAddr, Option<&Key>); 2],
        protocol: IpProtocol,
        port: u16,
        from_node: bool,
    ) -> ConnectionFate {
        let owner = |address| self.before.owner(address).map(|pod| &pod.key);
        let (sender, receiver) = (sender.or_else(|| owner(from)), receiver.or_else(|| owner(to)));
        let allowed = self.explainers.map(|explainer| {
            let at = |pod: Option<&Key>, direction, remote| match pod {
                Some(pod) => explainer.allows(pod, direction, remote, protocol, port),
                None => Some(true),
            };
            let sent = at(sender, Direction::Egress, to)?;
            let received = from_node || at(receiver, Direction::Ingress, from)?;
            Some(sent && received)
        });
        match allowed {
            [Some(true), Some(false)] => ConnectionFate::Cut,
            [Some(_), Some(_)] => ConnectionFate::Kept,
            [None, _] | [_, None] => ConnectionFate::Gone,
        }
    }

    fn name(&self, pod: Option<&Key>, address: IpAddr) -> String {
        let owner = || self.before.owner(address).map(|pod| &pod.key);
        let service = || self.before.service_at(address).map(|key| format!("svc/{key}"));
        let pod = pod.or_else(owner).map(ToString::to_string);
        pod.or_else(service).unwrap_or_else(|| address.to_string())
    }
}
