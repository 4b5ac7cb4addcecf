//! A record for each rule of the policies that isolate pods of this node.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use netpold_core::cluster::Cluster;
use netpold_core::explain::{Allowing, RuleIndex};
use netpold_core::model::{Direction, Key, Pod, Policy, Rule};
use serde::{Deserialize, Serialize};

use super::answer::{KIND, RuleUsed};

/// Rules that are watched at most; policies with few of them go first.
const RULES_MAX: usize = 20_000;
/// A clock that is read twice may stand that much apart, in milliseconds.
const MARGIN: u64 = 50;

/// What is known of the use of one rule; times in milliseconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RuleRecord {
    /// Of the rule's content: an edit of it begins a new record.
    hash: u64,
    /// Since when it is watched.
    since: u64,
    /// When the last packet passed; 0: none did.
    last: u64,
    /// Flows it allowed.
    flows: u64,
}

/// The records of one policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PolicyRecord {
    namespace: String,
    name: String,
    uid: String,
    ingress: Vec<RuleRecord>,
    egress: Vec<RuleRecord>,
}

/// A policy whose rules are watched.
#[derive(Debug)]
struct Watched {
    index: RuleIndex,
    /// The numbers of its first rule in each direction.
    first: [u32; 2],
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Records {
    policies: BTreeMap<Key, Watched>,
    /// Of all of them, one behind the other.
    rules: Vec<RuleRecord>,
    /// The policies of an endpoint in a direction.
    granting: HashMap<(u32, Direction), Vec<Key>>,
    /// What an earlier agent has kept of policies that are not known yet.
    kept: BTreeMap<Key, PolicyRecord>,
    unwatched: usize,
}

impl Records {
    /// What an earlier agent has kept.
    pub(super) fn resume(&mut self, policies: Vec<PolicyRecord>) {
        let key = |policy: &PolicyRecord| Key::new(&policy.namespace, &policy.name);
        self.kept = policies.into_iter().map(|policy| (key(&policy), policy)).collect();
    }

    /// Follows the cluster. These pods are local; `changed` says when policies changed lately; what
    /// else is new has come since the last sweep. What is known of
    /// policies that do not exist goes, unless the cluster is not known yet (`restored`).
    pub(super) fn follow<'p>(
        &mut self,
        cluster: &Cluster,
        pods: impl Iterator<Item = &'p Arc<Pod>>,
        changed: &BTreeMap<Key, u64>,
        (since_last, restored): (u64, bool),
    ) {
        self.granting.clear();
        let allowing = Allowing::new(cluster);
        let mut wanted: BTreeMap<&Key, (bool, &Arc<Policy>)> = BTreeMap::new();
        for pod in pods {
            for policy in Direction::BOTH.iter().flat_map(|way| allowing.policies(pod, *way)) {
                if let Some((key, policy)) = cluster.policies().get_key_value(&policy.key) {
                    wanted.insert(key, (true, policy));
                }
            }
        }
        // Pods of theirs that were here may come back.
        for key in self.policies.keys().chain(self.kept.keys()) {
            if let Some((key, policy)) = cluster.policies().get_key_value(key) {
                wanted.entry(key).or_insert((false, policy));
            }
        }
        let wanted = self.within_limit(wanted);
        if !restored {
            self.kept.retain(|key, _| wanted.contains_key(key));
        }
        let same = |(key, policy): (&Key, &Arc<Policy>)| {
            self.policies.get(key).is_some_and(|old| Arc::ptr_eq(old.index.policy(), policy))
        };
        if wanted.len() == self.policies.len() && wanted.iter().all(|(key, it)| same((key, it))) {
            return;
        }
        let mut old = std::mem::take(&mut self.policies);
        let former = std::mem::take(&mut self.rules);
        for (key, policy) in wanted {
            let before = old.remove(&key);
            let mut known = match &before {
                Some(watched) if watched.index.policy().version.uid == policy.version.uid => {
                    Direction::BOTH.map(|way| watched.of(way, &former).to_vec())
                }
                _ => match self.kept.remove(&key) {
                    Some(kept) if kept.uid == policy.version.uid => [kept.ingress, kept.egress],
                    _ => Default::default(),
                },
            };
            let since = changed.get(&key).copied().unwrap_or(since_last);
            let first = Direction::BOTH.map(|way| {
                let first = self.rules.len() as u32;
                let rules = policy.rules(way).unwrap_or_default();
                let known = &mut known[usize::from(way == Direction::Egress)];
                self.rules.extend(carried(rules, known, since));
                first
            });
            let index = match before {
                Some(watched) if Arc::ptr_eq(watched.index.policy(), &policy) => watched.index,
                _ => RuleIndex::new(policy),
            };
            self.policies.insert(key, Watched { index, first });
        }
    }

    /// The policies that are watched: local ones first, those with few rules first.
    fn within_limit(
        &mut self,
        wanted: BTreeMap<&Key, (bool, &Arc<Policy>)>,
    ) -> BTreeMap<Key, Arc<Policy>> {
        let mut wanted: Vec<_> = wanted.into_iter().collect();
        wanted.sort_by_key(|(key, (local, policy))| (!local, count(policy), *key));
        let (mut left, mut within) = (RULES_MAX, BTreeMap::new());
        self.unwatched = 0;
        for (key, (local, policy)) in wanted {
            match left.checked_sub(count(policy)) {
                Some(rest) => {
                    left = rest;
                    within.insert(key.clone(), Arc::clone(policy));
                }
                None => self.unwatched += usize::from(local),
            }
        }
        within
    }

    /// The policies that may allow what an endpoint's pod does, each with the number of its first rule.
    pub(super) fn granting(
        &mut self,
        allowing: Allowing<'_>,
        (endpoint, pod): (u32, &Pod),
        direction: Direction,
    ) -> Vec<(&RuleIndex, u32)> {
        let keys = self.granting.entry((endpoint, direction)).or_insert_with(|| {
            let policies = allowing.policies(pod, direction).into_iter();
            policies.map(|policy| policy.key.clone()).collect()
        });
        let watched = keys.iter().filter_map(|key| self.policies.get(key));
        watched
            .map(|it| (&it.index, it.first[usize::from(direction == Direction::Egress)]))
            .collect()
    }

    /// A packet passed by a rule, of a flow that is new or not. Not if the rule is younger.
    pub(super) fn used(&mut self, rule: u32, at: u64, is_new: bool) {
        let Some(rule) = self.rules.get_mut(rule as usize) else { return };
        if at + MARGIN < rule.since {
            return;
        }
        rule.last = rule.last.max(at);
        rule.flows += u64::from(is_new);
    }

    /// What is to be kept.
    pub(super) fn saved(&self) -> Vec<PolicyRecord> {
        let of = |(key, watched): (&Key, &Watched)| {
            let [ingress, egress] =
                Direction::BOTH.map(|way| watched.of(way, &self.rules).to_vec());
            let Key { namespace, name } = key.clone();
            let uid = watched.index.policy().version.uid.clone();
            PolicyRecord { namespace, name, uid, ingress, egress }
        };
        self.policies.iter().map(of).chain(self.kept.values().cloned()).collect()
    }

    /// Every rule, and how many policies are not watched.
    pub(super) fn answer(&self) -> (Vec<RuleUsed>, usize) {
        let mut all = Vec::with_capacity(self.rules.len());
        for (key, watched) in &self.policies {
            for direction in Direction::BOTH {
                let records = watched.of(direction, &self.rules);
                all.extend(records.iter().enumerate().map(|(index, record)| RuleUsed {
                    kind: KIND.to_owned(),
                    namespace: key.namespace.clone(),
                    name: key.name.clone(),
                    direction,
                    index,
                    rule: watched.index.describe(direction, index),
                    flows: record.flows,
                    last_used: (record.last > 0).then_some(record.last / 1000),
                    watched_since: record.since / 1000,
                }));
            }
        }
        (all, self.unwatched)
    }
}

impl Watched {
    fn of<'r>(&self, direction: Direction, all: &'r [RuleRecord]) -> &'r [RuleRecord] {
        let first = self.first[usize::from(direction == Direction::Egress)] as usize;
        let rules = self.index.policy().rules(direction).map_or(0, <[_]>::len);
        all.get(first..first + rules).unwrap_or_default()
    }
}

fn count(policy: &Policy) -> usize {
    Direction::BOTH.iter().map(|way| policy.rules(*way).map_or(0, <[_]>::len)).sum()
}

/// The records of rules: those of rules with the same content are carried over, each once.
fn carried(rules: &[Rule], known: &mut Vec<RuleRecord>, since: u64) -> Vec<RuleRecord> {
    let mut by_hash: HashMap<u64, Vec<RuleRecord>> = HashMap::new();
    // The first of equal ones last, where it is taken from.
    for record in known.drain(..).rev() {
        by_hash.entry(record.hash).or_default().push(record);
    }
    let record = |rule: &Rule| {
        let hash = hash(rule);
        let known = by_hash.get_mut(&hash).and_then(Vec::pop);
        known.unwrap_or(RuleRecord { hash, since, last: 0, flows: 0 })
    };
    rules.iter().map(record).collect()
}

/// Of a rule's content, the same in every version (FNV-1a: Fowler, Noll, Vo).
fn hash(rule: &Rule) -> u64 {
    let bytes = serde_json::to_vec(rule).unwrap_or_default();
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
}
