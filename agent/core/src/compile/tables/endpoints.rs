//! Endpoints: which local pod is behind which interface, and its record in the tables.

mod addresses;
mod numbers;
mod pod_rules;
mod second;

use std::collections::{BTreeMap, BTreeSet};

use netpold_ebpf::endpoint::Rows;
use netpold_ebpf::layout::{ENDPOINT_PROBES, EP_CHECK_SOURCE, Endpoint, endpoint_slot};

use crate::cluster::Cluster;
use crate::compile::rules::{Late, Rules};
use crate::compile::sets::registry::Registry;
use crate::compile::tables::rows::RowPair;
use crate::model::{Direction, Interface, Key, Owner, Standing, uid_hash};
use crate::ops::Op;
use crate::options::{CheckSource, NewPods, Options};
use addresses::Addresses;
pub(crate) use numbers::Identity;
use numbers::Numbers;
pub use numbers::WAITING;
use pod_rules::PodRules;
use second::Second;

/// An endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) identity: Identity,
    pub(crate) id: u32,
    pub(crate) addresses: Addresses,
    pub(crate) check_source: bool,
    /// The hardware address of the pod's side of the veth; `None`: unknown.
    pub(crate) station: Option<[u8; 6]>,
    /// The pod asks not to be checked, and nobody may grant that in its namespace.
    pub(crate) unheard: bool,
    /// A further interface of a pod, or one whose pod is not known: it gives its slot to a pod's first one.
    gives_way: bool,
    pub(crate) rules: PodRules,
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

    /// The installed rows, if there is a record.
    pub(crate) fn installed_rows(&self) -> Option<(u32, u32)> {
        self.record
            .as_ref()
            .map(|(_, record)| (Rows(record.rows).ingress(), Rows(record.rows).egress()))
    }

    /// The record as it is to be, given the one that is installed.
    fn desired(&self, ifindex: u32, rows: RowPair, installed: Option<&Endpoint>) -> Endpoint {
        let rows = Endpoint::pack_rows(rows.0, rows.1);
        let (id, uid_hash) = (self.id, self.identity.uid_hash);
        let mut record = Endpoint { ifindex, id, rows, uid_hash, ..Endpoint::default() };
        self.addresses.place(installed, &mut record);
        if self.check_source {
            record.flags |= EP_CHECK_SOURCE;
        }
        record.flags |= self.station.map_or(0, Endpoint::pack_station);
        record
    }
}

/// The numbers that a compiler has given, and to whom it will give which.
#[derive(Debug)]
pub(crate) struct Given {
    version: u64,
    numbers: Numbers,
    familiar: Option<BTreeSet<(u32, u64)>>,
}

/// All endpoints by interface index.
#[derive(Debug)]
pub(crate) struct Endpoints {
    pub(crate) live: BTreeMap<u32, Live>,
    /// As long as this number stays, so do the endpoints.
    pub(crate) version: u64,
    numbers: Numbers,
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
        Self {
            live: BTreeMap::new(),
            version: 0,
            numbers: Numbers::new(options),
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
        let there = cluster.interfaces().values();
        let there = there.filter(|i| !self.numbers.was_waiting(i.index));
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
            addresses: Addresses::default(),
            check_source: false,
            station: None,
            unheard: false,
            gives_way: true,
            rules: PodRules::waiting(rules, registry),
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
        (known.unwrap_or_else(|| self.numbers.take(ifindex, identity)), record)
    }

    /// Forgets everything but the numbers.
    pub(crate) fn forget(&mut self) {
        for (ifindex, live) in std::mem::take(&mut self.live) {
            self.numbers.keep(ifindex, live.identity, live.id);
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
        let second = bound.filter(|bound| bound.second).map(Second::of);
        if second.is_some_and(|second| second.is_open(pod, cluster, options)) {
            return None;
        }
        let identity = Identity {
            pod: pod.key.clone(),
            uid_hash: uid_hash(&pod.uid),
            incarnation: interface.incarnation,
        };
        let before = self.live.get(&interface.index).filter(|live| live.identity == identity);
        let addresses = Addresses::of(&cluster.addresses_at(interface));
        // Judging by some of its addresses would be wrong for the others.
        let before = (before.map(|live| &live.rules), addresses.crowded);
        let subject = (&**pod, !is(Standing::Unlabelled));
        let rules = PodRules::of(subject, before, cluster, rules, registry);
        let isolated = Direction::BOTH.map(|direction| rules.isolated(direction));
        let exempt = options.source_exempt.holds(pod);
        let (id, record) = self.carried(interface.index, &identity);
        Some(Live {
            identity,
            id,
            addresses,
            check_source: !exempt
                && second.is_none_or(|second| second.is_checked(options))
                && match options.check_source {
                    CheckSource::Off => false,
                    // Another pod may have been given its address.
                    CheckSource::Isolated => isolated != [false; 2] || is(Standing::Deleted),
                    CheckSource::All => true,
                },
            gives_way: bound.is_some_and(|bound| bound.second),
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

    /// What is not as policies have it now.
    pub(crate) fn late(&self) -> impl Iterator<Item = &Late> {
        self.live.values().flat_map(|live| live.rules.late.iter().flatten())
    }

    /// The numbers that were given so far, for another compiler.
    pub(crate) fn given(&self) -> Given {
        let mut numbers = self.numbers.clone();
        for (ifindex, live) in &self.live {
            numbers.keep(*ifindex, live.identity.clone(), live.id);
        }
        Given { version: self.version, numbers, familiar: self.familiar.clone() }
    }

    /// Gives the numbers that another compiler has given.
    pub(crate) fn take_over(&mut self, given: Given) {
        self.version = self.version.max(given.version) + 1;
        self.numbers = given.numbers;
        let live = &self.live;
        self.numbers.retain(|ifindex, of| live.get(&ifindex).is_none_or(|it| it.identity != *of));
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
        live.chain(self.numbers.put_by())
    }

    /// A free slot for an interface. A slot whose last use packets may still see is not free.
    fn slot(&self, ifindex: u32) -> Option<u32> {
        (0..ENDPOINT_PROBES)
            .map(|probe| endpoint_slot(ifindex, probe))
            .find(|slot| !self.slots.contains(slot))
    }

    /// Frees a slot for a pod's first interface: whoever may add interfaces to a pod chooses their indexes, and
    /// so could keep another pod without a slot.
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
        // Packets that carry the slot's number are on their way.
        ops.extend([Op::EndpointGone(slot), Op::Grace]);
        Some(slot)
    }

    /// Writes the record of an endpoint that has none, if a slot is free for it.
    pub(crate) fn appear(&mut self, ifindex: u32, rows: RowPair, ops: &mut Vec<Op>) {
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
