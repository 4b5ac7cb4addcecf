//! Who changes large policies or Services often has them compiled later, and nobody else waits behind them.
//!
//! What is large is compiled beside all else ([`super::successor`]), and a namespace owes [`FACTOR`] times the
//! processor time that this took; while it owes more than a little, what it has that is large waits. What is
//! not quite as large is compiled with everybody's edits ([`Compiler::defer`]); who has such things compiled
//! often owes ten times as much for them, and then they wait with the large ones. Policies wait in
//! the compiler, pods that they isolate newly being closed so long; Services and their EndpointSlices wait
//! here. What is small is free.
//!
//! [`Compiler::defer`]: netpold_core::compile::Compiler::defer

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use netpold_core::budget::ORDINARY_UNITS;
use netpold_core::cluster::Cluster;
use netpold_core::model::{Change, EndpointSlice, Key};

/// What a Service's port weighs: it is held against every pod's rules.
const PER_PORT: u64 = 50;
/// What an update may take for nobody to owe for it.
const ORDINARY_TIME: Duration = Duration::from_millis(10);
/// How many times what it cost a namespace owes, if nobody waited meanwhile.
const FACTOR: u32 = 10;
/// The same if everybody did.
const FACTOR_OF_ALL: u32 = 100;
/// What a namespace may owe before what it has waits.
const CREDIT: Duration = Duration::from_secs(5);

/// Changes that wait.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Until when namespaces owe.
    owed: BTreeMap<String, Instant>,
    /// The last word on each object.
    waiting: BTreeMap<Object, Change>,
    /// What is being compiled beside all else.
    taken: BTreeMap<Object, Change>,
}

type Object = (Key, Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Service,
    Slice,
}

/// What a change is about, and what its objects weigh before and after it; `None`: it never waits.
fn weigh(change: &Change, cluster: &Cluster) -> Option<(Object, u64)> {
    let ports = |key: &Key| cluster.services().get(key).map_or(0, |service| service.ports.len());
    let of_slice = |slice: &EndpointSlice| {
        let service = Key::new(slice.key.namespace.clone(), slice.service.clone());
        ((slice.key.clone(), Kind::Slice), PER_PORT * ports(&service) as u64)
    };
    Some(match change {
        Change::Service(service) => {
            let ports = service.ports.len().max(ports(&service.key));
            ((service.key.clone(), Kind::Service), PER_PORT * ports as u64)
        }
        Change::ServiceGone(key) => ((key.clone(), Kind::Service), PER_PORT * ports(key) as u64),
        Change::EndpointSlice(slice) => of_slice(slice),
        Change::EndpointSliceGone(key) => match cluster.slices().get(key) {
            Some(slice) => of_slice(slice),
            None => ((key.clone(), Kind::Slice), 0),
        },
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
    })
}

impl Pace {
    /// Takes a change in; gives it back unless it has to wait.
    pub(super) fn admit(&mut self, change: Change, cluster: &Cluster) -> Option<Change> {
        let Some((object, units)) = weigh(&change, cluster) else { return Some(change) };
        // A change may not overtake another of its object.
        let waits = self.waiting.contains_key(&object) || self.taken.contains_key(&object);
        if waits || units > ORDINARY_UNITS {
            self.waiting.insert(object, change);
            return None;
        }
        Some(change)
    }

    /// A change goes ahead: what waits of its object is outdated.
    pub(super) fn overtaken(&mut self, change: &Change, cluster: &Cluster) {
        if let Some((object, _)) = weigh(change, cluster) {
            self.waiting.remove(&object);
            self.taken.remove(&object);
        }
    }

    /// Ends an update that took so much of a processor while everybody waited. `compiled`: units of what
    /// was more than modest, by namespace.
    pub(super) fn spent(&mut self, took: Duration, compiled: BTreeMap<String, u64>, now: Instant) {
        self.charge(took.saturating_sub(ORDINARY_TIME) * FACTOR_OF_ALL, compiled, now);
    }

    /// What was taken is in force, and so are large policies; that took so much of a processor, beside
    /// everybody.
    pub(super) fn succeeded(
        &mut self,
        took: Duration,
        shares: BTreeMap<String, u64>,
        now: Instant,
    ) {
        self.taken.clear();
        self.charge(took * FACTOR, shares, now);
    }

    fn charge(&mut self, debt: Duration, shares: BTreeMap<String, u64>, now: Instant) {
        self.owed.retain(|_, owed| *owed > now);
        let all: u64 = shares.values().sum();
        if debt.is_zero() || all == 0 {
            return;
        }
        for (namespace, units) in shares {
            let owed = self.owed.entry(namespace).or_insert(now);
            *owed = (*owed).max(now) + debt.mul_f64(units as f64 / all as f64);
        }
    }

    /// The namespaces of which what is more than modest waits.
    pub(super) fn held(&self, now: Instant) -> BTreeSet<String> {
        let held = self.owed.keys().filter(|namespace| !self.is_ready(namespace, now));
        held.cloned().collect()
    }

    /// Whether what a namespace has that is large need not wait.
    pub(super) fn is_ready(&self, namespace: &str, now: Instant) -> bool {
        self.ready_at(namespace).is_none_or(|ready| ready <= now)
    }

    fn ready_at(&self, namespace: &str) -> Option<Instant> {
        self.owed.get(namespace).and_then(|owed| owed.checked_sub(CREDIT))
    }

    /// The changes that have waited long enough.
    pub(super) fn take(&mut self, now: Instant) -> Vec<Change> {
        let waiting = std::mem::take(&mut self.waiting);
        let (taken, waiting): (BTreeMap<_, _>, _) =
            waiting.into_iter().partition(|((key, _), _)| self.is_ready(&key.namespace, now));
        (self.taken, self.waiting) = (taken, waiting);
        self.taken.values().cloned().collect()
    }

    /// The namespaces of what was taken last.
    pub(super) fn taken(&self) -> impl Iterator<Item = &str> {
        self.taken.keys().map(|(key, _)| key.namespace.as_str())
    }

    /// What was taken waits again, but for what is outdated.
    pub(super) fn put_back(&mut self) {
        for (object, change) in std::mem::take(&mut self.taken) {
            self.waiting.entry(object).or_insert(change);
        }
    }

    /// When the next ones are due, or what is large of one of the namespaces that are `late`; now, if
    /// nothing keeps them.
    pub(super) fn next(&self, late: &BTreeSet<String>, now: Instant) -> Option<Instant> {
        let waiting = self.waiting.keys().map(|(key, _)| &key.namespace);
        let all = waiting.chain(late);
        all.map(|namespace| self.ready_at(namespace).unwrap_or(now).max(now)).min()
    }

    /// The namespaces whose changes wait.
    pub(super) fn waiting(&self) -> Vec<&str> {
        let names = self.waiting.keys().chain(self.taken.keys());
        let names: BTreeSet<&str> = names.map(|(key, _)| key.namespace.as_str()).collect();
        names.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use netpold_core::compile::Compiler;
    use netpold_core::model::{Protocol, Service, ServicePort};
    use netpold_core::options::Options;

    use super::*;

    /// A Service of so many ports.
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
            unserved: false,
            ports: (0..ports).map(port).collect(),
        })
    }

    /// A change of each every second, for ten minutes; the large one takes two seconds to compile.
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
            let update = pace.take(now);
            if !update.is_empty() {
                taken += 1;
                update.into_iter().for_each(|change| compiler.ingest(change));
                pace.succeeded(LARGE, BTreeMap::from([("large".to_owned(), 1)]), now);
            }
        }
        assert_eq!(small, 600, "what is ordinary never waits");
        // One at once; then every twenty seconds.
        assert!((28..=32).contains(&taken), "{taken} in ten minutes");
        assert_eq!(pace.waiting(), ["large"]);
        // The last word is in force in the end.
        let end = pace.next(&BTreeSet::new(), start + Duration::from_mins(10)).unwrap();
        assert_eq!(pace.take(end), [service("large", 200, 599)]);
        pace.succeeded(LARGE, BTreeMap::new(), end);
        assert_eq!(pace.next(&BTreeSet::new(), end), None);
    }

    #[test]
    fn the_last_word_on_an_object_counts() {
        let compiler = Compiler::new(Options::default());
        let (mut pace, now) = (Pace::default(), Instant::now());
        assert_eq!(pace.admit(service("a", 200, 1), compiler.cluster()), None);
        assert_eq!(pace.take(now), [service("a", 200, 1)]);
        let small = service("a", 2, 2);
        assert_eq!(pace.admit(small.clone(), compiler.cluster()), None, "overtakes nothing");
        pace.put_back();
        assert_eq!(pace.take(now), [small], "what was not compiled is outdated");
        pace.succeeded(Duration::ZERO, BTreeMap::new(), now);
        let small = service("a", 2, 3);
        assert_eq!(pace.admit(small.clone(), compiler.cluster()), Some(small));
        assert!(pace.waiting().is_empty());
    }

    #[test]
    fn who_shares_an_update_owes_a_share() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        let compiled = [("a", 30_000), ("b", 10_000)].map(|(of, units)| (of.to_owned(), units));
        let compiled = BTreeMap::from(compiled);
        pace.spent(ORDINARY_TIME + Duration::from_millis(100), compiled, now);
        let owed: Vec<_> = pace.owed.values().map(|owed| (*owed - now).as_millis()).collect();
        assert_eq!(owed, [7500, 2500]);
        assert_eq!(pace.held(now), BTreeSet::from(["a".to_owned()]));
        let late = BTreeSet::from(["a".to_owned()]);
        let later = pace.next(&late, now).unwrap();
        assert_eq!((later - now).as_millis(), 2500);
        assert!(pace.held(later).is_empty());
        // An update that took no longer than any other costs nobody anything.
        pace.spent(ORDINARY_TIME, BTreeMap::from([("c".to_owned(), 5000)]), now);
        assert_eq!(pace.owed.len(), 2);
    }
}
