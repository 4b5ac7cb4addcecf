//! Differences of generated clusters and edits, compared with the matrices of the oracle.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netpold_core::cluster::Cluster;
use netpold_core::model::{Change, Key, Peer, Pod, PortMatch, Protocol, Rule};
use netpold_core::probe::{IpProtocol, Party as Side, Probe};
use netpold_review::diff::{DiffParty, Difference, PortRanges, compare};
use netpold_testkit::generate::{self, Choices};
use netpold_testkit::oracle::Oracle;

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
/// Number of clusters, each with an edit.
const CLUSTERS: u64 = 1000;
/// Number of sampled pairs and ports of each cluster.
const SAMPLES: u32 = 300;

/// Address before and after the edit, with the pod and the node that have it.
#[derive(Clone, Debug)]
struct Member {
    pods: Option<[Key; 2]>,
    nodes: [String; 2],
    addresses: [IpAddr; 2],
    /// Whether the addresses are on a secondary network.
    is_second: bool,
}

struct World {
    oracles: [Oracle; 2],
    difference: Difference,
    /// Members of each party.
    members: Vec<Vec<Member>>,
    /// Every node before with every node after: a pod may move.
    own_nodes: Vec<Member>,
    ports: Vec<u16>,
}

fn rules(object: &Change) -> Vec<&Rule> {
    if let Change::Policy(policy) = object {
        policy.ingress.iter().chain(&policy.egress).flatten().collect()
    } else if let Change::ClusterPolicy(policy) = object {
        policy.ingress.iter().chain(&policy.egress).map(|rule| &rule.matches).collect()
    } else {
        Vec::new()
    }
}

impl World {
    fn new(states: [&generate::GeneratedCluster; 2]) -> Self {
        let objects = states.map(|state| {
            let objects = state.objects.iter().filter(|o| o.is_object());
            objects.cloned().collect::<Vec<_>>()
        });
        let [before, after] = objects.each_ref().map(|o| o.iter().cloned().collect::<Cluster>());
        let oracles = objects.each_ref().map(|o| o.iter().cloned().collect::<Oracle>());
        let difference = compare(&before, &after, &[]).unwrap();
        let all = || objects.iter().flatten();
        let mut ports = BTreeSet::from([1, u16::MAX]);
        let mut near = |port: u16| {
            ports.extend([port.saturating_sub(1).max(1), port.max(1), port.saturating_add(1)]);
        };
        for object in all() {
            for port in rules(object).into_iter().filter_map(|r| r.ports.as_ref()).flatten() {
                if let PortMatch::Range(first, last) = port.port {
                    near(first);
                    near(last);
                }
            }
            if let Change::Pod(pod) = object {
                pod.ports.iter().for_each(|port| near(port.port));
            }
            if let Change::Service(service) = object {
                let of = service.ports.iter().flat_map(|p| [Some(p.port), p.node_port]);
                of.flatten().for_each(&mut near);
            }
        }
        let outside = outside(&oracles, all().flat_map(rules));
        let (members, own_nodes) = (Vec::new(), Vec::new());
        let ports = ports.into_iter().collect();
        let mut world = Self { oracles, difference, members, own_nodes, ports };
        let parties = &world.difference.parties;
        world.members = parties.iter().map(|p| world.members_of(p, &outside)).collect();
        let names = world
            .oracles
            .each_ref()
            .map(|oracle| oracle.nodes.iter().map(|node| node.name.clone()).collect::<Vec<_>>());
        let moves = names[0].iter().flat_map(|before| names[1].iter().map(move |a| [before, a]));
        world.own_nodes = moves.flat_map(|names| world.node(names)).collect();
        world
    }

    fn members_of(&self, party: &DiffParty, outside: &[IpAddr]) -> Vec<Member> {
        match party {
            DiffParty::Workload(workload) => {
                let pairs = workload.counterparts();
                let of_pods = |(before, after): (&Key, &Key)| {
                    let pods = [before.clone(), after.clone()];
                    [self.pod(pods.clone()), self.second(pods)].concat()
                };
                pairs.into_iter().flat_map(of_pods).collect()
            }
            // `meetings` pairs a pod with its own node, see `own_nodes`; generated policies have no names.
            DiffParty::OwnNode | DiffParty::Name(_) | DiffParty::Service(_) => Vec::new(),
            DiffParty::Nodes { nodes, .. } => {
                nodes.iter().flat_map(|name| self.node([name; 2])).collect()
            }
            DiffParty::Outside { block, .. } => {
                let blocks = self.difference.parties.iter().filter_map(|party| match party {
                    DiffParty::Outside { block, .. } => Some(*block),
                    DiffParty::Workload(_)
                    | DiffParty::OwnNode
                    | DiffParty::Nodes { .. }
                    | DiffParty::Name(_)
                    | DiffParty::Service(_) => None,
                });
                let blocks: Vec<_> = blocks.collect();
                let longest = |address: &&IpAddr| {
                    let around = blocks.iter().filter(|block| block.contains(*address));
                    around.max_by_key(|block| block.prefix_len()) == Some(block)
                };
                let member = |address: &IpAddr| Member {
                    pods: None,
                    nodes: [const { String::new() }; 2],
                    addresses: [*address; 2],
                    is_second: false,
                };
                outside.iter().filter(longest).map(member).collect()
            }
        }
    }

    fn of_family(of: [Vec<IpAddr>; 2], v6: bool) -> [Vec<IpAddr>; 2] {
        of.map(|all| all.into_iter().filter(|address| address.is_ipv6() == v6).collect())
    }

    fn paired(of: [Vec<IpAddr>; 2]) -> Vec<[IpAddr; 2]> {
        let family = |v6| {
            let [before, after] = Self::of_family(of.clone(), v6);
            before.into_iter().zip(after).map(|(before, after)| [before, after])
        };
        family(false).chain(family(true)).collect()
    }

    fn pod_of(&self, i: usize, key: &Key) -> &Pod {
        self.oracles[i].pods.iter().find(|pod| pod.key == *key).unwrap()
    }

    fn member(&self, pods: &[Key; 2], addresses: [IpAddr; 2], is_second: bool) -> Member {
        let nodes = [0, 1].map(|i| self.pod_of(i, &pods[i]).node.as_str().to_owned());
        Member { pods: Some(pods.clone()), nodes, addresses, is_second }
    }

    fn pod(&self, pods: [Key; 2]) -> Vec<Member> {
        let owned = [0, 1].map(|i| {
            let owns = |a: &IpAddr| self.oracles[i].pod_at(*a).is_some_and(|p| p.key == pods[i]);
            self.pod_of(i, &pods[i]).addresses.iter().copied().filter(owns).collect()
        });
        let members = Self::paired(owned).into_iter();
        members.map(|addresses| self.member(&pods, addresses, false)).collect()
    }

    /// Returns the addresses that a pod claims on its secondary networks, which have no names here: those of a family if
    /// their number is as before, without those of other objects.
    fn second(&self, pods: [Key; 2]) -> Vec<Member> {
        let claims = [0, 1].map(|i| {
            let pod = self.pod_of(i, &pods[i]);
            let claims = pod.secondary_addresses().filter(|it| !pod.addresses.contains(it));
            claims.filter(|_| !pod.host_network && !pod.finished).collect::<Vec<_>>()
        });
        let families = [false, true].map(|v6| Self::of_family(claims.clone(), v6));
        let paired = families.into_iter().filter(|[before, after]| before.len() == after.len());
        let pairs = paired.flat_map(|[before, after]| before.into_iter().zip(after));
        let pairs = pairs.map(|(before, after)| [before, after]).filter(|addresses| {
            [0, 1].into_iter().all(|i| !self.is_of_others(i, &pods[i], addresses[i]))
        });
        pairs.map(|addresses| self.member(&pods, addresses, true)).collect()
    }

    /// Returns whether another object has an address that a pod claims. A terminating pod gives way to other claimants.
    fn is_of_others(&self, i: usize, key: &Key, address: IpAddr) -> bool {
        let Oracle { pods, nodes, services, .. } = &self.oracles[i];
        if let Some(owner) = self.oracles[i].pod_at(address) {
            return owner.key != *key;
        }
        let gives_way = self.pod_of(i, key).terminating;
        nodes.iter().any(|node| node.addresses.contains(&address))
            || services.iter().any(|it| !it.unserved && it.addresses.contains(&address))
            || pods.iter().filter(|pod| !pod.finished).any(|pod| match pod.host_network {
                true => pod.addresses.contains(&address),
                false => {
                    gives_way
                        && !pod.terminating
                        && pod.secondary_addresses().any(|it| it == address)
                }
            })
    }

    fn node(&self, names: [&String; 2]) -> Vec<Member> {
        let addresses = [0, 1].map(|i| {
            let oracle = &self.oracles[i];
            let node = oracle.nodes.iter().find(|node| node.name == *names[i]).unwrap();
            let free = |a: &IpAddr| oracle.pod_at(*a).is_none();
            node.addresses.iter().copied().filter(free).collect()
        });
        let nodes = names.map(Clone::clone);
        let member =
            |addresses| Member { pods: None, nodes: nodes.clone(), addresses, is_second: false };
        Self::paired(addresses).into_iter().map(member).collect()
    }

    /// Returns whether the oracle allows the flow before and after.
    fn judge(&self, from: &Member, to: &Member, protocol: IpProtocol, port: u16) -> [bool; 2] {
        [0, 1].map(|i| {
            let side = |member: &Member| Side::Address(member.addresses[i]);
            let probe = Probe { from: side(from), to: side(to), protocol, port };
            let ends = [from, to].map(|member| {
                let pod = member.pods.as_ref().map(|pods| self.pod_of(i, &pods[i]));
                (pod, member.addresses[i])
            });
            self.oracles[i].verdict_at(&probe, ends).allowed().unwrap()
        })
    }

    /// Returns the change that the difference reports for a pair, and whether it applies to some members only.
    fn said(&self, from: usize, to: usize) -> (PortRanges, PortRanges, bool) {
        let found = self.difference.changes.iter().find(|c| (c.from, c.to) == (from, to));
        found.map_or_else(Default::default, |c| (c.loses().clone(), c.gains().clone(), c.some))
    }

    /// Returns every pair of members, with the parties that represent them.
    fn meetings(&self) -> Vec<(usize, usize, &Member, &Member)> {
        let own_node =
            self.difference.parties.iter().position(|p| *p == DiffParty::OwnNode).unwrap();
        let all = || {
            let parties = self.members.iter().enumerate();
            parties.flat_map(|(party, members)| members.iter().map(move |m| (party, m)))
        };
        let mut meetings = Vec::new();
        for (from, a) in all() {
            for (to, b) in all() {
                let same_family = a.addresses[0].is_ipv6() == b.addresses[0].is_ipv6();
                let itself = match (&a.pods, &b.pods) {
                    (None, None) => true,
                    (Some(a), Some(b)) => a[0] == b[0] || a[1] == b[1],
                    (Some(_), None) | (None, Some(_)) => false,
                };
                if itself || !same_family {
                    continue;
                }
                // A pod and its own node, before or after, are below.
                let is_pair = a.pods.is_some() != b.pods.is_some();
                let is_own = |i: usize| !a.nodes[i].is_empty() && a.nodes[i] == b.nodes[i];
                if is_pair && (is_own(0) || is_own(1)) {
                    continue;
                }
                meetings.push((from, to, a, b));
            }
        }
        // Addresses on secondary networks are not compared with this node: policies treat them like the pod's first
        // addresses.
        let first = all().filter(|(_, member)| member.pods.is_some() && !member.is_second);
        for (party, pod) in first {
            for node in &self.own_nodes {
                let same_family = node.addresses[0].is_ipv6() == pod.addresses[0].is_ipv6();
                if same_family && node.nodes == pod.nodes {
                    meetings.push((party, own_node, pod, node));
                    meetings.push((own_node, party, node, pod));
                }
            }
        }
        meetings
    }

    fn check(&self, choices: &mut Choices<'_>) -> Result<u64, String> {
        let meetings = self.meetings();
        if meetings.is_empty() {
            return Ok(0);
        }
        for _ in 0..SAMPLES {
            let (from, to, a, b) = choices.pick(&meetings);
            let (loses, gains, some) = self.said(*from, *to);
            let protocol = *choices.pick(&PROTOCOLS);
            let port = *choices.pick(&self.ports);
            let number = IpProtocol(protocol.number());
            let numbered =
                (number, port, loses.contains(protocol, port), gains.contains(protocol, port));
            for (number, port, loses, gains) in
                [numbered, (IpProtocol::ICMP, 0, loses.other, gains.other)]
            {
                let [before, after] = self.judge(a, b, number, port);
                let (lost, gained) = (before && !after, !before && after);
                let right = if some {
                    loses >= lost && gains >= gained
                } else {
                    (loses, gains) == (lost, gained)
                };
                if !right {
                    return Err(format!(
                        "{number} {port} {a:?} to {b:?}: the oracle has {before} before and {after} after, \
                         the difference: loses {loses}, gains {gains}, some {some}"
                    ));
                }
            }
        }
        self.witnesses(&meetings)
    }

    /// Checks that some pair of members has each reported loss or gain, at both ends of its range.
    fn witnesses(&self, meetings: &[(usize, usize, &Member, &Member)]) -> Result<u64, String> {
        let mut seen = 0;
        for change in &self.difference.changes {
            for (ports, verdicts) in
                [(change.loses(), [true, false]), (change.gains(), [false, true])]
            {
                let ranges = PROTOCOLS.iter().flat_map(|protocol| {
                    let ends =
                        ports.ranges_of(*protocol).iter().flat_map(|(first, last)| [*first, *last]);
                    ends.map(|port| (IpProtocol(protocol.number()), port))
                });
                let other = ports.other.then_some((IpProtocol::ICMP, 0));
                for (protocol, port) in ranges.chain(other) {
                    let witness = meetings.iter().any(|(from, to, a, b)| {
                        (*from, *to) == (change.from, change.to)
                            && self.judge(a, b, protocol, port) == verdicts
                    });
                    if !witness {
                        let [from, to] = [change.from, change.to]
                            .map(|i| self.difference.parties[i].to_string());
                        let members = [change.from, change.to].map(|i| &self.members[i]);
                        return Err(format!(
                            "{from} to {to}, {protocol} {port}: no pair changes so, of {members:?}"
                        ));
                    }
                    seen += 1;
                }
            }
        }
        Ok(seen)
    }
}

/// Returns the address after another, or the address before it.
fn beside(address: IpAddr, after: bool) -> Option<IpAddr> {
    let step = |bits: u128| if after { bits.checked_add(1) } else { bits.checked_sub(1) };
    match address {
        IpAddr::V4(address) => {
            let bits = u32::try_from(step(address.to_bits().into())?).ok()?;
            Some(Ipv4Addr::from_bits(bits).into())
        }
        IpAddr::V6(address) => Some(Ipv6Addr::from_bits(step(address.to_bits())?).into()),
    }
}

/// Returns ends and neighbours of blocks that belong to no pod, node or Service.
fn outside<'r>(oracles: &[Oracle; 2], rules: impl Iterator<Item = &'r Rule>) -> Vec<IpAddr> {
    let mut addresses: BTreeSet<IpAddr> =
        ["0.0.0.0", "203.0.113.9", "::", "2001:db8:9::9"].map(|text| text.parse().unwrap()).into();
    for peer in rules.filter_map(|rule| rule.peers.as_ref()).flatten() {
        if let Peer::Block(block) = peer {
            for net in [block.cidr].iter().chain(&block.except) {
                let hosts = net.hosts().take(8);
                addresses.extend(hosts.chain([net.network(), net.broadcast()]));
                addresses.extend(beside(net.network(), false));
                addresses.extend(beside(net.broadcast(), false));
                addresses.extend(beside(net.broadcast(), true));
            }
        }
    }
    for oracle in oracles {
        let pods = oracle.pods.iter().flat_map(Pod::all_addresses);
        let nodes = oracle.nodes.iter().flat_map(|node| node.addresses.iter().copied());
        // Where no proxy translates it, a Service's address is an ordinary address.
        let services = oracle.services.iter().filter(|service| !service.unserved);
        let services = services.flat_map(|service| service.addresses.iter().copied());
        for known in pods.chain(nodes).chain(services) {
            addresses.remove(&known);
        }
    }
    addresses.into_iter().collect()
}

#[test]
fn the_difference_is_that_of_the_oracles_matrices() {
    let (mut changes, mut pairs, mut some, mut nodes) = (0, 0, 0, 0);
    let (mut second, mut refused) = (0, 0);
    for seed in 0..CLUSTERS {
        let mut choices = Choices::from_seed(seed);
        let before = generate::GeneratedCluster::generate(&mut choices);
        let after = before.mutate(&mut choices);
        let world = World::new([&before, &after]);
        let seen = world.check(&mut choices);
        changes += seen.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let difference = &world.difference;
        pairs += difference.changes.len();
        some += difference.changes.iter().filter(|c| c.some).count();
        let is_node = |i: usize| {
            matches!(difference.parties[i], DiffParty::OwnNode | DiffParty::Nodes { .. })
        };
        nodes += difference.changes.iter().filter(|c| is_node(c.from) || is_node(c.to)).count();
        let on_second = world.members.iter().flatten().filter(|member| member.is_second);
        second += on_second.clone().count();
        let is_refused = |it: &&Member| {
            [0, 1].iter().any(|i| world.oracles[*i].pod_at(it.addresses[*i]).is_none())
        };
        refused += on_second.filter(is_refused).count();
    }
    // The samples must contain enough changes.
    assert!(changes > 50_000 && pairs > 5_000, "{changes} ends of ranges of {pairs} pairs");
    assert!(some > 100 && nodes > 500, "{some} in part, {nodes} with nodes");
    assert!(second > 500 && refused > 60, "{second} on secondary networks, {refused} not counted");
}

#[test]
fn nothing_changes_between_equal_clusters() {
    for seed in 0..100 {
        let state = generate::GeneratedCluster::from_seed(seed);
        assert_eq!(World::new([&state, &state]).difference.changes, []);
    }
}
