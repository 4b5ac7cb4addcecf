//! Workloads that policies isolate in one of two clusters only, and gaps of the comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netpold_core::cluster::Cluster;
use netpold_core::model::{Direction, Enforcement, Key, Pod};

use super::party::DiffParty;
use super::workloads::ComparedWorkload;

/// Changes of isolation per workload, and gaps of the comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Isolation {
    /// Workloads that no policy isolates any more, with the directions.
    pub open: Vec<IsolationChange>,
    /// Workloads that policies isolate newly.
    pub isolated: Vec<IsolationChange>,
    /// Workloads that begin or cease to use the host's network.
    pub moved: Vec<HostNetworkChange>,
    /// Workloads that exist in one cluster only.
    pub alone: Vec<UnmatchedWorkload>,
    /// Workloads not compared, or compared in part, each with the reason.
    pub unknown: Vec<String>,
    /// Pod templates that stand in for pods, as `Deployment shop/web (template)`.
    pub templates: Vec<String>,
    /// Number of compared workloads.
    pub compared: usize,
    /// Number of workloads in both clusters that are not compared, because their pods use the host's network.
    pub on_host: usize,
}

/// Workload for which isolation begins or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsolationChange {
    /// Name of the workload.
    pub workload: String,
    /// Directions in which isolation begins or ends.
    pub directions: Vec<Direction>,
    /// Policies that isolated the workload before, or isolate it now.
    pub policies: Vec<Key>,
    /// Whether only some of the workload's pods are concerned.
    pub some: bool,
    /// Whether isolation begins or ends because pods leave or join the host's network, where no policy applies.
    pub by_network: bool,
}

/// Workload with pods that begin or cease to use the host's network (`spec.hostNetwork`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNetworkChange {
    /// Name of the workload.
    pub workload: String,
    /// Whether the pods use the host's network now.
    pub is_on_host: bool,
    /// Whether only some of the workload's pods are concerned.
    pub some: bool,
}

/// Workload of one of the clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmatchedWorkload {
    /// Name of the workload.
    pub workload: String,
    /// Whether the workload exists in the second cluster.
    pub is_new: bool,
    /// Directions in which policies isolate all of its pods.
    pub directions: Vec<Direction>,
    /// Policies that isolate its pods.
    pub policies: Vec<Key>,
}

/// Cache of the policies that isolate each pod of a cluster.
struct IsolatingPolicies<'c> {
    cluster: &'c Cluster,
    known: BTreeMap<(&'c Key, Direction), BTreeSet<&'c Key>>,
}

impl<'c> IsolatingPolicies<'c> {
    fn pod(&self, key: &Key) -> Option<&'c Pod> {
        self.cluster.pods().get(key).map(|pod| &**pod)
    }

    /// Returns the policies that isolate a pod; none for a pod on the host's network.
    fn isolating(&mut self, key: &Key, direction: Direction) -> BTreeSet<&'c Key> {
        let Some(pod) = self.pod(key).filter(|pod| !pod.host_network) else {
            return BTreeSet::new();
        };
        let policies = self.cluster.policies_in(&pod.key.namespace);
        let isolate = || {
            let isolating = policies.filter(|policy| {
                policy.enforcement == Enforcement::Enforce
                    && policy.rules(direction).is_some()
                    && policy.pod_selector.matches(&pod.labels)
            });
            isolating.map(|policy| &policy.key).collect()
        };
        self.known.entry((&pod.key, direction)).or_insert_with(isolate).clone()
    }
}

/// Returns the reason for which a pod before and after are not compared, or not at all of their addresses.
pub(super) fn gap([before, after]: [&Pod; 2]) -> Option<&'static str> {
    match [before.host_network, after.host_network] {
        [false, true] => Some("it uses the host's network now"),
        [true, false] => Some("it used the host's network before"),
        [true, true] => None,
        [false, false] => {
            if before.addresses.is_empty() || after.addresses.is_empty() {
                return None;
            }
            let has = |family: fn(&IpAddr) -> bool| {
                [before, after].map(|pod| pod.addresses.iter().any(family))
            };
            match [has(IpAddr::is_ipv4), has(IpAddr::is_ipv6)] {
                [_, [false, true]] => Some("its pods have IPv6 addresses only now"),
                [_, [true, false]] => Some("its pods had IPv6 addresses only before"),
                [[false, true], _] => Some("its pods have IPv4 addresses only now"),
                [[true, false], _] => Some("its pods had IPv4 addresses only before"),
                _ => None,
            }
        }
    }
}

/// Returns whether the second of two corresponding pods uses the host's network, if only one of them does.
fn moves(sides: &[IsolatingPolicies<'_>; 2], (before, after): &(&Key, &Key)) -> Option<bool> {
    let is_on_host = |side: &IsolatingPolicies<'_>, key| side.pod(key).map(|pod| pod.host_network);
    let (before, after) = (is_on_host(&sides[0], before)?, is_on_host(&sides[1], after)?);
    (before != after).then_some(after)
}

impl Isolation {
    /// Compares the isolation of two clusters' workloads. `compared` holds indexes of compared workloads; `left_out`
    /// counts blocks at which pods without an address were not judged.
    pub(super) fn new(
        clusters: [&Cluster; 2],
        parties: &[DiffParty],
        compared: &BTreeSet<usize>,
        left_out: usize,
    ) -> Self {
        let mut this = Self { compared: compared.len(), ..Self::default() };
        let mut sides =
            clusters.map(|cluster| IsolatingPolicies { cluster, known: BTreeMap::new() });
        let mut templates = BTreeSet::new();
        for (index, party) in parties.iter().enumerate() {
            let DiffParty::Workload(workload) = party else { continue };
            for (side, keys) in sides.iter().zip(&workload.pods) {
                let pods = keys.iter().filter_map(|key| side.pod(key));
                templates.extend(pods.filter(|pod| pod.template().is_some()).map(Pod::title));
            }
            match workload.pods.each_ref().map(Vec::is_empty) {
                [false, false] => this.both(workload, &mut sides, compared.contains(&index)),
                [false, true] => this.alone(workload, false, &mut sides[0]),
                [true, false] => this.alone(workload, true, &mut sides[1]),
                [true, true] => {}
            }
        }
        if left_out > 0 && !templates.is_empty() {
            this.unknown.push(format!(
                "{left_out} blocks of policies were not tried as addresses of pods that have none; narrow them with \
                 --pod-cidrs"
            ));
        }
        this.templates = templates.into_iter().collect();
        this
    }

    fn both(
        &mut self,
        workload: &ComparedWorkload,
        sides: &mut [IsolatingPolicies<'_>; 2],
        is_compared: bool,
    ) {
        let pairs = workload.counterparts();
        self.moves(workload, &pairs, sides);
        for opens in [true, false] {
            let (mut directions, mut policies) = (Vec::new(), BTreeSet::new());
            let (mut some, mut by_network) = (false, true);
            for direction in Direction::BOTH {
                let turned = pairs.iter().filter(|pair| {
                    let (before, after) = pair;
                    let [before, after] = [
                        sides[0].isolating(before, direction),
                        sides[1].isolating(after, direction),
                    ];
                    let (from, to) = if opens { (before, after) } else { (after, before) };
                    let turns = !from.is_empty() && to.is_empty();
                    if turns {
                        policies.extend(from.into_iter().cloned());
                        by_network &= moves(sides, pair).is_some();
                    }
                    turns
                });
                let count = turned.count();
                if count > 0 {
                    directions.push(direction);
                    some |= count < pairs.len();
                }
            }
            if !directions.is_empty() {
                let workload = workload.name.clone();
                let policies = policies.into_iter().collect();
                let list = if opens { &mut self.open } else { &mut self.isolated };
                list.push(IsolationChange { workload, directions, policies, some, by_network });
            }
        }
        let is_host = |side: &IsolatingPolicies<'_>, key: &Key| {
            side.pod(key).is_some_and(|pod| pod.host_network)
        };
        // A pod on the host's network is the node on one side at least.
        let is_host = |(b, a): &(&Key, &Key)| is_host(&sides[0], b) || is_host(&sides[1], a);
        let are_hosts = !pairs.is_empty() && pairs.iter().all(is_host);
        if are_hosts && !is_compared {
            self.on_host += 1;
        } else if !is_compared {
            let why = match pairs.is_empty() {
                true => "no pod before the change corresponds to one after it",
                false => "its pods have no unshared addresses of one family",
            };
            self.unknown.push(format!("{}: {why}", workload.name));
        }
    }

    /// Notes that pods of a workload begin or cease to use the host's network.
    fn moves(
        &mut self,
        workload: &ComparedWorkload,
        pairs: &[(&Key, &Key)],
        sides: &[IsolatingPolicies<'_>; 2],
    ) {
        for is_on_host in [true, false] {
            let count = pairs.iter().filter(|pair| moves(sides, pair) == Some(is_on_host)).count();
            if count > 0 {
                let (workload, some) = (workload.name.clone(), count < pairs.len());
                self.moved.push(HostNetworkChange { workload, is_on_host, some });
            }
        }
    }

    fn alone(
        &mut self,
        workload: &ComparedWorkload,
        is_new: bool,
        side: &mut IsolatingPolicies<'_>,
    ) {
        let keys = &workload.pods[usize::from(is_new)];
        let mut policies = BTreeSet::new();
        let directions = Direction::BOTH.into_iter().filter(|direction| {
            keys.iter().all(|key| {
                let isolating = side.isolating(key, *direction);
                policies.extend(isolating.iter().map(|key| (*key).clone()));
                !isolating.is_empty()
            })
        });
        let directions = directions.collect();
        let (workload, policies) = (workload.name.clone(), policies.into_iter().collect());
        self.alone.push(UnmatchedWorkload { workload, is_new, directions, policies });
    }
}
