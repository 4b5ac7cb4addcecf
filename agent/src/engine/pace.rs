//! Who edits large policies or Services in quick succession has the edits taken in together, later, and
//! nobody else's wait behind them.
//!
//! An edit of a policy costs what all policies of its namespace weigh, since pods are under several at
//! once; one of a Service or of its EndpointSlices, what the Service's ports weigh. What is ordinary is
//! free. Beyond that a namespace owes time: a few edits at once are in force at once, then
//! it has so much of the agent as the rate says.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use netpold_core::cluster::Cluster;
use netpold_core::model::{Change, EndpointSlice, Key};

/// What policies or a Service may weigh for their edits to be free.
const FREE: u64 = 4096;
/// What a Service's port weighs: it is held against every pod's rules.
const PER_PORT: u64 = 50;
/// What an edit owes for each unit beyond it: a hundred times what compiling one takes.
const PER_UNIT: Duration = Duration::from_micros(200);
/// What a namespace may owe before its edits wait.
const CREDIT: Duration = Duration::from_secs(5);

/// Changes that wait.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Until when namespaces owe.
    owed: BTreeMap<String, Instant>,
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
        _ => return None,
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
        // A change may not overtake another of its object.
        let waits = units > FREE && self.ready_at(&key.namespace).is_some_and(|ready| ready > now);
        if waits || self.waiting.contains_key(&(key.clone(), kind)) {
            self.waiting.insert((key, kind), change);
            return None;
        }
        self.charge(&key.namespace, units, now);
        Some(change)
    }

    fn charge(&mut self, namespace: &str, units: u64, now: Instant) {
        let units = u32::try_from(units.saturating_sub(FREE)).unwrap_or(u32::MAX);
        if units > 0 {
            let owed = self.owed.entry(namespace.to_owned()).or_insert(now);
            *owed = (*owed).max(now) + PER_UNIT * units;
        }
    }

    /// A change goes ahead, whatever its namespace owes: what waits of its object is outdated.
    pub(super) fn overtaken(&mut self, change: &Change, cluster: &Cluster) {
        if let Some((key, kind, _)) = weigh(change, cluster) {
            self.waiting.remove(&(key, kind));
        }
    }

    /// When the edits of a namespace need to wait no longer.
    fn ready_at(&self, namespace: &str) -> Option<Instant> {
        self.owed.get(namespace).and_then(|owed| owed.checked_sub(CREDIT))
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
            self.charge(namespace, units, now);
        }
        due.into_values().collect()
    }

    /// When the next ones are due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.keys().filter_map(|(key, _)| self.ready_at(&key.namespace)).min()
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

    #[test]
    fn large_policies_that_flap_wait_and_others_do_not() {
        let mut compiler = Compiler::new(Options::default());
        let mut pace = Pace::default();
        let start = Instant::now();
        let (mut admitted, mut small) = (0, 0);
        // Ten times a second, for a minute.
        for tick in 0..600u32 {
            let now = start + Duration::from_millis(100) * tick;
            for change in pace.due(compiler.cluster(), now) {
                compiler.ingest(change);
                admitted += 1;
            }
            let changes = [policy("large", 30_000, tick as u8), policy("small", 100, tick as u8)];
            for (change, count) in changes.into_iter().zip([&mut admitted, &mut small]) {
                if let Some(change) = pace.admit(change, compiler.cluster(), now) {
                    compiler.ingest(change);
                    *count += 1;
                }
            }
        }
        assert_eq!(small, 600, "what is ordinary never waits");
        assert!((3..20).contains(&admitted), "{admitted} of 600 in a minute");
        assert_eq!(pace.waiting(), ["large"]);
        // The last word is in force in the end.
        let end = pace.next().unwrap();
        let due = pace.due(compiler.cluster(), end);
        assert_eq!(due, [policy("large", 30_000, 599u32 as u8)]);
        assert_eq!(pace.next(), None);
    }
}
