//! Policies with names that the slices lack, until they have them.
//!
//! A policy that allows by a label's absence would allow pods that have the label, if slices lack it. So a NetworkPolicy is
//! in force as a whole only with slices that have its names. Otherwise:
//!
//! | NetworkPolicy | in force |
//! |---|---|
//! | an earlier version is in force | that version, for [`REDUCED_AFTER`] at most |
//! | otherwise | it isolates, and its peers and ports with missing names grant nothing |
//!
//! ClusterNetworkPolicies depend on each other's order, so all of them come into force together: while slices lack a name
//! of one, no change of any comes into force.
//!
//! Times are durations since a common moment, without the times in which the API server did not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use netpold_core::model::{Change, ClusterPolicy, Key, Peer, Policy, Rule};

use crate::vocabulary::{NAMESPACE_NAMES, Vocabulary};

/// Time after which a policy with missing names loses the grants that depend on them. The controller keeps a name in
/// slices for longer after it has removed the name from the index.
pub const REDUCED_AFTER: Duration = Duration::from_mins(4);
/// Minimum age of a policy whose missing names count: names of younger policies are on their way into the slices.
const YOUNG: Duration = Duration::from_secs(5);

/// Names by which the pods of other nodes are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KnownNames {
    /// Unknown yet.
    #[default]
    Unknown,
    /// Those of a vocabulary.
    Of(Vocabulary),
    /// All.
    All,
}

impl KnownNames {
    fn cover(&self, needs: &Vocabulary) -> bool {
        match self {
            Self::Unknown => needs.is_empty(),
            Self::Of(vocabulary) => vocabulary.covers(needs),
            Self::All => true,
        }
    }
}

/// All policies, and the form of each that is in force.
#[derive(Debug, Default)]
pub struct HeldPolicies {
    names: KnownNames,
    policies: BTreeMap<Key, HeldPolicy>,
    /// Policies of which an earlier state is in force for a limited time.
    expiring: BTreeSet<Key>,
    cluster_policies: HeldClusterPolicies,
}

/// NetworkPolicy.
#[derive(Debug)]
struct HeldPolicy {
    policy: Policy,
    needs: Vocabulary,
    in_force: PolicyInForce,
    /// Arrival of this version.
    arrived: Duration,
    /// Start of the time in which the present version is not in force as a whole.
    incomplete: Option<Duration>,
}

/// Form of a policy that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PolicyInForce {
    Nothing,
    /// Without the grants by missing names.
    Reduced(Box<Policy>),
    /// An earlier version.
    Earlier,
    Whole,
}

impl HeldPolicies {
    /// Takes in a change; returns the changes that come into force now. Changes of other objects pass.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "of the many changes, the ones this is about"
    )]
    pub fn apply_change(&mut self, change: Change, now: Duration) -> Vec<Change> {
        match change {
            Change::Policy(policy) => self.set(policy, now).into_iter().collect(),
            Change::PolicyGone(key) => {
                let held = self.policies.remove(&key);
                self.expiring.remove(&key);
                let held = held.filter(|held| held.in_force != PolicyInForce::Nothing);
                held.map(|_| Change::PolicyGone(key)).into_iter().collect()
            }
            Change::ClusterPolicy(policy) => {
                self.cluster_policies.set(policy.name.clone(), Some(policy));
                self.cluster_policies.enforce(&self.names)
            }
            Change::ClusterPolicyGone(name) => {
                self.cluster_policies.set(name, None);
                self.cluster_policies.enforce(&self.names)
            }
            other => vec![other],
        }
    }

    fn set(&mut self, policy: Policy, now: Duration) -> Option<Change> {
        let key = policy.key.clone();
        let before = self.policies.remove(&key);
        let incomplete = before.as_ref().and_then(|held| held.incomplete);
        let in_force = match before.map(|held| held.in_force) {
            Some(PolicyInForce::Whole) => PolicyInForce::Earlier,
            before => before.unwrap_or(PolicyInForce::Nothing),
        };
        let needs = Vocabulary::of_policy(&policy);
        let mut held = HeldPolicy { policy, needs, in_force, arrived: now, incomplete };
        let comes = held.enforce(&self.names, now, REDUCED_AFTER);
        if held.is_expiring() {
            self.expiring.insert(key.clone());
        } else {
            self.expiring.remove(&key);
        }
        self.policies.insert(key, held);
        comes
    }

    /// Sets the names of slices by an event of a watch; returns the changes that come into force by them. Slices keep
    /// removed names for longer than [`REDUCED_AFTER`].
    pub fn set_names(&mut self, names: KnownNames, now: Duration) -> Vec<Change> {
        if names == self.names {
            return self.release_due(now);
        }
        self.names = names;
        self.enforce(now, REDUCED_AFTER)
    }

    /// Sets the names of slices, from which names may have been removed at any time before; returns the changes that
    /// come into force by them.
    pub fn set_other_names(&mut self, names: KnownNames, now: Duration) -> Vec<Change> {
        self.names = names;
        self.enforce(now, Duration::ZERO)
    }

    /// Returns the changes that come into force because time has passed. Without a change, only policies with an
    /// earlier state in force are looked at.
    pub fn release_due(&mut self, now: Duration) -> Vec<Change> {
        let mut comes = Vec::new();
        let (policies, names) = (&mut self.policies, &self.names);
        self.expiring.retain(|key| {
            let Some(held) = policies.get_mut(key) else { return false };
            comes.extend(held.enforce(names, now, REDUCED_AFTER));
            held.is_expiring()
        });
        comes
    }

    fn enforce(&mut self, now: Duration, patience: Duration) -> Vec<Change> {
        let names = &self.names;
        let comes = self.policies.values_mut().filter_map(|it| it.enforce(names, now, patience));
        let mut comes: Vec<Change> = comes.collect();
        comes.extend(self.cluster_policies.enforce(names));
        let expiring = self.policies.iter().filter(|(_, held)| held.is_expiring());
        self.expiring = expiring.map(|(key, _)| key.clone()).collect();
        comes
    }

    /// Returns whether slices with these names suffice: they have the names of every ClusterNetworkPolicy, and of the
    /// NetworkPolicies in namespaces for which `matters` is true. Those of a namespace with more than
    /// [`NAMESPACE_NAMES`] do not count, so that no namespace makes an agent follow all pods; nor do policies that
    /// changed a moment ago.
    pub fn are_covered_by(
        &self,
        names: &Vocabulary,
        now: Duration,
        matters: impl Fn(&str) -> bool,
    ) -> bool {
        let is_old = |held: &HeldPolicy| now.saturating_sub(held.arrived) >= YOUNG;
        self.cluster_policies.are_covered_by(names) && !self.is_name_missing(names, matters, is_old)
    }

    /// As [`HeldPolicies::are_covered_by`], with the policies that changed a moment ago.
    pub fn are_all_covered_by(&self, names: &Vocabulary, matters: impl Fn(&str) -> bool) -> bool {
        self.cluster_policies.are_covered_by(names)
            && !self.is_name_missing(names, matters, |_| true)
    }

    fn is_name_missing(
        &self,
        names: &Vocabulary,
        matters: impl Fn(&str) -> bool,
        counts: impl Fn(&HeldPolicy) -> bool,
    ) -> bool {
        let mut lacking: BTreeMap<&str, Vocabulary> = BTreeMap::new();
        for (key, held) in &self.policies {
            if counts(held) && !names.covers(&held.needs) && matters(&key.namespace) {
                lacking.entry(&key.namespace).or_default();
            }
        }
        if !lacking.is_empty() {
            for (key, held) in &self.policies {
                if let Some(all) = lacking.get_mut(key.namespace.as_str()) {
                    all.extend(held.needs.clone());
                }
            }
        }
        lacking.values().any(|all| all.len() <= NAMESPACE_NAMES)
    }

    /// Returns the policies that are not in force as a whole, as problems.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let policies = self.policies.iter().filter_map(|(key, held)| {
            let outcome = match held.in_force {
                PolicyInForce::Whole => return None,
                PolicyInForce::Nothing => "it is not in force yet",
                PolicyInForce::Reduced(_) => "until then they grant nothing",
                PolicyInForce::Earlier => "its last state stays in force",
            };
            Some(format!(
                "NetworkPolicy {key}: peer slices lack labels or ports that it names; {outcome}"
            ))
        });
        let pending = self.cluster_policies.pending.iter().map(|name| {
            format!("ClusterNetworkPolicy {name}: peer slices lack labels or ports; the last state stays in force")
        });
        policies.chain(pending)
    }
}

impl HeldPolicy {
    /// Whether an earlier state is in force, and ends after a time.
    const fn is_expiring(&self) -> bool {
        let has_state = matches!(self.in_force, PolicyInForce::Whole | PolicyInForce::Earlier);
        has_state && self.incomplete.is_some()
    }

    /// Puts the policy into force, as far as the names are known; returns the change that comes into force. An earlier state
    /// with other names stays for `patience`.
    fn enforce(&mut self, names: &KnownNames, now: Duration, patience: Duration) -> Option<Change> {
        if names.cover(&self.needs) {
            let is_news = self.in_force != PolicyInForce::Whole;
            (self.in_force, self.incomplete) = (PolicyInForce::Whole, None);
            return is_news.then(|| Change::Policy(self.policy.clone()));
        }
        let KnownNames::Of(vocabulary) = names else { return None };
        let since = *self.incomplete.get_or_insert(now);
        let has_state = matches!(self.in_force, PolicyInForce::Whole | PolicyInForce::Earlier);
        if has_state && now.saturating_sub(since) < patience {
            return None;
        }
        let reduced = PolicyInForce::Reduced(Box::new(reduced(&self.policy, vocabulary)));
        if self.in_force == reduced {
            return None;
        }
        self.in_force = reduced;
        match &self.in_force {
            PolicyInForce::Reduced(policy) => Some(Change::Policy((**policy).clone())),
            PolicyInForce::Nothing | PolicyInForce::Earlier | PolicyInForce::Whole => None,
        }
    }
}

/// ClusterNetworkPolicies.
#[derive(Debug, Default)]
struct HeldClusterPolicies {
    latest: BTreeMap<String, (ClusterPolicy, Vocabulary)>,
    /// Policies with a change that is not in force.
    pending: BTreeSet<String>,
    /// Policies of which a version is in force.
    in_force: BTreeSet<String>,
}

impl HeldClusterPolicies {
    fn set(&mut self, name: String, policy: Option<ClusterPolicy>) {
        self.pending.insert(name.clone());
        match policy {
            Some(policy) => {
                let needs = Vocabulary::of_cluster_policy(&policy);
                self.latest.insert(name, (policy, needs));
            }
            None => drop(self.latest.remove(&name)),
        }
    }

    fn are_covered_by(&self, names: &Vocabulary) -> bool {
        self.latest.values().all(|(_, needs)| names.covers(needs))
    }

    /// Puts all changes into force if every policy's names are known.
    fn enforce(&mut self, names: &KnownNames) -> Vec<Change> {
        if self.pending.is_empty() || !self.latest.values().all(|(_, needs)| names.cover(needs)) {
            return Vec::new();
        }
        let mut comes = Vec::new();
        for name in std::mem::take(&mut self.pending) {
            if let Some((policy, _)) = self.latest.get(&name) {
                comes.push(Change::ClusterPolicy(policy.clone()));
                self.in_force.insert(name);
            } else if self.in_force.remove(&name) {
                comes.push(Change::ClusterPolicyGone(name));
            }
        }
        comes
    }
}

/// Returns a policy without the grants by names that a vocabulary lacks.
fn reduced(policy: &Policy, vocabulary: &Vocabulary) -> Policy {
    #[cfg(test)]
    tests::REDUCTIONS.with(|count| count.set(count.get() + 1));
    let ports_known = |rule: &Rule| {
        let ports_alone = Rule { peers: None, ports: rule.ports.clone() };
        vocabulary.covers(&Vocabulary::of_rule(&ports_alone))
    };
    let peers_known = |rule: &Rule| {
        let Some(peers) = &rule.peers else { return Some(rule.clone()) };
        let is_known = |peer: &&Peer| {
            let alone = Rule { peers: Some(vec![(*peer).clone()]), ports: None };
            vocabulary.covers(&Vocabulary::of_rule(&alone))
        };
        let peers: Vec<Peer> = peers.iter().filter(is_known).cloned().collect();
        (!peers.is_empty()).then(|| Rule { peers: Some(peers), ports: rule.ports.clone() })
    };
    let ingress = policy.ingress.as_ref().map(|rules| rules.iter().filter_map(peers_known));
    let egress = policy
        .egress
        .as_ref()
        .map(|rules| rules.iter().filter(|rule| ports_known(rule)).filter_map(peers_known));
    Policy {
        ingress: ingress.map(Iterator::collect),
        egress: egress.map(Iterator::collect),
        ..policy.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use netpold_core::model::{Action, Requirement, Selector, Tier};
    use netpold_testkit::objects;

    use super::*;

    const ZERO: Duration = Duration::ZERO;

    thread_local! {
        /// Number of calls of [`reduced`] by this test.
        pub(super) static REDUCTIONS: Cell<usize> = const { Cell::new(0) };
    }

    fn rules(label: &str) -> Rule {
        let requirements = vec![Requirement::DoesNotExist(label.into())];
        let peers = Some(vec![Peer::Pods { namespaces: None, pods: Selector { requirements } }]);
        Rule { peers, ports: None }
    }

    fn policy(name: &str, label: &str) -> Change {
        let rules = Some(vec![rules(label)]);
        Change::Policy(objects::policy("x", name, Selector::default(), rules, None))
    }

    fn vocabulary(labels: &[&str]) -> Vocabulary {
        let label_keys = labels.iter().map(|&label| label.to_owned()).collect();
        Vocabulary { label_keys, ..Vocabulary::default() }
    }

    fn names(labels: &[&str]) -> KnownNames {
        KnownNames::Of(vocabulary(labels))
    }

    /// Number of ingress rules of the only change.
    fn grants(changes: &[Change]) -> Option<usize> {
        let [Change::Policy(policy)] = changes else { return None };
        policy.ingress.as_ref().map(Vec::len)
    }

    #[test]
    fn a_new_policy_isolates_and_a_changed_one_stays_until_the_slices_have_its_names() {
        let mut held = HeldPolicies::default();
        assert_eq!(held.apply_change(policy("a", "l"), ZERO), [], "nothing is known");
        assert_eq!(held.set_names(names(&["l"]), ZERO), [policy("a", "l")]);
        assert!(held.problems().next().is_none());
        assert_eq!(grants(&held.apply_change(policy("new", "m"), ZERO)), Some(0));
        assert_eq!(held.apply_change(policy("a", "m"), ZERO), []);
        assert_eq!(held.problems().count(), 2);
        assert_eq!(held.apply_change(policy("a", "l"), ZERO), [policy("a", "l")], "back again");
        assert_eq!(held.apply_change(policy("a", "m"), ZERO), []);
        let all = held.set_names(names(&["l", "m"]), ZERO);
        assert_eq!(all, [policy("a", "m"), policy("new", "m")]);
        let gone = Change::PolicyGone(Key::new("x", "a"));
        assert_eq!(held.apply_change(gone.clone(), ZERO), [gone]);
    }

    #[test]
    fn an_earlier_version_ends_after_a_time_however_often_the_policy_changes() {
        let mut held = HeldPolicies::default();
        held.set_names(names(&["l"]), ZERO);
        held.apply_change(policy("a", "l"), ZERO);
        let half = REDUCED_AFTER / 2;
        assert_eq!(held.apply_change(policy("a", "m"), ZERO), []);
        assert_eq!(held.apply_change(policy("a", "n"), half), []);
        assert_eq!(held.release_due(half), []);
        assert_eq!(grants(&held.release_due(REDUCED_AFTER)), Some(0));
        assert_eq!(held.release_due(REDUCED_AFTER), [], "once");
    }

    #[test]
    fn an_incomplete_policy_is_built_again_only_after_a_change() {
        let mut held = HeldPolicies::default();
        held.set_names(names(&["l"]), ZERO);
        (0..50)
            .for_each(|number| drop(held.apply_change(policy(&format!("p{number}"), "m"), ZERO)));
        assert_eq!(REDUCTIONS.get(), 50);
        assert_eq!(held.release_due(ZERO), []);
        assert_eq!(held.set_names(names(&["l"]), ZERO), [], "the same names");
        assert_eq!(held.release_due(REDUCED_AFTER), []);
        assert_eq!(REDUCTIONS.get(), 50);
        held.set_names(names(&["l", "n"]), REDUCED_AFTER);
        assert_eq!(REDUCTIONS.get(), 100);
    }

    #[test]
    fn a_policy_is_reduced_when_the_vocabulary_shrinks_below_it() {
        let mut held = HeldPolicies::default();
        held.set_names(names(&["l"]), ZERO);
        held.apply_change(policy("a", "l"), ZERO);
        assert_eq!(held.set_names(names(&[]), ZERO), [], "slices keep it for longer");
        assert_eq!(grants(&held.release_due(REDUCED_AFTER)), Some(0));
        assert_eq!(grants(&held.set_names(names(&["l"]), REDUCED_AFTER)), Some(1));
        let after_a_list = held.set_other_names(names(&[]), REDUCED_AFTER);
        assert_eq!(grants(&after_a_list), Some(0), "slices may lack it already");
        held.set_names(KnownNames::All, REDUCED_AFTER);
        assert_eq!(grants(&held.set_other_names(names(&[]), REDUCED_AFTER)), Some(0));
    }

    #[test]
    fn only_names_of_namespaces_that_matter_and_are_within_their_number_count() {
        let mut held = HeldPolicies::default();
        let known = vocabulary(&["l"]);
        held.set_names(KnownNames::Of(known.clone()), ZERO);
        held.apply_change(policy("a", "m"), ZERO);
        assert!(held.are_covered_by(&known, ZERO, |_| true), "its name is on its way");
        assert!(!held.are_covered_by(&known, YOUNG, |_| true));
        assert!(held.are_covered_by(&known, YOUNG, |namespace| namespace != "x"));
        held.apply_change(policy("a", "n"), YOUNG);
        assert!(held.are_covered_by(&known, YOUNG, |_| true), "a policy that changes often");
        for number in 0..NAMESPACE_NAMES {
            held.apply_change(policy(&format!("p{number}"), &format!("l{number}")), ZERO);
        }
        assert!(held.are_covered_by(&known, YOUNG * 2, |_| true), "too many names");
    }

    #[test]
    fn cluster_policies_come_into_force_together() {
        let cluster = |name: &str, label: &str| {
            let peers = rules(label).peers.unwrap_or_default();
            let rules = vec![objects::cluster_rule(Action::Deny, peers, None)];
            Change::ClusterPolicy(objects::cluster_policy(name, (Tier::Admin, 1), rules, vec![]))
        };
        let mut held = HeldPolicies::default();
        held.set_names(names(&["l"]), ZERO);
        assert_eq!(held.apply_change(cluster("first", "l"), ZERO).len(), 1);
        assert!(held.apply_change(cluster("deny", "m"), ZERO).is_empty());
        assert!(
            held.apply_change(cluster("allow", "l"), ZERO).is_empty(),
            "its order is after the other"
        );
        let gone = |name: &str| Change::ClusterPolicyGone(name.into());
        assert!(held.apply_change(gone("first"), ZERO).is_empty());
        assert_eq!(held.problems().count(), 3);
        assert!(!held.are_covered_by(&vocabulary(&["l"]), ZERO, |_| true));
        let comes = held.set_names(names(&["l", "m"]), ZERO);
        assert_eq!(comes, [cluster("allow", "l"), cluster("deny", "m"), gone("first")]);
        assert_eq!(held.apply_change(gone("none"), ZERO), []);
    }
}
