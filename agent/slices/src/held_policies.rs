//! Policies with names that the slices lack, until they have them.

use std::collections::BTreeMap;

use netpold_core::cluster::ObjectKey;
use netpold_core::model::{Change, Peer, Policy, Rule};

use crate::vocabulary::Vocabulary;

/// Names by which the pods of other nodes are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KnownNames {
    /// Unknown yet.
    #[default]
    Unknown,
    /// Those of a vocabulary; `is_full`: it cannot get further names.
    Of {
        /// The vocabulary.
        vocabulary: Vocabulary,
        /// Whether policies have more names than a vocabulary may have.
        is_full: bool,
    },
    /// All.
    All,
}

/// All policies, and the form of each that is in force.
///
/// A policy is in force as a whole if the slices have its names. Otherwise:
///
/// | policy | in force |
/// |---|---|
/// | an earlier version was in force as a whole | that version |
/// | a new NetworkPolicy | it isolates, and its peers and ports with missing names grant nothing |
/// | a new ClusterNetworkPolicy | nothing of it: its Deny rules would not match all pods |
/// | a NetworkPolicy with names for which a full vocabulary has no room | as a new one |
///
/// A policy that allows by a label's absence would otherwise allow pods that have the label.
#[derive(Debug, Default)]
pub struct HeldPolicies {
    names: KnownNames,
    policies: BTreeMap<ObjectKey, Held>,
}

#[derive(Debug)]
struct Held {
    change: Change,
    needs: Vocabulary,
    in_force: InForce,
}

/// Form of a policy that is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InForce {
    Nothing,
    /// Without the grants by missing names.
    Reduced,
    /// An earlier version.
    Earlier,
    Whole,
}

impl HeldPolicies {
    /// Takes in a change; returns the change that comes into force now. Changes of other objects pass.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "of the many changes, the ones this is about"
    )]
    pub fn take(&mut self, change: Change) -> Option<Change> {
        let key = ObjectKey::of(&change);
        let needs = match &change {
            Change::Policy(policy) => Vocabulary::of_policy(policy),
            Change::ClusterPolicy(policy) => Vocabulary::of_cluster_policy(policy),
            Change::PolicyGone(_) | Change::ClusterPolicyGone(_) => {
                let held = self.policies.remove(&key);
                return held.filter(|held| held.in_force != InForce::Nothing).map(|_| change);
            }
            _ => return Some(change),
        };
        let before = self.policies.get(&key).map_or(InForce::Nothing, |held| held.in_force);
        let mut held = Held { change, needs, in_force: before };
        if held.in_force == InForce::Whole {
            held.in_force = InForce::Earlier;
        }
        let comes = held.enforce(&self.names);
        self.policies.insert(key, held);
        comes
    }

    /// Sets the known names; returns the changes that come into force by them.
    pub fn set_names(&mut self, names: KnownNames) -> Vec<Change> {
        self.names = names;
        let names = &self.names;
        self.policies.values_mut().filter_map(|held| held.enforce(names)).collect()
    }

    /// Returns whether every policy is in force as far as it can be with these names.
    #[must_use]
    pub fn are_covered_by(&self, names: &KnownNames) -> bool {
        match names {
            KnownNames::Unknown => false,
            KnownNames::All | KnownNames::Of { is_full: true, .. } => true,
            KnownNames::Of { vocabulary, .. } => {
                self.policies.values().all(|held| vocabulary.covers(&held.needs))
            }
        }
    }

    /// Returns the policies that are not in force as a whole, as problems.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "of the many changes, the ones this is about"
    )]
    pub fn problems(&self) -> impl Iterator<Item = String> {
        self.policies.values().filter_map(|held| {
            let outcome = match held.in_force {
                InForce::Whole => return None,
                InForce::Nothing => "it is not in force yet",
                InForce::Reduced => "until then they grant nothing",
                InForce::Earlier => "its last state stays in force",
            };
            let name = match &held.change {
                Change::Policy(policy) => format!("NetworkPolicy {}", policy.key),
                Change::ClusterPolicy(policy) => format!("ClusterNetworkPolicy {}", policy.name),
                _ => return None,
            };
            Some(format!("{name}: peer slices lack labels or ports that it names; {outcome}"))
        })
    }
}

impl Held {
    /// Puts the policy into force, as far as the names are known; returns the change that comes into force.
    fn enforce(&mut self, names: &KnownNames) -> Option<Change> {
        let (vocabulary, is_full) = match names {
            KnownNames::All => return self.comes(InForce::Whole, self.change.clone()),
            KnownNames::Unknown if self.needs.is_empty() => {
                return self.comes(InForce::Whole, self.change.clone());
            }
            KnownNames::Unknown => return None,
            KnownNames::Of { vocabulary, is_full } => (vocabulary, *is_full),
        };
        if vocabulary.covers(&self.needs) {
            return self.comes(InForce::Whole, self.change.clone());
        }
        let Change::Policy(policy) = &self.change else { return None };
        let has_state = matches!(self.in_force, InForce::Whole | InForce::Earlier);
        if has_state && !is_full {
            return None;
        }
        let reduced = Change::Policy(reduced(policy, vocabulary));
        // Another vocabulary may leave another part.
        self.in_force = InForce::Reduced;
        Some(reduced)
    }

    fn comes(&mut self, form: InForce, change: Change) -> Option<Change> {
        let is_news = self.in_force != form;
        self.in_force = form;
        is_news.then_some(change)
    }
}

/// Returns a policy without the grants by names that a vocabulary lacks.
fn reduced(policy: &Policy, vocabulary: &Vocabulary) -> Policy {
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
    use netpold_core::model::{Key, Requirement, Selector};
    use netpold_testkit::objects;

    use super::*;

    fn policy(name: &str, label: &str) -> Change {
        let requirements = vec![Requirement::DoesNotExist(label.into())];
        let peers = Some(vec![Peer::Pods { namespaces: None, pods: Selector { requirements } }]);
        let rules = Some(vec![Rule { peers, ports: None }]);
        Change::Policy(objects::policy("x", name, Selector::default(), rules, None))
    }

    fn names(labels: &[&str], is_full: bool) -> KnownNames {
        let label_keys = labels.iter().map(|&label| label.to_owned()).collect();
        KnownNames::Of { vocabulary: Vocabulary { label_keys, ..Vocabulary::default() }, is_full }
    }

    fn rules(change: Option<&Change>) -> Option<usize> {
        let Change::Policy(policy) = change? else { return None };
        policy.ingress.as_ref().map(Vec::len)
    }

    #[test]
    fn a_new_policy_isolates_and_a_changed_one_stays_until_the_slices_have_its_names() {
        let mut held = HeldPolicies::default();
        assert_eq!(held.take(policy("a", "l")), None, "nothing is known");
        assert_eq!(held.set_names(names(&["l"], false)), [policy("a", "l")]);
        assert!(held.are_covered_by(&names(&["l"], false)) && held.problems().next().is_none());
        assert_eq!(rules(held.take(policy("new", "m")).as_ref()), Some(0));
        assert_eq!(held.take(policy("a", "m")), None);
        assert!(!held.are_covered_by(&names(&["l"], false)));
        assert_eq!(held.problems().count(), 2);
        assert_eq!(held.take(policy("a", "l")), Some(policy("a", "l")), "back again");
        assert_eq!(held.take(policy("a", "m")), None);
        let all = held.set_names(names(&["l", "m"], false));
        assert_eq!(all, [policy("a", "m"), policy("new", "m")]);
        let gone = Change::PolicyGone(Key::new("x", "a"));
        assert_eq!(held.take(gone.clone()), Some(gone));
    }

    #[test]
    fn names_without_room_grant_nothing() {
        let mut held = HeldPolicies::default();
        held.set_names(names(&["l"], true));
        assert_eq!(rules(held.take(policy("a", "l")).as_ref()), Some(1));
        assert_eq!(rules(held.take(policy("a", "m")).as_ref()), Some(0));
        assert!(held.are_covered_by(&names(&["l"], true)));
        assert_eq!(rules(held.set_names(KnownNames::All).first()), Some(1));
        assert!(held.problems().next().is_none());
    }
}
