//! Workloads that policies isolate in one of two clusters only, and gaps of the comparison.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use netpold_core::cluster::Cluster;
use netpold_core::model::{Direction, Enforcement, Key, Labels, Pod};

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

/// Returns the policies that isolate a pod, by name; none for a pod on the host's network.
fn isolating<'c>(cluster: &'c Cluster, pod: &Pod, direction: Direction) -> Vec<&'c Key> {
    if pod.host_network {
        return Vec::new();
    }
    let isolating = cluster.policies_in(&pod.key.namespace).filter(|policy| {
        policy.enforcement == Enforcement::Enforce
            && policy.rules(direction).is_some()
            && policy.pod_selector.matches(&pod.labels)
    });
    isolating.map(|policy| &policy.key).collect()
}

/// Pods of a workload before and after that policies isolate alike.
struct AlikePods<'c> {
    /// A pod before and one after; the others have the same labels and the same kind of network.
    pods: [Option<&'c Pod>; 2],
    count: usize,
}

/// Property by which policies isolate pods of one namespace: the labels, and whether the pod is on the host's network.
type IsolationTraits<'c> = Option<(&'c Labels, bool)>;

impl<'c> AlikePods<'c> {
    /// Groups the pods of a workload before and their counterparts after.
    fn group_pods(workload: &ComparedWorkload, clusters: [&'c Cluster; 2]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        let mut known: HashMap<[IsolationTraits<'c>; 2], usize> = HashMap::new();
        for (before, after) in workload.counterparts() {
            let pods = [(0, before), (1, after)].map(|(side, key)| pod(clusters[side], key));
            let traits = pods.map(|pod| pod.map(|pod| (&pod.labels, pod.host_network)));
            let alike = *known.entry(traits).or_insert_with(|| {
                all.push(Self { pods, count: 0 });
                all.len() - 1
            });
            all[alike].count += 1;
        }
        all
    }

    /// Returns the policies that isolate the pods before and after.
    fn isolating(&self, clusters: [&'c Cluster; 2], direction: Direction) -> [Vec<&'c Key>; 2] {
        [0, 1].map(|side| {
            self.pods[side].map_or_else(Vec::new, |pod| isolating(clusters[side], pod, direction))
        })
    }

    /// Returns whether the pods after use the host's network, if only those of one side do.
    fn moves(&self) -> Option<bool> {
        let [before, after] = self.pods.map(|pod| pod.map(|pod| pod.host_network));
        (before? != after?).then_some(after?)
    }

    /// Returns whether the pods are the node on one side at least.
    fn is_on_host(&self) -> bool {
        self.pods.into_iter().flatten().any(|pod| pod.host_network)
    }
}

fn pod<'c>(cluster: &'c Cluster, key: &Key) -> Option<&'c Pod> {
    cluster.pods().get(key).map(|pod| &**pod)
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
        let mut templates = BTreeSet::new();
        for (index, party) in parties.iter().enumerate() {
            let DiffParty::Workload(workload) = party else { continue };
            for (cluster, keys) in clusters.iter().zip(&workload.pods) {
                let pods = keys.iter().filter_map(|key| pod(cluster, key));
                templates.extend(pods.filter(|pod| pod.template().is_some()).map(Pod::title));
            }
            match workload.pods.each_ref().map(Vec::is_empty) {
                [false, false] => {
                    this.compare_workload(workload, clusters, compared.contains(&index));
                }
                [false, true] => this.alone(workload, false, clusters[0]),
                [true, false] => this.alone(workload, true, clusters[1]),
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

    fn compare_workload(
        &mut self,
        workload: &ComparedWorkload,
        clusters: [&Cluster; 2],
        is_compared: bool,
    ) {
        let all = AlikePods::group_pods(workload, clusters);
        let count = |is_meant: &dyn Fn(&AlikePods<'_>) -> bool| -> usize {
            all.iter().filter(|it| is_meant(it)).map(|it| it.count).sum()
        };
        let pairs = count(&|_| true);
        for is_on_host in [true, false] {
            let moved = count(&|it| it.moves() == Some(is_on_host));
            if moved > 0 {
                let (workload, some) = (workload.name.clone(), moved < pairs);
                self.moved.push(HostNetworkChange { workload, is_on_host, some });
            }
        }
        self.turns(workload, clusters, &all);
        if is_compared {
            return;
        }
        if pairs > 0 && all.iter().all(AlikePods::is_on_host) {
            self.on_host += 1;
        } else {
            let why = match pairs {
                0 => "no pod before the change corresponds to one after it",
                _ => "its pods have no unshared addresses of one family",
            };
            self.unknown.push(format!("{}: {why}", workload.name));
        }
    }

    /// Notes that isolation of a workload's pods ends or begins.
    fn turns(
        &mut self,
        workload: &ComparedWorkload,
        clusters: [&Cluster; 2],
        all: &[AlikePods<'_>],
    ) {
        let pairs: usize = all.iter().map(|it| it.count).sum();
        let states = Direction::BOTH.map(|direction| {
            let states = all.iter().map(|it| (it, it.isolating(clusters, direction)));
            (direction, states.collect::<Vec<_>>())
        });
        for opens in [true, false] {
            let (mut directions, mut policies) = (Vec::new(), BTreeSet::new());
            let (mut some, mut by_network) = (false, true);
            for (direction, states) in &states {
                let mut count = 0;
                for (alike, [before, after]) in states {
                    let (from, to) = if opens { (before, after) } else { (after, before) };
                    if !from.is_empty() && to.is_empty() {
                        policies.extend(from.iter().map(|key| (*key).clone()));
                        by_network &= alike.moves().is_some();
                        count += alike.count;
                    }
                }
                if count > 0 {
                    directions.push(*direction);
                    some |= count < pairs;
                }
            }
            if !directions.is_empty() {
                let workload = workload.name.clone();
                let policies = policies.into_iter().collect();
                let list = if opens { &mut self.open } else { &mut self.isolated };
                list.push(IsolationChange { workload, directions, policies, some, by_network });
            }
        }
    }

    fn alone(&mut self, workload: &ComparedWorkload, is_new: bool, cluster: &Cluster) {
        let keys = &workload.pods[usize::from(is_new)];
        let pods: Vec<Option<&Pod>> = keys.iter().map(|key| pod(cluster, key)).collect();
        let mut policies = BTreeSet::new();
        let directions = Direction::BOTH.into_iter().filter(|direction| {
            pods.iter().all(|pod| {
                let isolating = pod.map_or_else(Vec::new, |it| isolating(cluster, it, *direction));
                policies.extend(isolating.iter().map(|key| (*key).clone()));
                !isolating.is_empty()
            })
        });
        let directions = directions.collect();
        let (workload, policies) = (workload.name.clone(), policies.into_iter().collect());
        self.alone.push(UnmatchedWorkload { workload, is_new, directions, policies });
    }
}
