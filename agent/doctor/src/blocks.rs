//! Check for address blocks that match no packet.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use netpold_core::model::{Action, Direction, IpBlock, Key, Peer, Pod, PortMatch, PortRule, Rule};
use netpold_core::probe::IpProtocol;

use crate::backend_index::PortBackends;
use crate::finding::{Check, Findings, Severity};
use crate::objects::{
    GroupedObjects, NamedPolicy, PodGroup, RulePlace, backends_elsewhere, is_allowed,
};

const NOTHING_LEFT: Check = Check {
    name: "except-covers-block",
    severity: Severity::Warning,
    problem: "the except blocks of an ipBlock leave nothing of it",
    fix: "narrow the except blocks, or delete the peer",
};
const NO_ADDRESS: Check = Check {
    name: "block-without-addresses",
    severity: Severity::Warning,
    problem: "an ipBlock contains no address that a packet can have: it {} nothing",
    fix: "for every address, write 0.0.0.0/0 (IPv4) and ::/0 (IPv6), or a rule without from or to; for one address, \
          /32 or /128",
};
const HOST_BITS: Check = Check {
    name: "block-with-host-bits",
    severity: Severity::Warning,
    problem: "a CIDR has bits set beyond its prefix length: it selects the whole block, and API servers warn or \
              refuse",
    fix: "write the block as it is read, or /32 (IPv4) or /128 (IPv6) for the one address",
};
const LEADING_ZEROS: Check = Check {
    name: "block-with-leading-zeros",
    severity: Severity::Warning,
    problem: "a CIDR has numbers with leading zeros: they are read as decimal, by other programs as octal, and API servers \
              warn or refuse",
    fix: "write the numbers without leading zeros",
};
const NETWORK: Check = Check {
    name: "block-of-a-network-address",
    severity: Severity::Warning,
    problem: "a CIDR is a single address, and the address is that of a network: the prefix length is probably wrong",
    fix: "write the network's prefix length, as in 10.0.0.0/8; none, if a host has this address",
};
const SERVICE_ADDRESS: Check = Check {
    name: "block-of-a-service",
    severity: Severity::Warning,
    problem: "an ipBlock is the address of Services, but policy sees packets after translation, at the backends: it {} \
              nothing",
    fix: "select the Service's pods by labels, with the targetPort; where it has no selector, write an ipBlock of its \
          endpoints (`kubectl get endpointslices`)",
};

/// Fix of [`SERVICE_ADDRESS`] in a ClusterNetworkPolicy.
const BACKENDS: &str = "select the Service's pods by labels, with the targetPort; where it has no selector, write its \
                        endpoints as networks (`kubectl get endpointslices`)";
/// Problem and fix of [`SERVICE_ADDRESS`] on ingress.
const NEVER_A_SOURCE: &str =
    "an ipBlock is the address of Services, which no packet has as its source: it {} nothing";
const SENDERS: &str =
    "select the senders' pods by labels, or write an ipBlock of the senders' own addresses";

/// Shortest prefixes, IPv4 and IPv6, that Kubernetes takes for a Service CIDR. The blocks of [`PRIVATE`] hold more than
/// Services.
const SERVICE_PREFIX: [u8; 2] = [12, 64];
const PRIVATE: [&str; 3] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"];

/// Checks the blocks of a rule.
pub(crate) fn examine(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    rule: &Rule,
    subject: &[&PodGroup<'_>],
    found: &mut Findings,
) {
    for (number, peer) in rule.peers.iter().flatten().enumerate() {
        let Peer::Block(block) = peer else { continue };
        let at = |what: &str| place.at(&place.peer(number), what);
        if is_empty(block) {
            found.add(&NOTHING_LEFT, at(&block.cidr.to_string()));
        } else if has_no_address(block.cidr, place.direction) {
            found.add_of(&NO_ADDRESS, place.effect(), at(&block.cidr.to_string()));
        } else if let Some(what) = services(objects, place, (rule, block), subject) {
            let check = match place.direction {
                Direction::Egress if place.policy.namespace().is_none() => {
                    Check { fix: BACKENDS, ..SERVICE_ADDRESS }
                }
                Direction::Egress => SERVICE_ADDRESS,
                Direction::Ingress => {
                    Check { problem: NEVER_A_SOURCE, fix: SENDERS, ..SERVICE_ADDRESS }
                }
            };
            found.add_of(&check, place.effect(), at(&what));
        }
    }
}

/// Checks the CIDRs of a policy as written.
pub(crate) fn written(
    objects: &GroupedObjects<'_>,
    policy: &NamedPolicy<'_>,
    found: &mut Findings,
) {
    for (path, text) in policy.cidrs() {
        if let Some(check) = text.parse().ok().and_then(|net| network_as_address(objects, net)) {
            found.add(&check, policy.at(&path, text));
        }
        let mut numbers = text.split(['.', '/']);
        let has_zero = |number: &str| number.len() > 1 && number.starts_with('0');
        if !text.contains(':') && numbers.any(has_zero) && text.parse::<IpNet>().is_ok() {
            found.add(&LEADING_ZEROS, policy.at(&path, text));
        }
        if let Ok(net) = text.parse::<IpNet>()
            && net.addr() != net.network()
        {
            found.add(&HOST_BITS, policy.at(&path, &format!("{text} is read as {}", net.trunc())));
        }
    }
}

/// Returns a check that a block of one address fails if the address is that of a network, and of no object.
fn network_as_address(objects: &GroupedObjects<'_>, net: IpNet) -> Option<Check> {
    let bits = match net.addr() {
        IpAddr::V4(address) => u32::from(address).trailing_zeros(),
        // A subnet's own address is that of its routers (RFC 4291, section 2.6.1).
        IpAddr::V6(address) if u128::from(address).trailing_zeros() >= 64 => 16,
        IpAddr::V6(_) => 0,
    };
    let is_single = net.prefix_len() == net.max_prefix_len();
    let is_one = objects.is_known(net.addr())
        || objects.leads.within(net).next().is_some()
        || !objects.leads.behind([net.addr()].into_iter()).is_empty();
    if !is_single || bits < 8 || is_one || has_no_address(net, Direction::Ingress) {
        return None;
    }
    // Larger networks have hosts whose last byte is 0.
    let severity = if bits < 16 { Severity::Info } else { NETWORK.severity };
    Some(Check { severity, ..NETWORK })
}

fn is_empty(block: &IpBlock) -> bool {
    let excepts = IpNet::aggregate(&block.except);
    excepts.iter().any(|except| except.contains(&block.cidr))
}

/// Returns whether a block is in `0.0.0.0/8` or `::/16` (reserved, RFC 6890), loopback or, on ingress, multicast or
/// broadcast.
pub(crate) fn has_no_address(block: IpNet, direction: Direction) -> bool {
    let v4 =
        |a, b, c, d, length| Ipv4Net::new(Ipv4Addr::new(a, b, c, d), length).map(IpNet::V4).ok();
    let v6 = |first, length| {
        Ipv6Net::new(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0), length).map(IpNet::V6).ok()
    };
    let nowhere = [v4(0, 0, 0, 0, 8), v4(127, 0, 0, 0, 8), v6(0, 16)];
    let senders = [v4(224, 0, 0, 0, 4), v4(255, 255, 255, 255, 32), v6(0xff00, 8)];
    let senders = senders.into_iter().filter(|_| direction == Direction::Ingress);
    let mut all = nowhere.into_iter().chain(senders).flatten();
    all.any(|reserved| reserved.contains(&block))
}

/// Names the Services with addresses in a block, if the block holds nothing else and grants none of their backends.
fn services(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    (rule, block): (&Rule, &IpBlock),
    subject: &[&PodGroup<'_>],
) -> Option<String> {
    let family = usize::from(matches!(block.cidr, IpNet::V6(_)));
    let length = block.cidr.prefix_len();
    let is_private = PRIVATE.iter().any(|private| block.cidr.to_string() == *private);
    if length < SERVICE_PREFIX[family] || is_private {
        return None;
    }
    // Other hosts may have the other addresses of a wider block.
    let is_narrow = place.direction == Direction::Egress && length == block.cidr.max_prefix_len();
    let within = objects.leads.within(block.cidr).filter(|(address, led)| {
        let is_cluster = led.service.cluster.contains(address);
        block.contains(*address) && !objects.is_known(*address) && (is_cluster || is_narrow)
    });
    let meant: Vec<&PortBackends<'_>> = within.map(|(_, led)| led).collect();
    let first = &meant.first()?.service.key;
    if holds_others(objects, block) {
        return None;
    }
    let is_reached =
        |led: &&PortBackends<'_>| is_reached(objects, led, rule.ports.as_deref(), subject);
    let may_be_allowed = place.action == Action::Accept && place.direction == Direction::Egress;
    if may_be_allowed && meant.iter().any(is_reached) {
        return None;
    }
    let keys: BTreeSet<&Key> = meant.iter().map(|led| &led.service.key).collect();
    let more = match keys.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    Some(format!("{}, Service {first}{more}", block.cidr))
}

/// Returns whether a block also holds pods, nodes or endpoints.
fn holds_others(objects: &GroupedObjects<'_>, block: &IpBlock) -> bool {
    let pods = objects.cluster.pods().values().flat_map(|pod| &pod.addresses);
    let slices = objects.cluster.slices().values().flat_map(|slice| &slice.addresses);
    let mut all = pods.chain(slices).chain(&objects.node_addresses);
    all.any(|address| block.contains(*address))
}

/// Returns whether a group of the rule's subject reaches some backend from each node, at the rule's ports, by other rules.
fn is_reached(
    objects: &GroupedObjects<'_>,
    led: &PortBackends<'_>,
    rules: Option<&[PortRule]>,
    subject: &[&PodGroup<'_>],
) -> bool {
    let port = led.port;
    let is_here = rules.is_none_or(|rules| {
        rules.iter().any(|rule| {
            rule.protocol == port.protocol
                && match &rule.port {
                    PortMatch::Any => true,
                    PortMatch::Range(first, last) => (*first..=*last).contains(&port.port),
                    PortMatch::Named(_) => false,
                }
        })
    });
    let protocol = IpProtocol(port.protocol.number());
    let is_allowed_to = |pod: &Pod| {
        let mut others = backends_elsewhere(objects, led, pod).peekable();
        others.peek()?;
        Some(others.any(|at| is_allowed(&objects.explainer, &pod.key, protocol, *at)))
    };
    // Pods that need no rule, as their own node is the only backend, show nothing.
    let reaches = |group: &&PodGroup<'_>| {
        let mut judged = group.by_node.iter().filter_map(|pod| is_allowed_to(pod)).peekable();
        judged.peek()?;
        Some(judged.all(|is_allowed| is_allowed))
    };
    let mut judged = subject.iter().filter_map(reaches).peekable();
    let needs_rules = judged.peek().is_some();
    let needs_none = !subject.is_empty() && !led.backends.is_empty() && !needs_rules;
    is_here && (needs_none || judged.any(|reaches| reaches))
}
