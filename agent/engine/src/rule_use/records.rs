//! Records of the rules of policies and ClusterNetworkPolicies that apply to pods of this node.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use netpold_core::cluster::Cluster;
use netpold_core::explain::{Allowing, RuleIndex, accepted};
use netpold_core::model::{ClusterPolicy, Direction, Key, Pod, Policy, PolicyVersion};
use serde::{Deserialize, Serialize};

use netpold_api::rules::RuleUsed;

/// Maximum number of watched rules of NetworkPolicies, and of ClusterNetworkPolicies. Policies with few rules take
/// precedence.
const RULES_MAX: usize = 20_000;
/// Tolerance between two readings of a clock, in milliseconds.
const MARGIN: u64 = 50;

/// Use of one rule; times in milliseconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RuleRecord {
    /// Hash of the rule's content: an edit begins a new record.
    hash: u64,
    /// Time since which the rule is watched.
    since: u64,
    /// Time of the last packet; 0: none.
    last: u64,
    /// Number of allowed flows.
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

/// A policy of either kind.
#[derive(Clone, Debug)]
enum PolicySource {
    Policy(Arc<Policy>),
    /// A ClusterNetworkPolicy, with a key without namespace.
    Cluster(Arc<ClusterPolicy>),
}

/// A policy with watched rules.
#[derive(Debug)]
struct WatchedPolicy {
    rules: WatchedRules,
    /// Index of the first rule in each direction, and the number of rules.
    places: [(u32, usize); 2],
}

#[derive(Debug)]
enum WatchedRules {
    OfPolicy(Box<RuleIndex>),
    OfCluster(Arc<ClusterPolicy>),
}

/// Records of rules, by policy.
#[derive(Debug, Default)]
pub(super) struct RuleRecords {
    policies: BTreeMap<Key, WatchedPolicy>,
    /// Records of all policies, one after the other.
    rules: Vec<RuleRecord>,
    /// Policies of an endpoint in a direction.
    granting: HashMap<(u32, Direction), Vec<Key>>,
    /// Saved records of policies that are not known yet.
    kept: BTreeMap<Key, PolicyRecord>,
    unwatched: usize,
}

impl RuleRecords {
    /// Sets the records of an earlier agent.
    pub(super) fn resume(&mut self, policies: Vec<PolicyRecord>) {
        let key = |policy: &PolicyRecord| Key::new(&policy.namespace, &policy.name);
        self.kept = policies.into_iter().map(|policy| (key(&policy), policy)).collect();
    }

    /// Follows the cluster's policies. `pods` are the local ones. `changed` has the times of recent policy changes;
    /// other new rules count from the last sweep (`since_last`). Drops records of policies that do not exist, unless
    /// the cluster is not known yet (`restored`).
    pub(super) fn follow<'p>(
        &mut self,
        cluster: &Cluster,
        pods: impl Iterator<Item = &'p Arc<Pod>>,
        changed: &BTreeMap<Key, u64>,
        (since_last, restored): (u64, bool),
    ) {
        self.granting.clear();
        let allowing = Allowing::new(cluster);
        let mut wanted: BTreeMap<Key, (bool, PolicySource)> = BTreeMap::new();
        for (pod, way) in pods.flat_map(|pod| Direction::BOTH.map(|way| (pod, way))) {
            for policy in allowing.policies(pod, way) {
                wanted.insert(policy.key.clone(), (true, PolicySource::Policy(policy)));
            }
            for policy in allowing.cluster_policies(pod, way) {
                let key = Key::new("", policy.name.clone());
                wanted.insert(key, (true, PolicySource::Cluster(policy)));
            }
        }
        // Pods of these policies may return to this node.
        for key in self.policies.keys().chain(self.kept.keys()) {
            if let Some(source) = source(cluster, key) {
                wanted.entry(key.clone()).or_insert((false, source));
            }
        }
        let wanted = self.within_limits(wanted);
        if !restored {
            self.kept.retain(|key, _| wanted.contains_key(key));
        }
        let same = |(key, source): (&Key, &PolicySource)| {
            self.policies.get(key).is_some_and(|old| old.is_of(source))
        };
        if wanted.len() == self.policies.len() && wanted.iter().all(same) {
            return;
        }
        let mut old = std::mem::take(&mut self.policies);
        let former = std::mem::take(&mut self.rules);
        for (key, source) in wanted {
            let before = old.remove(&key);
            let uid = &source.version().uid;
            let mut known = match &before {
                Some(watched) if watched.version().uid == *uid => {
                    Direction::BOTH.map(|way| watched.records_in(way, &former).to_vec())
                }
                _ => match self.kept.remove(&key) {
                    Some(kept) if kept.uid == *uid => [kept.ingress, kept.egress],
                    _ => Default::default(),
                },
            };
            let since = changed.get(&key).copied().unwrap_or(since_last);
            let places = Direction::BOTH.map(|way| {
                let first = self.rules.len();
                let known = &mut known[usize::from(way == Direction::Egress)];
                self.rules.extend(carried(source.hashes(way), known, since));
                (first as u32, self.rules.len() - first)
            });
            let rules = match (before, source) {
                (Some(watched), source) if watched.is_of(&source) => watched.rules,
                (_, PolicySource::Policy(policy)) => {
                    WatchedRules::OfPolicy(Box::new(RuleIndex::new(policy)))
                }
                (_, PolicySource::Cluster(policy)) => WatchedRules::OfCluster(policy),
            };
            self.policies.insert(key, WatchedPolicy { rules, places });
        }
    }

    /// Selects the policies to watch: first those of local pods, among them those with few rules.
    /// ClusterNetworkPolicies have a limit of their own, since administrators write them.
    fn within_limits(
        &mut self,
        wanted: BTreeMap<Key, (bool, PolicySource)>,
    ) -> BTreeMap<Key, PolicySource> {
        let mut wanted: Vec<_> = wanted.into_iter().collect();
        wanted.sort_by_cached_key(|(key, (local, source))| (!local, source.count(), key.clone()));
        let (mut left, mut within) = ([RULES_MAX; 2], BTreeMap::new());
        self.unwatched = 0;
        for (key, (local, source)) in wanted {
            let left = &mut left[usize::from(key.namespace.is_empty())];
            match left.checked_sub(source.count()) {
                Some(rest) => {
                    *left = rest;
                    within.insert(key, source);
                }
                None => self.unwatched += usize::from(local),
            }
        }
        within
    }

    /// Returns the policies that may allow traffic of an endpoint's pod, each with the index of its first rule.
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
        watched.filter_map(|watched| watched.indexed(direction)).collect()
    }

    /// Returns the index of a ClusterNetworkPolicy's rule, if it is watched.
    pub(super) fn of_cluster(&self, name: &str, direction: Direction, rule: usize) -> Option<u32> {
        let (first, rules) = self.policies.get(&Key::new("", name))?.place(direction);
        (rule < rules).then_some(first + rule as u32)
    }

    /// Records a packet that a rule allowed, of a new or known flow. Ignores packets older than the rule's record.
    pub(super) fn used(&mut self, rule: u32, at: u64, is_new: bool) {
        let Some(rule) = self.rules.get_mut(rule as usize) else { return };
        if at + MARGIN < rule.since {
            return;
        }
        rule.last = rule.last.max(at);
        rule.flows += u64::from(is_new);
    }

    /// Returns the records to save.
    pub(super) fn saved(&self) -> Vec<PolicyRecord> {
        let of = |(key, watched): (&Key, &WatchedPolicy)| {
            let [ingress, egress] =
                Direction::BOTH.map(|way| watched.records_in(way, &self.rules).to_vec());
            let Key { namespace, name } = key.clone();
            let uid = watched.version().uid.clone();
            PolicyRecord { namespace, name, uid, ingress, egress }
        };
        self.policies.iter().map(of).chain(self.kept.values().cloned()).collect()
    }

    /// Returns the use of every rule that allows traffic, and the number of policies that are not watched.
    pub(super) fn answer(&self) -> (Vec<RuleUsed>, usize) {
        let mut all = Vec::with_capacity(self.rules.len());
        for (key, watched) in &self.policies {
            for direction in Direction::BOTH {
                let records = watched.records_in(direction, &self.rules);
                all.extend(records.iter().enumerate().filter_map(|(index, record)| {
                    Some(RuleUsed {
                        kind: watched.kind().to_owned(),
                        namespace: key.namespace.clone(),
                        name: key.name.clone(),
                        direction,
                        index,
                        rule: watched.describe(direction, index)?,
                        flows: record.flows,
                        last_used: (record.last > 0).then_some(record.last / 1000),
                        watched_since: record.since / 1000,
                    })
                }));
            }
        }
        (all, self.unwatched)
    }
}

impl PolicySource {
    fn version(&self) -> &PolicyVersion {
        match self {
            Self::Policy(policy) => &policy.version,
            Self::Cluster(policy) => &policy.version,
        }
    }

    /// Returns the hashes of the rules' contents.
    fn hashes(&self, direction: Direction) -> Vec<u64> {
        match self {
            Self::Policy(policy) => {
                policy.rules(direction).unwrap_or_default().iter().map(hash).collect()
            }
            Self::Cluster(policy) => policy.rules(direction).iter().map(hash).collect(),
        }
    }

    fn count(&self) -> usize {
        let count = |way| match self {
            Self::Policy(policy) => policy.rules(way).map_or(0, <[_]>::len),
            Self::Cluster(policy) => policy.rules(way).len(),
        };
        Direction::BOTH.into_iter().map(count).sum()
    }
}

impl WatchedPolicy {
    fn is_of(&self, source: &PolicySource) -> bool {
        match (&self.rules, source) {
            (WatchedRules::OfPolicy(index), PolicySource::Policy(policy)) => {
                Arc::ptr_eq(index.policy(), policy)
            }
            (WatchedRules::OfCluster(known), PolicySource::Cluster(policy)) => {
                Arc::ptr_eq(known, policy)
            }
            (WatchedRules::OfPolicy(_), PolicySource::Cluster(_))
            | (WatchedRules::OfCluster(_), PolicySource::Policy(_)) => false,
        }
    }

    fn kind(&self) -> &'static str {
        match self.rules {
            WatchedRules::OfPolicy(_) => "NetworkPolicy",
            WatchedRules::OfCluster(_) => "ClusterNetworkPolicy",
        }
    }

    fn version(&self) -> &PolicyVersion {
        match &self.rules {
            WatchedRules::OfPolicy(index) => &index.policy().version,
            WatchedRules::OfCluster(policy) => &policy.version,
        }
    }

    /// Describes the allowed traffic in words; `None` for a rule that allows none.
    fn describe(&self, direction: Direction, rule: usize) -> Option<String> {
        match &self.rules {
            WatchedRules::OfPolicy(index) => Some(index.describe(direction, rule)),
            WatchedRules::OfCluster(policy) => accepted(policy, direction, rule),
        }
    }

    /// Returns the rules of a NetworkPolicy, with the index of the first one in a direction.
    fn indexed(&self, direction: Direction) -> Option<(&RuleIndex, u32)> {
        match &self.rules {
            WatchedRules::OfPolicy(index) => Some((index, self.place(direction).0)),
            WatchedRules::OfCluster(_) => None,
        }
    }

    /// Returns the index of the first rule in a direction, and the number of rules.
    fn place(&self, direction: Direction) -> (u32, usize) {
        self.places[usize::from(direction == Direction::Egress)]
    }

    fn records_in<'r>(&self, direction: Direction, all: &'r [RuleRecord]) -> &'r [RuleRecord] {
        let (first, rules) = self.place(direction);
        all.get(first as usize..first as usize + rules).unwrap_or_default()
    }
}

/// Returns the policy of a key.
fn source(cluster: &Cluster, key: &Key) -> Option<PolicySource> {
    if key.namespace.is_empty() {
        return cluster.cluster_policy(&key.name).cloned().map(PolicySource::Cluster);
    }
    cluster.policies().get(key).cloned().map(PolicySource::Policy)
}

/// Returns records for rules with these hashes. Known records with the same hash are carried over, each once.
fn carried(hashes: Vec<u64>, known: &mut Vec<RuleRecord>, since: u64) -> Vec<RuleRecord> {
    let mut by_hash: HashMap<u64, Vec<RuleRecord>> = HashMap::new();
    // In reverse, so that `pop` returns the first of equal records first.
    for record in known.drain(..).rev() {
        by_hash.entry(record.hash).or_default().push(record);
    }
    let record = |hash: u64| {
        let known = by_hash.get_mut(&hash).and_then(Vec::pop);
        known.unwrap_or(RuleRecord { hash, since, last: 0, flows: 0 })
    };
    hashes.into_iter().map(record).collect()
}

/// Returns the hash of a rule's content, equal in every version (FNV-1a: Fowler, Noll, Vo).
fn hash(rule: &impl Serialize) -> u64 {
    let bytes = serde_json::to_vec(rule).unwrap_or_default();
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
}
