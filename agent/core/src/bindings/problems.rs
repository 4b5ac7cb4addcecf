//! Problems of bindings: contradicting evidence, pods that the API does not list, denied veths.

use std::fmt;
use std::net::IpAddr;

use crate::bindings::claims::{VethClaims, claimants};
use crate::bindings::veth::{HeldVeth, Veth};
use crate::cluster::Cluster;
use crate::model::{Bound, Key, Standing};

/// Maximum number of addresses read inside a namespace; a full list may be incomplete.
const MAX_INSIDE: usize = Veth::MAX_INSIDE;

/// A problem of a veth and its pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BindingProblem {
    /// The pod is gone from the API, but its veth still exists.
    Deleted {
        /// The veth.
        interface: String,
        /// The bound pod.
        pod: Key,
    },
    /// The API has not listed the pod.
    Unlisted {
        /// The veth.
        interface: String,
        /// The bound pod.
        pod: Key,
        /// The pod's manifest is on this node, so its labels are known.
        labelled: bool,
    },
    /// An unbound veth claims a pod to which another veth is bound.
    Rival {
        /// The veth.
        interface: String,
        /// The claimed pod.
        pod: Key,
        /// The veth that is bound to it.
        bound: String,
    },
    /// A veth was bound to a pod that is in neither the API, the saved state nor a CNI result.
    Lost {
        /// The veth.
        interface: String,
    },
    /// A veth leads into a pod's namespace without a CNI result or route that names it.
    Unnamed {
        /// The veth.
        interface: String,
        /// The pod of that namespace.
        pod: Key,
    },
    /// A pod uses another pod's address inside.
    Foreign {
        /// The veth.
        interface: String,
        /// The bound pod.
        pod: Key,
        /// The address.
        address: IpAddr,
        /// The pod that owns the address.
        owner: Key,
    },
    /// A pod's hardware address inside differs from the one fixed at binding.
    Station {
        /// The veth.
        interface: String,
        /// The bound pod.
        pod: Key,
        /// Hardware address inside.
        now: [u8; 6],
        /// Hardware address fixed at binding.
        settled: [u8; 6],
    },
    /// None of the pod's addresses is on this interface inside.
    Missing {
        /// The veth.
        interface: String,
        /// The bound pod.
        pod: Key,
    },
}

impl fmt::Display for BindingProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted { interface, pod } => write!(
                f,
                "pod {pod} was deleted, but its interface {interface} still exists: its last policy stays on it"
            ),
            Self::Unlisted { interface, pod, labelled: true } => write!(
                f,
                "pod {pod} (interface {interface}): not listed by the API server; judged by its manifest on this node"
            ),
            Self::Unlisted { interface, pod, labelled: false } => write!(
                f,
                "pod {pod} (interface {interface}): not listed by the API server, and its labels are unknown; \
                 isolated by every policy of its namespace, granted nothing by label"
            ),
            Self::Rival { interface, pod, bound } => write!(
                f,
                "interface {interface} claims pod {pod}, which is bound to interface {bound}: denied"
            ),
            Self::Lost { interface } => write!(
                f,
                "interface {interface} was bound to a deleted pod, and its present pod is unknown: denied"
            ),
            Self::Unnamed { interface, pod } => write!(
                f,
                "interface {interface} leads to pod {pod}, and neither a CNI result nor a route of the node names \
                 it: denied; a pod with NET_ADMIN may have created it"
            ),
            Self::Foreign { interface, pod, address, owner } => write!(
                f,
                "pod {pod} (interface {interface}) has address {address} of pod {owner} in its namespace; it stays \
                 bound to {pod}"
            ),
            Self::Station { interface, pod, now, settled } => {
                let text = |octets: &[u8; 6]| octets.map(|octet| format!("{octet:02x}")).join(":");
                write!(
                    f,
                    "pod {pod} (interface {interface}) has MAC {} in its namespace, but had {} when it was \
                     connected: its packets from another MAC drop where its source is checked",
                    text(now),
                    text(settled)
                )
            }
            Self::Missing { interface, pod } => write!(
                f,
                "pod {pod} (interface {interface}) has none of its addresses on that interface in its namespace; it \
                 stays bound to {pod}"
            ),
        }
    }
}

/// Problems of all veths that were reported to the cluster.
pub(super) fn of_claims(claims: &VethClaims, cluster: &Cluster) -> Vec<BindingProblem> {
    let all = claims.veths.values().filter(|held| held.told.is_some());
    all.flat_map(|held| match &held.binding {
        Some(binding) => of_bound(held, &binding.bound, cluster),
        None => of_unbound(claims, held, cluster).into_iter().collect(),
    })
    .collect()
}

fn of_unbound(claims: &VethClaims, held: &HeldVeth, cluster: &Cluster) -> Option<BindingProblem> {
    let interface = held.veth.name.clone();
    if held.lost {
        return Some(BindingProblem::Lost { interface });
    }
    if let Some(bound) = claims.intruded(held) {
        return Some(BindingProblem::Unnamed { interface, pod: bound.pod.key.clone() });
    }
    let (pod, holder) = claims.rival(held, cluster)?;
    let bound = claims.veths.get(&holder)?.veth.name.clone();
    Some(BindingProblem::Rival { interface, pod: pod.key.clone(), bound })
}

fn of_bound(held: &HeldVeth, bound: &Bound, cluster: &Cluster) -> Vec<BindingProblem> {
    let (interface, pod) = (held.veth.name.clone(), bound.pod.key.clone());
    if bound.is_secondary {
        return Vec::new();
    }
    let mut problems: Vec<BindingProblem> = match bound.standing {
        Standing::Listed => None,
        Standing::Deleted => {
            Some(BindingProblem::Deleted { interface: interface.clone(), pod: pod.clone() })
        }
        standing @ (Standing::Unlisted | Standing::Unlabelled) => Some(BindingProblem::Unlisted {
            interface: interface.clone(),
            pod: pod.clone(),
            labelled: standing == Standing::Unlisted,
        }),
    }
    .into_iter()
    .collect();
    let own = |address: &IpAddr| bound.pod.addresses.contains(address);
    for address in held.veth.inside.iter().filter(|address| !own(address)) {
        let mut others =
            claimants(std::slice::from_ref(address), cluster).filter(|other| other.pod.key != pod);
        if let Some(other) = others.next() {
            let (interface, pod) = (interface.clone(), pod.clone());
            let (address, owner) = (*address, other.pod.key.clone());
            problems.push(BindingProblem::Foreign { interface, pod, address, owner });
        }
    }
    if let (Some(now), Some(settled)) = (held.veth.station, held.station)
        && now != settled
    {
        let (interface, pod) = (interface.clone(), pod.clone());
        problems.push(BindingProblem::Station { interface, pod, now, settled });
    }
    let complete = held.veth.inside.len() < MAX_INSIDE && !bound.pod.addresses.is_empty();
    if complete && !held.veth.inside.iter().any(own) {
        problems.push(BindingProblem::Missing { interface, pod });
    }
    problems
}
