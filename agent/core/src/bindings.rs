//! Which pod a veth belongs to: decided once, for the veth's life, by what the pod cannot write.
//!
//! In the order of their weight:
//! - the node says so: the CNI plugin's answer names the veth, or a host route leads to the pod's
//!   address through it;
//! - where neither does (bridges without kept answers), the first addresses that were seen behind
//!   the veth: a veth that is bound to nobody is bound to a pod that no veth is bound to;
//! - a further veth of a namespace whose pod is known belongs to that pod.
//!
//! A veth leaves its pod only when it ends, when the node says that it is another's while its own
//! binding is of less weight, or when its pod is gone from the API and the node says that it is
//! another's. What happens inside the namespace later changes nothing and is a problem to report. So
//! this is the one part of the core that has a history; the compiler sees only what came of it.

mod claims;
mod problems;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::model::{
    Bound, Change, Interface, Key, Labels, NamedPort, Owner, Pod, Standing, uid_hash,
};
use claims::{Candidate, as_judged, without_addresses};

pub use problems::Problem;

/// A veth in the node's namespace whose other side is in another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Veth {
    /// Interface index.
    pub index: u32,
    /// Number that tells a reused index from the former interface.
    pub incarnation: u64,
    /// Name in the node's namespace.
    pub name: String,
    /// Identifier of the other side's namespace.
    pub namespace: i32,
    /// Addresses that the node's own routes lead to through it, one by one.
    pub routed: Vec<IpAddr>,
    /// Global addresses of the other side, [`Veth::MAX_INSIDE`] at the most. The pod can write them.
    pub inside: Vec<IpAddr>,
}

impl Veth {
    /// As many addresses inside are looked at: the pod can have any number.
    pub const MAX_INSIDE: usize = 64;
}

/// What a CNI plugin answered for a pod of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// `K8S_POD_NAMESPACE` and `K8S_POD_NAME`.
    pub pod: Key,
    /// `K8S_POD_UID`; empty if the runtime does not say it.
    pub uid: String,
    /// The pod's; sorted.
    pub addresses: Vec<IpAddr>,
    /// Names of interfaces on the node's side, the pod's veth among them.
    pub interfaces: Vec<String>,
    /// Labels and named ports of a pod whose manifest is on this node (a static pod).
    pub manifest: Option<(Labels, Vec<NamedPort>)>,
}

impl Answer {
    /// Whether it is this pod's, and not that of a former one of the same name.
    #[must_use]
    pub fn is_of(&self, pod: &Pod) -> bool {
        self.pod == pod.key && (self.uid.is_empty() || self.uid == pod.uid || self.mirrors(pod))
    }

    /// The API's image of a static pod has a uid of its own.
    fn mirrors(&self, pod: &Pod) -> bool {
        pod.uid == mirrored_uid(&self.uid, &self.pod)
    }
}

/// [`Pod::uid`] of the API's image of a static pod, which the node knows by another uid. It has the
/// key in it: anybody may write the annotation that it comes from, into pods of the own namespace.
#[must_use]
pub fn mirrored_uid(uid: &str, key: &Key) -> String {
    format!("{uid}@{key}")
}

/// Whether a pod is the API's image of a static one; no other uid has that sign.
fn is_mirrored(pod: &Pod) -> bool {
    pod.uid.contains('@')
}

/// What a binding rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Proof {
    /// The other veth of a namespace.
    Namespace,
    /// The first addresses inside, or what an earlier agent knew.
    Inside,
    /// The node's word.
    Node,
}

#[derive(Clone, Debug)]
struct Binding {
    bound: Bound,
    by: Proof,
}

#[derive(Clone, Debug)]
struct Held {
    veth: Veth,
    /// The first addresses that were seen behind it. Empty for ever where an earlier agent had bound
    /// it: what is there now is not the first.
    first: Vec<IpAddr>,
    binding: Option<Binding>,
    /// [`uid_hash`] of the pod that an earlier agent had bound it to.
    inherited: Option<u64>,
    /// An earlier agent's pod is nowhere to be found.
    lost: bool,
    told: Option<Interface>,
}

/// All veths and their pods.
#[derive(Debug, Default)]
pub struct Bindings {
    veths: BTreeMap<u32, Held>,
    answers: Vec<Answer>,
    /// Places of the last answers that name an interface.
    naming: BTreeMap<String, usize>,
    inherited: BTreeMap<u32, u64>,
    remembered: Vec<Arc<Pod>>,
    gone: Vec<u32>,
    stale: bool,
}

impl Bindings {
    /// Before all: what an earlier agent had bound, for veths that have been there since, by index
    /// and [`uid_hash`]; and the pods of this node that it knew, in case the API has them no more.
    pub fn inherit(&mut self, bound: BTreeMap<u32, u64>, remembered: Vec<Pod>) {
        self.inherited = bound;
        self.remembered = remembered.into_iter().map(Arc::new).collect();
    }

    /// A veth now is this.
    pub fn veth_is(&mut self, veth: Veth) {
        self.stale = true;
        let before = self.veths.remove(&veth.index);
        let same = before.filter(|held| held.veth.incarnation == veth.incarnation);
        let mut held = same.unwrap_or_else(|| Held {
            first: Vec::new(),
            binding: None,
            inherited: self.inherited.remove(&veth.index),
            lost: false,
            told: None,
            veth: Veth::default(),
        });
        let is_bound = held.inherited.is_some() || held.lost || held.binding.is_some();
        if held.first.is_empty() && !is_bound {
            held.first.clone_from(&veth.inside);
        }
        held.veth = veth;
        self.veths.insert(held.veth.index, held);
    }

    /// A veth is gone.
    pub fn veth_gone(&mut self, index: u32) {
        self.stale = true;
        self.inherited.remove(&index);
        self.gone.extend(self.veths.remove(&index).map(|held| held.veth.index));
    }

    /// What CNI plugins answered, all that is kept now, the last written last.
    pub fn answers_are(&mut self, answers: Vec<Answer>) {
        self.stale |= self.answers != answers;
        let places = answers.iter().enumerate();
        let named =
            places.flat_map(|(place, a)| a.interfaces.iter().map(move |i| (i.clone(), place)));
        self.naming = named.collect();
        self.answers = answers;
    }

    /// The cluster's state changes, or is about to.
    pub fn note(&mut self, change: &Change, cluster: &Cluster) {
        let is_local = |pod: &Pod| pod.node == cluster.node_name();
        let before = |key| cluster.pods().get(key).is_some_and(|pod| is_local(pod));
        self.stale |= match change {
            Change::Pod(pod) => is_local(pod) || before(&pod.key) || self.any_deleted(),
            Change::PodGone(key) => before(key) || self.any_deleted(),
            _ => false,
        };
    }

    /// Whether an address of a pod that is gone may become another's.
    fn any_deleted(&self) -> bool {
        let mut bindings = self.veths.values().filter_map(|held| held.binding.as_ref());
        bindings.any(|binding| binding.bound.standing == Standing::Deleted)
    }

    /// Decides, given everything that is known: the changes of interfaces since the last time.
    pub fn settle(&mut self, cluster: &Cluster) -> Vec<Change> {
        if !std::mem::take(&mut self.stale) {
            return Vec::new();
        }
        self.recognise(cluster);
        self.refresh(cluster);
        self.bind_by_the_node(cluster);
        self.bind_by_first_addresses(cluster);
        self.bind_by_namespace();
        let gone = std::mem::take(&mut self.gone).into_iter().map(Change::InterfaceGone);
        let mut changes: Vec<Change> = gone.collect();
        let owners: Vec<(u32, Owner)> =
            self.veths.values().map(|held| (held.veth.index, self.owner(held, cluster))).collect();
        for (index, owner) in owners {
            let Some(held) = self.veths.get_mut(&index) else { continue };
            let incarnation = held.veth.incarnation;
            let now = Interface { index, incarnation, addresses: Vec::new(), owner };
            if held.told.as_ref() != Some(&now) {
                held.told = Some(now.clone());
                changes.push(Change::Interface(now));
            }
        }
        changes
    }

    /// The pods that are gone from the API while their veths are there, as they were known last.
    pub fn deleted(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let bindings = self.veths.values().filter_map(|held| held.binding.as_ref());
        let own = bindings.map(|binding| &binding.bound).filter(|bound| !bound.second);
        own.filter(|bound| bound.standing == Standing::Deleted).map(|bound| &bound.pod)
    }

    fn owner(&self, held: &Held, cluster: &Cluster) -> Owner {
        match &held.binding {
            Some(binding) => Owner::Pod(binding.bound.clone()),
            None if held.lost || self.rival(held, cluster).is_some() => Owner::Denied,
            None => Owner::Unbound,
        }
    }

    /// Binds what an earlier agent had bound to the same pods.
    fn recognise(&mut self, cluster: &Cluster) {
        if self.veths.values().all(|held| held.inherited.is_none()) {
            return;
        }
        let here = |pod: &&Arc<Pod>| pod.node == cluster.node_name() && !pod.host_network;
        let listed: Vec<&Arc<Pod>> = cluster.pods().values().filter(here).collect();
        for held in self.veths.values_mut() {
            let Some(hash) = held.inherited.take() else { continue };
            // Anybody may write an annotation that makes a uid, and the hash is no secret: the image of
            // a static pod counts if the node has that pod.
            let is_it = |pod: &&Arc<Pod>| {
                uid_hash(&pod.uid) == hash
                    && (!is_mirrored(pod) || self.answers.iter().any(|answer| answer.is_of(pod)))
            };
            let known = listed.iter().copied().chain(&self.remembered).find(is_it);
            let bound = known.map(|pod| {
                let (pod, standing) = as_judged(pod);
                Bound { pod, standing, second: false }
            });
            held.lost = bound.is_none();
            held.binding = bound.map(|bound| Binding { bound, by: Proof::Inside });
        }
        self.separate();
    }

    /// Of several veths that an earlier agent had bound to one pod, the one that a route or an answer
    /// names is its own, else the one with its addresses inside, else the first.
    fn separate(&mut self) {
        let mut own: BTreeMap<(Key, String), (u8, u32)> = BTreeMap::new();
        let rank = |held: &Held, pod: &Pod| {
            let has = |addresses: &[IpAddr]| pod.addresses.iter().any(|a| addresses.contains(a));
            let named = |a: &Answer| a.is_of(pod) && a.interfaces.contains(&held.veth.name);
            match () {
                () if held.told.is_some() => 0,
                () if self.answers.iter().any(named) || has(&held.veth.routed) => 1,
                () if has(&held.veth.inside) => 2,
                () => 3,
            }
        };
        for held in self.veths.values() {
            let bound = held.binding.as_ref().map(|binding| &binding.bound);
            let Some(pod) = bound.filter(|bound| !bound.second).map(|b| &b.pod) else { continue };
            let this = (rank(held, pod), held.veth.index);
            let best = own.entry((pod.key.clone(), pod.uid.clone())).or_insert(this);
            *best = this.min(*best);
        }
        for held in self.veths.values_mut().filter(|held| held.told.is_none()) {
            let Some(binding) = &mut held.binding else { continue };
            let pod = &binding.bound.pod;
            let first = own.get(&(pod.key.clone(), pod.uid.clone()));
            binding.bound.second = first.is_some_and(|(_, index)| *index != held.veth.index);
        }
    }

    /// Takes over what the API says of bound pods.
    fn refresh(&mut self, cluster: &Cluster) {
        for held in self.veths.values_mut() {
            if let Some(binding) = &mut held.binding {
                binding.bound.refresh(cluster, &self.answers);
            }
        }
    }
}

impl Bound {
    fn refresh(&mut self, cluster: &Cluster, answers: &[Answer]) {
        let former = Arc::clone(&self.pod);
        let unlisted = matches!(self.standing, Standing::Unlisted | Standing::Unlabelled);
        let is_it = |pod: &&Arc<Pod>| {
            let mirrored = || pod.uid == mirrored_uid(&former.uid, &former.key);
            pod.uid == former.uid || unlisted && (former.uid.is_empty() || mirrored())
        };
        let here = |pod: &&Arc<Pod>| pod.node == cluster.node_name() && !pod.host_network;
        let said = cluster.pods().get(&former.key).filter(is_it).filter(here);
        let answered = || answers.iter().rev().find(|answer| answer.is_of(&former));
        if let Some(pod) = said {
            (self.pod, self.standing) = as_judged(pod);
        } else if !unlisted {
            self.standing = Standing::Deleted;
        } else if let Some(answer) = answered() {
            let now = Candidate::of_answer(answer, cluster).bound();
            (self.pod, self.standing) = (now.pod, now.standing);
        }
        if self.second {
            without_addresses(&mut self.pod);
            return;
        }
        if self.pod.addresses.is_empty() && !former.addresses.is_empty() {
            Arc::make_mut(&mut self.pod).addresses.clone_from(&former.addresses);
        }
        // What another pod has been given since is not this one's to send from.
        let uid = self.pod.uid.clone();
        let foreign = |a: &IpAddr| cluster.owner(*a).is_some_and(|owner| owner.uid != uid);
        if self.standing != Standing::Listed && self.pod.addresses.iter().any(foreign) {
            Arc::make_mut(&mut self.pod).addresses.retain(|address| !foreign(address));
        }
    }
}

#[cfg(test)]
mod tests;
