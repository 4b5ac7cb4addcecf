//! The enforced state of this node, per pod and per policy, for the API objects that report it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use netpold_api::status::Revision;
use netpold_core::cluster::is_subject;
use netpold_core::compile::{Compiler, EndpointInfo};
use netpold_core::model::{Enforcement, Key, Pod, PolicyVersion};

use super::Engine;
use super::reconciler::Reconciler;

/// Maximum number of policies examined per namespace, and of ClusterNetworkPolicies: each is matched against the local
/// pods while the engine waits, and there may be any number.
const OF_NAMESPACE: usize = 500;
/// Maximum number of policies listed: 2,000 take about 400 kB of the API server's storage.
const LISTED: usize = 2000;

/// The enforced state of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnforcementState {
    /// Revision of the policy set.
    pub revision: Revision,
    /// Reason why the source's current state is not in force, or unknown. The former state stays in force.
    pub behind: Option<String>,
    /// This node's pods that policy can select.
    pub pods: BTreeMap<Key, PodEnforcement>,
    /// Policies that select one of these pods. Keys of ClusterNetworkPolicies have no namespace.
    pub policies: BTreeMap<Key, PolicyEnforcement>,
    /// Number of policies that may select one of these pods and were not examined or listed.
    pub omitted: usize,
}

/// Whether a pod is under the policies that select it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEnforcement {
    /// `metadata.uid`
    pub uid: String,
    /// Reason why the current policy does not judge the pod's packets; `None`: it does, in both directions.
    pub lacks: Option<&'static str>,
    /// Whether the packets are judged, if only by a former policy.
    pub is_judged: bool,
}

/// Whether a policy is in force on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEnforcement {
    /// Version of the policy object.
    pub version: PolicyVersion,
    /// Selected pods of this node.
    pub pods: usize,
    /// Selected pods with an address and without judged packets.
    pub not_judged: usize,
    /// Whether the policy is audited: it denies nothing, and its denials are reported.
    pub on_trial: bool,
    /// Whether the policy is compiled later, on another thread; until then its former state is in force.
    pub is_late: bool,
    /// Reason why the policy exceeds its budget or the tables: it isolates, and grants nothing.
    pub closed: Option<String>,
    /// Parts of the policy that were not understood and grant nothing.
    pub problems: Vec<String>,
}

impl EnforcementState {
    /// Collects the enforced state of an engine.
    #[must_use]
    pub fn collect(engine: &Engine) -> Self {
        let Reconciler { compiler, revision, restored, .. } = &engine.reconciler;
        let cluster = compiler.cluster();
        let local = || {
            let all = cluster.pods().values();
            all.filter(|pod| pod.node == cluster.node_name() && is_subject(pod))
        };
        let late = compiler.late();
        let judged = JudgedInterfaces::by(&engine.reconciler);
        let pods: BTreeMap<Key, PodEnforcement> = local()
            .map(|pod| {
                let judged = judged.is_enforced(pod);
                let lacks = match judged {
                    _ if *restored => Some("the source is not in sync"),
                    None => Some("its interface is not known"),
                    Some(false) => Some("no program is attached to its interface"),
                    Some(true) if late.contains(&pod.key.namespace) => {
                        Some("a large policy of its namespace is being compiled")
                    }
                    Some(true) => None,
                };
                let is_judged = judged == Some(true);
                (pod.key.clone(), PodEnforcement { uid: pod.uid.clone(), lacks, is_judged })
            })
            .collect();
        let (policies, omitted) = policies(compiler, local(), &judged, &late);
        Self { revision: *revision, behind: reason_not_in_force(engine), pods, policies, omitted }
    }
}

/// Returns why the desired state is not in force.
fn reason_not_in_force(engine: &Engine) -> Option<String> {
    let Engine { reconciler: Reconciler { revision, restored, .. }, health, .. } = engine;
    let restored = restored.then(|| "the source is not in sync".to_owned());
    let failure = health.failure().map(str::to_owned);
    let unsettled = (!engine.is_settled() || revision.enforced != revision.desired)
        .then(|| "an update is being written".to_owned());
    health.held.clone().or(restored).or(failure).or(unsettled)
}

/// The interfaces of pods, and whether programs judge their packets. A former pod of the same name may still have one.
struct JudgedInterfaces(BTreeMap<Key, Vec<(EndpointInfo, bool)>>);

impl JudgedInterfaces {
    fn by(reconciler: &Reconciler) -> Self {
        let mut pods: BTreeMap<Key, Vec<_>> = BTreeMap::new();
        for endpoint in reconciler.compiler.endpoints().filter(|endpoint| !endpoint.waiting) {
            let judged = endpoint.slot.is_some() && reconciler.is_pod(endpoint.ifindex);
            pods.entry(endpoint.pod.clone()).or_default().push((endpoint, judged));
        }
        Self(pods)
    }

    /// Whether programs judge the packets of all interfaces of a pod; `None` if it has none.
    fn is_enforced(&self, pod: &Pod) -> Option<bool> {
        let interfaces = self.0.get(&pod.key)?.iter().filter(|(endpoint, _)| endpoint.is_of(pod));
        interfaces.map(|(_, judged)| *judged).reduce(|all, judged| all && judged)
    }
}

/// Returns the policies that select a pod of this node, and the number of policies left out.
fn policies<'p>(
    compiler: &Compiler,
    local: impl Iterator<Item = &'p Arc<Pod>>,
    judged: &JudgedInterfaces,
    late: &BTreeSet<String>,
) -> (BTreeMap<Key, PolicyEnforcement>, usize) {
    let cluster = compiler.cluster();
    let mut closed: BTreeMap<&Key, String> = BTreeMap::new();
    for (of, direction, reason) in compiler.closed() {
        for policy in of {
            closed.insert(policy, format!("spec.{direction}: closed: {reason}"));
        }
    }
    let mut by_namespace: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in local {
        by_namespace.entry(&pod.key.namespace).or_default().push(pod);
    }
    // A pod without an address sends nothing yet.
    let is_open = |pod: &Pod| !pod.addresses.is_empty() && judged.is_enforced(pod) != Some(true);
    let state = |version: &PolicyVersion, enforcement, problems: &[String], selected: &[&Pod]| {
        (!selected.is_empty()).then(|| PolicyEnforcement {
            version: version.clone(),
            pods: selected.len(),
            not_judged: selected.iter().filter(|pod| is_open(pod)).count(),
            on_trial: enforcement == Enforcement::Audit,
            is_late: selected.iter().any(|pod| late.contains(&pod.key.namespace)),
            closed: None,
            problems: problems.to_vec(),
        })
    };
    let (mut all, mut omitted) = (BTreeMap::new(), 0);
    for (number, policy) in cluster.cluster_policies().enumerate() {
        if number >= OF_NAMESPACE {
            omitted += 1;
            continue;
        }
        let subject = &policy.subject;
        let here = by_namespace.iter();
        let selected = here
            .filter(|(name, _)| subject.namespaces.matches(&cluster.namespace_labels(name)))
            .flat_map(|(_, pods)| pods.iter().copied())
            .filter(|pod| subject.pods.matches(&pod.labels));
        let selected: Vec<&Pod> = selected.collect();
        let state = state(&policy.version, policy.enforcement, &policy.problems, &selected);
        all.extend(state.map(|state| (Key::new("", &*policy.name), state)));
    }
    for (namespace, pods_here) in by_namespace {
        for (number, policy) in cluster.policies_in(namespace).enumerate() {
            if number >= OF_NAMESPACE {
                omitted += 1;
                continue;
            }
            let selects = |pod: &&Pod| policy.pod_selector.matches(&pod.labels);
            let selected: Vec<&Pod> = pods_here.iter().copied().filter(selects).collect();
            let state = state(&policy.version, policy.enforcement, &policy.problems, &selected);
            let Some(state) = state else { continue };
            let excess = cluster.excess(&policy.key).map(|excess| format!("closed: {excess}"));
            let closed = excess.or_else(|| closed.get(&policy.key).cloned());
            all.insert(policy.key.clone(), PolicyEnforcement { closed, ..state });
        }
    }
    omitted += leave_out(&mut all);
    (all, omitted)
}

/// Removes policies of the namespaces with most until [`LISTED`] are left; returns the number removed.
fn leave_out<T>(all: &mut BTreeMap<Key, T>) -> usize {
    let before = all.len();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for key in all.keys() {
        *counts.entry(key.namespace.clone()).or_default() += 1;
    }
    let fits =
        |share: &usize| counts.values().map(|count| count.min(share)).sum::<usize>() <= LISTED;
    let share = (1..=OF_NAMESPACE).rev().find(fits).unwrap_or(1);
    let mut kept: BTreeMap<String, usize> = BTreeMap::new();
    all.retain(|key, _| {
        let kept = kept.entry(key.namespace.clone()).or_default();
        *kept += 1;
        *kept <= share
    });
    before - all.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_with_many_policies_make_room_for_those_with_few() {
        let policies = |namespace: &str, count: usize| {
            let key = |n| (Key::new(namespace, format!("p{n:03}")), n);
            (0..count).map(key).collect::<BTreeMap<_, _>>()
        };
        let crowd = (0..8).flat_map(|n| policies(&format!("a{n}"), OF_NAMESPACE));
        let mut all: BTreeMap<Key, usize> = crowd.chain(policies("z", 30)).collect();
        let before = all.len();
        let left_out = leave_out(&mut all);
        assert_eq!(all.len(), before - left_out);
        let of = |namespace: &str| all.keys().filter(|key| key.namespace == namespace).count();
        assert_eq!((of("z"), of("a0"), of("a7")), (30, 246, 246), "of {LISTED}");
        assert_eq!(leave_out(&mut all), 0);
    }
}
