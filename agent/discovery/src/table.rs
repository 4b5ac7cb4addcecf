//! Table of the veths, and of their last reported state. No I/O, no clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netpold_core::bindings;

use crate::event::DiscoveryEvent;

/// Delays before an interface without an address is queried again, in milliseconds.
const ASK_AGAIN: [u64; 11] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 1000];
/// Number of changes inside a namespace in close succession that are queried without a pause.
const AT_ONCE: u32 = 32;
const CALM: Duration = Duration::from_secs(1);
/// Minimum and maximum pause between two queries of one interface after [`AT_ONCE`] changes.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Maximum number of removed interfaces in [`VethTable::gone`].
const REMEMBERED: usize = 1024;

/// Veth in the agent's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VethLink {
    /// Interface index.
    pub(super) index: u32,
    /// Interface index of the peer in its own namespace.
    pub(super) peer: u32,
    /// Identifier of the peer's namespace; `None`: the agent's, or one without an identifier.
    pub(super) namespace: Option<i32>,
    /// Whether the peer is in another namespace.
    pub(super) leads_away: bool,
    /// Interface name.
    pub(super) name: String,
    /// Hardware address.
    pub(super) hardware: Vec<u8>,
}

/// Route to a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostRoute {
    pub(super) to: IpAddr,
    /// Index of the outgoing interface.
    pub(super) by: u32,
    /// Whether the route was added, not removed.
    pub(super) there: bool,
}

impl VethLink {
    /// Returns a number that most likely differs for another interface with the same index, and that is equal for the
    /// same interface after a restart of the agent. Netlink reports neither a time nor a sequence number of the
    /// creation; the distinguishing property it reports is the hardware address (random, unless the CNI sets one). The
    /// name is left out because CNIs rename interfaces, and the peer's namespace because a pod can move its end. The
    /// hash is FNV-1a.
    fn identity(&self) -> u64 {
        let bytes = self.index.to_le_bytes().into_iter();
        bytes.chain(self.hardware.iter().copied()).fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

#[derive(Debug)]
struct KnownVeth {
    veth: VethLink,
    /// Fixed when the interface is first seen. Later changes of the hashed properties (a CNI plugin sets the hardware
    /// address) do not make another interface.
    incarnation: u64,
    addresses: Vec<IpAddr>,
    /// Hardware address of the peer.
    station: Option<[u8; 6]>,
    /// Time of the next query for addresses.
    due: Option<Instant>,
    /// Number of consecutive queries without an address.
    fruitless: usize,
    storm: QueryLimiter,
}

/// Rate limit of queries: a pod can change its addresses any number of times per second. The first changes are queried
/// at once, later ones after a pause that grows while the changes continue.
#[derive(Debug, Default)]
struct QueryLimiter {
    last: Option<Instant>,
    /// Number of queries in close succession.
    questions: u32,
    pause: Duration,
}

impl QueryLimiter {
    /// Returns the time of the query for a change at `now`.
    fn ask_at(&self, now: Instant) -> Instant {
        self.last.map_or(now, |last| (last + self.pause).max(now))
    }

    /// Records a query.
    fn asked(&mut self, now: Instant) {
        let calm = |last: Instant| now > last + self.pause * 2 + CALM;
        if self.last.replace(now).is_none_or(calm) {
            (self.questions, self.pause) = (0, Duration::ZERO);
        }
        self.questions += 1;
        if self.questions > AT_ONCE {
            self.pause = (self.pause * 2).clamp(PAUSE.0, PAUSE.1);
        }
    }
}

/// Table of the veths, and of their last reported state.
#[derive(Debug, Default)]
pub(super) struct VethTable {
    links: BTreeMap<u32, KnownVeth>,
    told: BTreeMap<u32, bindings::Veth>,
    /// Outgoing interface of the node's own routes to single addresses.
    routes: BTreeMap<IpAddr, u32>,
    /// Indexes and incarnations of removed interfaces, for the detection of a reused index.
    gone: VecDeque<(u32, u64)>,
    /// Links to query because their peer left the agent's namespace.
    uncertain: Vec<u32>,
    /// Links with both ends in the agent's namespace at the last full listing. A new pair does not count: a CNI plugin
    /// often moves one end right after the creation.
    inner: BTreeSet<u32>,
    /// Links to query for addresses at once.
    changed: BTreeSet<u32>,
}

impl VethTable {
    /// Applies a link event, or the response to a query of one link.
    pub(super) fn set_link(&mut self, veth: VethLink) {
        let index = veth.index;
        match self.links.get_mut(&index) {
            Some(known) => {
                // A pod can move its end to a namespace of its own. The veth is still the same, and so is its pod.
                let moved = (known.veth.peer, known.veth.namespace) != (veth.peer, veth.namespace);
                known.veth = veth;
                if moved {
                    known.addresses.clear();
                    known.fruitless = 0;
                }
                if moved || known.addresses.is_empty() {
                    self.changed.insert(index);
                }
            }
            None => self.add(veth),
        }
    }

    fn add(&mut self, veth: VethLink) {
        let index = veth.index;
        let incarnation = fresh(&self.gone, &veth);
        let known = KnownVeth {
            veth,
            incarnation,
            addresses: Vec::new(),
            station: None,
            due: None,
            fruitless: 0,
            storm: QueryLimiter::default(),
        };
        self.links.insert(index, known);
        self.changed.insert(index);
    }

    /// Removes a link that left the agent's namespace. If it was the peer of a remaining veth, it moved to another
    /// namespace; no event reports this for the remaining veth.
    pub(super) fn remove_link(&mut self, index: u32) {
        self.inner.remove(&index);
        if let Some(known) = self.links.remove(&index) {
            self.gone.push_back((index, known.incarnation));
            if self.gone.len() > REMEMBERED {
                self.gone.pop_front();
            }
        }
        let peers = self
            .links
            .values()
            .filter(|known| known.veth.namespace.is_none() && known.veth.peer == index);
        self.uncertain.extend(peers.map(|known| known.veth.index));
    }

    /// Applies a complete list of veths. If events before it were `lost`, a link with a different [`VethLink::identity`]
    /// counts as another interface: the removal of the old one and the creation of the new one were missed.
    pub(super) fn set_links(&mut self, veths: Vec<VethLink>, lost: bool) {
        let found: BTreeMap<u32, VethLink> =
            veths.into_iter().map(|veth| (veth.index, veth)).collect();
        let missing: Vec<u32> = self
            .links
            .values()
            .filter(|known| {
                let now = found.get(&known.veth.index);
                now.is_none_or(|now| lost && now.identity() != known.veth.identity())
            })
            .map(|known| known.veth.index)
            .collect();
        for index in missing {
            self.remove_link(index);
        }
        let inner = found.values().filter(|veth| !veth.leads_away);
        self.inner = inner.map(|veth| veth.index).collect();
        for veth in found.into_values() {
            self.set_link(veth);
        }
    }

    /// Returns the index and name of the links that had both ends here at the last listing and still have.
    pub(super) fn inner(&self) -> impl Iterator<Item = (u32, &str)> {
        let listed = self.inner.iter().filter_map(|index| self.links.get(index));
        let here = listed.filter(|known| !known.veth.leads_away);
        here.map(|known| (known.veth.index, known.veth.name.as_str()))
    }

    /// Schedules a query after an address event of an interface in another namespace.
    pub(super) fn peer_changed(&mut self, namespace: i32, peer: u32, now: Instant) {
        let is_behind = |known: &&mut KnownVeth| {
            known.veth.namespace == Some(namespace) && known.veth.peer == peer
        };
        for known in self.links.values_mut().filter(is_behind) {
            known.ask_by(now);
        }
    }

    /// Schedules a query of all links after lost address events.
    pub(super) fn any_peer_changed(&mut self, now: Instant) {
        self.links.values_mut().for_each(|known| known.ask_by(now));
    }

    /// Adds or removes a route of the node to a single address.
    pub(super) fn set_route(&mut self, route: HostRoute) {
        if route.there {
            self.routes.insert(route.to, route.by);
        } else if self.routes.get(&route.to) == Some(&route.by) {
            self.routes.remove(&route.to);
        }
    }

    /// Replaces all routes; of several routes to one address the first counts.
    pub(super) fn set_routes(&mut self, routes: Vec<HostRoute>) {
        self.routes.clear();
        for route in routes {
            self.routes.entry(route.to).or_insert(route.by);
        }
    }

    /// Sets the addresses behind an interface.
    pub(super) fn set_addresses(&mut self, index: u32, mut addresses: Vec<IpAddr>, now: Instant) {
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(bindings::Veth::MAX_INSIDE);
        if let Some(known) = self.links.get_mut(&index) {
            known.addresses = addresses;
            if known.addresses.is_empty() {
                known.ask_again(now);
            } else {
                (known.due, known.fruitless) = (None, 0);
            }
        }
    }

    /// Sets the hardware address behind an interface.
    pub(super) fn set_station(&mut self, index: u32, station: [u8; 6]) {
        if let Some(known) = self.links.get_mut(&index) {
            known.station = Some(station);
        }
    }

    /// Schedules another query after a failed one. The former addresses stay.
    pub(super) fn addresses_unknown(&mut self, index: u32, now: Instant) {
        if let Some(known) = self.links.get_mut(&index) {
            known.ask_again(now);
        }
    }

    /// Returns a link.
    pub(super) fn veth(&self, index: u32) -> Option<&VethLink> {
        self.links.get(&index).map(|known| &known.veth)
    }

    /// Returns the links with a peer in another namespace that has an identifier.
    pub(super) fn outside(&self) -> Vec<u32> {
        let outside = self.links.values().filter(|known| known.veth.namespace.is_some());
        outside.map(|known| known.veth.index).collect()
    }

    /// Takes the links to query because their peer left the agent's namespace.
    pub(super) fn uncertain(&mut self) -> Vec<u32> {
        distinct(std::mem::take(&mut self.uncertain))
    }

    /// Takes the links that are due for a query of addresses.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<u32> {
        let mut due = std::mem::take(&mut self.changed);
        for (&index, known) in &mut self.links {
            if known.due.is_some_and(|at| at <= now) {
                known.due = None;
                due.insert(index);
            }
            if due.contains(&index) {
                known.storm.asked(now);
            }
        }
        due.into_iter().collect()
    }

    /// Clears the links to query at once, after all were queried.
    pub(super) fn nothing_due_at_once(&mut self) {
        self.changed.clear();
    }

    /// Returns the time of the next scheduled query.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.links.values().filter_map(|known| known.due).min()
    }

    /// Returns the differences to the last reported state, and stores the current state as reported.
    pub(super) fn differences(&mut self) -> Vec<DiscoveryEvent> {
        let mut routed: BTreeMap<u32, Vec<IpAddr>> = BTreeMap::new();
        for (to, by) in &self.routes {
            routed.entry(*by).or_default().push(*to);
        }
        let now = self.links.values().filter_map(|known| {
            let namespace = known.veth.namespace?;
            let routed = routed.remove(&known.veth.index).unwrap_or_default();
            Some((known.veth.index, known.reported_veth(namespace, routed)))
        });
        let now: BTreeMap<u32, bindings::Veth> = now.collect();
        let gone = self.told.keys().filter(|index| !now.contains_key(index));
        let new = now.iter().filter(|(index, new)| self.told.get(index) != Some(new));
        let gone = gone.map(|index| DiscoveryEvent::VethGone(*index));
        let differences =
            gone.chain(new.map(|(_, veth)| DiscoveryEvent::Veth(veth.clone()))).collect();
        self.told = now;
        differences
    }
}

impl KnownVeth {
    fn ask_again(&mut self, now: Instant) {
        let pause = ASK_AGAIN.get(self.fruitless).map(|&millis| Duration::from_millis(millis));
        self.due = pause.map(|pause| now + pause);
        self.fruitless += 1;
    }

    /// Schedules a query after a change inside.
    fn ask_by(&mut self, now: Instant) {
        let at = self.storm.ask_at(now);
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    fn reported_veth(&self, namespace: i32, routed: Vec<IpAddr>) -> bindings::Veth {
        bindings::Veth {
            index: self.veth.index,
            incarnation: self.incarnation,
            name: self.veth.name.clone(),
            namespace,
            routed,
            inside: self.addresses.clone(),
            station: self.station,
        }
    }
}

/// Returns an incarnation that differs from those of the removed interfaces with the same index.
fn fresh(gone: &VecDeque<(u32, u64)>, veth: &VethLink) -> u64 {
    let mut incarnation = veth.identity();
    while gone.contains(&(veth.index, incarnation)) {
        incarnation = incarnation.wrapping_add(1);
    }
    incarnation
}

fn distinct(mut indexes: Vec<u32>) -> Vec<u32> {
    indexes.sort_unstable();
    indexes.dedup();
    indexes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn veth(index: u32, peer: u32, namespace: Option<i32>) -> VethLink {
        VethLink {
            index,
            peer,
            namespace,
            leads_away: namespace.is_some(),
            name: format!("veth{index}"),
            hardware: vec![2, 0, 0, 0, 0, 1],
        }
    }

    #[test]
    fn a_pair_is_the_nodes_own_once_it_is_listed_as_one() {
        let mut table = VethTable::default();
        let inner = |table: &VethTable| table.inner().map(|(index, _)| index).collect::<Vec<_>>();
        table.set_link(veth(7, 8, None));
        table.set_link(veth(8, 7, None));
        assert!(inner(&table).is_empty(), "one side may be about to move");
        table.set_links(vec![veth(7, 8, None), veth(8, 7, None), veth(9, 2, Some(0))], false);
        assert_eq!(inner(&table), [7, 8]);
        table.remove_link(8);
        table.set_link(veth(7, 8, Some(1)));
        assert!(inner(&table).is_empty());
        let unnumbered = VethLink { leads_away: true, ..veth(11, 2, None) };
        table.set_links(vec![unnumbered], false);
        assert!(inner(&table).is_empty(), "in a namespace that has no identifier here");
    }

    fn told(table: &mut VethTable) -> bindings::Veth {
        match &table.differences()[..] {
            [DiscoveryEvent::Veth(veth)] => veth.clone(),
            events => panic!("{events:?}"),
        }
    }

    #[test]
    fn only_differences_are_told() {
        let (mut table, now) = (VethTable::default(), Instant::now());
        table.set_link(veth(7, 2, Some(0)));
        assert!(told(&mut table).inside.is_empty());
        let addresses = ["10.0.0.2", "10.0.0.1", "10.0.0.2"].map(|a| a.parse().unwrap());
        table.set_addresses(7, addresses.to_vec(), now);
        assert_eq!(told(&mut table).inside, [addresses[1], addresses[0]], "sorted, once each");
        table.set_link(veth(7, 2, Some(0)));
        table.set_addresses(7, addresses.to_vec(), now);
        table.addresses_unknown(7, now);
        assert_eq!(table.differences(), []);
        table.set_links(vec![], false);
        assert_eq!(table.differences(), [DiscoveryEvent::VethGone(7)]);
        assert_eq!(table.differences(), []);
    }

    #[test]
    fn a_reused_index_is_another_incarnation() {
        let mut table = VethTable::default();
        table.set_link(veth(7, 2, Some(0)));
        let first = told(&mut table).incarnation;
        table.remove_link(7);
        table.set_link(veth(7, 2, Some(0)));
        assert_ne!(told(&mut table).incarnation, first, "though nothing else differs");
        // Removed and created again between two listings with lost events: the hardware address differs.
        let mut other = veth(7, 2, Some(0));
        other.hardware[5] = 9;
        let before = table.told[&7].incarnation;
        table.set_links(vec![other.clone()], true);
        assert_ne!(told(&mut table).incarnation, before);
        // Without lost events it is the same interface; its hardware address was just set.
        other.hardware[5] = 8;
        table.set_links(vec![other], false);
        assert_eq!(table.differences(), []);
    }

    #[test]
    fn an_incarnation_survives_restart_and_the_hardware_address() {
        let (mut table, mut restarted) = (VethTable::default(), VethTable::default());
        table.set_link(veth(7, 2, Some(0)));
        restarted.set_links(vec![veth(7, 2, Some(0))], false);
        let first = told(&mut table);
        assert_eq!(first, told(&mut restarted));
        let mut changed = veth(7, 2, Some(0));
        changed.hardware[5] = 9;
        changed.name = "renamed".into();
        table.set_link(changed);
        assert_eq!(told(&mut table), bindings::Veth { name: "renamed".into(), ..first });
    }

    #[test]
    fn a_peer_that_leaves_our_namespace_makes_its_other_side_uncertain() {
        let mut table = VethTable::default();
        table.set_link(veth(7, 8, None));
        table.set_link(veth(8, 7, None));
        assert_eq!(table.differences(), [], "a pair within one namespace is nobody's");
        table.remove_link(8);
        assert_eq!((table.uncertain(), table.uncertain()), (vec![7], vec![]));
        table.set_link(veth(7, 8, Some(3)));
        assert_eq!(told(&mut table).index, 7);
        table.set_link(veth(7, 8, None));
        assert_eq!(table.differences(), [DiscoveryEvent::VethGone(7)]);
    }

    #[test]
    fn a_pod_can_neither_make_another_interface_of_its_own_nor_lose_it() {
        let mut table = VethTable::default();
        table.set_link(veth(7, 2, Some(0)));
        let first = told(&mut table).incarnation;
        table.set_link(veth(7, 9, Some(1)));
        assert_eq!(told(&mut table).incarnation, first, "moved to a namespace inside");
        table.set_links(vec![veth(7, 2, Some(2))], true);
        assert_eq!(told(&mut table).incarnation, first, "while events were lost");
    }

    #[test]
    fn routes_to_single_addresses_are_told() {
        let route = |to: &str, by, there| HostRoute { to: to.parse().unwrap(), by, there };
        let routed = |events: Vec<DiscoveryEvent>| {
            let veths = events.into_iter().filter_map(|event| {
                let DiscoveryEvent::Veth(veth) = event else { return None };
                Some((veth.index, veth.routed.len()))
            });
            veths.collect::<Vec<_>>()
        };
        let mut table = VethTable::default();
        table.set_link(veth(7, 2, Some(0)));
        table.set_link(veth(8, 2, Some(1)));
        table.set_routes(vec![route("10.0.0.1", 7, true), route("10.0.0.1", 8, true)]);
        assert_eq!(routed(table.differences()), [(7, 1), (8, 0)], "the better one");
        table.set_route(route("10.0.0.1", 8, true));
        assert_eq!(routed(table.differences()), [(7, 0), (8, 1)], "replaced");
        table.set_route(route("10.0.0.1", 7, false));
        assert_eq!(table.differences(), []);
        table.set_route(route("10.0.0.1", 8, false));
        assert_eq!(routed(table.differences()), [(8, 0)]);
    }

    #[test]
    fn a_storm_of_addresses_is_looked_at_now_and_then() {
        let (mut table, start) = (VethTable::default(), Instant::now());
        table.set_link(veth(7, 2, Some(0)));
        table.set_link(veth(8, 2, Some(1)));
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let mut asked = Vec::new();
        // 10,000 changes per second for a minute.
        for tenth in 0..600_000u64 {
            let now = start + Duration::from_micros(tenth * 100);
            table.peer_changed(0, 2, now);
            for index in table.take_due(now) {
                asked.push((index, now));
                table.set_addresses(index, vec![address], now);
            }
        }
        let stormy = asked.iter().filter(|(index, _)| *index == 7).count();
        assert!((40..70).contains(&stormy), "{stormy}");
        assert_eq!(asked.len(), stormy + 1, "the other one once");
        assert!(table.next_due().is_some_and(|due| due < start + Duration::from_secs(66)));
        // After the storm, queries are immediate again.
        let mut later = start + Duration::from_secs(66);
        assert_eq!(table.take_due(later), [7], "the last change is not lost");
        later += Duration::from_secs(20);
        table.peer_changed(0, 2, later);
        assert_eq!(table.take_due(later), [7]);
        table.peer_changed(0, 2, later);
        assert_eq!(table.next_due(), Some(later));
    }

    #[test]
    fn an_interface_without_address_is_asked_again_until_it_has_one() {
        let (mut table, start) = (VethTable::default(), Instant::now());
        table.set_link(veth(7, 2, Some(0)));
        assert_eq!((table.take_due(start), table.take_due(start)), (vec![7], vec![]));
        let (mut now, mut asked) = (start, 0);
        table.set_addresses(7, vec![], now);
        while let Some(due) = table.next_due() {
            now = due;
            assert_eq!(table.take_due(now), [7]);
            table.set_addresses(7, vec![], now);
            asked += 1;
        }
        assert_eq!(asked, ASK_AGAIN.len());
        assert!(now - start > Duration::from_secs(2));
        now += Duration::from_secs(20);
        table.peer_changed(1, 2, now);
        assert!(table.take_due(now).is_empty(), "another namespace");
        table.peer_changed(0, 2, now);
        assert_eq!(table.take_due(now), [7]);
        table.set_addresses(7, vec!["fd00::1".parse().unwrap()], now);
        assert_eq!(table.next_due(), None);
    }
}
