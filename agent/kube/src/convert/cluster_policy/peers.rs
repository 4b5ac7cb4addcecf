//! Peers and protocols of a ClusterNetworkPolicy's rule.

use netpold_core::model::{
    Action, DomainName, IpBlock, Peer, PortMatch, PortRule, Protocol, Selector, Tier,
};

use super::values::{given, items, labels, namespaced_pods, value};
use crate::convert::policy::cidr;
use crate::convert::port::is_port_name;
use crate::convert::problem::{FieldProblem, clipped};
use crate::document::DocumentNode;

/// Protocols that a named port may have.
const PROTOCOLS: [(&str, Protocol); 3] =
    [("tcp", Protocol::Tcp), ("udp", Protocol::Udp), ("sctp", Protocol::Sctp)];

/// Whether peers belong to an egress rule, which supports more kinds of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EgressPeers {
    /// `from`
    No,
    /// `to`
    Yes,
}

impl EgressPeers {
    const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::No => &["namespaces", "pods"],
            Self::Yes => &["namespaces", "pods", "nodes", "networks", "domainNames"],
        }
    }
}

/// Reads `from` or `to`; returns the valid peers.
pub(super) fn peers(
    node: &DocumentNode,
    path: &str,
    egress: EgressPeers,
    problems: &mut Vec<FieldProblem>,
) -> Option<Vec<Peer>> {
    let mut peers = Vec::new();
    for (index, node) in items(node, path, problems)?.iter().enumerate() {
        peer(node, &format!("{path}[{index}]"), egress, &mut peers, problems);
    }
    Some(peers)
}

/// Reads a peer, which must have exactly one field. A peer without a known field may be from a newer API.
fn peer(
    node: &DocumentNode,
    path: &str,
    egress: EgressPeers,
    peers: &mut Vec<Peer>,
    problems: &mut Vec<FieldProblem>,
) {
    let known = egress.fields();
    let mut set = known.iter().filter_map(|field| Some((*field, given(node, field)?)));
    let (Some((field, node)), None) = (set.next(), set.next()) else {
        let fields = known.join(", ");
        problems.push(FieldProblem::new(path, format!("needs exactly one of {fields}")));
        return;
    };
    let path = format!("{path}.{field}");
    match field {
        "namespaces" => peers.extend(labels(node, &path, problems).map(|namespaces| Peer::Pods {
            namespaces: Some(namespaces),
            pods: Selector::default(),
        })),
        "pods" => peers.extend(
            namespaced_pods(node, &path, problems)
                .map(|given| Peer::Pods { namespaces: Some(given.namespaces), pods: given.pods }),
        ),
        "nodes" => peers.extend(labels(node, &path, problems).map(Peer::Nodes)),
        "networks" => networks(node, &path, peers, problems),
        _ => domain_names(node, &path, peers, problems),
    }
}

fn networks(
    node: &DocumentNode,
    path: &str,
    peers: &mut Vec<Peer>,
    problems: &mut Vec<FieldProblem>,
) {
    for (index, node) in items(node, path, problems).unwrap_or_default().iter().enumerate() {
        let path = format!("{path}[{index}]");
        let Some(text) = value::<String>(node, &path, problems) else { continue };
        match cidr(&text) {
            Ok(cidr) => peers.push(Peer::Block(IpBlock { cidr, except: Vec::new() })),
            Err(reason) => problems.push(FieldProblem::new(path, reason)),
        }
    }
}

fn domain_names(
    node: &DocumentNode,
    path: &str,
    peers: &mut Vec<Peer>,
    problems: &mut Vec<FieldProblem>,
) {
    for (index, node) in items(node, path, problems).unwrap_or_default().iter().enumerate() {
        let path = format!("{path}[{index}]");
        let Some(text) = value::<String>(node, &path, problems) else { continue };
        match DomainName::try_from(text.clone()) {
            Ok(name) => peers.push(Peer::Domain(name)),
            Err(reason) => {
                problems.push(FieldProblem::new(path, format!("`{}` {reason}", clipped(text))));
            }
        }
    }
}

/// Reports domain names in a rule that cannot have them.
pub(super) fn check_domain_names(
    peers: Option<&[Peer]>,
    path: &str,
    (tier, action): (Tier, Option<Action>),
    problems: &mut Vec<FieldProblem>,
) {
    let has = |peers: &[Peer]| peers.iter().any(|peer| matches!(peer, Peer::Domain(_)));
    if (tier, action) != (Tier::Admin, Some(Action::Accept)) && peers.is_some_and(has) {
        problems.push(FieldProblem::new(
            path,
            "has domainNames, which only Accept rules of the Admin tier have",
        ));
    }
}

/// Reads `protocols` of a rule: `Some(None)` (every protocol) if absent; `None` if they cannot be interpreted.
#[expect(clippy::option_option, reason = "absent and not understood are two things")]
pub(super) fn protocols(
    rule: &DocumentNode,
    path: &str,
    peers: Option<&[Peer]>,
    problems: &mut Vec<FieldProblem>,
) -> Option<Option<Vec<PortRule>>> {
    let path = format!("{path}.protocols");
    let Some(node) = given(rule, "protocols") else { return Some(None) };
    let mut ports = Vec::new();
    for (index, node) in items(node, &path, problems)?.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let known = PROTOCOLS.map(|(field, _)| field).into_iter().chain(["destinationNamedPort"]);
        let mut set = known.filter_map(|field| Some((field, given(node, field)?)));
        let (Some((field, node)), None) = (set.next(), set.next()) else {
            let text = "needs exactly one of tcp, udp, sctp, destinationNamedPort";
            problems.push(FieldProblem::new(path, text));
            continue;
        };
        let path = format!("{path}.{field}");
        match PROTOCOLS.iter().find(|(name, _)| *name == field) {
            Some((_, protocol)) => {
                let port = port(node, &path, problems);
                ports.extend(port.map(|port| PortRule { protocol: *protocol, port }));
            }
            None => named(node, &path, peers, &mut ports, problems),
        }
    }
    Some(Some(ports))
}

/// Reads a named port. It has no protocol in this API, so it is listed for each. Only pods have named ports.
fn named(
    node: &DocumentNode,
    path: &str,
    peers: Option<&[Peer]>,
    ports: &mut Vec<PortRule>,
    problems: &mut Vec<FieldProblem>,
) {
    let Some(name) = value::<String>(node, path, problems) else { return };
    if !is_port_name(&name) {
        problems.push(FieldProblem::new(path, format!("`{name}` is not a port name")));
        return;
    }
    let no_pods = |peer: &Peer| matches!(peer, Peer::Block(_) | Peer::Nodes(_) | Peer::Domain(_));
    if peers.is_some_and(|peers| peers.iter().any(no_pods)) {
        problems
            .push(FieldProblem::new(path, "networks, nodes and domain names have no named ports"));
        return;
    }
    let of = |(_, protocol)| PortRule { protocol, port: PortMatch::Named(name.clone()) };
    ports.extend(PROTOCOLS.map(of));
}

/// Reads `destinationPort` of a protocol: `number` or `range`.
fn port(node: &DocumentNode, path: &str, problems: &mut Vec<FieldProblem>) -> Option<PortMatch> {
    let Some(node) = given(node, "destinationPort") else {
        problems.push(FieldProblem::new(path, "needs destinationPort"));
        return None;
    };
    let path = format!("{path}.destinationPort");
    match (given(node, "number"), given(node, "range")) {
        (Some(port), None) => {
            let port = number(port, &format!("{path}.number"), problems)?;
            Some(PortMatch::Range(port, port))
        }
        (None, Some(range)) => {
            let mut end = |field: &str| match given(range, field) {
                Some(node) => number(node, &format!("{path}.range.{field}"), problems),
                None => {
                    problems.push(FieldProblem::new(format!("{path}.range.{field}"), "is missing"));
                    None
                }
            };
            let (first, last) = (end("start"), end("end"));
            let (first, last) = (first?, last?);
            if last < first {
                let text = format!("{last} is less than start {first}");
                problems.push(FieldProblem::new(format!("{path}.range.end"), text));
                return None;
            }
            Some(PortMatch::Range(first, last))
        }
        (None, None) | (Some(_), Some(_)) => {
            problems.push(FieldProblem::new(path, "needs exactly one of number, range"));
            None
        }
    }
}

fn number(node: &DocumentNode, path: &str, problems: &mut Vec<FieldProblem>) -> Option<u16> {
    let number: i64 = value(node, path, problems)?;
    let port = u16::try_from(number).ok().filter(|n| *n > 0);
    if port.is_none() {
        problems.push(FieldProblem::new(path, format!("{number} is not a port, 1 to 65535")));
    }
    port
}
