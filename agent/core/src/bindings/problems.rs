//! What contradicts a binding, or is to be known about it.

use std::fmt;
use std::net::IpAddr;

use crate::bindings::claims::{Claims, claimants};
use crate::bindings::veth::{Held, Veth};
use crate::cluster::Cluster;
use crate::model::{Bound, Key, Standing};

/// As many addresses inside a namespace are told at the most: with so many, more may be there.
const MAX_INSIDE: usize = Veth::MAX_INSIDE;

/// Something about a veth and its pod that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    /// The API has the pod no more, its veth is there.
    Deleted {
        /// The veth.
        interface: String,
        /// Its pod.
        pod: Key,
    },
    /// The API has not listed the pod.
    Unlisted {
        /// The veth.
        interface: String,
        /// Its pod.
        pod: Key,
        /// Its manifest is on this node.
        labelled: bool,
    },
    /// A veth is bound to nobody and claims to be a pod that another one is bound to.
    Rival {
        /// The veth.
        interface: String,
        /// What it claims to be.
        pod: Key,
        /// The veth that is bound to it.
        bound: String,
    },
    /// A veth was bound to a pod of which nothing is known any more.
    Lost {
        /// The veth.
        interface: String,
    },
    /// A veth leads to a pod's namespace, and nothing on the node names it.
    Unnamed {
        /// The veth.
        interface: String,
        /// Whose namespace it is.
        pod: Key,
    },
    /// A pod uses another pod's address inside.
    Foreign {
        /// The veth.
        interface: String,
        /// Its pod.
        pod: Key,
        /// The address.
        address: IpAddr,
        /// Whose it is.
        owner: Key,
    },
    /// A pod has another hardware address inside than the one that its frames are to come from.
    Station {
        /// The veth.
        interface: String,
        /// Its pod.
        pod: Key,
        /// The address inside.
        now: [u8; 6],
        /// The one of the first binding.
        settled: [u8; 6],
    },
    /// A pod has none of its addresses inside, on this interface.
    Missing {
        /// The veth.
        interface: String,
        /// Its pod.
        pod: Key,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted { interface, pod } => write!(
                f,
                "pod {pod} is deleted, its interface {interface} is still there: its last policy stays on it"
            ),
            Self::Unlisted { interface, pod, labelled: true } => write!(
                f,
                "pod {pod} (interface {interface}): the API server has not listed it; judged by its \
                 manifest on this node"
            ),
            Self::Unlisted { interface, pod, labelled: false } => write!(
                f,
                "pod {pod} (interface {interface}): the API server has not listed it and its labels are \
                 unknown; isolated by every policy of its namespace, granted nothing by label"
            ),
            Self::Rival { interface, pod, bound } => write!(
                f,
                "interface {interface} claims to be pod {pod}, which interface {bound} is bound to: denied"
            ),
            Self::Lost { interface } => write!(
                f,
                "interface {interface} was bound to a pod that is gone, and nothing is known of it: denied"
            ),
            Self::Unnamed { interface, pod } => write!(
                f,
                "interface {interface} leads to pod {pod}, and neither a CNI result nor a route of the node names it: \
                 denied; a pod with NET_ADMIN can have made it"
            ),
            Self::Foreign { interface, pod, address, owner } => write!(
                f,
                "pod {pod} (interface {interface}) has address {address} of pod {owner} inside; it stays {pod}"
            ),
            Self::Station { interface, pod, now, settled } => {
                let text = |octets: &[u8; 6]| octets.map(|octet| format!("{octet:02x}")).join(":");
                write!(
                    f,
                    "pod {pod} (interface {interface}) has MAC {} inside, and had {} when it was connected: \
                     what it sends from another drops where its source is checked",
                    text(now),
                    text(settled)
                )
            }
            Self::Missing { interface, pod } => write!(
                f,
                "pod {pod} (interface {interface}) has none of its addresses on that interface inside; \
                 it stays {pod}"
            ),
        }
    }
}

/// What is not as it should be.
pub(super) fn of_claims(claims: &Claims, cluster: &Cluster) -> Vec<Problem> {
    let all = claims.veths.values().filter(|held| held.told.is_some());
    all.flat_map(|held| match &held.binding {
        Some(binding) => of_bound(held, &binding.bound, cluster),
        None => of_unbound(claims, held, cluster).into_iter().collect(),
    })
    .collect()
}

fn of_unbound(claims: &Claims, held: &Held, cluster: &Cluster) -> Option<Problem> {
    let interface = held.veth.name.clone();
    if held.lost {
        return Some(Problem::Lost { interface });
    }
    if let Some(bound) = claims.intruded(held) {
        return Some(Problem::Unnamed { interface, pod: bound.pod.key.clone() });
    }
    let (pod, holder) = claims.rival(held, cluster)?;
    let bound = claims.veths.get(&holder)?.veth.name.clone();
    Some(Problem::Rival { interface, pod: pod.key.clone(), bound })
}

fn of_bound(held: &Held, bound: &Bound, cluster: &Cluster) -> Vec<Problem> {
    let (interface, pod) = (held.veth.name.clone(), bound.pod.key.clone());
    if bound.second {
        return Vec::new();
    }
    let mut problems: Vec<Problem> = match bound.standing {
        Standing::Listed => None,
        Standing::Deleted => {
            Some(Problem::Deleted { interface: interface.clone(), pod: pod.clone() })
        }
        standing @ (Standing::Unlisted | Standing::Unlabelled) => Some(Problem::Unlisted {
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
            problems.push(Problem::Foreign { interface, pod, address, owner });
        }
    }
    if let (Some(now), Some(settled)) = (held.veth.station, held.station)
        && now != settled
    {
        let (interface, pod) = (interface.clone(), pod.clone());
        problems.push(Problem::Station { interface, pod, now, settled });
    }
    let complete = held.veth.inside.len() < MAX_INSIDE && !bound.pod.addresses.is_empty();
    if complete && !held.veth.inside.iter().any(own) {
        problems.push(Problem::Missing { interface, pod });
    }
    problems
}
