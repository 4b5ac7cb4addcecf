//! All rules that allow a flow, found quickly, for callers with many flows.
//!
//! A [`RuleIndex`] finds the peers of a policy that may match an address by a common property: a prefix, or a label
//! of the address's pod. The found peers are then compared literally, so the index decides nothing. A flow to a
//! Service's address is attributed to the rules that allow the address and to the rules that allow one of the Service's
//! backends, because the chosen backend is not known.

use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;
use ipnet::IpNet;

use crate::cluster::{Cluster, is_subject};
use crate::explain::answer::{Cause, Detail, Verdict};
use crate::explain::literal::Literal;
use crate::explain::resolved::ResolvedNames;
use crate::explain::rule::Traffic;
use crate::explain::services::{backends, frontends};
use crate::explain::text;
use crate::model::{
    Action, ClusterPolicy, Direction, Key, Labels, Peer, Pod, Policy, Requirement, Rule, Selector,
};
use crate::probe::IpProtocol;

/// A flow as its pod sees it.
#[derive(Clone, Copy, Debug)]
pub struct PodFlow<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Direction in which the flow began.
    pub direction: Direction,
    /// Address of the other side.
    pub remote: IpAddr,
    /// IP protocol.
    pub protocol: IpProtocol,
    /// Destination port; 0 where the protocol has none.
    pub port: u16,
}

/// Rules that allow a flow.
#[derive(Clone, Debug, Default)]
pub struct AllowingRules {
    /// Rules of NetworkPolicies, sorted: the policy's index in the given list, and the rule's index in the flow's
    /// direction.
    pub rules: Vec<(u32, u32)>,
    /// Accept rules of ClusterNetworkPolicies: the policy's name, and the rule's index in the flow's direction.
    pub cluster_rules: Vec<(String, usize)>,
    /// Number of comparisons made, a measure of the cost.
    pub compared: usize,
}

/// A rule's index in its direction, and its peer's index in the rule.
type RulePeerPosition = (u32, u32);

/// Index of a policy's rules by properties of their peers.
#[derive(Debug)]
pub struct RuleIndex {
    policy: Arc<Policy>,
    ingress: RulePeers,
    egress: RulePeers,
}

/// The peers of one direction.
#[derive(Debug, Default)]
struct RulePeers {
    /// Rules without peers.
    everyone: Vec<u32>,
    blocks: HashMap<IpNet, Vec<RulePeerPosition>>,
    /// Distinct lengths of the blocks' prefixes, IPv4 and IPv6.
    lengths: [Vec<u8>; 2],
    /// Peers by a label that the pod must have: name, then value.
    by_pod: ByLabel,
    /// Peers by a label that the pod's namespace must have.
    by_namespace: ByLabel,
    /// Peers without a block or a required label.
    others: Vec<RulePeerPosition>,
}

type ByLabel = HashMap<String, HashMap<String, Vec<RulePeerPosition>>>;

impl RuleIndex {
    /// Indexes one policy.
    #[must_use]
    pub fn new(policy: Arc<Policy>) -> Self {
        let peers = |direction| RulePeers::new(policy.rules(direction).unwrap_or_default());
        let (ingress, egress) = (peers(Direction::Ingress), peers(Direction::Egress));
        Self { policy, ingress, egress }
    }

    /// Returns the indexed policy.
    #[must_use]
    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Describes the traffic that a rule of the policy allows; empty if the policy has no such rule.
    #[must_use]
    pub fn describe(&self, direction: Direction, rule: usize) -> String {
        let rule = self.policy.rules(direction).and_then(|rules| rules.get(rule));
        let namespace = &self.policy.key.namespace;
        rule.map_or_else(String::new, |rule| text::rule(namespace, direction, rule))
    }

    /// Adds the rules that allow a flow; returns the number of compared rules.
    fn find(&self, traffic: &Traffic<'_>, found: &mut Vec<u32>) -> usize {
        let peers = match traffic.direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        };
        let rules = self.policy.rules(traffic.direction).unwrap_or_default();
        let mut compared = peers.everyone.len();
        let port_matches = |rule: &Rule| traffic.port_hit(rule).is_some();
        found.extend(peers.everyone.iter().filter(|rule| port_matches(&rules[**rule as usize])));
        peers.candidates(traffic, |(rule, peer)| {
            compared += 1;
            let of = &rules[rule as usize];
            let peer = of.peers.as_deref().and_then(|peers| peers.get(peer as usize));
            let matches = |peer| traffic.peer_matches(&self.policy.key.namespace, peer);
            if peer.is_some_and(matches) && port_matches(of) {
                found.push(rule);
            }
        });
        compared
    }
}

impl RulePeers {
    fn new(rules: &[Rule]) -> Self {
        let mut this = Self::default();
        let all = || {
            let rules = (0_u32..).zip(rules);
            rules.flat_map(|(number, rule)| {
                let peers = rule.peers.as_deref().unwrap_or_default();
                (0_u32..).zip(peers).map(move |(peer, it)| ((number, peer), it))
            })
        };
        let everyone = (0_u32..).zip(rules).filter(|(_, rule)| rule.peers.is_none());
        this.everyone = everyone.map(|(number, _)| number).collect();
        // Index each peer by its rarest required label: a label that many peers require selects least.
        let mut common: HashMap<(&str, &str), usize> = HashMap::new();
        for (_, peer) in all() {
            for selector in selectors(peer).into_iter().flatten() {
                for (key, values) in asked(selector) {
                    values.iter().for_each(|v| *common.entry((key, v.as_str())).or_default() += 1);
                }
            }
        }
        for (place, peer) in all() {
            if let Peer::Block(block) = peer {
                this.blocks.entry(block.cidr).or_default().push(place);
                continue;
            }
            let rarest = |selector| {
                let cost = |(key, values): &(&str, &[String])| {
                    let of = |v: &String| common.get(&(*key, v.as_str())).copied().unwrap_or(0);
                    values.iter().map(of).sum::<usize>()
                };
                asked(selector).min_by_key(cost)
            };
            let [pods, namespaces] = selectors(peer).map(|selector| selector.and_then(rarest));
            let (labels, (key, values)) = match (pods, namespaces) {
                (Some(asked), _) => (&mut this.by_pod, asked),
                (None, Some(asked)) => (&mut this.by_namespace, asked),
                (None, None) => {
                    this.others.push(place);
                    continue;
                }
            };
            let of_key = labels.entry_ref(key).or_default();
            for value in values {
                of_key.entry_ref(value.as_str()).or_default().push(place);
            }
        }
        for net in this.blocks.keys() {
            let lengths = &mut this.lengths[usize::from(net.addr().is_ipv6())];
            if !lengths.contains(&net.prefix_len()) {
                lengths.push(net.prefix_len());
            }
        }
        this
    }

    /// Passes each peer that may match to `visit`.
    fn candidates(&self, traffic: &Traffic<'_>, mut visit: impl FnMut(RulePeerPosition)) {
        let remote = traffic.remote;
        for length in &self.lengths[usize::from(remote.is_ipv6())] {
            let net = IpNet::new(remote, *length).ok().map(|net| net.trunc());
            let places = net.and_then(|net| self.blocks.get(&net));
            places.into_iter().flatten().for_each(|place| visit(*place));
        }
        self.others.iter().for_each(|place| visit(*place));
        let Some(pod) = traffic.remote_pod else { return };
        let mut of = |labels: &ByLabel, has: &Labels| {
            // A pod has one value per label name, so no peer is found twice.
            let values = has.iter().filter_map(|(key, value)| labels.get(key)?.get(value));
            values.flatten().for_each(|place| visit(*place));
        };
        of(&self.by_pod, &pod.labels);
        if let Some(labels) = &traffic.remote_namespace {
            of(&self.by_namespace, labels);
        }
    }
}

/// Returns the selectors of a peer: for pods, and for their namespaces.
fn selectors(peer: &Peer) -> [Option<&Selector>; 2] {
    match peer {
        Peer::Pods { namespaces, pods } => [Some(pods), namespaces.as_ref()],
        Peer::Block(_) | Peer::Nodes(_) | Peer::Domain(_) => [None, None],
    }
}

/// Returns the labels for which a selector requires one of the listed values.
fn asked(selector: &Selector) -> impl Iterator<Item = (&str, &[String])> {
    selector.requirements.iter().filter_map(|requirement| match requirement {
        Requirement::In(key, values) => Some((key.as_str(), &values[..])),
        Requirement::NotIn(..) | Requirement::Exists(_) | Requirement::DoesNotExist(_) => None,
    })
}

/// Finds the rules of policies that allow flows.
#[derive(Clone, Copy, Debug)]
pub struct Allowing<'c> {
    cluster: &'c Cluster,
    resolved: Option<&'c ResolvedNames>,
}

impl<'c> Allowing<'c> {
    /// Returns a finder for this cluster.
    #[must_use]
    pub fn new(cluster: &'c Cluster) -> Self {
        Self { cluster, resolved: None }
    }

    /// Matches domain names with the addresses that pods resolved.
    #[must_use]
    pub fn with_resolved(mut self, resolved: &'c ResolvedNames) -> Self {
        self.resolved = Some(resolved);
        self
    }

    /// Returns the policies that isolate a pod in a direction and are within their budget: the only policies with rules
    /// that can allow traffic.
    #[must_use]
    pub fn policies(&self, pod: &Pod, direction: Direction) -> Vec<Arc<Policy>> {
        if !is_subject(pod) {
            return Vec::new();
        }
        let policies = self.cluster.policies_about((pod, true), direction).isolating().into_iter();
        policies.filter(|policy| self.cluster.excess(&policy.key).is_none()).collect()
    }

    /// Returns the ClusterNetworkPolicies that apply to a pod in a direction.
    #[must_use]
    pub fn cluster_policies(&self, pod: &Pod, direction: Direction) -> Vec<Arc<ClusterPolicy>> {
        if !is_subject(pod) {
            return Vec::new();
        }
        self.cluster.policies_about((pod, true), direction).tiers()
    }

    /// Returns the rules of these policies that allow a flow, or the rule of a ClusterNetworkPolicy that accepts the
    /// flow before them. `former` returns the pod that held an address until recently.
    pub fn rules<'a>(
        &self,
        policies: &[&RuleIndex],
        flow: PodFlow<'a>,
        former: impl Fn(IpAddr) -> Option<&'a Pod>,
    ) -> AllowingRules
    where
        'c: 'a,
    {
        let cluster = self.cluster;
        let literal = Literal { resolved: self.resolved, ..Literal::new(cluster) };
        let (mut allowed, mut found) = (AllowingRules::default(), Vec::new());
        let mut look = |flow: PodFlow<'a>, out_of_sight: bool| {
            allowed.compared += 1;
            let PodFlow { pod, direction, remote, protocol, port } = flow;
            let mut traffic = literal.traffic(pod, direction, remote, protocol, port);
            if literal.has_tiers() {
                allowed.compared += OF_TIERS;
                let judge = |detail| literal.judge_traffic(&traffic, None, detail);
                let judged = judge(Detail::Verdict);
                if judged.cause == Cause::TierRule {
                    if judged.verdict == Verdict::Allow {
                        let rule = judge(Detail::Reasons).tiers.decided_by;
                        let rule = rule.map(|rule| (rule.policy.policy, rule.index));
                        allowed.cluster_rules.extend(rule);
                    }
                    return;
                }
            }
            if is_always_allowed(cluster, flow, out_of_sight) {
                return;
            }
            if traffic.remote_pod.is_none() {
                traffic.of_remote(former(remote));
            }
            for (number, policy) in (0_u32..).zip(policies) {
                allowed.compared += 1 + policy.find(&traffic, &mut found);
                allowed.rules.extend(found.drain(..).map(|rule| (number, rule)));
            }
        };
        look(flow, false);
        if flow.direction == Direction::Egress {
            let remote = flow.remote;
            for at_node in [false, true] {
                let fronts = frontends(cluster, at_node, remote, flow.protocol, flow.port);
                let is_own = |of: &Key| !at_node && of.namespace == flow.pod.key.namespace;
                let (own, others): (Vec<_>, Vec<_>) =
                    fronts.into_iter().partition(|(service, _)| is_own(&service.key));
                for (fronts, is_other) in [(own, false), (others, true)] {
                    let behind = backends(cluster, &fronts, remote.is_ipv6());
                    for (remote, port) in behind.into_all() {
                        look(PodFlow { remote, port, ..flow }, is_other);
                    }
                }
            }
        }
        allowed.rules.sort_unstable();
        allowed.rules.dedup();
        allowed.cluster_rules.sort_unstable();
        allowed.cluster_rules.dedup();
        allowed
    }
}

/// Describes the traffic that a rule of a ClusterNetworkPolicy accepts; `None` if the rule does not accept.
#[must_use]
pub fn accepted(policy: &ClusterPolicy, direction: Direction, rule: usize) -> Option<String> {
    let rule = policy.rules(direction).get(rule)?;
    (rule.action == Action::Accept).then(|| text::rule("", direction, &rule.matches))
}

/// Cost of one evaluation of the tiers, in compared rules.
const OF_TIERS: usize = 16;

/// Returns whether the flow needs no rule of a NetworkPolicy: a pod reaches itself, unless another node forwards
/// the flow or by a Service of another namespace (`out_of_sight`), and its own node.
fn is_always_allowed(cluster: &Cluster, flow: PodFlow<'_>, out_of_sight: bool) -> bool {
    let PodFlow { pod, direction, remote, .. } = flow;
    (!out_of_sight && pod.addresses.contains(&remote))
        || (direction == Direction::Egress && cluster.is_node_of(pod, remote))
}
