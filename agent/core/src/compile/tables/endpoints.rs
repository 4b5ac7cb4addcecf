//! Endpoints: which local pod is behind which interface, and its record in the tables.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use netpold_ebpf::layout::{
    ENDPOINT_ADDRS, ENDPOINT_PROBES, EP_ADDR4_SHIFT, EP_ADDR6_SHIFT, EP_CHECK_SOURCE, Endpoint,
    endpoint_slot,
};

use crate::cluster::Cluster;
use crate::compile::rules::direction_policy::DirectionPolicy;
use crate::compile::rules::{Before, Late, Rules};
use crate::compile::sets::registry::Registry;
use crate::compile::tables::rows::RowPair;
use crate::model::{Direction, Interface, Key, Labels, Owner, Pod, Standing, uid_hash};
use crate::ops::Op;
use crate::options::{CheckSource, NewPods, Options};

/// `Endpoint::uid_hash` of an interface whose pod is not known.
pub const WAITING: u64 = u64::MAX;

/// Addresses of a family that an endpoint's record has room for beside those it replaces.
const MAX_ADDRESSES: usize = ENDPOINT_ADDRS / 2;

/// A pod's instance behind an instance of an interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) pod: Key,
    pub(crate) uid_hash: u64,
    pub(crate) incarnation: u64,
}

/// An endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) identity: Identity,
    pub(crate) id: u32,
    addr4: Vec<u32>,
    addr6: Vec<[u8; 16]>,
    /// More addresses of a family than the record holds.
    pub(crate) crowded: bool,
    pub(crate) check_source: bool,
    /// The pod asks not to be checked, and nobody may grant that in its namespace.
    pub(crate) unheard: bool,
    /// Ingress and egress; `None`: not isolated.
    pub(crate) direction_policies: [Option<Arc<DirectionPolicy>>; 2],
    /// Neither is isolated, but a policy on trial selects the pod: its ingress has a row that allows
    /// everything, since the packet path records the flows of endpoints with a row.
    watched: bool,
    /// Those that policies select the pod by, if they are known.
    labels: Option<Labels>,
    /// What of the direction policies is not as policies have it now.
    pub(crate) late: [Option<Late>; 2],
    /// The Services that the pod is a backend of, if it is isolated for ingress alone.
    backs: BTreeSet<Key>,
    /// Where the record is, and the record; `None`: no slot was free.
    pub(crate) record: Option<(u32, Endpoint)>,
}

impl Live {
    /// Whether the interface's pod is not known.
    pub(crate) fn is_waiting(&self) -> bool {
        self.identity.uid_hash == WAITING && self.identity.pod.name.is_empty()
    }

    /// Whether a direction is isolated.
    pub(crate) fn isolated(&self, direction: Direction) -> bool {
        !self.watched && self.direction_policies[direction as usize].is_some()
    }

    /// The installed rows, if there is a record.
    pub(crate) fn installed_rows(&self) -> Option<(u32, u32)> {
        self.record.as_ref().map(|(_, record)| {
            (Endpoint::ingress_row(record.rows), Endpoint::egress_row(record.rows))
        })
    }

    /// The record as it is to be, given the one that is installed.
    fn desired(&self, ifindex: u32, rows: RowPair, installed: Option<&Endpoint>) -> Endpoint {
        let rows = Endpoint::pack_rows(rows.0, rows.1);
        let mut record = Endpoint {
            ifindex,
            id: self.id,
            rows,
            uid_hash: self.identity.uid_hash,
            ..Endpoint::default()
        };
        let (old4, old6, flags) =
            installed.map_or_else(Default::default, |old| (old.addr4, old.addr6, old.flags));
        let (addr4, valid4) = place(&self.addr4, old4, flags >> EP_ADDR4_SHIFT);
        let (addr6, valid6) = place(&self.addr6, old6, flags >> EP_ADDR6_SHIFT);
        record.addr4 = addr4;
        record.addr6 = addr6;
        record.flags = valid4 << EP_ADDR4_SHIFT | valid6 << EP_ADDR6_SHIFT;
        if self.check_source {
            record.flags |= EP_CHECK_SOURCE;
        }
        record
    }
}

/// Places addresses: those that are there keep their slot, new ones take slots that are not valid,
/// and slots that fall free keep their content.
fn place<T: Copy + PartialEq>(
    wanted: &[T],
    mut slots: [T; ENDPOINT_ADDRS],
    valid: u32,
) -> ([T; ENDPOINT_ADDRS], u32) {
    let is_valid = |slot: usize| valid >> slot & 1 != 0;
    let mut now = 0u32;
    let mut new = Vec::new();
    for address in wanted {
        match (0..ENDPOINT_ADDRS).find(|slot| is_valid(*slot) && slots[*slot] == *address) {
            Some(slot) => now |= 1 << slot,
            None => new.push(*address),
        }
    }
    let free = (0..ENDPOINT_ADDRS).filter(|slot| !is_valid(*slot));
    for (address, slot) in new.into_iter().zip(free) {
        slots[slot] = address;
        now |= 1 << slot;
    }
    (slots, now)
}

/// The numbers that a compiler has given, and to whom it will give which.
#[derive(Debug)]
pub(crate) struct Given {
    version: u64,
    next_id: u32,
    known: BTreeMap<(u32, u64), u32>,
    kept: BTreeMap<(u32, Identity), u32>,
    familiar: Option<BTreeSet<(u32, u64)>>,
}

/// All endpoints by interface index.
#[derive(Debug)]
pub(crate) struct Endpoints {
    pub(crate) live: BTreeMap<u32, Live>,
    /// As long as this number stays, so do the endpoints.
    pub(crate) version: u64,
    next_id: u32,
    /// Numbers given by an earlier agent, or before the tables were forgotten.
    known: BTreeMap<(u32, u64), u32>,
    kept: BTreeMap<(u32, Identity), u32>,
    slots: BTreeSet<u32>,
    /// Endpoints for which no slot was free.
    pub(crate) unplaced: BTreeSet<u32>,
    quarantine: BTreeSet<u32>,
    /// Interfaces whose pod is not known are denied, those apart that were there first (they may be
    /// nobody's pods): by index and incarnation.
    new_pods: NewPods,
    familiar: Option<BTreeSet<(u32, u64)>>,
}

impl Endpoints {
    pub(crate) fn new(options: &Options) -> Self {
        let known = options.known_endpoints.values().map(|id| id + 1).max().unwrap_or(1);
        Self {
            live: BTreeMap::new(),
            version: 0,
            next_id: options.first_endpoint_id.max(known).max(1),
            known: options.known_endpoints.clone(),
            kept: BTreeMap::new(),
            slots: BTreeSet::new(),
            unplaced: BTreeSet::new(),
            quarantine: BTreeSet::new(),
            new_pods: options.new_pods,
            familiar: None,
        }
    }

    /// Before the first update: what is there is not new, unless an earlier agent denied it.
    pub(crate) fn begin(&mut self, cluster: &Cluster) {
        if self.familiar.is_some() {
            return;
        }
        let waiting = |interface: &Interface| self.known.contains_key(&(interface.index, WAITING));
        let there = cluster.interfaces().values().filter(|i| !waiting(i));
        self.familiar = Some(there.map(|i| (i.index, i.incarnation)).collect());
    }

    /// What an interface gets whose pod is not known: its node, and nobody else.
    fn waiting(
        &mut self,
        interface: &Interface,
        rules: &mut Rules,
        registry: &mut Registry,
    ) -> Option<Live> {
        let key = (interface.index, interface.incarnation);
        let familiar = self.familiar.as_ref().is_some_and(|known| known.contains(&key));
        let denied = interface.owner == Owner::Denied;
        if !denied && (self.new_pods == NewPods::Allow || familiar) {
            return None;
        }
        let identity = Identity {
            pod: Key::new("", ""),
            uid_hash: WAITING,
            incarnation: interface.incarnation,
        };
        let (id, record) = self.carried(interface.index, &identity);
        Some(Live {
            identity,
            id,
            addr4: Vec::new(),
            addr6: Vec::new(),
            crowded: false,
            check_source: false,
            unheard: false,
            direction_policies: [Some(DirectionPolicy::nothing()), Some(rules.own_node(registry))],
            watched: false,
            labels: None,
            late: [None, None],
            backs: BTreeSet::new(),
            record,
        })
    }

    /// An endpoint's number, and the record that its interface has already.
    fn carried(&mut self, ifindex: u32, identity: &Identity) -> (u32, Option<(u32, Endpoint)>) {
        let before = self.live.get(&ifindex);
        // Another pod takes the record over in place: there is no moment without one.
        let record = before.and_then(|live| live.record);
        let known = before.filter(|live| live.identity == *identity).map(|live| live.id);
        (known.unwrap_or_else(|| self.number(ifindex, identity)), record)
    }

    /// Forgets everything but the numbers.
    pub(crate) fn forget(&mut self) {
        for (ifindex, live) in std::mem::take(&mut self.live) {
            self.kept.insert((ifindex, live.identity), live.id);
        }
        self.slots.clear();
        self.unplaced.clear();
        self.quarantine.clear();
        self.version += 1;
    }

    pub(crate) fn grace_passed(&mut self) {
        for slot in std::mem::take(&mut self.quarantine) {
            self.slots.remove(&slot);
        }
    }

    /// Interfaces whose pod is in one of these namespaces.
    pub(crate) fn in_namespaces(&self, namespaces: &BTreeSet<String>) -> impl Iterator<Item = u32> {
        let all = self.live.iter().filter(|_| !namespaces.is_empty());
        all.filter(|(_, live)| namespaces.contains(&live.identity.pod.namespace))
            .map(|(ifindex, _)| *ifindex)
    }

    /// What an interface's endpoint is to be.
    pub(crate) fn build(
        &mut self,
        interface: &Interface,
        cluster: &Cluster,
        options: &Options,
        rules: &mut Rules,
        registry: &mut Registry,
    ) -> Option<Live> {
        let Some(pod) = cluster.pod_behind(interface) else {
            return self.waiting(interface, rules, registry);
        };
        let bound = match &interface.owner {
            Owner::Pod(bound) => Some(bound),
            Owner::Unbound | Owner::Denied => None,
        };
        let is = |standing| bound.is_some_and(|bound| bound.standing == standing);
        let (addr4, addr6) = split(pod);
        let crowded = addr4.len() > MAX_ADDRESSES || addr6.len() > MAX_ADDRESSES;
        let identity = Identity {
            pod: pod.key.clone(),
            uid_hash: uid_hash(&pod.uid),
            incarnation: interface.incarnation,
        };
        let before = self.live.get(&interface.index).filter(|live| live.identity == identity);
        let labelled = !is(Standing::Unlabelled);
        let [ingress, egress] = Direction::BOTH.map(|direction| {
            let now = before.filter(|before| !before.watched).and_then(|before| {
                let direction_policy = before.direction_policies[direction as usize].as_ref()?;
                let same_labels = before.labels == labelled.then(|| pod.labels.clone());
                Some(Before { direction_policy, same_labels })
            });
            rules.of_pod(cluster, (pod, labelled), (direction, now), registry).unzip()
        });
        let late = [ingress.1.flatten(), egress.1.flatten()];
        let direction_policies = [ingress.0, egress.0].map(|direction_policy| {
            // Judging by some of its addresses would be wrong for the others.
            direction_policy.map(|it| if crowded { DirectionPolicy::nothing() } else { it })
        });
        let isolated = direction_policies.iter().any(Option::is_some);
        let on_trial = |direction| cluster.policies_about((pod, labelled), direction).is_on_trial();
        let watched = !isolated && Direction::BOTH.into_iter().any(on_trial);
        let backed = matches!(&direction_policies, [Some(_), None]);
        let direction_policies = match watched {
            true => [Some(rules.everything(registry)), None],
            false => direction_policies,
        };
        let exempt = options.source_exempt.holds(pod);
        let (id, record) = self.carried(interface.index, &identity);
        Some(Live {
            identity,
            id,
            addr4: addr4.into_iter().take(MAX_ADDRESSES).collect(),
            addr6: addr6.into_iter().take(MAX_ADDRESSES).collect(),
            crowded,
            check_source: !exempt
                && !bound.is_some_and(|bound| bound.second)
                && match options.check_source {
                    CheckSource::Off => false,
                    // Another pod may have been given its address.
                    CheckSource::Isolated => isolated || is(Standing::Deleted),
                    CheckSource::All => true,
                },
            unheard: pod.foreign_sources && !exempt && options.check_source != CheckSource::Off,
            backs: match backed {
                true => {
                    let backed = cluster.translation.backed_by(pod);
                    backed.into_iter().map(|it| it.service.key.clone()).collect()
                }
                false => BTreeSet::new(),
            },
            watched,
            direction_policies,
            labels: labelled.then(|| pod.labels.clone()),
            late,
            record,
        })
    }

    /// What is not as policies have it now.
    pub(crate) fn late(&self) -> impl Iterator<Item = &Late> {
        self.live.values().flat_map(|live| live.late.iter().flatten())
    }

    /// The numbers that were given so far, for another compiler.
    pub(crate) fn given(&self) -> Given {
        let live = self.live.iter();
        let live = live.map(|(ifindex, live)| ((*ifindex, live.identity.clone()), live.id));
        Given {
            version: self.version,
            next_id: self.next_id,
            known: self.known.clone(),
            kept: self.kept.clone().into_iter().chain(live).collect(),
            familiar: self.familiar.clone(),
        }
    }

    /// Gives the numbers that another compiler has given.
    pub(crate) fn take_over(&mut self, given: Given) {
        self.version = self.version.max(given.version) + 1;
        self.next_id = given.next_id;
        self.known = given.known;
        self.kept = given.kept;
        let is_live = |(ifindex, of): &(u32, Identity)| {
            self.live.get(ifindex).is_some_and(|live| live.identity == *of)
        };
        self.kept.retain(|key, _| !is_live(key));
        self.familiar = given.familiar;
    }

    /// The Services that have a backend among the pods that are isolated for ingress alone.
    pub(crate) fn backed(&self) -> BTreeSet<Key> {
        self.live.values().flat_map(|live| &live.backs).cloned().collect()
    }

    /// The numbers of all endpoints, and those that are put by for endpoints to come. No other number that
    /// was ever given comes back.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        let live = self.live.values().map(|live| live.id);
        live.chain(self.kept.values().copied()).chain(self.known.values().copied())
    }

    /// The number of a pod instance that is seen for the first time.
    fn number(&mut self, ifindex: u32, identity: &Identity) -> u32 {
        if let Some(id) = self.kept.remove(&(ifindex, identity.clone())) {
            return id;
        }
        if let Some(id) = self.known.remove(&(ifindex, identity.uid_hash)) {
            return id;
        }
        self.next_id += 1;
        self.next_id - 1
    }

    /// A free slot for an interface. A slot whose last use packets may still see is not free.
    fn slot(&self, ifindex: u32) -> Option<u32> {
        (0..ENDPOINT_PROBES)
            .map(|probe| endpoint_slot(ifindex, probe))
            .find(|slot| !self.slots.contains(slot))
    }

    /// Writes the record of an endpoint that has none, if a slot is free for it.
    pub(crate) fn appear(&mut self, ifindex: u32, rows: RowPair, ops: &mut Vec<Op>) {
        let Some(slot) = self.slot(ifindex) else {
            self.unplaced.insert(ifindex);
            return;
        };
        let Some(live) = self.live.get_mut(&ifindex) else { return };
        let record = live.desired(ifindex, rows, None);
        live.record = Some((slot, record));
        self.slots.insert(slot);
        ops.push(Op::Endpoint(slot, Box::new(record)));
    }

    /// Frees a record's slot.
    pub(crate) fn vanish(&mut self, slot: u32, ops: &mut Vec<Op>) {
        ops.push(Op::EndpointGone(slot));
        self.quarantine.insert(slot);
    }

    /// Brings an installed record up to date.
    pub(crate) fn flip(&mut self, ifindex: u32, rows: RowPair, ops: &mut Vec<Op>) {
        let Some(live) = self.live.get_mut(&ifindex) else { return };
        let Some((slot, installed)) = live.record else { return };
        let desired = live.desired(ifindex, rows, Some(&installed));
        let another = desired.id != installed.id;
        if another && desired.rows != installed.rows {
            // Another pod is there already: it must not run under the former one's rows.
            ops.push(Op::EndpointRows(slot, desired.rows));
        }
        let now = if another { desired.rows } else { installed.rows };
        if (Endpoint { rows: now, ..desired }) != (Endpoint { rows: now, ..installed }) {
            ops.push(Op::EndpointAddrs(slot, Box::new(Endpoint { rows: now, ..desired })));
        }
        if !another && desired.rows != installed.rows {
            ops.push(Op::EndpointRows(slot, desired.rows));
        }
        live.record = Some((slot, desired));
    }
}

/// A pod's addresses by family.
fn split(pod: &Pod) -> (Vec<u32>, Vec<[u8; 16]>) {
    let mut addr4 = Vec::new();
    let mut addr6 = Vec::new();
    for address in &pod.addresses {
        match address {
            IpAddr::V4(v4) => addr4.push(v4.to_bits()),
            IpAddr::V6(v6) => addr6.push(v6.octets()),
        }
    }
    (addr4, addr6)
}
