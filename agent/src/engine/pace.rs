//! Namespaces whose policies are large wait for one another's sake: who edits them in quick succession
//! has the edits taken in together, later, and nobody else's wait behind them.
//!
//! An edit costs what all policies of its namespace weigh, since pods are under several at once. What is
//! ordinary is free. Beyond that a namespace owes time: a few edits at once are in force at once, then
//! it has so much of the agent as the rate says.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use netpold_core::cluster::Cluster;
use netpold_core::model::{Change, Key};

/// What the policies of a namespace may weigh together for their edits to be free.
const FREE: u64 = 4096;
/// What an edit owes for each unit beyond it: a hundred times what compiling one takes.
const PER_UNIT: Duration = Duration::from_micros(200);
/// What a namespace may owe before its edits wait.
const CREDIT: Duration = Duration::from_secs(5);

/// Changes of policies that wait.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Until when namespaces owe.
    owed: BTreeMap<String, Instant>,
    /// The last word on each policy.
    waiting: BTreeMap<Key, Change>,
}

impl Pace {
    /// Takes a change in; gives it back unless it has to wait.
    pub(super) fn admit(
        &mut self,
        change: Change,
        cluster: &Cluster,
        now: Instant,
    ) -> Option<Change> {
        let key = match &change {
            Change::Policy(policy) => policy.key.clone(),
            Change::PolicyGone(key) => key.clone(),
            _ => return Some(change),
        };
        let namespace = key.namespace.clone();
        if self.ready_at(&namespace).is_some_and(|ready| ready > now) {
            self.waiting.insert(key, change);
            return None;
        }
        let new = match &change {
            Change::Policy(policy) => netpold_core::budget::units(policy),
            _ => 0,
        };
        self.charge(namespace, cluster, new, now);
        Some(change)
    }

    fn charge(&mut self, namespace: String, cluster: &Cluster, new: u64, now: Instant) {
        let units = (cluster.units_in(&namespace) + new).saturating_sub(FREE);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        if units > 0 {
            let owed = self.owed.entry(namespace).or_insert(now);
            *owed = (*owed).max(now) + PER_UNIT * units;
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
            waiting.into_iter().partition(|(key, _)| ready(key));
        self.waiting = waiting;
        let mut namespaces: Vec<&String> = due.keys().map(|key| &key.namespace).collect();
        namespaces.dedup();
        for namespace in namespaces {
            self.charge(namespace.clone(), cluster, 0, now);
        }
        due.into_values().collect()
    }

    /// When the next ones are due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.keys().filter_map(|key| self.ready_at(&key.namespace)).min()
    }

    /// The namespaces whose edits wait.
    pub(super) fn waiting(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.waiting.keys().map(|key| key.namespace.as_str()).collect();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use netpold_core::compile::{Compiler, Options};
    use netpold_core::model::{Peer, Policy, Rule, Selector};

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
                compiler.apply(change);
                admitted += 1;
            }
            let changes = [policy("large", 30_000, tick as u8), policy("small", 100, tick as u8)];
            for (change, count) in changes.into_iter().zip([&mut admitted, &mut small]) {
                if let Some(change) = pace.admit(change, compiler.cluster(), now) {
                    compiler.apply(change);
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
