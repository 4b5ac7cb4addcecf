//! Senders and receivers: pods, nodes and outside addresses, grouped in classes. One member represents its class,
//! because no policy distinguishes the members.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use netpold_core::cluster::{Cluster, is_subject, is_unaddressed};
use netpold_core::explain::Blocks;
use netpold_core::model::{Direction, DomainName, Pod};

use super::class::{Class, ClassKind, EndTraits, PLACES, PartyEnd, PartyEnds};
use super::ends_builder::PartyEndsBuilder;
use super::isolation::gap;
use super::party::DiffParty;
use super::rules::{ApplicableRules, PolicyCriteria, RangeStarts};
use super::secondary::{SecondaryPair, recounted};
use super::workloads::{ComparedWorkload, workloads};
use crate::parallel::in_parts;

/// Traits of a member that its class depends on: IPv6, whether its node changes, whether it counts for no pod, and its
/// traits before and, where they differ, after.
type MemberTraits<'c> = (bool, bool, [bool; 2], EndTraits<'c>, Option<EndTraits<'c>>);

/// Classes of a workload.
struct WorkloadClasses<'c> {
    classes: Vec<Class<'c>>,
    /// Reasons why some of its pods are compared in part or not at all.
    gaps: BTreeSet<String>,
    /// Addresses on secondary networks that begin or cease to count.
    recounted: BTreeSet<String>,
}

/// Groups the ends of two clusters; pods without an address may get any address of these ranges.
pub(super) fn ends<'c>(clusters: [&'c Cluster; 2], ranges: &[IpNet]) -> PartyEnds<'c> {
    ends_of(clusters, workloads(clusters), ranges)
}

/// Groups the ends of two clusters, like [`ends`], of which these are the workloads.
pub(super) fn ends_of<'c>(
    clusters: [&'c Cluster; 2],
    workloads: Vec<Arc<ComparedWorkload>>,
    ranges: &[IpNet],
) -> PartyEnds<'c> {
    let mut named = PolicyCriteria::default();
    clusters.iter().for_each(|cluster| named.add(cluster));
    let blocks = Blocks::new(std::mem::take(&mut named.blocks));
    let mut translated = RangeStarts::default();
    let mut node_ports = false;
    for service in clusters.iter().flat_map(|cluster| cluster.services().values()) {
        for port in &service.ports {
            translated.range(port.protocol, port.port, port.port);
            if let Some(number) = port.node_port {
                node_ports = true;
                translated.range(port.protocol, number, number);
            }
        }
    }
    let names = clusters.iter().flat_map(|cluster| cluster.namespaces().keys());
    let changed = |name: &&str| {
        let [before, after] = clusters.map(|cluster| cluster.namespace_labels(name));
        before != after
    };
    let relabelled = names.map(String::as_str).filter(changed).collect();
    let special = special(clusters);
    let known: HashSet<IpAddr> = clusters.into_iter().flat_map(known_addresses).collect();
    let (parties, classes) = (Vec::new(), Vec::new());
    let mut places = places(clusters, &blocks, ranges);
    let left_out = places.len().saturating_sub(PLACES);
    places.truncate(PLACES);
    let mut builder = PartyEndsBuilder {
        clusters,
        named,
        blocks,
        special,
        known,
        of_nodes: clusters.map(|it| of_nodes(it).map(|(address, _)| address).collect()),
        relabelled,
        node_ports,
        places,
        parties,
        classes,
    };
    let (mut not_compared, mut recounted) = (Vec::new(), BTreeSet::new());
    let found = in_parts(workloads.len(), |party| builder.workload(party, &workloads[party]));
    for (workload, found) in workloads.into_iter().zip(found) {
        builder.classes.extend(found.classes);
        let gaps = found.gaps.into_iter().map(|gap| format!("{}: {gap}", workload.name));
        not_compared.extend(gaps);
        recounted.extend(found.recounted);
        builder.parties.push(DiffParty::Workload(workload));
    }
    let own_node = builder.parties.len();
    builder.parties.push(DiffParty::OwnNode);
    builder.nodes();
    builder.outside();
    let names = std::mem::take(&mut builder.named.names);
    let names: BTreeMap<DomainName, usize> =
        names.into_iter().zip(builder.parties.len()..).collect();
    builder.parties.extend(names.keys().cloned().map(DiffParty::Name));
    let PartyEndsBuilder { parties, classes, .. } = builder;
    PartyEnds {
        parties,
        classes,
        translated,
        node_ports,
        own_node,
        names,
        left_out,
        not_compared,
        recounted,
    }
}

/// Returns an unused address of each block within the ranges that policies distinguish. A single address is that of a
/// certain host, and no sample of a pod without an address, unless it is a range itself.
fn places(clusters: [&Cluster; 2], named: &Blocks, ranges: &[IpNet]) -> Vec<IpAddr> {
    let mut pods = clusters.iter().flat_map(|cluster| cluster.pods().values());
    if ranges.is_empty() || !pods.any(|pod| is_unaddressed(pod)) {
        return Vec::new();
    }
    let known: HashSet<IpAddr> =
        clusters.iter().flat_map(|cluster| known_addresses(cluster)).collect();
    let blocks = Blocks::new(named.iter().chain(ranges.iter().copied()));
    let is_within = |block: &IpNet| {
        let is_single = block.prefix_len() == block.max_prefix_len();
        ranges.iter().any(|range| if is_single { range == block } else { range.contains(block) })
    };
    let mut within: Vec<IpNet> = blocks.iter().filter(is_within).collect();
    within.sort_by_key(IpNet::prefix_len);
    let sample = |block| blocks.sample(block, |address| known.contains(&address));
    within.into_iter().filter_map(sample).collect()
}

/// Returns every address of a cluster's objects.
fn known_addresses(cluster: &Cluster) -> impl Iterator<Item = IpAddr> {
    let pods = cluster.pods().values().flat_map(|pod| pod.all_addresses());
    let nodes = cluster.nodes().values().flat_map(|node| &node.addresses);
    let services = cluster.services().values().flat_map(|service| &service.addresses);
    pods.chain(nodes.chain(services).copied())
}

/// Returns the addresses of nodes, each with a node that has it: those of Node objects and of pods on the node's network.
fn of_nodes(cluster: &Cluster) -> impl Iterator<Item = (IpAddr, &str)> {
    let nodes = cluster.nodes().values();
    let listed = nodes.flat_map(|node| node.addresses.iter().map(|a| (*a, node.name.as_str())));
    let hosts = cluster.pods().values().filter(|pod| pod.host_network && !pod.finished);
    listed.chain(hosts.flat_map(|pod| pod.addresses.iter().map(|a| (*a, pod.node.as_str()))))
}

/// Returns the addresses of Services, and those shared by a node and another node or a pod.
fn special(clusters: [&Cluster; 2]) -> HashSet<IpAddr> {
    let mut special = HashSet::new();
    for cluster in clusters {
        special.extend(cluster.services().values().flat_map(|service| &service.addresses));
        let mut whose: HashMap<IpAddr, &str> = HashMap::new();
        for (address, node) in of_nodes(cluster) {
            let other = whose.insert(address, node).is_some_and(|known| known != node);
            if other || cluster.owner(address).is_some() {
                special.insert(address);
            }
        }
    }
    special
}

impl<'c> PartyEndsBuilder<'c> {
    /// Returns the addresses of a pod in a cluster, without those that another pod owns.
    fn of_pod(&self, cluster: usize, pod: &'c Pod) -> Vec<PartyEnd<'c>> {
        let owns = |address: &&IpAddr| {
            self.clusters[cluster].owner(**address).is_some_and(|owner| owner.key == pod.key)
        };
        let end =
            |address: &IpAddr| PartyEnd { pod: Some(pod), node: &pod.node, address: *address };
        pod.addresses.iter().filter(owns).map(end).collect()
    }

    /// Returns the addresses of a pod before and after, of which these are its own. If the pod has an address on one side only, that address serves
    /// for both sides; if on neither side, the sample addresses do.
    fn of_pods(&self, pods: [&'c Pod; 2], ends: [Vec<PartyEnd<'c>>; 2]) -> [Vec<PartyEnd<'c>>; 2] {
        let end = |i: usize| {
            move |address: &IpAddr| PartyEnd {
                pod: Some(pods[i]),
                node: &pods[i].node,
                address: *address,
            }
        };
        let at = |i: usize, other: &[PartyEnd<'c>]| -> Vec<PartyEnd<'c>> {
            other.iter().map(|of| end(i)(&of.address)).collect()
        };
        match pods.map(is_unaddressed) {
            _ if !self.judges_unaddressed() => ends,
            [true, true] => [0, 1].map(|i| self.places.iter().map(end(i)).collect()),
            [true, false] => [at(0, &ends[1]), ends[1].clone()],
            [false, true] => [ends[0].clone(), at(1, &ends[0])],
            [false, false] => ends,
        }
    }

    /// Returns whether another object has the address at which a pod is judged.
    fn is_taken(&self, cluster: usize, end: PartyEnd<'c>) -> bool {
        let owner = self.clusters[cluster].owner(end.address);
        let is_other = owner.is_some_and(|owner| end.pod.is_none_or(|pod| pod.key != owner.key));
        is_other || self.of_nodes[cluster].contains(&end.address)
    }

    /// Groups the pods of a workload, which is the party with this index.
    fn workload(&self, party: usize, workload: &ComparedWorkload) -> WorkloadClasses<'c> {
        let mut classes: Vec<Class<'c>> = Vec::new();
        let mut known: HashMap<MemberTraits<'c>, usize> = HashMap::new();
        let mut own = HashSet::new();
        let (mut gaps, mut counts) = (BTreeSet::new(), BTreeSet::new());
        for (before, after) in workload.counterparts() {
            let keys = [before, after];
            let [Some(before), Some(after)] =
                [0, 1].map(|i| self.clusters[i].pods().get(keys[i]).map(|pod| &**pod))
            else {
                continue;
            };
            let pods = [before, after];
            gaps.extend(gap(pods).map(str::to_owned));
            let ends = [0, 1].map(|i| self.of_pod(i, pods[i]));
            let lacks_address =
                (0..2).any(|i| is_subject(pods[i]) && ends[i].len() < pods[i].addresses.len());
            let (second, on_second) = self.of_second(pods);
            gaps.extend(on_second);
            let [before, after] = self.of_pods(pods, ends);
            let mut pairs: Vec<(SecondaryPair<'c>, bool)> = Vec::new();
            for v6 in [false, true] {
                let [before, after] = [&before, &after]
                    .map(|ends| ends.iter().filter(move |e| e.address.is_ipv6() == v6));
                let first =
                    before.zip(after).map(|(before, after)| ([*before, *after], [false; 2]));
                pairs.extend(first.map(|pair| (pair, false)));
            }
            pairs.extend(second.into_iter().map(|pair| (pair, true)));
            for ((pair, refused), is_second) in pairs {
                let v6 = pair[0].address.is_ipv6();
                let moved = pair[0].node != pair[1].node;
                let (before, after) = self.pair_traits(pair);
                let traits = (v6, moved, refused, before, after);
                let class = *known.entry(traits).or_insert_with(|| {
                    let mut class = self.pods(party, pair);
                    let counts_as_before = refused[0] == refused[1];
                    class.sends_as_before &= counts_as_before;
                    class.receives_as_before &= counts_as_before;
                    classes.push(class);
                    classes.len() - 1
                });
                let is_contested = lacks_address
                    || refused.contains(&true)
                    || self.is_taken(0, pair[0])
                    || self.is_taken(1, pair[1]);
                let number = class;
                let class = &mut classes[number];
                class.members.push(pair);
                class.is_contested |= is_contested;
                class.lacks_address |= lacks_address;
                if is_second {
                    if refused[0] != refused[1] {
                        counts.extend(recounted(pair));
                    }
                    continue;
                }
                for node in self.own_node(pair) {
                    let (before, after) = self.pair_traits(node.node);
                    // Rules of tiers may name nodes by their labels.
                    let labels = [0, 1].map(|side| {
                        self.labels_of_node(self.clusters[side].nodes().get(pair[side].node))
                    });
                    if own.insert((number, node.is_as_before, before, after, labels)) {
                        class.own_nodes.push(node);
                    }
                }
            }
        }
        WorkloadClasses { classes, gaps, recounted: counts }
    }

    /// Returns the traits of a member before and, where they differ, after.
    fn pair_traits(&self, pair: [PartyEnd<'c>; 2]) -> (EndTraits<'c>, Option<EndTraits<'c>>) {
        let [before, after] = pair;
        let is_same = |(one, other): (Option<&Pod>, Option<&Pod>)| match (one, other) {
            (Some(one), Some(other)) => std::ptr::eq(one, other),
            (None, None) => before.node == after.node,
            (Some(_), None) | (None, Some(_)) => false,
        };
        let traits = self.traits(before);
        if before.address == after.address && is_same((before.pod, after.pod)) {
            return (traits, None);
        }
        let after = self.traits(after);
        let after = (after != traits).then_some(after);
        (traits, after)
    }

    /// Creates the class of a pod's address, without members.
    fn pods(&self, party: usize, pair: [PartyEnd<'c>; 2]) -> Class<'c> {
        let [before, after] = pair.map(|end| self.traits(end));
        let special = before.special.is_some() || after.special.is_some();
        let alike = before == after
            && !special
            && pair[0].node == pair[1].node
            && pair[0].pod.is_none_or(|pod| !self.relabelled.contains(pod.key.namespace.as_str()));
        let [mut sends, mut receives] = [RangeStarts::default(), RangeStarts::default()];
        let (mut names, mut blocks) = (BTreeSet::new(), BTreeSet::new());
        let mut as_before = |direction, starts: &mut RangeStarts| {
            let [before, after] = [0, 1].map(|i| {
                let pod = pair[i].pod?;
                let subject = ApplicableRules::new(self.clusters[i], pod, direction);
                subject.add_to(starts);
                if !self.named.names.is_empty() && direction == Direction::Egress {
                    subject.add_names(&mut names, &mut blocks);
                }
                Some(subject)
            });
            before == after
        };
        let egress = as_before(Direction::Egress, &mut sends);
        let ingress = as_before(Direction::Ingress, &mut receives);
        let resolved = match names.is_empty() {
            true => Vec::new(),
            false => self.unused(&Blocks::new(blocks), pair[0].address.is_ipv6()),
        };
        for port in before.ports.iter().chain(after.ports) {
            receives.range(port.protocol, port.port, port.port);
        }
        Class {
            party,
            kind: ClassKind::Pods,
            members: Vec::new(),
            special,
            is_contested: false,
            lacks_address: false,
            sends_as_before: egress && alike,
            receives_as_before: ingress && alike,
            sends,
            receives,
            names,
            resolved,
            own_nodes: Vec::new(),
        }
    }

    /// Returns an address of no object in each block of a family.
    fn unused(&self, blocks: &Blocks, v6: bool) -> Vec<IpAddr> {
        let of_family = blocks.iter().filter(|block| block.addr().is_ipv6() == v6);
        of_family.filter_map(|it| blocks.sample(it, |at| self.known.contains(&at))).collect()
    }

    /// Adds an address of each block that no object of the clusters has.
    fn outside(&mut self) {
        let families: BTreeSet<bool> = self.classes.iter().map(Class::is_ipv6).collect();
        for block in self.blocks.iter() {
            let v6 = block.addr().is_ipv6();
            let Some(address) = self
                .blocks
                .sample(block, |a| self.known.contains(&a))
                .filter(|_| families.contains(&v6))
            else {
                continue;
            };
            let end = PartyEnd { pod: None, node: "", address };
            self.classes.push(Class {
                party: self.parties.len(),
                kind: ClassKind::Outside,
                members: vec![[end; 2]],
                special: false,
                is_contested: false,
                lacks_address: false,
                sends_as_before: true,
                receives_as_before: true,
                sends: RangeStarts::default(),
                receives: RangeStarts::default(),
                names: BTreeSet::new(),
                resolved: Vec::new(),
                own_nodes: Vec::new(),
            });
            let (without, only) = (self.blocks.within(block), families.len() == 1);
            self.parties.push(DiffParty::Outside { block, without, only });
        }
    }
}
