//! Who may have a veth: what the node says, what was seen inside first, whose namespace it is.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::bindings::veth::{
    Binding, CniResult, Held, Proof, as_judged, mirrored_uid, without_addresses,
};
use crate::cluster::{Cluster, precedence};
use crate::model::{Bound, Owner, Pod, Standing};

/// A pod that may be a veth's.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) pod: Arc<Pod>,
    standing: Standing,
    /// The uid is known, so that it is not mistaken for a former pod of the name.
    certain: bool,
}

impl Candidate {
    fn listed(pod: &Arc<Pod>) -> Self {
        Self { pod: Arc::clone(pod), standing: Standing::Listed, certain: true }
    }

    /// The pod that a result names: as the API has it, else as the node knows it.
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
            // What the API will call a static pod: its flows stay its own then.
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
            workload: None,
        };
        Self { pod: Arc::new(pod), standing, certain }
    }

    pub(super) fn bound(self) -> Bound {
        Bound { pod: self.pod, standing: self.standing, second: false, station: None }
    }

    fn is(&self, pod: &Pod) -> bool {
        self.pod.key == pod.key && self.pod.uid == pod.uid
    }
}

/// The veths, and what the node says of them.
#[derive(Debug, Default)]
pub(super) struct Claims {
    pub(super) veths: BTreeMap<u32, Held>,
    pub(super) results: Vec<CniResult>,
    /// Places of the last results that name an interface.
    pub(super) naming: BTreeMap<String, usize>,
    /// Results for further networks of pods, of each interface the last.
    pub(super) further: BTreeMap<String, CniResult>,
}

impl Claims {
    /// Whose a veth is.
    pub(super) fn owner(&self, held: &Held, cluster: &Cluster) -> Owner {
        match &held.binding {
            Some(Binding { bound, .. }) => {
                let station = held.station.filter(|_| !bound.second);
                Owner::Pod(Bound { station, ..bound.clone() })
            }
            None if held.lost || self.rival(held, cluster).is_some() => Owner::Denied,
            None if self.intruded(held).is_some() => Owner::Denied,
            None => Owner::Unbound,
        }
    }

    /// Takes over what the API says of bound pods.
    pub(super) fn refresh(&mut self, cluster: &Cluster) {
        for held in self.veths.values_mut() {
            if let Some(binding) = &mut held.binding {
                refresh(&mut binding.bound, cluster, &self.results);
            }
        }
    }

    /// Who has a veth by the node's word, the most credible first.
    fn named(&self, held: &Held, cluster: &Cluster) -> Vec<Candidate> {
        let result = self.naming.get(&held.veth.name).and_then(|n| self.results.get(*n));
        let reported = result.map(|result| Candidate::of_result(result, cluster));
        reported.into_iter().chain(claimants(&held.veth.routed, cluster)).collect()
    }

    /// The veth that a pod has for its own, and what that rests on.
    fn holder(&self, pod: &Pod) -> Option<(u32, Proof)> {
        let is_its =
            |bound: &Bound| !bound.second && bound.pod.key == pod.key && bound.pod.uid == pod.uid;
        let mut held = self.veths.values();
        held.find_map(|held| {
            let binding = held.binding.as_ref().filter(|binding| is_its(&binding.bound))?;
            Some((held.veth.index, binding.by))
        })
    }

    /// Settles the hardware addresses of what is bound: by the CNI plugin's result, else as first seen.
    pub(super) fn settle_stations(&mut self) {
        for held in self.veths.values_mut() {
            let Some(Binding { bound, .. }) = &held.binding else { continue };
            let result = self.naming.get(&held.veth.name).and_then(|n| self.results.get(*n));
            let result = result.filter(|result| result.is_of(&bound.pod));
            let reported = result.and_then(|result| result.station);
            held.station = reported.or(held.station).or(held.veth.station);
        }
    }

    /// The results and routes of the node.
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
                // Of a pod that is gone, a result without uid may be a former one's.
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

    /// The node says of a binding what it was taken for.
    fn confirm(&mut self, index: u32) {
        let binding = self.veths.get_mut(&index).and_then(|held| held.binding.as_mut());
        if let Some(binding) = binding.filter(|binding| !binding.bound.second) {
            binding.by = Proof::Node;
        }
    }

    /// Binds a veth; another one that had the pod for less loses it.
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

    /// What was seen inside first. A binding that rests on it follows when its pod is gone and another
    /// one has the address, unless a veth that is bound to nobody has it, too.
    pub(super) fn bind_by_first_addresses(&mut self, cluster: &Cluster) {
        let follows = |binding: &Binding| match binding.by {
            Proof::Node => false,
            Proof::Inside => binding.bound.standing == Standing::Deleted,
            Proof::Namespace => true,
        };
        let unbound = self.veths.values().filter(|held| held.binding.is_none());
        let moved = self.veths.values().filter(|h| h.binding.as_ref().is_some_and(follows));
        let order = unbound.chain(moved).filter(|held| !held.lost && !held.first.is_empty());
        // What is inside a namespace that has a pod names no other.
        let answered = |bound: &Bound| self.results.iter().any(|result| result.is_of(&bound.pod));
        let order = order
            .filter(|held| held.binding.is_some() || !self.neighbour(held).is_some_and(answered));
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

    /// Further veths of a namespace that has a pod.
    pub(super) fn bind_by_namespace(&mut self) {
        let unbound = self.veths.values().filter(|held| held.binding.is_none() && !held.lost);
        let found: Vec<(u32, Bound)> = unbound
            .filter_map(|held| {
                let mut bound = self.neighbour(held)?.clone();
                if self.is_unnamed(held, &bound.pod) {
                    return None;
                }
                bound.second = true;
                without_addresses(&mut bound.pod);
                Some((held.veth.index, bound))
            })
            .collect();
        for (index, bound) in found {
            if let Some(held) = self.veths.get_mut(&index) {
                held.binding = Some(Binding { bound, by: Proof::Namespace });
            }
        }
    }

    /// The pod that has the other veth of a veth's namespace.
    fn neighbour(&self, held: &Held) -> Option<&Bound> {
        let same = |other: &&Held| other.veth.namespace == held.veth.namespace;
        let others = self.veths.values().filter(same);
        let mut bound = others.filter_map(|other| other.binding.as_ref().map(|it| &it.bound));
        bound.find(|bound| !bound.second)
    }

    /// Whether nothing on the node names a further veth of a pod, though it would: what plugins answered for the pod is
    /// kept. Who may make devices in the node's namespace can make a veth; it can neither write a result nor a route.
    fn is_unnamed(&self, held: &Held, pod: &Pod) -> bool {
        let named = self.further.get(&held.veth.name).is_some_and(|result| result.is_of(pod));
        self.results.iter().any(|result| result.is_of(pod)) && !named && held.veth.routed.is_empty()
    }

    /// The pod whose namespace an unbound veth leads to though nothing on the node names it.
    pub(super) fn intruded(&self, held: &Held) -> Option<&Bound> {
        self.neighbour(held).filter(|bound| self.is_unnamed(held, &bound.pod))
    }

    /// The pod that an unbound veth claims to be though another one is bound to it, and that one.
    pub(super) fn rival(&self, held: &Held, cluster: &Cluster) -> Option<(Arc<Pod>, u32)> {
        let named = self.named(held, cluster).into_iter();
        let inside = claimants(&held.first, cluster).chain(claimants(&held.veth.inside, cluster));
        named.chain(inside).find_map(|candidate| {
            let (holder, _) = self.holder(&candidate.pod)?;
            Some((candidate.pod, holder))
        })
    }
}

/// The pods of this node that claim one of these addresses, of each its owner first.
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

/// Takes over what the API says of a bound pod.
fn refresh(bound: &mut Bound, cluster: &Cluster, results: &[CniResult]) {
    let former = Arc::clone(&bound.pod);
    let unlisted = matches!(bound.standing, Standing::Unlisted | Standing::Unlabelled);
    let is_it = |pod: &&Arc<Pod>| {
        let mirrored = || pod.uid == mirrored_uid(&former.uid, &former.key);
        pod.uid == former.uid || unlisted && (former.uid.is_empty() || mirrored())
    };
    let here = |pod: &&Arc<Pod>| pod.node == cluster.node_name() && !pod.host_network;
    let said = cluster.pods().get(&former.key).filter(is_it).filter(here);
    let reported = || results.iter().rev().find(|result| result.is_of(&former));
    if let Some(pod) = said {
        (bound.pod, bound.standing) = as_judged(pod);
    } else if !unlisted {
        bound.standing = Standing::Deleted;
    } else if let Some(result) = reported() {
        let now = Candidate::of_result(result, cluster).bound();
        (bound.pod, bound.standing) = (now.pod, now.standing);
    }
    if bound.second {
        without_addresses(&mut bound.pod);
        return;
    }
    if bound.pod.addresses.is_empty() && !former.addresses.is_empty() {
        Arc::make_mut(&mut bound.pod).addresses.clone_from(&former.addresses);
    }
    // What another pod has been given since is not this one's to send from.
    let uid = bound.pod.uid.clone();
    let foreign = |a: &IpAddr| cluster.owner(*a).is_some_and(|owner| owner.uid != uid);
    if bound.standing != Standing::Listed && bound.pod.addresses.iter().any(foreign) {
        Arc::make_mut(&mut bound.pod).addresses.retain(|address| !foreign(address));
    }
}
