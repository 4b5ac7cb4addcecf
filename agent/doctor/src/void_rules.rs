//! Checks for rules of a direction that the policy does not isolate, and for empty lists of peers.

use netpold_core::model::{Direction, Policy};

use crate::finding::{Check, Findings, Severity};
use crate::objects::{GroupedObjects, NamedPolicy};

const WITHOUT_TYPE: Check = Check {
    name: "rules-without-type",
    severity: Severity::Warning,
    problem: "a policy has rules of a direction that its policyTypes lacks: they neither isolate nor allow anything",
    fix: "add the direction to spec.policyTypes, as policyTypes: [Ingress, Egress]; or delete the rules",
};
const EMPTY_WITHOUT_TYPE: Check = Check {
    name: "empty-list-without-type",
    severity: Severity::Info,
    problem: "an empty list of rules denies nothing where policyTypes lacks its direction",
    fix: "to deny the direction, add it to spec.policyTypes; else delete the empty list",
};

const EVERYONE: Check = Check {
    name: "empty-list-of-peers",
    severity: Severity::Info,
    problem: "an empty list of peers allows everyone, as a rule without the list does",
    fix: "none, if everyone is meant; otherwise name the peers; to allow nobody, delete the rule",
};

/// Checks the lists of rules and of their peers as written.
pub(crate) fn examine(
    objects: &GroupedObjects<'_>,
    policy: &Policy,
    named: &NamedPolicy<'_>,
    found: &mut Findings,
) {
    let Some(manifest) = objects.details.policies.get(&policy.key) else { return };
    for direction in Direction::BOTH {
        // An error elsewhere in the policy makes it isolate both directions.
        if policy.rules(direction).is_some() {
            for path in manifest.empty_peers(direction) {
                found.add(&EVERYONE, named.at(&path, "[]"));
            }
            continue;
        }
        let path = format!("spec.{direction}");
        match manifest.void_rules(direction) {
            Some(0) => found.add(&EMPTY_WITHOUT_TYPE, named.at(&path, "[]")),
            Some(1) => found.add(&WITHOUT_TYPE, named.at(&path, "1 rule")),
            Some(rules) => found.add(&WITHOUT_TYPE, named.at(&path, &format!("{rules} rules"))),
            None => {}
        }
    }
}
