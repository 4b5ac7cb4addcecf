//! Endpoints and problems of a compiler, for status and attachment.

use std::collections::BTreeSet;
use std::fmt;

use netpold_ebpf::layout::NAME_GROUPS;
use serde::Serialize;

use crate::budget::{
    NAMESPACE_BACKENDS, NAMESPACE_FRONTENDS, POD_HAIRPINS, SLICE_ADDRESSES, SLICE_PORTS,
};
use crate::cluster::Cluster;
use crate::compile::rules::{LateCombination, Rules};
use crate::compile::tables::endpoints::{Endpoints, Live};
use crate::model::{Direction, Key, Pod, uid_hash};

/// An endpoint, for attaching programs and for status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndpointInfo {
    /// Interface index of the host side.
    pub ifindex: u32,
    /// The pod; with an empty name while unknown.
    pub pod: Key,
    /// The pod behind the interface is unknown: see [`crate::options::NewPods`].
    pub waiting: bool,
    /// `Endpoint::id`
    pub id: u32,
    /// `Endpoint::uid_hash`
    pub uid_hash: u64,
    /// Index in the endpoint table; `None` if no slot was free and the endpoint has no record.
    pub slot: Option<u32>,
    /// Isolated for ingress.
    pub ingress: bool,
    /// Isolated for egress.
    pub egress: bool,
    /// Packets must have a source address of the endpoint.
    #[serde(skip)]
    pub checked: bool,
    /// Packets that policy denies are answered, by direction.
    pub rejects: [bool; 2],
    /// No policy selects the endpoint, and its flows are recorded.
    pub observed: bool,
    /// Hardware address from which frames must come; `None`: any.
    #[serde(skip)]
    pub station: Option<[u8; 6]>,
}

/// A problem that keeps netpold from enforcing the cluster's state as given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "problem")]
pub enum Problem {
    /// A part of a policy is invalid and grants nothing.
    Policy {
        /// The policy.
        policy: Key,
        /// The part and the reason.
        message: String,
    },
    /// A part of a ClusterNetworkPolicy is invalid: its rule fails closed.
    ClusterPolicy {
        /// The policy.
        policy: String,
        /// The part and the reason.
        message: String,
    },
    /// A combination of policies exceeds a limit; its pods are closed.
    Closed {
        /// The policies.
        policies: Vec<Key>,
        /// The closed direction.
        direction: Direction,
        /// The reason.
        message: String,
    },
    /// The last edit of a combination of policies is not in force yet.
    Late {
        /// The policies.
        policies: Vec<Key>,
        /// The direction.
        direction: Direction,
        /// The reason.
        message: String,
    },
    /// A local pod has more than two addresses of a family. Where the pod is isolated, everything is denied; elsewhere,
    /// packets from all but the first two addresses are.
    TooManyAddresses {
        /// The pod.
        pod: Key,
    },
    /// A local pod opts out of the source check in a namespace that is not exempt.
    SourceNotExempt {
        /// The pod.
        pod: Key,
    },
    /// A local pod has too many groups of rules with domain names; those of the last ones allow nothing.
    TooManyNames {
        /// The pod.
        pod: Key,
        /// The ClusterNetworkPolicies with rules beyond the limit.
        policies: Vec<String>,
    },
    /// The Services of a namespace have too many addresses besides their cluster addresses.
    TooManyFrontends {
        /// The namespace.
        namespace: String,
    },
    /// The EndpointSlices of a namespace, or one of them, have too many addresses and ports.
    TooManyBackends {
        /// The namespace.
        namespace: String,
    },
    /// EndpointSlices of its namespace list a local pod with too many ports, so it reaches itself through no Service.
    TooManyHairpins {
        /// The pod.
        pod: Key,
    },
    /// No slot is free for the endpoint of an interface, so it has no record.
    NoSlot {
        /// The interface.
        ifindex: u32,
        /// The pod behind the interface.
        pod: Key,
    },
    /// The last update was refused.
    Refused {
        /// The reason.
        message: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy { policy, message } => write!(f, "policy {policy}: {message}"),
            Self::ClusterPolicy { policy, message } => {
                write!(f, "ClusterNetworkPolicy {policy}: {message}")
            }
            Self::Closed { policies, direction, message } => {
                let names: Vec<String> = policies.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "policies {}: {direction} of the pods that they select together is closed, nothing \
                     is granted: {message}",
                    names.join(", ")
                )
            }
            Self::Late { policies, direction, message } => {
                let names: Vec<String> = policies.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "policies {}: {direction} of the pods that they select together is as it was before their \
                     last edit: {message}",
                    names.join(", ")
                )
            }
            Self::TooManyAddresses { pod } => write!(
                f,
                "pod {pod}: more than two addresses of a family; where isolated, all its traffic is denied; where \
                 not, packets from all but two of them drop"
            ),
            Self::SourceNotExempt { pod } => write!(
                f,
                "pod {pod}: annotation netpold.io/check-source: off has no effect in this namespace; add the \
                 namespace to --source-check-exempt, or remove the annotation"
            ),
            Self::TooManyNames { pod, policies } => {
                let policies = match &policies[..] {
                    [] => String::new(),
                    names => format!(" (of ClusterNetworkPolicy {})", names.join(", ")),
                };
                write!(
                    f,
                    "pod {pod}: rules with domain names form more than {NAME_GROUPS} groups; the names of the last \
                     groups{policies} allow nothing; give neighbouring rules with domain names the same protocols, so \
                     that they form one group"
                )
            }
            Self::TooManyFrontends { namespace } => write!(
                f,
                "namespace {namespace}: its Services have more than {NAMESPACE_FRONTENDS} external addresses; policy \
                 allows those of some Services by their address alone, and packets to their whole networks are judged \
                 again after the translation; use fewer spec.externalIPs and balancer addresses"
            ),
            Self::TooManyBackends { namespace } => write!(
                f,
                "namespace {namespace}: its EndpointSlices have more than {NAMESPACE_BACKENDS} addresses and ports, or \
                 one has more than {SLICE_ADDRESSES} addresses or {SLICE_PORTS} ports; policy allows the Services of \
                 those beyond by their addresses alone, and judges packets to them again after the translation; use \
                 fewer or smaller EndpointSlices"
            ),
            Self::TooManyHairpins { pod } => write!(
                f,
                "pod {pod}: EndpointSlices of its namespace list it with more than {POD_HAIRPINS} ports; it does not \
                 reach itself through its Services unless its rules allow it; use fewer ports or Services"
            ),
            Self::NoSlot { ifindex, pod } => {
                write!(f, "pod {pod}, interface {ifindex}: closed, since no endpoint slot is free")
            }
            Self::Refused { message } => write!(f, "update refused: {message}"),
        }
    }
}

impl EndpointInfo {
    pub(super) fn new(ifindex: u32, live: &Live) -> Self {
        Self {
            ifindex,
            pod: live.identity.pod.clone(),
            waiting: live.is_waiting(),
            id: live.id,
            uid_hash: live.identity.uid_hash,
            slot: live.record.map(|(slot, _)| slot),
            station: live.station,
            ingress: live.rules.isolated(Direction::Ingress),
            egress: live.rules.isolated(Direction::Egress),
            checked: live.check_source,
            rejects: live.rejects,
            observed: live.is_observed(),
        }
    }

    /// Whether the interface is of this pod, and not of a former one with its name.
    #[must_use]
    pub fn is_of(&self, pod: &Pod) -> bool {
        self.pod == pod.key && self.uid_hash == uid_hash(&pod.uid)
    }
}

/// Problems of policies, rules and endpoints.
pub(super) fn problems(cluster: &Cluster, rules: &Rules, endpoints: &Endpoints) -> Vec<Problem> {
    let mut problems: Vec<Problem> = Vec::new();
    for (key, policy) in cluster.policies() {
        problems.extend(
            cluster.problems_of(policy).map(|message| Problem::Policy {
                policy: key.clone(),
                message: message.to_owned(),
            }),
        );
    }
    for policy in cluster.cluster_policies() {
        problems.extend(policy.problems.iter().map(|message| Problem::ClusterPolicy {
            policy: policy.name.clone(),
            message: message.clone(),
        }));
    }
    problems.extend(rules.closed().map(|(policies, direction, message)| Problem::Closed {
        policies: policies.to_vec(),
        direction,
        message,
    }));
    let late: BTreeSet<_> = endpoints.late().collect();
    problems.extend(late.into_iter().map(|late| {
        let (policies, direction) = (late.of.policies.clone(), late.of.direction);
        let message = LateCombination::REASON.to_owned();
        match late.is_closed {
            true => Problem::Closed { policies, direction, message },
            false => Problem::Late { policies, direction, message },
        }
    }));
    let beyond = cluster.translation.namespaces_beyond().into_iter();
    problems.extend(
        beyond.map(|namespace| Problem::TooManyFrontends { namespace: namespace.to_owned() }),
    );
    let beyond = cluster.translation.namespaces_with_too_many_backends();
    problems.extend(
        beyond.map(|namespace| Problem::TooManyBackends { namespace: namespace.to_owned() }),
    );
    for (ifindex, live) in &endpoints.live {
        let pod = live.identity.pod.clone();
        if live.addresses.crowded {
            problems.push(Problem::TooManyAddresses { pod: pod.clone() });
        }
        let domains = live.rules.policies.iter().flatten().filter_map(|it| it.domains.as_ref());
        if domains.into_iter().any(|groups| groups.len() > NAME_GROUPS) {
            let policies = cluster.pods().get(&pod).map(|pod| cluster.names_beyond_limit(pod));
            let policies = policies.into_iter().flatten().map(|(policy, _)| policy.name.clone());
            let policies = policies.collect::<BTreeSet<_>>().into_iter().collect();
            problems.push(Problem::TooManyNames { pod: pod.clone(), policies });
        }
        let is_isolated = Direction::BOTH.iter().any(|way| live.rules.isolated(*way));
        let is_crowded = |pod: &Key| {
            let pod = cluster.pods().get(pod);
            pod.is_some_and(|pod| cluster.translation.is_crowded(pod))
        };
        if is_isolated && is_crowded(&pod) {
            problems.push(Problem::TooManyHairpins { pod: pod.clone() });
        }
        if live.unheard {
            problems.push(Problem::SourceNotExempt { pod: pod.clone() });
        }
        if live.record.is_none() {
            problems.push(Problem::NoSlot { ifindex: *ifindex, pod });
        }
    }
    problems
}
