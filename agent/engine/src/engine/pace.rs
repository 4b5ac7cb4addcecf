//! Delays frequent changes of large policies and Services per namespace, so that other namespaces do not wait.
//!
//! Large objects are compiled on another thread ([`super::successor`]). The namespace is charged [`FACTOR`] times their
//! processor time; while its debt exceeds a credit, its large objects wait. Objects of modest size are compiled with
//! all other edits ([`Compiler::defer`]), at [`FACTOR_OF_ALL`] times their processor time; a namespace in debt has them
//! wait with the large ones. Policies wait in the compiler, which keeps newly isolated pods closed for that time;
//! Services and their EndpointSlices wait here. Small objects cost nothing.
//!
//! kube-proxy does not wait: it translates a Service's new addresses at once. So they are compiled at once as those of a
//! [placeholder](placeholder_key), a Service without ports: policy allows no port of it, and packets that policy allows
//! anyway are judged again after the translation.
//!
//! [`Compiler::defer`]: netpold_core::compile::Compiler::defer

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netpold_core::budget::{ORDINARY_UNITS, kept_change};
use netpold_core::cluster::Cluster;
use netpold_core::model::{Change, EndpointSlice, Key, Service};

/// Weight of a Service's port: every port is matched against every pod's rules.
const PER_PORT: u64 = 50;
/// Weight of an address of a Service, besides its cluster addresses: it takes about as long as a unit of a policy.
const PER_ADDRESS: u64 = 2;
/// Weight of an address or port of an EndpointSlice. The ports of all slices of a Service are read when one of them changes,
/// so each port counts.
const PER_BACKEND: u64 = 1;
/// Divisor of the weight of the addresses that the Service's slices have at present.
const OTHER_BACKENDS: u64 = 10;
/// Processor time of an update that is not charged.
const ORDINARY_TIME: Duration = Duration::from_millis(10);
/// Factor of the charge for work on another thread, which delays no update.
const FACTOR: u32 = 10;
/// Factor of the charge for work that delays all updates.
const FACTOR_OF_ALL: u32 = 100;
/// Minimum share of a walk over the node's flows that is charged.
const LEAST_OF_WALK: f64 = 0.1;
/// Debt up to which a namespace's large objects do not wait.
const CREDIT: Duration = Duration::from_secs(5);
/// Maximum debt of a namespace, which limits the wait after its last expensive change.
const LARGEST_DEBT: Duration = Duration::from_mins(10);

/// Changes that wait.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Time until which each namespace is in debt.
    in_debt_until: BTreeMap<String, Instant>,
    /// Latest waiting change of each object.
    waiting: BTreeMap<PacedObject, Change>,
    /// Changes that the other thread is compiling.
    taken: BTreeMap<PacedObject, Change>,
}

type PacedObject = (Key, PacedKind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PacedKind {
    Service,
    Slice,
}

/// Returns the object of a change; `None`: the change never waits.
fn paced_object(change: &Change) -> Option<PacedObject> {
    let (key, kind) = match change {
        Change::Service(service) => (&service.key, PacedKind::Service),
        Change::ServiceGone(key) => (key, PacedKind::Service),
        Change::EndpointSlice(slice) => (&slice.key, PacedKind::Slice),
        Change::EndpointSliceGone(key) => (key, PacedKind::Slice),
        Change::Namespace(_)
        | Change::NamespaceGone(_)
        | Change::Node(_)
        | Change::NodeGone(_)
        | Change::Policy(_)
        | Change::PolicyGone(_)
        | Change::ClusterPolicy(_)
        | Change::ClusterPolicyGone(_)
        | Change::Pod(_)
        | Change::PodGone(_)
        | Change::Interface(_)
        | Change::InterfaceGone(_)
        | Change::OwnAddresses(_) => return None,
    };
    Some((key.clone(), kind))
}

/// Returns the object of a change, and the larger of its weights before and after it; `None`: the change never waits.
fn weigh(change: &Change, cluster: &Cluster) -> Option<(PacedObject, u64)> {
    let of_service = |key: &Key, new: Option<&Service>| {
        let before = cluster.services().get(key).map(|service| &**service);
        let units = before.into_iter().chain(new).map(|service| weight(service, cluster)).max();
        units.unwrap_or(0)
    };
    let of_slice = |key: &Key, new: Option<&EndpointSlice>| {
        let before = cluster.slices().get(key).map(|slice| &**slice);
        let units = before.into_iter().chain(new).map(|slice| {
            let service = Key::new(key.namespace.clone(), slice.service.clone());
            let ports = cluster.services().get(&service).map_or(0, |service| service.ports.len());
            let own = slice.addresses.len() + slice.ports.len();
            let units = PER_PORT * ports as u64 + PER_BACKEND * own as u64;
            units + weight_of_slices(&service, cluster)
        });
        let units = units.max().unwrap_or(0);
        match before.into_iter().chain(new).any(|slice| cluster.exceeds_backends(slice)) {
            true => units.max(ORDINARY_UNITS + 1),
            false => units,
        }
    };
    let object = paced_object(change)?;
    let units = match (change, &object) {
        (Change::Service(service), (key, _)) => of_service(key, Some(service)),
        (Change::EndpointSlice(slice), (key, _)) => of_slice(key, Some(slice)),
        (_, (key, PacedKind::Service)) => of_service(key, None),
        (_, (key, PacedKind::Slice)) => of_slice(key, None),
    };
    Some((object, units))
}

/// Weight of a Service. With networks in place of addresses it is large: every address in them is settled again.
fn weight(service: &Service, cluster: &Cluster) -> u64 {
    let addresses = service.addresses.len().saturating_sub(service.cluster.len());
    let units = PER_PORT * service.ports.len() as u64 + PER_ADDRESS * addresses as u64;
    let units = units + weight_of_slices(&service.key, cluster);
    match cluster.exceeds_frontends(service) {
        true => units.max(ORDINARY_UNITS + 1),
        false => units,
    }
}

/// Weight of the present slices of a Service.
fn weight_of_slices(service: &Key, cluster: &Cluster) -> u64 {
    let sums = cluster.slice_sums(service);
    PER_BACKEND * sums.ports as u64 + PER_BACKEND * sums.addresses as u64 / OTHER_BACKENDS
}

/// Returns the key of a Service's placeholder, which no Service can have.
fn placeholder_key(service: &Key) -> Key {
    Key::new(service.namespace.clone(), format!("{} (waiting)", service.name))
}

/// Returns the placeholder of a waiting Service: its addresses and networks that are not in force, and those of the
/// placeholder so far. It only grows until the Service is compiled, so that frequent changes cost little. `None`: it
/// stays as it is.
fn placeholder(change: &Change, cluster: &Cluster) -> Option<Change> {
    let Change::Service(service) = change else { return None };
    let key = placeholder_key(&service.key);
    let (earlier, in_force) = (cluster.services().get(&key), cluster.services().get(&service.key));
    let known = || in_force.into_iter().chain(earlier);
    let mut networks = service.networks.clone();
    networks.retain(|network| !known().any(|of| of.networks.contains(network)));
    let has = |of: &Service, address: &IpAddr| {
        of.addresses.binary_search(address).is_ok()
            || of.networks.iter().any(|it| it.contains(address))
    };
    let mut addresses = service.addresses.clone();
    // Those of the last edit: earlier ones would add up.
    let is_beyond = |of: &Service| !of.beyond.is_empty();
    let last = Some(service).into_iter().chain(earlier.map(|of| &**of)).find(|of| is_beyond(of));
    let beyond = last.map_or_else(Vec::new, |of| of.beyond.clone());
    let is_same = beyond.is_empty() || known().any(|of| of.beyond == beyond);
    addresses.retain(|address| !known().any(|of| has(of, address)));
    if service.unserved || addresses.is_empty() && networks.is_empty() && is_same {
        return None;
    }
    let mut cluster = service.cluster.clone();
    cluster.retain(|address| addresses.contains(address));
    if let Some(earlier) = earlier {
        addresses.extend(&earlier.addresses);
        cluster.extend(&earlier.cluster);
        networks.extend(&earlier.networks);
    }
    addresses.sort_unstable();
    cluster.sort_unstable();
    networks.sort_unstable();
    let ports = Vec::new();
    let unserved = false;
    let service = Service { key, addresses, cluster, networks, beyond, ports, unserved };
    Some(Change::Service(service))
}

/// Returns the change that removes the placeholder of a Service, if there is one.
fn without_placeholder(change: &Change, cluster: &Cluster) -> Option<Change> {
    let (Change::Service(Service { key, .. }) | Change::ServiceGone(key)) = change else {
        return None;
    };
    let key = placeholder_key(key);
    cluster.services().contains_key(&key).then_some(Change::ServiceGone(key))
}

impl Pace {
    /// Admits a change: returns it, or keeps it if it has to wait, and returns the change of its placeholder, if any.
    pub(super) fn admit(&mut self, change: Change, cluster: &Cluster) -> Option<Change> {
        let change = kept_change(change);
        let Some((object, units)) = weigh(&change, cluster) else { return Some(change) };
        // A change must not overtake an earlier one of the same object.
        let waits = self.waiting.contains_key(&object) || self.taken.contains_key(&object);
        if waits || units > ORDINARY_UNITS {
            let placeholder = placeholder(&change, cluster);
            self.waiting.insert(object, change);
            return placeholder;
        }
        Some(change)
    }

    /// Drops waiting changes of the object, because a newer change bypasses the queue. Returns the removal of its
    /// placeholder.
    pub(super) fn drop_overtaken(&mut self, change: &Change, cluster: &Cluster) -> Option<Change> {
        let object = paced_object(change)?;
        self.waiting.remove(&object);
        self.taken.remove(&object);
        without_placeholder(change, cluster)
    }

    /// Charges an update that took `took` of a processor while all other updates waited. `compiled`: compiled units
    /// beyond modest size, by namespace.
    pub(super) fn charge_update(
        &mut self,
        took: Duration,
        compiled: BTreeMap<String, u64>,
        now: Instant,
    ) {
        self.charge(took.saturating_sub(ORDINARY_TIME) * FACTOR_OF_ALL, compiled, now);
    }

    /// Charges a walk over the flows of the node, in which `share` (0 to 1) of the flows belong to these namespaces. They
    /// pay for that share, because other pods choose the number of the other flows, and for at least
    /// [`LEAST_OF_WALK`], because they choose how often the node's flows are walked.
    pub(super) fn charge_walk(
        &mut self,
        took: Duration,
        share: f64,
        shares: BTreeMap<String, u64>,
        now: Instant,
    ) {
        self.charge_update(took.mul_f64(share.clamp(LEAST_OF_WALK, 1.0)), shares, now);
    }

    /// Ends the successful compilation of the taken changes and of large policies on another thread, and charges its
    /// processor time.
    pub(super) fn end_compilation(
        &mut self,
        took: Duration,
        shares: BTreeMap<String, u64>,
        now: Instant,
    ) {
        self.taken.clear();
        self.charge(took * FACTOR, shares, now);
    }

    fn charge(&mut self, debt: Duration, shares: BTreeMap<String, u64>, now: Instant) {
        self.in_debt_until.retain(|_, owed| *owed > now);
        let all: u64 = shares.values().sum();
        if debt.is_zero() || all == 0 {
            return;
        }
        for (namespace, units) in shares {
            let owed = self.in_debt_until.entry(namespace).or_insert(now);
            let debt = debt.mul_f64(units as f64 / all as f64);
            *owed = ((*owed).max(now) + debt).min(now + LARGEST_DEBT);
        }
    }

    /// Returns the namespaces without credit; their large objects wait.
    pub(super) fn namespaces_in_debt(&self, now: Instant) -> BTreeSet<String> {
        let held = self.in_debt_until.keys().filter(|namespace| !self.is_ready(namespace, now));
        held.cloned().collect()
    }

    /// Returns whether a namespace's large objects need not wait.
    pub(super) fn is_ready(&self, namespace: &str, now: Instant) -> bool {
        self.ready_at(namespace).is_none_or(|ready| ready <= now)
    }

    fn ready_at(&self, namespace: &str) -> Option<Instant> {
        self.in_debt_until.get(namespace).and_then(|owed| owed.checked_sub(CREDIT))
    }

    /// Takes the changes that have waited long enough, with the removals of their placeholders.
    pub(super) fn take_due(&mut self, now: Instant, cluster: &Cluster) -> Vec<Change> {
        let waiting = std::mem::take(&mut self.waiting);
        let (taken, waiting): (BTreeMap<_, _>, _) =
            waiting.into_iter().partition(|((key, _), _)| self.is_ready(&key.namespace, now));
        (self.taken, self.waiting) = (taken, waiting);
        let removals = self.taken.values().filter_map(|it| without_placeholder(it, cluster));
        self.taken.values().cloned().chain(removals).collect()
    }

    /// Returns the namespaces of the last taken changes.
    pub(super) fn namespaces_of_taken(&self) -> impl Iterator<Item = &str> {
        self.taken.keys().map(|(key, _)| key.namespace.as_str())
    }

    /// Returns the taken changes to the queue, except outdated ones.
    pub(super) fn put_back(&mut self) {
        for (object, change) in std::mem::take(&mut self.taken) {
            self.waiting.entry(object).or_insert(change);
        }
    }

    /// Returns the earliest time at which a waiting change or a large policy of a `late` namespace is due; `now` if
    /// nothing delays it.
    pub(super) fn next_due(&self, late: &BTreeSet<String>, now: Instant) -> Option<Instant> {
        let waiting = self.waiting.keys().map(|(key, _)| &key.namespace);
        let all = waiting.chain(late);
        all.map(|namespace| self.ready_at(namespace).unwrap_or(now).max(now)).min()
    }

    /// Returns the namespaces with waiting changes.
    pub(super) fn waiting_namespaces(&self) -> Vec<&str> {
        let names = self.waiting.keys().chain(self.taken.keys());
        let names: BTreeSet<&str> = names.map(|(key, _)| key.namespace.as_str()).collect();
        names.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use netpold_core::budget::{NAMESPACE_BACKENDS, SLICE_ADDRESSES};
    use netpold_core::compile::Compiler;
    use netpold_core::model::{Protocol, Service, ServicePort, SlicePort};
    use netpold_core::options::Options;

    use super::*;

    /// Creates a change of a Service with this many ports.
    fn service(namespace: &str, ports: u16, edit: u16) -> Change {
        let port = |n: u16| ServicePort {
            name: format!("p{n}"),
            protocol: Protocol::Tcp,
            port: 1000 + n + edit,
            node_port: None,
        };
        Change::Service(Service {
            key: Key::new(namespace, "s"),
            addresses: Vec::new(),
            cluster: Vec::new(),
            networks: Vec::new(),
            beyond: Vec::new(),
            unserved: false,
            ports: (0..ports).map(port).collect(),
        })
    }

    /// One change of each Service per second, for ten minutes; the large one takes two seconds to compile.
    #[test]
    fn large_services_that_flap_have_a_tenth_and_others_all_they_want() {
        const LARGE: Duration = Duration::from_secs(2);
        let mut compiler = Compiler::new(Options::default());
        let mut pace = Pace::default();
        let start = Instant::now();
        let (mut taken, mut small) = (0u32, 0);
        for tick in 0..600u16 {
            let now = start + Duration::from_secs(1) * tick.into();
            assert_eq!(pace.admit(service("large", 200, tick), compiler.cluster()), None);
            if let Some(change) = pace.admit(service("small", 20, tick), compiler.cluster()) {
                compiler.ingest(change);
                small += 1;
            }
            let update = pace.take_due(now, compiler.cluster());
            if !update.is_empty() {
                taken += 1;
                update.into_iter().for_each(|change| compiler.ingest(change));
                pace.end_compilation(LARGE, BTreeMap::from([("large".to_owned(), 1)]), now);
            }
        }
        assert_eq!(small, 600, "what is ordinary never waits");
        // One at once, then one every twenty seconds.
        assert!((28..=32).contains(&taken), "{taken} in ten minutes");
        assert_eq!(pace.waiting_namespaces(), ["large"]);
        // The last change is in force in the end.
        let end = pace.next_due(&BTreeSet::new(), start + Duration::from_mins(10)).unwrap();
        assert_eq!(pace.take_due(end, compiler.cluster()), [service("large", 200, 599)]);
        pace.end_compilation(LARGE, BTreeMap::new(), end);
        assert_eq!(pace.next_due(&BTreeSet::new(), end), None);
    }

    #[test]
    fn the_last_word_on_an_object_counts() {
        let compiler = Compiler::new(Options::default());
        let (mut pace, now) = (Pace::default(), Instant::now());
        assert_eq!(pace.admit(service("a", 200, 1), compiler.cluster()), None);
        assert_eq!(pace.take_due(now, compiler.cluster()), [service("a", 200, 1)]);
        let small = service("a", 2, 2);
        assert_eq!(pace.admit(small.clone(), compiler.cluster()), None, "overtakes nothing");
        pace.put_back();
        assert_eq!(
            pace.take_due(now, compiler.cluster()),
            [small],
            "what was not compiled is outdated"
        );
        pace.end_compilation(Duration::ZERO, BTreeMap::new(), now);
        let small = service("a", 2, 3);
        assert_eq!(pace.admit(small.clone(), compiler.cluster()), Some(small));
        assert!(pace.waiting_namespaces().is_empty());
    }

    #[test]
    fn the_addresses_of_a_waiting_service_are_known_at_once() {
        let mut compiler = Compiler::new(Options::default());
        let (mut pace, now) = (Pace::default(), Instant::now());
        let with = |ports, addresses: &[&str]| {
            let Change::Service(service) = service("a", ports, 0) else { unreachable!() };
            let addresses: Vec<IpAddr> = addresses.iter().map(|it| it.parse().unwrap()).collect();
            let cluster = addresses[..1].to_vec();
            Change::Service(Service { addresses, cluster, ..service })
        };
        let placeholder = |addresses: &[&str]| {
            let Change::Service(service) = with(0, addresses) else { unreachable!() };
            let cluster = if addresses[0] == "10.96.0.1" { service.cluster } else { Vec::new() };
            Change::Service(Service { key: Key::new("a", "s (waiting)"), cluster, ..service })
        };
        let gone = Change::ServiceGone(Key::new("a", "s (waiting)"));
        let large = with(200, &["10.96.0.1"]);
        let admitted = pace.admit(large.clone(), compiler.cluster());
        assert_eq!(admitted, Some(placeholder(&["10.96.0.1"])));
        compiler.ingest(admitted.unwrap());
        assert_eq!(pace.take_due(now, compiler.cluster()), [large.clone(), gone.clone()]);
        pace.put_back();
        pace.take_due(now, compiler.cluster()).into_iter().for_each(|it| compiler.ingest(it));
        pace.end_compilation(Duration::ZERO, BTreeMap::new(), now);
        assert_eq!(compiler.cluster().services().len(), 1);
        // Of an edit, the further addresses.
        let edited = with(200, &["10.96.0.1", "192.0.2.7"]);
        let admitted = pace.admit(edited, compiler.cluster());
        assert_eq!(admitted, Some(placeholder(&["192.0.2.7"])));
        compiler.ingest(admitted.unwrap());
        // Others of the next edit join them, and stay until an edit is compiled.
        let edited = with(200, &["10.96.0.1", "192.0.2.8"]);
        let admitted = pace.admit(edited.clone(), compiler.cluster());
        assert_eq!(admitted, Some(placeholder(&["192.0.2.7", "192.0.2.8"])));
        compiler.ingest(admitted.unwrap());
        for again in [&edited, &large] {
            assert_eq!(pace.admit(again.clone(), compiler.cluster()), None);
        }
        assert_eq!(pace.take_due(now, compiler.cluster()), [large, gone]);
    }

    #[test]
    fn services_with_too_many_addresses_wait_and_their_networks_only_grow() {
        let mut compiler = Compiler::new(Options::default());
        let (mut pace, now) = (Pace::default(), Instant::now());
        let with = |addresses: u32, first: u32| {
            let Change::Service(service) = service("a", 1, 0) else { unreachable!() };
            let all = (0..addresses).map(|n| std::net::Ipv4Addr::from_bits(first + n).into());
            Change::Service(Service { addresses: all.collect(), ..service })
        };
        let few = with(900, 0x1400_0000);
        assert_eq!(pace.admit(few.clone(), compiler.cluster()), Some(few));
        let mut admit = |change: &Change| -> Vec<String> {
            let admitted = pace.admit(change.clone(), compiler.cluster());
            let Some(Change::Service(placeholder)) = admitted else { return Vec::new() };
            assert!(placeholder.addresses.is_empty() && placeholder.ports.is_empty());
            let networks = placeholder.networks.iter().map(ToString::to_string).collect();
            compiler.ingest(Change::Service(placeholder));
            networks
        };
        let (one, other) = (with(90_000, 0x1400_0000), with(90_000, 0x1500_0000));
        assert_eq!(admit(&one), ["20.0.0.0/16", "20.1.0.0/16"]);
        let all = ["20.0.0.0/16", "20.1.0.0/16", "21.0.0.0/16", "21.1.0.0/16"];
        assert_eq!(admit(&other), all);
        let key = Key::new("a", "s");
        assert!(admit(&other).is_empty() && admit(&Change::ServiceGone(key.clone())).is_empty());
        for again in [one, other] {
            assert_eq!(admit(&again), all, "the networks of both, the addresses of the last");
        }
        pace.take_due(now, compiler.cluster()).into_iter().for_each(|it| compiler.ingest(it));
        let services: Vec<_> = compiler.cluster().services().values().collect();
        assert!(services.len() == 1 && services[0].key == key && services[0].networks.len() == 2);
        pace.end_compilation(Duration::ZERO, BTreeMap::new(), now);
        // The removal waits, too.
        let gone = Change::ServiceGone(key);
        assert_eq!(pace.admit(gone.clone(), compiler.cluster()), None);
        assert_eq!(pace.take_due(now, compiler.cluster()), [gone]);
    }

    /// Each edit reads all slices of the Service, so they weigh, too; those of an ordinary Service do not wait.
    #[test]
    fn slices_weigh_their_ports_and_the_slices_beside_them() {
        let slice = |name: &str, addresses: u32, ports: u16| {
            let address = |n: u32| IpAddr::V4(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n));
            let port =
                |n: u16| SlicePort { name: format!("p{n}"), protocol: Protocol::Tcp, port: 80 };
            Change::EndpointSlice(EndpointSlice {
                key: Key::new("a", name),
                service: "s".into(),
                ports: (0..ports).map(port).collect(),
                addresses: (0..addresses).map(address).collect(),
                not_ready: Vec::new(),
                terminating: Vec::new(),
            })
        };
        let with = |service_ports, slices: &[(u32, u16)]| {
            let mut compiler = Compiler::new(Options::default());
            compiler.ingest(service("a", service_ports, 0));
            for (n, (addresses, ports)) in slices.iter().enumerate() {
                compiler.ingest(slice(&format!("s{n:04}"), *addresses, *ports));
            }
            compiler
        };
        let waits = |compiler: &Compiler, edit: Change| {
            Pace::default().admit(edit.clone(), compiler.cluster()) != Some(edit)
        };
        let ordinary = with(3, &[(100, 3); 10]);
        assert!(!waits(&ordinary, slice("s0003", 99, 3)));
        assert!(!waits(&ordinary, service("a", 3, 1)));
        let of_ports = with(1, &[(1, 1000); 5]);
        assert!(waits(&of_ports, slice("s0003", 2, 1)));
        assert!(waits(&of_ports, slice("new", 1, 1)));
        assert!(waits(&of_ports, service("a", 1, 1)));
        assert!(waits(&with(1, &[]), slice("new", 1, 5000)), "by its own ports");
        // A namespace at its limit: every slice may move others across it.
        let full = vec![(SLICE_ADDRESSES as u32, 1); NAMESPACE_BACKENDS / (SLICE_ADDRESSES + 1)];
        let full = with(1, &full);
        let Change::EndpointSlice(other) = slice("t", SLICE_ADDRESSES as u32, 1) else { return };
        let other = Change::EndpointSlice(EndpointSlice { service: "t".into(), ..other });
        assert!(waits(&full, other.clone()));
        let mut beyond = full;
        beyond.ingest(other);
        assert!(waits(&beyond, slice("s0003", 1, 1).removal()));
    }

    #[test]
    fn who_shares_an_update_owes_a_share() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        let compiled = [("a", 30_000), ("b", 10_000)].map(|(of, units)| (of.to_owned(), units));
        let compiled = BTreeMap::from(compiled);
        pace.charge_update(ORDINARY_TIME + Duration::from_millis(100), compiled, now);
        let owed: Vec<_> =
            pace.in_debt_until.values().map(|owed| (*owed - now).as_millis()).collect();
        assert_eq!(owed, [7500, 2500]);
        assert_eq!(pace.namespaces_in_debt(now), BTreeSet::from(["a".to_owned()]));
        let late = BTreeSet::from(["a".to_owned()]);
        let later = pace.next_due(&late, now).unwrap();
        assert_eq!((later - now).as_millis(), 2500);
        assert!(pace.namespaces_in_debt(later).is_empty());
        // An update without shares is charged to no namespace.
        pace.charge_update(Duration::from_mins(1), BTreeMap::new(), now);
        assert_eq!(pace.in_debt_until.len(), 2);
        // An update within the ordinary time costs nothing.
        pace.charge_update(ORDINARY_TIME, BTreeMap::from([("c".to_owned(), 5000)]), now);
        assert_eq!(pace.in_debt_until.len(), 2);
    }

    #[test]
    fn a_debt_ends_however_large_it_was() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        for _ in 0..100 {
            pace.charge_update(Duration::from_mins(1), BTreeMap::from([("a".to_owned(), 1)]), now);
        }
        let waits = LARGEST_DEBT.saturating_sub(CREDIT);
        assert_eq!(pace.namespaces_in_debt(now + waits.mul_f64(0.99)).len(), 1);
        assert!(pace.namespaces_in_debt(now + waits).is_empty());
    }

    #[test]
    fn who_has_few_flows_owes_little_for_a_walk_over_many() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        let took = Duration::from_secs(1) + ORDINARY_TIME;
        let mut owed = |namespace: &str, share| {
            pace.charge_walk(took, share, BTreeMap::from([(namespace.to_owned(), 1)]), now);
            (pace.in_debt_until[namespace] - now).as_secs()
        };
        assert_eq!([owed("many", 1.0), owed("half", 0.5), owed("few", 0.001)], [100, 49, 9]);
    }
}
