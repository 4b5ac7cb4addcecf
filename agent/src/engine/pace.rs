//! Who edits large policies or Services in quick succession has the edits taken in together, later, and
//! nobody else's wait behind them.
//!
//! A namespace owes a hundred times what its large objects cost beyond what is ordinary, in processor
//! time of the engine, and pays by waiting: in the long run it has a hundredth of the engine, so that of a
//! hundred edits of others at most one comes while it is busy with that namespace. An edit weighs what all
//! policies of its namespace weigh, since pods are under several at once; one of a Service or of its
//! EndpointSlices, what the Service's ports weigh. Small ones are free, and new pods never wait: where
//! their namespace owes much they are closed until their policies are compiled ([`Compiler::hold_back`]).
//!
//! [`Compiler::hold_back`]: netpold_core::compile::Compiler::hold_back

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use netpold_core::budget::ORDINARY_UNITS;
use netpold_core::cluster::Cluster;
use netpold_core::model::{Change, EndpointSlice, Key};

/// What a Service's port weighs: it is held against every pod's rules.
const PER_PORT: u64 = 50;
/// What an update may take for nobody to owe for it.
const ORDINARY_TIME: Duration = Duration::from_millis(10);
/// How many times what it cost a namespace owes.
const FACTOR: u32 = 100;
/// What a namespace may owe before its edits wait.
const EDIT_CREDIT: Duration = Duration::from_secs(5);
/// What a namespace may owe before large combinations of policies are not compiled for its new pods.
const POD_CREDIT: Duration = Duration::from_secs(30);

/// Changes that wait.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Until when namespaces owe.
    owed: BTreeMap<String, Instant>,
    /// Units of what is large in the update that is being made, by namespace.
    large: BTreeMap<String, u64>,
    /// The last word on each object.
    waiting: BTreeMap<(Key, Kind), Change>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Policy,
    Service,
    Slice,
}

/// What a change is about, and what its objects weigh before and after it; `None`: it never waits.
fn weigh(change: &Change, cluster: &Cluster) -> Option<(Key, Kind, u64)> {
    let ports = |key: &Key| cluster.services().get(key).map_or(0, |service| service.ports.len());
    let of_slice = |slice: &EndpointSlice| {
        let service = Key::new(slice.key.namespace.clone(), slice.service.clone());
        (slice.key.clone(), Kind::Slice, PER_PORT * ports(&service) as u64)
    };
    let of_policies = |key: &Key| cluster.units_in(&key.namespace);
    Some(match change {
        Change::Policy(policy) => {
            let units = of_policies(&policy.key) + netpold_core::budget::units(policy);
            (policy.key.clone(), Kind::Policy, units)
        }
        Change::PolicyGone(key) => (key.clone(), Kind::Policy, of_policies(key)),
        Change::Service(service) => {
            let ports = service.ports.len().max(ports(&service.key));
            (service.key.clone(), Kind::Service, PER_PORT * ports as u64)
        }
        Change::ServiceGone(key) => (key.clone(), Kind::Service, PER_PORT * ports(key) as u64),
        Change::EndpointSlice(slice) => of_slice(slice),
        Change::EndpointSliceGone(key) => of_slice(cluster.slices().get(key)?),
        Change::Namespace(_)
        | Change::NamespaceGone(_)
        | Change::Node(_)
        | Change::NodeGone(_)
        | Change::Pod(_)
        | Change::PodGone(_)
        | Change::Interface(_)
        | Change::InterfaceGone(_)
        | Change::OwnAddresses(_) => return None,
    })
}

impl Pace {
    /// Takes a change in; gives it back unless it has to wait.
    pub(super) fn admit(
        &mut self,
        change: Change,
        cluster: &Cluster,
        now: Instant,
    ) -> Option<Change> {
        let Some((key, kind, units)) = weigh(&change, cluster) else { return Some(change) };
        let is_large = units > ORDINARY_UNITS;
        let waits = is_large && self.ready_at(&key.namespace).is_some_and(|ready| ready > now);
        // A change may not overtake another of its object.
        if waits || self.waiting.contains_key(&(key.clone(), kind)) {
            self.waiting.insert((key, kind), change);
            return None;
        }
        if is_large {
            *self.large.entry(key.namespace).or_default() += units;
        }
        Some(change)
    }

    /// Ends an update that took so much of a processor: who had something large in it owes. `compiled`:
    /// units of the large combinations that were compiled, by namespace.
    pub(super) fn spent(&mut self, took: Duration, compiled: BTreeMap<String, u64>, now: Instant) {
        let mut large = std::mem::take(&mut self.large);
        for (namespace, units) in compiled {
            *large.entry(namespace).or_default() += units;
        }
        let debt = took.saturating_sub(ORDINARY_TIME) * FACTOR;
        let all: u64 = large.values().sum();
        if debt.is_zero() {
            return;
        }
        for (namespace, units) in large {
            let owed = self.owed.entry(namespace).or_insert(now);
            *owed = (*owed).max(now) + debt.mul_f64(units as f64 / all as f64);
        }
    }

    /// The namespaces whose new pods have to wait for large combinations of policies. Not those whose
    /// edits are in the update that is being made.
    pub(super) fn held(&self, now: Instant) -> BTreeSet<String> {
        let held = self.owed.iter().filter(|(namespace, owed)| {
            **owed > now + POD_CREDIT && !self.large.contains_key(*namespace)
        });
        held.map(|(namespace, _)| namespace.clone()).collect()
    }

    /// A change goes ahead, whatever its namespace owes: what waits of its object is outdated.
    pub(super) fn overtaken(&mut self, change: &Change, cluster: &Cluster) {
        if let Some((key, kind, _)) = weigh(change, cluster) {
            self.waiting.remove(&(key, kind));
        }
    }

    /// When the edits of a namespace need to wait no longer.
    fn ready_at(&self, namespace: &str) -> Option<Instant> {
        self.owed.get(namespace).and_then(|owed| owed.checked_sub(EDIT_CREDIT))
    }

    /// The changes that have waited long enough: all of a namespace, which owes for them once.
    pub(super) fn due(&mut self, cluster: &Cluster, now: Instant) -> Vec<Change> {
        self.owed.retain(|_, owed| *owed > now);
        let waiting = std::mem::take(&mut self.waiting);
        let ready = |key: &Key| self.ready_at(&key.namespace).is_none_or(|ready| ready <= now);
        let (due, waiting): (BTreeMap<_, _>, _) =
            waiting.into_iter().partition(|((key, _), _)| ready(key));
        self.waiting = waiting;
        // They are compiled together: the largest is what they cost.
        let mut most: BTreeMap<&str, u64> = BTreeMap::new();
        for ((key, _), change) in &due {
            let units = weigh(change, cluster).map_or(0, |(.., units)| units);
            let known = most.entry(&key.namespace).or_default();
            *known = units.max(*known);
        }
        for (namespace, units) in most {
            *self.large.entry(namespace.to_owned()).or_default() += units;
        }
        due.into_values().collect()
    }

    /// When the next ones are due, or new pods of one of the namespaces that are `held`.
    pub(super) fn next(&self, held: &BTreeSet<String>) -> Option<Instant> {
        let edits = self.waiting.keys().filter_map(|(key, _)| self.ready_at(&key.namespace));
        let pods = held.iter().filter_map(|namespace| self.owed.get(namespace));
        edits.chain(pods.filter_map(|owed| owed.checked_sub(POD_CREDIT))).min()
    }

    /// The namespaces whose edits wait.
    pub(super) fn waiting(&self) -> Vec<&str> {
        let names = self.waiting.keys().map(|(key, _)| key.namespace.as_str());
        let mut names: Vec<&str> = names.collect();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use netpold_core::compile::Compiler;
    use netpold_core::model::{Peer, Policy, Rule, Selector};
    use netpold_core::options::Options;

    use super::*;

    /// A policy of so many blocks, of which the first is told by `edit`.
    fn policy(namespace: &str, blocks: u32, edit: u8) -> Change {
        let block = |n: u32| {
            let address = std::net::Ipv4Addr::from(n << 8 | u32::from(edit)).into();
            let cidr = ipnet::IpNet::new(address, 32).unwrap();
            Peer::Block(netpold_core::model::IpBlock { cidr, except: Vec::new() })
        };
        let peers = Some((0..blocks).map(block).collect());
        Change::Policy(Policy {
            key: Key::new(namespace, "p"),
            pod_selector: Selector::default(),
            ingress: Some(vec![Rule { peers, ports: None }]),
            egress: None,
            problems: Vec::new(),
        })
    }

    /// A change of each every second, for ten minutes; one of the large policy takes half a second.
    #[test]
    fn large_policies_that_flap_have_a_hundredth_and_others_all_they_want() {
        const LARGE: Duration = Duration::from_millis(500);
        let mut compiler = Compiler::new(Options::default());
        let mut pace = Pace::default();
        let start = Instant::now();
        let (mut taken, mut small) = (0u32, 0);
        for tick in 0..600u32 {
            let now = start + Duration::from_secs(1) * tick;
            let mut update = pace.due(compiler.cluster(), now);
            let large = policy("large", 6000, tick as u8);
            update.extend(pace.admit(large, compiler.cluster(), now));
            let took = LARGE * u32::from(!update.is_empty());
            taken += u32::from(!update.is_empty());
            let ordinary = pace.admit(policy("small", 100, tick as u8), compiler.cluster(), now);
            small += u32::from(ordinary.is_some());
            update.into_iter().chain(ordinary).for_each(|change| compiler.ingest(change));
            pace.spent(took, BTreeMap::new(), now);
            assert!(!pace.owed.contains_key("small"));
        }
        assert_eq!(small, 600, "what is ordinary never waits");
        // One at once; then every fifty seconds.
        assert!((10..=13).contains(&taken), "{taken} in ten minutes");
        assert_eq!(pace.waiting(), ["large"]);
        // The last word is in force in the end.
        let end = pace.next(&BTreeSet::new()).unwrap();
        let due = pace.due(compiler.cluster(), end);
        assert_eq!(due, [policy("large", 6000, 599u32 as u8)]);
        assert_eq!(pace.next(&BTreeSet::new()), None);
    }

    #[test]
    fn who_shares_an_update_owes_a_share() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        let compiled = [("a", 30_000), ("b", 10_000)].map(|(of, units)| (of.to_owned(), units));
        pace.spent(ORDINARY_TIME + Duration::from_secs(1), BTreeMap::from(compiled), now);
        let owed: Vec<_> = pace.owed.values().map(|owed| (*owed - now).as_secs()).collect();
        assert_eq!(owed, [75, 25]);
        assert_eq!(pace.held(now), BTreeSet::from(["a".to_owned()]));
        let later = pace.next(&pace.held(now)).unwrap();
        assert_eq!(later - now, Duration::from_secs(45));
        assert!(pace.held(later).is_empty());
        // An update that took no longer than any other costs nobody anything.
        pace.spent(ORDINARY_TIME, BTreeMap::from([("c".to_owned(), 5000)]), now);
        assert_eq!(pace.owed.len(), 2);
    }
}
