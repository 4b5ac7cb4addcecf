//! Observed flows of a node, one record for each kind of flow, within limits.
//!
//! The number of records is limited per peer of a workload, per namespace and in total. If a namespace or the total is
//! full, a new record replaces one of the largest contributor: within a namespace the peers' namespace with most
//! records, in total the workloads' namespace with most records. So a scan or a flood displaces only records of its
//! own.
//!
//! The remote side of a flow is named at the observation. The address of a pod is replaced by its workload: if a pod's
//! address becomes known after its first flows, the records get the workload's name ([`Recorder::named`]), and an
//! address that no object has any longer keeps its recorded workload.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use netpold_api::learn::{LearnAnswer, LearnedPeer, ObservedFlow, PeerAddress};
use netpold_api::workload::Workload;
use netpold_core::cluster::{AddressOwner, Cluster, is_subject};
use netpold_core::explain::{Explainer, PodFlow};
use netpold_core::model::{Direction, DomainName, Pod};
use netpold_core::probe::IpProtocol;

use super::shares::{NoRoom, Shares};

/// Maximum number of recorded ports per peer of a workload.
const PORTS_MAX: u16 = 64;
/// Maximum number of records displaced per sweep: each search walks all records.
const DISPLACED_MAX: usize = 64;
/// Maximum number of domain names of a record.
const NAMES_MAX: usize = 8;
/// Maximum number of lookups cached for one state of the cluster.
const REMEMBERED: usize = 65_536;
/// Cost of an uncached lookup in a sweep's budget.
const LOOK: usize = 16;
/// Lifetime of a record without a packet, in milliseconds.
const KEPT: u64 = 90 * 86_400_000;
/// Lifetime of the workload of an unused address without a flow, in milliseconds.
const ADDRESS_KEPT: u64 = 86_400_000;
/// Maximum number of addresses with a kept workload.
const ADDRESSES_MAX: usize = 8192;
/// Greatest difference between the clocks of this node and of the API server, in milliseconds.
const CLOCKS_APART: u64 = 5000;
/// Greatest age of a finished pod that may still have had recent flows, in milliseconds.
const LATELY: u64 = 20 * 60_000;

/// Cache key of flows with a common record: endpoint, direction, remote address, protocol, port.
type FlowCacheKey = (u32, Direction, IpAddr, u8, u16);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct RecordKey {
    workload: Arc<Workload>,
    direction: Direction,
    peer: LearnedPeer<Arc<Workload>>,
    protocol: u8,
    port: u16,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    flows: u64,
    on_trial: u64,
    denied: u64,
    /// Time of the first packet, in milliseconds since the epoch, as is `last`.
    first: u64,
    last: u64,
}

/// Observation of a flow.
#[derive(Clone, Copy, Debug)]
pub struct FlowSighting {
    /// Number of the pod's endpoint.
    pub endpoint: u32,
    /// Time of the last packet, in milliseconds since the epoch.
    pub at: u64,
    /// Whether the flow is not counted yet.
    pub is_new: bool,
    /// Whether audited policies would deny the flow.
    pub on_trial: bool,
}

/// Workload, direction and remote side of flows.
type WorkloadPeer = (Arc<Workload>, Direction, LearnedPeer<Arc<Workload>>);

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Recorder {
    /// Last number given to a record; numbers are unique and never 0.
    last_id: u32,
    ids: BTreeMap<RecordKey, u32>,
    records: HashMap<u32, Counts>,
    /// Domain names of policy that pods resolved to the address of a record.
    names: HashMap<u32, BTreeSet<DomainName>>,
    /// Number of recorded ports per workload, direction and peer.
    ports: HashMap<WorkloadPeer, u16>,
    shares: Shares,
    workloads: HashSet<Arc<Workload>>,
    /// Number of records per address that belongs to no pod.
    outside: HashMap<IpAddr, usize>,
    /// Last known workload of each address, and the time of its last flow.
    addresses: BTreeMap<IpAddr, (Arc<Workload>, u64)>,
    /// Cached record numbers for one state of the cluster.
    remembered: HashMap<FlowCacheKey, u32>,
    left_out: BTreeMap<String, u64>,
    displaced: usize,
    /// Start of the recording, in milliseconds since the epoch.
    since: u64,
}

impl Recorder {
    /// Creates an empty recorder that starts at a time in milliseconds since the epoch.
    #[must_use]
    pub fn new(since: u64) -> Self {
        Self { since, ..Self::default() }
    }

    /// Adds the records of an earlier agent.
    pub fn resume(&mut self, saved: LearnAnswer) {
        self.since = self.since.min(saved.since.saturating_mul(1000));
        self.left_out = saved.left_out;
        for flow in saved.flows {
            let ObservedFlow { direction, protocol, port, flows, on_trial, denied, .. } = flow;
            let workload = self.intern(flow.workload);
            let peer = flow.peer.map(|workload| self.intern(workload));
            let subject = RecordKey { workload, direction, peer, protocol: protocol.0, port };
            let [first, last] = [flow.first, flow.last].map(|at| at.saturating_mul(1000));
            if let Some(id) = self.id(subject, true) {
                self.records.insert(id, Counts { flows, on_trial, denied, first, last });
                self.resolved_to(id, flow.names.iter());
            }
        }
    }

    /// Adds the addresses that an earlier agent knew.
    pub fn resume_addresses(&mut self, saved: Vec<PeerAddress>) {
        for PeerAddress { address, workload, last } in saved.into_iter().take(ADDRESSES_MAX) {
            let workload = self.intern(workload);
            self.addresses.insert(address, (workload, last.saturating_mul(1000)));
        }
    }

    /// Returns the addresses to keep for the next agent.
    #[must_use]
    pub fn peer_addresses(&self) -> Vec<PeerAddress> {
        let all = self.addresses.iter();
        let one = |(address, (workload, last)): (&IpAddr, &(Arc<Workload>, u64))| PeerAddress {
            address: *address,
            workload: Workload::clone(workload),
            last: last / 1000,
        };
        all.map(one).collect()
    }

    /// Renames records with a pod's address before the pod is added to the cluster: flows since the pod's creation are
    /// its own, even if no object had the address at the time.
    pub fn named(&mut self, pod: &Pod, cluster: &Cluster, now: u64) {
        let created = u64::try_from(pod.created).unwrap_or(0).saturating_mul(1000);
        if pod.host_network || pod.finished && created.saturating_add(LATELY) < now {
            return;
        }
        let known = cluster.pods().get(&pod.key).map_or(&[][..], |known| &known.addresses[..]);
        let new = pod.addresses.iter().filter(|address| !known.contains(address));
        for address in new.filter(|address| self.outside.contains_key(*address)).collect::<Vec<_>>()
        {
            let Some(workload) = Workload::of_pod(pod) else { return };
            let peer = LearnedPeer::Workload(self.intern(workload));
            let since = |id: &u32| self.records.get(id).map_or(0, |counts| counts.first);
            let is_its = |(subject, id): &(&RecordKey, &u32)| {
                subject.peer == LearnedPeer::Address(*address)
                    && since(id).saturating_add(CLOCKS_APART) >= created
            };
            let its: Vec<RecordKey> =
                self.ids.iter().filter(is_its).map(|(subject, _)| subject.clone()).collect();
            for subject in its {
                self.rename(&subject, RecordKey { peer: peer.clone(), ..subject.clone() });
            }
        }
    }

    /// Moves the record of one subject to another.
    fn rename(&mut self, from: &RecordKey, to: RecordKey) {
        let Some(counts) = self.ids.get(from).and_then(|id| self.records.get(id)).copied() else {
            return;
        };
        self.remove(from);
        let namespace = to.workload.namespace.clone();
        match self.id(to, false) {
            Some(id) => {
                let of = self
                    .records
                    .entry(id)
                    .or_insert(Counts { first: counts.first, ..Counts::default() });
                of.flows = of.flows.saturating_add(counts.flows);
                of.on_trial = of.on_trial.saturating_add(counts.on_trial);
                of.denied = of.denied.saturating_add(counts.denied);
                of.first = of.first.min(counts.first);
                of.last = of.last.max(counts.last);
            }
            None => self.leave_out(&namespace),
        }
    }

    /// Returns whether a record exists.
    #[must_use]
    pub fn has(&self, id: u32) -> bool {
        self.records.contains_key(&id)
    }

    /// Starts a sweep. `changed`: the cluster's state has changed since the last sweep.
    pub fn begin(&mut self, changed: bool, now: u64) {
        self.displaced = 0;
        if !changed && self.remembered.len() < REMEMBERED {
            return;
        }
        self.remembered.clear();
        let old = now.saturating_sub(KEPT);
        let is_old = |id: &u32| self.records.get(id).is_none_or(|counts| counts.last < old);
        let gone: Vec<RecordKey> =
            self.ids.iter().filter(|(_, id)| is_old(id)).map(|(of, _)| of.clone()).collect();
        gone.iter().for_each(|subject| self.remove(subject));
        self.forget_addresses(now);
        self.workloads.retain(|workload| Arc::strong_count(workload) > 1);
    }

    /// Records a flow of a pod. Returns the record's number, or 0 without a record. `former` returns the pod that had
    /// an address at the flow's last packet but has lost it since. `cost` grows by the cost of the call.
    pub fn record_flow<'p>(
        &mut self,
        cluster: &Cluster,
        flow: PodFlow<'_>,
        former: impl Fn(IpAddr) -> Option<&'p Pod>,
        met: FlowSighting,
        cost: &mut usize,
    ) -> u32 {
        let PodFlow { direction, remote, protocol, port, .. } = flow;
        let kind = (met.endpoint, direction, remote, protocol.0, port);
        let former = former(remote);
        // With a former owner, a later flow may have another pod as its peer.
        let is_lasting = former.is_none();
        let known = self.remembered.get(&kind).filter(|_| is_lasting).copied();
        let id = known.unwrap_or_else(|| {
            *cost += LOOK;
            let id = self.find_record(cluster, flow, former, met);
            if is_lasting && self.remembered.len() < REMEMBERED {
                self.remembered.insert(kind, id);
            }
            id
        });
        match self.records.get_mut(&id) {
            Some(counts) => {
                let is_first = counts.flows == 0;
                counts.flows += u64::from(met.is_new || is_first);
                counts.on_trial += u64::from(met.on_trial && (met.is_new || is_first));
                counts.last = counts.last.max(met.at);
            }
            // Flows of a pod with itself are always allowed, so they are not recorded.
            None if !met.is_new || flow.pod.addresses.contains(&remote) => {}
            None => self.leave_out(&flow.pod.key.namespace),
        }
        id
    }

    /// Adds domain names to a record of flows to an address outside.
    pub fn resolved_to<'n>(&mut self, id: u32, names: impl Iterator<Item = &'n DomainName>) {
        let mut names = names.peekable();
        if names.peek().is_none() || !self.records.contains_key(&id) {
            return;
        }
        let known = self.names.entry(id).or_default();
        for name in names {
            if known.len() < NAMES_MAX {
                known.insert(name.clone());
            }
        }
    }

    /// Records a packet of a flow that has a record.
    pub fn again(&mut self, id: u32, at: u64) {
        if let Some(counts) = self.records.get_mut(&id) {
            counts.last = counts.last.max(at);
        }
    }

    /// Records dropped packets. They never displace records of flows that passed.
    pub fn denied<'p>(
        &mut self,
        cluster: &Cluster,
        flow: PodFlow<'_>,
        former: impl Fn(IpAddr) -> Option<&'p Pod>,
        packets: u64,
        at: u64,
    ) {
        let former = former(flow.remote);
        let Some(subject) = self.subject(cluster, flow, former, at) else { return };
        if let Some(id) = self.id(subject, false) {
            let counts =
                self.records.entry(id).or_insert(Counts { first: at, ..Counts::default() });
            counts.denied = counts.denied.saturating_add(packets);
            counts.last = counts.last.max(at);
        }
    }

    /// Returns the records, to keep them and as an answer.
    #[must_use]
    pub fn answer(&self, node: &str, now: u64) -> LearnAnswer {
        let plain = |workload: &Arc<Workload>| Workload::clone(workload);
        let flows = self.ids.iter().filter_map(|(subject, id)| {
            let RecordKey { workload, direction, peer, protocol, port } = subject;
            let Counts { flows, on_trial, denied, first, last } = *self.records.get(id)?;
            let is_outside = matches!(peer, LearnedPeer::Address(_));
            let names = self.names.get(id).filter(|_| is_outside).cloned().unwrap_or_default();
            Some(ObservedFlow {
                names,
                workload: plain(workload),
                direction: *direction,
                peer: peer.clone().map(|workload| plain(&workload)),
                protocol: IpProtocol(*protocol),
                port: *port,
                flows,
                on_trial,
                denied,
                first: first / 1000,
                last: last / 1000,
            })
        });
        LearnAnswer {
            node: node.to_owned(),
            as_of: now / 1000,
            since: self.since / 1000,
            flows: flows.collect(),
            left_out: self.left_out.clone(),
            missed_flows: 0,
        }
    }

    fn find_record(
        &mut self,
        cluster: &Cluster,
        flow: PodFlow<'_>,
        former: Option<&Pod>,
        met: FlowSighting,
    ) -> u32 {
        let Some(subject) = self.subject(cluster, flow, former, met.at) else { return 0 };
        let Some(id) = self.id(subject, true) else { return 0 };
        self.records.entry(id).or_insert(Counts { first: met.at, ..Counts::default() });
        id
    }

    /// Returns the subject of a flow; `None` if the flow is not recorded.
    fn subject(
        &mut self,
        cluster: &Cluster,
        flow: PodFlow<'_>,
        former: Option<&Pod>,
        at: u64,
    ) -> Option<RecordKey> {
        let PodFlow { pod, direction, remote, protocol, port } = flow;
        if pod.addresses.contains(&remote) {
            return None;
        }
        let workload = Workload::of_pod(pod)?;
        let explainer = Explainer::new(cluster);
        let service = || explainer.services_at(remote, protocol, port).into_iter().next();
        let is_egress = direction == Direction::Egress;
        let peer = if is_egress && cluster.is_node_of(pod, remote) {
            LearnedPeer::Node
        } else if let Some(key) = is_egress.then(service).flatten() {
            LearnedPeer::Service(key)
        } else {
            let owner = former.or_else(|| cluster.owner(remote).map(|pod| &**pod));
            match owner.filter(|pod| is_subject(pod)) {
                Some(pod) => {
                    let peer = self.intern(Workload::of_pod(pod)?);
                    self.keep_address(remote, &peer, at);
                    let workload = self.intern(workload);
                    let peer = LearnedPeer::Workload(peer);
                    return Some(RecordKey {
                        workload,
                        direction,
                        peer,
                        protocol: protocol.0,
                        port,
                    });
                }
                None => self.kept_address(cluster, remote, at),
            }
        };
        let workload = self.intern(workload);
        Some(RecordKey { workload, direction, peer, protocol: protocol.0, port })
    }

    /// Stores the workload of an address at a time in milliseconds since the epoch.
    fn keep_address(&mut self, address: IpAddr, workload: &Arc<Workload>, at: u64) {
        if self.addresses.len() >= ADDRESSES_MAX && !self.addresses.contains_key(&address) {
            return;
        }
        self.addresses.insert(address, (Arc::clone(workload), at));
    }

    /// Returns the peer for an address without a pod: the workload that had it, unless another object has it now.
    fn kept_address(
        &mut self,
        cluster: &Cluster,
        address: IpAddr,
        at: u64,
    ) -> LearnedPeer<Arc<Workload>> {
        let outside = || cluster.owner_of_address(address) == AddressOwner::Outside;
        match self.addresses.get_mut(&address) {
            Some((workload, last)) if at < last.saturating_add(ADDRESS_KEPT) && outside() => {
                *last = at.max(*last);
                LearnedPeer::Workload(Arc::clone(workload))
            }
            _ => LearnedPeer::Address(address),
        }
    }

    fn forget_addresses(&mut self, now: u64) {
        self.addresses.retain(|_, (_, last)| now < last.saturating_add(ADDRESS_KEPT));
    }

    fn intern(&mut self, workload: Workload) -> Arc<Workload> {
        if let Some(known) = self.workloads.get(&workload) {
            return Arc::clone(known);
        }
        let new = Arc::new(workload);
        self.workloads.insert(Arc::clone(&new));
        new
    }

    fn leave_out(&mut self, namespace: &str) {
        let flows = self.left_out.entry(namespace.to_owned()).or_default();
        *flows = flows.saturating_add(1);
    }

    /// Returns the number of a record, creating one if necessary; `None` if there is no room.
    fn id(&mut self, subject: RecordKey, may_displace: bool) -> Option<u32> {
        if let Some(id) = self.ids.get(&subject) {
            return Some(*id);
        }
        let of_peer = (Arc::clone(&subject.workload), subject.direction, subject.peer.clone());
        if self.ports.get(&of_peer).is_some_and(|ports| *ports >= PORTS_MAX) {
            return None;
        }
        let (owner, source) = (subject.workload.namespace.clone(), source(&subject.peer));
        if let Err(NoRoom { owner: whose, source: from }) = self.shares.room(&owner, source) {
            if !may_displace || self.displaced >= DISPLACED_MAX {
                return None;
            }
            let (whose, from) = (whose?, from?);
            let of_them = self.ids.iter().filter(|(other, _)| {
                other.workload.namespace == whose && self::source(&other.peer) == from
            });
            let last = |id: &u32| self.records.get(id).map_or(0, |counts| counts.last);
            let oldest = of_them.min_by_key(|(_, id)| (last(id), **id))?.0.clone();
            self.displaced += 1;
            self.remove(&oldest);
            self.leave_out(&whose);
        }
        self.last_id = self.last_id.checked_add(1)?;
        *self.ports.entry(of_peer).or_default() += 1;
        self.shares.add(&owner, source);
        if let LearnedPeer::Address(address) = subject.peer {
            *self.outside.entry(address).or_default() += 1;
        }
        self.ids.insert(subject, self.last_id);
        Some(self.last_id)
    }

    fn remove(&mut self, subject: &RecordKey) {
        let Some(id) = self.ids.remove(subject) else { return };
        self.records.remove(&id);
        self.names.remove(&id);
        self.shares.remove(&subject.workload.namespace, source(&subject.peer));
        if let LearnedPeer::Address(address) = subject.peer
            && let Some(records) = self.outside.get_mut(&address)
        {
            *records -= 1;
            if *records == 0 {
                self.outside.remove(&address);
            }
        }
        let of_peer = (Arc::clone(&subject.workload), subject.direction, subject.peer.clone());
        if let Some(ports) = self.ports.get_mut(&of_peer) {
            *ports -= 1;
            if *ports == 0 {
                self.ports.remove(&of_peer);
            }
        }
    }
}

/// Returns the namespace that causes records with a peer; empty for all outside addresses together.
fn source(peer: &LearnedPeer<Arc<Workload>>) -> &str {
    match peer {
        LearnedPeer::Workload(workload) => &workload.namespace,
        LearnedPeer::Service(key) => &key.namespace,
        LearnedPeer::Node | LearnedPeer::Address(_) => "",
    }
}
