//! Endpoints: the local pod behind each interface, and its record in the tables.

mod addresses;
mod numbers;
mod pod_rules;
mod secondary;

use std::collections::{BTreeMap, BTreeSet};

use netpold_ebpf::endpoint::Rows;
use netpold_ebpf::layout::{
    ENDPOINT_PROBES, EP_CHECK_SOURCE, EP_OBSERVE, EP_REJECT_EGRESS, EP_REJECT_INGRESS, Endpoint,
    ROW_NAMES, ROW_NOT_ISOLATED, endpoint_slot,
};

use crate::cluster::Cluster;
use crate::compile::rules::{LateCombination, Rules};
use crate::compile::sets::registry::Registry;
use crate::compile::tables::rows::RowPair;
use crate::model::{Denial, Direction, Interface, InterfaceOwner, Key, Standing, uid_hash};
use crate::ops::Op;
use crate::options::{CheckSource, NewPods, OBSERVE, ObserveFlows, Options};
use addresses::Addresses;
use numbers::Numbers;
pub(crate) use numbers::PodInstance;
pub use numbers::WAITING;
use pod_rules::PodRules;
use secondary::SecondaryPolicy;

/// An endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) identity: PodInstance,
    pub(crate) id: u32,
    pub(crate) addresses: Addresses,
    pub(crate) check_source: bool,
    /// Whether packets that policy denies are answered, by direction.
    pub(crate) rejects: [bool; 2],
    /// Whether flows are recorded while no policy selects the pod.
    pub(crate) observes: bool,
    /// Hardware address of the veth's peer in the pod; `None` if unknown.
    pub(crate) station: Option<[u8; 6]>,
    /// Whether the pod asks to opt out of the source check in a namespace that is not exempt; the request has no
    /// effect.
    pub(crate) unheard: bool,
    /// A secondary interface of a pod, or the interface of an unknown pod: gives its slot to a primary interface.
    gives_way: bool,
    pub(crate) rules: PodRules,
    /// Services with the pod as backend, if it is isolated for ingress alone.
    backs: BTreeSet<Key>,
    /// Slot and record; `None` if no slot was free.
    pub(crate) record: Option<(u32, Endpoint)>,
}

impl Live {
    /// Whether the pod behind the interface is unknown.
    pub(crate) fn is_waiting(&self) -> bool {
        self.identity.uid_hash == WAITING && self.identity.pod.name.is_empty()
    }

    /// Installed rows, if there is a record.
    pub(crate) fn installed_rows(&self) -> Option<(u32, u32)> {
        self.record
            .as_ref()
            .map(|(_, record)| (Rows(record.rows).ingress(), Rows(record.rows).egress()))
    }

    /// Whether flows of the pod are recorded: no policy selects it in the installed record.
    pub(crate) fn is_observed(&self) -> bool {
        self.observes && self.installed_rows() == Some((ROW_NOT_ISOLATED, ROW_NOT_ISOLATED))
    }

    /// Desired record, given the installed one.
    fn desired(&self, ifindex: u32, rows: RowPair, installed: Option<&Endpoint>) -> Endpoint {
        let [_, egress] = &self.rules.policies;
        let has_names = egress.as_ref().is_some_and(|egress| egress.domains.is_some());
        let flag = if has_names { ROW_NAMES } else { 0 };
        let rows = Endpoint::pack_rows(rows.0, rows.1 | flag);
        let (id, uid_hash) = (self.id, self.identity.uid_hash);
        let mut record = Endpoint { ifindex, id, rows, uid_hash, ..Endpoint::default() };
        self.addresses.place(installed, &mut record);
        if self.check_source {
            record.flags |= EP_CHECK_SOURCE;
        }
        for (rejects, flag) in self.rejects.into_iter().zip([EP_REJECT_INGRESS, EP_REJECT_EGRESS]) {
            record.flags |= if rejects { flag } else { 0 };
        }
        if self.observes {
            record.flags |= EP_OBSERVE;
        }
        record.flags |= self.station.map_or(0, Endpoint::pack_station);
        record
    }
}

/// Endpoint numbers and slots in use or reserved, to pass to another compiler.
#[derive(Debug)]
pub(crate) struct ReservedNumbers {
    version: u64,
    numbers: Numbers,
    /// Slots by interface index.
    slots: BTreeMap<u32, u32>,
    familiar: Option<BTreeSet<(u32, u64)>>,
}

/// All endpoints by interface index.
#[derive(Debug)]
pub(crate) struct Endpoints {
    pub(crate) live: BTreeMap<u32, Live>,
    /// Changes whenever the endpoints change.
    pub(crate) version: u64,
    numbers: Numbers,
    slots: BTreeSet<u32>,
    /// Slots of an earlier agent, of another compiler or of emptied tables, by interface index. Marks of packets
    /// contain the slot of the sender, and programs of two generations read each other's marks: if their slots
    /// differed, a mark would identify another pod.
    reserved: BTreeMap<u32, u32>,
    /// Slots given up for reserved ones, in tables not yet used for packets.
    given_up: BTreeSet<u32>,
    /// Endpoints without a free slot.
    pub(crate) unplaced: BTreeSet<u32>,
    quarantine: BTreeSet<u32>,
    /// Whether interfaces of unknown pods are denied. Interfaces in `familiar`, by index and incarnation, are exempt:
    /// they existed before the first update and may not belong to pods.
    new_pods: NewPods,
    familiar: Option<BTreeSet<(u32, u64)>>,
    /// [`Options::judged`]
    judged: Option<BTreeSet<u32>>,
}

impl Endpoints {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            live: BTreeMap::new(),
            version: 0,
            numbers: Numbers::new(options),
            slots: BTreeSet::new(),
            reserved: options.known_slots.clone(),
            given_up: BTreeSet::new(),
            unplaced: BTreeSet::new(),
            quarantine: BTreeSet::new(),
            new_pods: options.new_pods,
            familiar: None,
            judged: options.judged.clone(),
        }
    }

    /// Before the first update: marks the present interfaces as familiar, except those that an earlier agent denied,
    /// had assigned to a pod, or did not know.
    pub(crate) fn begin(&mut self, cluster: &Cluster) {
        if self.familiar.is_some() {
            return;
        }
        let there = cluster.interfaces().values();
        let there = there.filter(|i| {
            self.judged.as_ref().is_none_or(|judged| judged.contains(&i.index))
                && !self.numbers.was_endpoint(i.index)
        });
        self.familiar = Some(there.map(|i| (i.index, i.incarnation)).collect());
    }

    /// The endpoint of an interface with an unknown pod: only traffic from and to its own node is allowed.
    fn waiting(
        &mut self,
        interface: &Interface,
        rules: &mut Rules,
        registry: &mut Registry,
    ) -> Option<Live> {
        let key = (interface.index, interface.incarnation);
        let familiar = self.familiar.as_ref().is_some_and(|known| known.contains(&key));
        let denied = interface.owner == InterfaceOwner::Denied;
        if !denied && (self.new_pods == NewPods::Allow || familiar) {
            return None;
        }
        let identity = PodInstance {
            pod: Key::new("", ""),
            uid_hash: WAITING,
            incarnation: interface.incarnation,
        };
        let (id, record) = self.carried(interface.index, &identity);
        Some(Live {
            identity,
            id,
            addresses: Addresses::default(),
            check_source: false,
            rejects: [false; 2],
            observes: false,
            station: None,
            unheard: false,
            gives_way: true,
            rules: PodRules::waiting(rules, registry),
            backs: BTreeSet::new(),
            record,
        })
    }

    /// The endpoint's number, and the present record of its interface.
    fn carried(&mut self, ifindex: u32, identity: &PodInstance) -> (u32, Option<(u32, Endpoint)>) {
        let before = self.live.get(&ifindex);
        // A new pod takes over the record in place, so the interface is never without one.
        let record = before.and_then(|live| live.record);
        let known = before.filter(|live| live.identity == *identity).map(|live| live.id);
        let live = self.live.values().map(|live| live.id);
        let former = record.map(|(_, record)| record.id);
        (known.unwrap_or_else(|| self.numbers.allocate(ifindex, identity, live, former)), record)
    }

    /// Drops everything except the numbers and the slots.
    pub(crate) fn forget(&mut self) {
        let placed: Vec<(u32, u32)> = self.placed().collect();
        self.reserved.extend(placed);
        for (ifindex, live) in std::mem::take(&mut self.live) {
            self.numbers.reserve(ifindex, live.identity, live.id);
        }
        self.slots.clear();
        self.given_up.clear();
        self.unplaced.clear();
        self.quarantine.clear();
        self.version += 1;
    }

    pub(crate) fn grace_passed(&mut self) {
        for slot in std::mem::take(&mut self.quarantine) {
            self.slots.remove(&slot);
        }
    }

    /// Interfaces with a pod in one of these namespaces.
    pub(crate) fn in_namespaces(&self, namespaces: &BTreeSet<String>) -> impl Iterator<Item = u32> {
        let all = self.live.iter().filter(|_| !namespaces.is_empty());
        all.filter(|(_, live)| namespaces.contains(&live.identity.pod.namespace))
            .map(|(ifindex, _)| *ifindex)
    }

    /// Builds the endpoint of an interface.
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
            InterfaceOwner::Pod(bound) => Some(bound),
            InterfaceOwner::Unbound | InterfaceOwner::Denied => None,
        };
        let is = |standing| bound.is_some_and(|bound| bound.standing == standing);
        let second = bound.filter(|bound| bound.is_secondary).map(SecondaryPolicy::from_bound);
        if second.is_some_and(|second| second.is_open(pod, cluster, options)) {
            return None;
        }
        let identity = PodInstance {
            pod: pod.key.clone(),
            uid_hash: uid_hash(&pod.uid),
            incarnation: interface.incarnation,
        };
        let before = self.live.get(&interface.index).filter(|live| live.identity == identity);
        let addresses = Addresses::first_of_each_family(&cluster.addresses_at(interface));
        // Rules for some of its addresses would be wrong for the others.
        let before = (before.map(|live| &live.rules), addresses.crowded);
        let subject = (&**pod, !is(Standing::Unlabelled));
        let rules = PodRules::for_pod(subject, before, cluster, rules, registry);
        let isolated = Direction::BOTH.map(|direction| rules.isolated(direction));
        let rejects = Direction::BOTH.map(|direction| {
            let about = || cluster.policies_about(subject, direction);
            rules.isolated(direction) && about().denial(false) == Denial::Reject
        });
        let exempt = options.source_exempt.exempts(pod);
        let (id, record) = self.carried(interface.index, &identity);
        Some(Live {
            identity,
            id,
            addresses,
            rejects,
            observes: match options.observe_flows {
                ObserveFlows::None => false,
                ObserveFlows::Labelled => {
                    let labels = cluster.namespace_labels(&pod.key.namespace);
                    labels.get(OBSERVE.0).is_some_and(|value| value == OBSERVE.1)
                }
                ObserveFlows::All => true,
            },
            check_source: !exempt
                && second.is_none_or(|second| second.is_checked(options))
                && match options.check_source {
                    CheckSource::Off => false,
                    // The pod's address may now belong to another pod.
                    CheckSource::Isolated => isolated != [false; 2] || is(Standing::Deleted),
                    CheckSource::All => true,
                },
            gives_way: bound.is_some_and(|bound| bound.is_secondary),
            station: bound.and_then(|bound| bound.station),
            unheard: pod.foreign_sources && !exempt && options.check_source != CheckSource::Off,
            rules,
            backs: match isolated {
                [true, false] => {
                    let backed = cluster.translation.backed_by(pod);
                    backed.into_iter().map(|it| it.service.key.clone()).collect()
                }
                _ => BTreeSet::new(),
            },
            record,
        })
    }

    /// Combinations of policies that are not in force as last edited.
    pub(crate) fn late(&self) -> impl Iterator<Item = &LateCombination> {
        self.live.values().flat_map(|live| live.rules.late.iter().flatten())
    }

    /// Numbers given so far, for another compiler.
    pub(crate) fn given(&self) -> ReservedNumbers {
        let mut numbers = self.numbers.clone();
        for (ifindex, live) in &self.live {
            numbers.reserve(*ifindex, live.identity.clone(), live.id);
        }
        let slots = self.reserved.clone().into_iter().chain(self.placed()).collect();
        ReservedNumbers { version: self.version, numbers, slots, familiar: self.familiar.clone() }
    }

    /// Slots of all records, by interface index.
    fn placed(&self) -> impl Iterator<Item = (u32, u32)> {
        self.live.iter().filter_map(|(ifindex, live)| Some((*ifindex, live.record?.0)))
    }

    /// Takes over the numbers and slots that another compiler has given. The tables must not be in use for packets yet:
    /// endpoints in other slots move at the next update.
    pub(crate) fn take_over(&mut self, given: ReservedNumbers) {
        for (ifindex, live) in &mut self.live {
            let Some(slot) = given.slots.get(ifindex) else { continue };
            if let Some((other, _)) = live.record.take_if(|(placed, _)| placed != slot) {
                self.given_up.insert(other);
                self.unplaced.insert(*ifindex);
            }
        }
        self.reserved = given.slots;
        self.version = self.version.max(given.version) + 1;
        self.numbers = given.numbers;
        let live = &self.live;
        self.numbers.retain(|ifindex, of| live.get(&ifindex).is_none_or(|it| it.identity != *of));
        self.familiar = given.familiar;
    }

    /// Services with a backend among the pods isolated for ingress alone.
    pub(crate) fn backed(&self) -> BTreeSet<Key> {
        self.live.values().flat_map(|live| &live.backs).cloned().collect()
    }

    /// Numbers of all endpoints, and those reserved for future endpoints. Any other number is never used again.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        let live = self.live.values().map(|live| live.id);
        live.chain(self.numbers.put_by())
    }

    /// Frees the slots that endpoints gave up for reserved ones.
    pub(crate) fn free_given_up(&mut self, ops: &mut Vec<Op>) {
        for slot in std::mem::take(&mut self.given_up) {
            self.slots.remove(&slot);
            ops.push(Op::EndpointGone(slot));
        }
    }

    /// Order in which new endpoints take their slots: those with a reserved one first.
    pub(crate) fn in_order_of_slots(&self, mut new: Vec<u32>) -> Vec<u32> {
        new.sort_by_key(|ifindex| !self.reserved.contains_key(ifindex));
        new
    }

    /// A free slot for an interface: a reserved one if possible. A slot is not free while packets may still read its
    /// last record.
    fn slot(&self, ifindex: u32) -> Option<u32> {
        let probes = (0..ENDPOINT_PROBES).map(|probe| endpoint_slot(ifindex, probe));
        let free: Vec<u32> = probes.filter(|slot| !self.slots.contains(slot)).collect();
        let reserved = self.reserved.get(&ifindex).filter(|slot| free.contains(slot));
        reserved.or(free.first()).copied()
    }

    /// Frees a slot for a primary interface. A pod that can add interfaces to its namespace chooses their indexes, and
    /// could otherwise take all slots of another pod.
    fn claim(&mut self, ifindex: u32, ops: &mut Vec<Op>) -> Option<u32> {
        if self.live.get(&ifindex).is_none_or(|live| live.gives_way) {
            return None;
        }
        let candidates = (0..ENDPOINT_PROBES).map(|probe| endpoint_slot(ifindex, probe));
        let (holder, slot) =
            candidates.filter(|slot| !self.quarantine.contains(slot)).find_map(|slot| {
                let holds = |live: &Live| live.record.is_some_and(|(held, _)| held == slot);
                let (holder, _) =
                    self.live.iter().find(|(_, live)| live.gives_way && holds(live))?;
                Some((*holder, slot))
            })?;
        self.live.get_mut(&holder)?.record = None;
        self.unplaced.insert(holder);
        // Packets in flight may still use the slot's number.
        ops.extend([Op::EndpointGone(slot), Op::Grace]);
        Some(slot)
    }

    /// Writes the record of an endpoint without one, if a slot is free for it.
    pub(crate) fn fill_slot(&mut self, ifindex: u32, rows: RowPair, ops: &mut Vec<Op>) {
        let Some(slot) = self.slot(ifindex).or_else(|| self.claim(ifindex, ops)) else {
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
    pub(crate) fn free_slot(&mut self, slot: u32, ops: &mut Vec<Op>) {
        ops.push(Op::EndpointGone(slot));
        self.quarantine.insert(slot);
    }

    /// Updates an installed record.
    pub(crate) fn flip(&mut self, ifindex: u32, rows: RowPair, ops: &mut Vec<Op>) {
        let Some(live) = self.live.get_mut(&ifindex) else { return };
        let Some((slot, installed)) = live.record else { return };
        let desired = live.desired(ifindex, rows, Some(&installed));
        let another = desired.id != installed.id;
        if another && desired.rows != installed.rows {
            // The new pod already runs and must not be judged by the rows of the old one.
            ops.push(Op::EndpointRows { slot, rows: desired.rows });
        }
        let now = if another { desired.rows } else { installed.rows };
        if (Endpoint { rows: now, ..desired }) != (Endpoint { rows: now, ..installed }) {
            ops.push(Op::EndpointAddrs(slot, Box::new(Endpoint { rows: now, ..desired })));
        }
        if !another && desired.rows != installed.rows {
            ops.push(Op::EndpointRows { slot, rows: desired.rows });
        }
        live.record = Some((slot, desired));
    }
}
