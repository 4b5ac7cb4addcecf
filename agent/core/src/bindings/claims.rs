//! Evidence for bindings of veths to pods: CNI results and routes of the node, the first addresses inside the veth, and
//! the network namespace that it shares with a bound veth.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::bindings::veth::{
    Binding, CniResult, HeldVeth, Proof, as_judged, mirrored_uid, with_secondary_addresses,
};
use crate::cluster::{Cluster, precedence};
use crate::model::{Bound, InterfaceOwner, Pod, Standing};

/// A pod to which a veth may be bound.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) pod: Arc<Pod>,
    standing: Standing,
    /// Whether the uid is known; then the candidate is not a former pod of the same name.
    certain: bool,
}

impl Candidate {
    fn listed(pod: &Arc<Pod>) -> Self {
        Self { pod: Arc::clone(pod), standing: Standing::Listed, certain: true }
    }

    /// The pod of a CNI result: as listed by the API, else from the result and the static pod's manifest on the node.
    pub(super) fn of_result(result: &CniResult, cluster: &Cluster) -> Self {
        let listed = cluster.pods().get(&result.pod).filter(|pod| result.is_of(pod));
        let here = |pod: &Pod| pod.node == cluster.node_name() && !pod.host_network;
        let certain = !result.uid.is_empty();
        if let Some(pod) = listed.filter(|pod| here(pod)) {
            let (pod, standing) = as_judged(pod);
            return Self { pod, standing, certain };
        }
        let standing =
            result.manifest.as_ref().map_or(Standing::Unlabelled, |_| Standing::Unlisted);
        let (labels, ports) = result.manifest.clone().unwrap_or_default();
        let pod = Pod {
            key: result.pod.clone(),
            // Uid under which the API will list the mirror of a static pod, so that its flows stay valid then.
            uid: if standing == Standing::Unlisted {
                mirrored_uid(&result.uid, &result.pod)
            } else {
                result.uid.clone()
            },
            labels,
            node: cluster.node_name().into(),
            addresses: result.addresses.clone(),
            host_network: false,
            finished: false,
            terminating: false,
            created: 0,
            ports,
            foreign_sources: false,
            secondary: Vec::new(),
            workload: None,
        };
        Self { pod: Arc::new(pod), standing, certain }
    }

    pub(super) fn bound(self) -> Bound {
        Bound { pod: self.pod, standing: self.standing, is_secondary: false, station: None }
    }

    fn is(&self, pod: &Pod) -> bool {
        self.pod.key == pod.key && self.pod.uid == pod.uid
    }
}

/// The veths, and the node's evidence about them.
#[derive(Debug, Default)]
pub(super) struct VethClaims {
    pub(super) veths: BTreeMap<u32, HeldVeth>,
    pub(super) results: Vec<CniResult>,
    /// Position in `results` of the last result for each interface name.
    pub(super) naming: BTreeMap<String, usize>,
    /// Last result for each interface of a secondary network.
    pub(super) further: BTreeMap<String, CniResult>,
}

impl VethClaims {
    /// Owner of a veth.
    pub(super) fn owner(&self, held: &HeldVeth, cluster: &Cluster) -> InterfaceOwner {
        match &held.binding {
            Some(Binding { bound, .. }) => {
                let station = held.station.filter(|_| !bound.is_secondary);
                InterfaceOwner::Pod(Bound { station, ..bound.clone() })
            }
            None if held.lost || self.rival(held, cluster).is_some() => InterfaceOwner::Denied,
            None if self.intruded(held).is_some() => InterfaceOwner::Denied,
            None => InterfaceOwner::Unbound,
        }
    }

    /// Refreshes all bound pods from the API.
    pub(super) fn refresh(&mut self, cluster: &Cluster) {
        for held in self.veths.values_mut() {
            if let Some(binding) = &mut held.binding {
                refresh(&mut binding.bound, cluster, &self.results);
                if binding.bound.is_secondary {
                    let result = self.further.get(&held.veth.name);
                    with_secondary_addresses(&mut binding.bound.pod, result);
                }
            }
        }
    }

    /// Candidates for a veth by CNI result and routes, the strongest evidence first.
    fn named(&self, held: &HeldVeth, cluster: &Cluster) -> Vec<Candidate> {
        let result = self.naming.get(&held.veth.name).and_then(|n| self.results.get(*n));
        let reported = result.map(|result| Candidate::of_result(result, cluster));
        reported.into_iter().chain(claimants(&held.veth.routed, cluster)).collect()
    }

    /// Index of the pod's primary veth, and the evidence for that binding.
    fn holder(&self, pod: &Pod) -> Option<(u32, Proof)> {
        let is_its = |bound: &Bound| {
            !bound.is_secondary && bound.pod.key == pod.key && bound.pod.uid == pod.uid
        };
        let mut held = self.veths.values();
        held.find_map(|held| {
            let binding = held.binding.as_ref().filter(|binding| is_its(&binding.bound))?;
            Some((held.veth.index, binding.by))
        })
    }

    /// Sets the MAC address of bound veths: from the CNI result, else the first one seen.
    pub(super) fn settle_stations(&mut self) {
        for held in self.veths.values_mut() {
            let Some(Binding { bound, .. }) = &held.binding else { continue };
            let result = self.naming.get(&held.veth.name).and_then(|n| self.results.get(*n));
            let result = result.filter(|result| result.is_of(&bound.pod));
            let reported = result.and_then(|result| result.station);
            held.station = reported.or(held.station).or(held.veth.station);
        }
    }

    /// Binds veths by the CNI results and routes of the node.
    pub(super) fn bind_by_the_node(&mut self, cluster: &Cluster) {
        let indexes: Vec<u32> = self.veths.keys().copied().collect();
        for index in indexes {
            let Some(held) = self.veths.get(&index) else { continue };
            let mut candidates = self.named(held, cluster);
            let now = held.binding.as_ref();
            if let Some(binding) = now {
                if candidates.iter().any(|candidate| candidate.is(&binding.bound.pod)) {
                    self.confirm(index);
                    continue;
                }
                let deleted = binding.bound.standing == Standing::Deleted;
                if binding.by == Proof::Node && !deleted {
                    continue;
                }
                // For a deleted pod, a result without uid may be of an older pod with the same name.
                candidates
                    .retain(|new| !deleted || new.certain && new.standing == Standing::Listed);
            }
            let free = candidates.into_iter().find(|candidate| {
                let holder = self.holder(&candidate.pod);
                holder.is_none_or(|(_, by)| by < Proof::Node)
            });
            if let Some(candidate) = free {
                self.bind(index, candidate.bound(), Proof::Node);
            }
        }
    }

    /// Raises the evidence of a primary binding to [`Proof::Node`].
    fn confirm(&mut self, index: u32) {
        let binding = self.veths.get_mut(&index).and_then(|held| held.binding.as_mut());
        if let Some(binding) = binding.filter(|binding| !binding.bound.is_secondary) {
            binding.by = Proof::Node;
        }
    }

    /// Binds a veth to a pod; any other primary veth of that pod loses its binding.
    fn bind(&mut self, index: u32, bound: Bound, by: Proof) {
        if let Some((other, _)) = self.holder(&bound.pod).filter(|(other, _)| *other != index)
            && let Some(held) = self.veths.get_mut(&other)
        {
            held.binding = None;
        }
        if let Some(held) = self.veths.get_mut(&index) {
            held.lost = false;
            held.binding = Some(Binding { bound, by });
        }
    }

    /// Binds veths by the first addresses seen inside. Unbound veths come first. A veth bound by addresses moves to
    /// another pod with the address once its pod is deleted; a veth bound by its namespace moves at any time.
    pub(super) fn bind_by_first_addresses(&mut self, cluster: &Cluster) {
        let follows = |binding: &Binding| match binding.by {
            Proof::Node => false,
            Proof::Inside => binding.bound.standing == Standing::Deleted,
            Proof::Namespace => true,
        };
        let unbound = self.veths.values().filter(|held| held.binding.is_none());
        let moved = self.veths.values().filter(|h| h.binding.as_ref().is_some_and(follows));
        let order = unbound.chain(moved).filter(|held| !held.lost && !held.first.is_empty());
        // In the namespace of a pod with CNI results, addresses inside an unbound veth are not evidence.
        let has_result = |bound: &Bound| self.results.iter().any(|result| result.is_of(&bound.pod));
        let order = order
            .filter(|held| held.binding.is_some() || !self.neighbour(held).is_some_and(has_result));
        let order: Vec<u32> = order.map(|held| held.veth.index).collect();
        for index in order {
            let Some(held) = self.veths.get(&index) else { continue };
            let free = claimants(&held.first, cluster)
                .find(|candidate| self.holder(&candidate.pod).is_none());
            if let Some(candidate) = free {
                self.bind(index, candidate.bound(), Proof::Inside);
            }
        }
    }

    /// Binds the other veths in the namespace of a primary veth to the same pod, as secondary veths.
    pub(super) fn bind_by_namespace(&mut self) {
        let unbound = self.veths.values().filter(|held| held.binding.is_none() && !held.lost);
        let found: Vec<(u32, Bound)> = unbound
            .filter_map(|held| {
                let mut bound = self.neighbour(held)?.clone();
                if self.is_unnamed(held, &bound.pod) {
                    return None;
                }
                bound.is_secondary = true;
                with_secondary_addresses(&mut bound.pod, self.further.get(&held.veth.name));
                Some((held.veth.index, bound))
            })
            .collect();
        for (index, bound) in found {
            if let Some(held) = self.veths.get_mut(&index) {
                held.binding = Some(Binding { bound, by: Proof::Namespace });
            }
        }
    }

    /// The pod of the primary veth in the same namespace.
    fn neighbour(&self, held: &HeldVeth) -> Option<&Bound> {
        let same = |other: &&HeldVeth| other.veth.namespace == held.veth.namespace;
        let others = self.veths.values().filter(same);
        let mut bound = others.filter_map(|other| other.binding.as_ref().map(|it| &it.bound));
        bound.find(|bound| !bound.is_secondary)
    }

    /// Whether a secondary veth lacks evidence of the node: the pod has CNI results, but no result of a secondary
    /// network names the veth, and no route leads to it. A pod that can create devices in the node's namespace can
    /// create a veth, but cannot write a result or a route.
    fn is_unnamed(&self, held: &HeldVeth, pod: &Pod) -> bool {
        let named = self.further.get(&held.veth.name).is_some_and(|result| result.is_of(pod));
        self.results.iter().any(|result| result.is_of(pod)) && !named && held.veth.routed.is_empty()
    }

    /// The pod of the namespace behind an unbound veth, if the node has no evidence for the veth.
    pub(super) fn intruded(&self, held: &HeldVeth) -> Option<&Bound> {
        self.neighbour(held).filter(|bound| self.is_unnamed(held, &bound.pod))
    }

    /// The pod that an unbound veth claims although the pod has another veth; with the index of that veth.
    pub(super) fn rival(&self, held: &HeldVeth, cluster: &Cluster) -> Option<(Arc<Pod>, u32)> {
        let named = self.named(held, cluster).into_iter();
        let inside = claimants(&held.first, cluster).chain(claimants(&held.veth.inside, cluster));
        named.chain(inside).find_map(|candidate| {
            let (holder, _) = self.holder(&candidate.pod)?;
            Some((candidate.pod, holder))
        })
    }
}

/// The pods of this node that claim one of these addresses; per address, the owner first.
pub(super) fn claimants<'a>(
    addresses: &'a [IpAddr],
    cluster: &'a Cluster,
) -> impl Iterator<Item = Candidate> + 'a {
    let of_address = |address: &IpAddr| {
        let claimants = cluster.pods.claimants(*address);
        let mut local: Vec<_> = claimants.filter(|pod| pod.node == cluster.node_name()).collect();
        local.sort_by_key(|pod| Reverse(precedence(pod)));
        local
    };
    addresses.iter().flat_map(of_address).map(Candidate::listed)
}

/// Refreshes a bound pod from the API.
fn refresh(bound: &mut Bound, cluster: &Cluster, results: &[CniResult]) {
    let former = Arc::clone(&bound.pod);
    let unlisted = matches!(bound.standing, Standing::Unlisted | Standing::Unlabelled);
    let is_it = |pod: &&Arc<Pod>| {
        let mirrored = || pod.uid == mirrored_uid(&former.uid, &former.key);
        pod.uid == former.uid || unlisted && (former.uid.is_empty() || mirrored())
    };
    let here = |pod: &&Arc<Pod>| pod.node == cluster.node_name() && !pod.host_network;
    let listed = cluster.pods().get(&former.key).filter(is_it).filter(here);
    let reported = || results.iter().rev().find(|result| result.is_of(&former));
    if let Some(pod) = listed {
        (bound.pod, bound.standing) = as_judged(pod);
    } else if !unlisted {
        bound.standing = Standing::Deleted;
    } else if let Some(result) = reported() {
        let now = Candidate::of_result(result, cluster).bound();
        (bound.pod, bound.standing) = (now.pod, now.standing);
    }
    if bound.is_secondary {
        return;
    }
    if bound.pod.addresses.is_empty() && !former.addresses.is_empty() {
        Arc::make_mut(&mut bound.pod).addresses.clone_from(&former.addresses);
    }
    // An address that now belongs to another pod is not a valid source of an unlisted or deleted pod.
    let uid = bound.pod.uid.clone();
    let foreign = |a: &IpAddr| cluster.status_owner(*a).is_some_and(|owner| owner.uid != uid);
    if bound.standing != Standing::Listed && bound.pod.addresses.iter().any(foreign) {
        Arc::make_mut(&mut bound.pod).addresses.retain(|address| !foreign(address));
    }
}
