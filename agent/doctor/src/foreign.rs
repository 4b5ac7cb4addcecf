//! Check for policies of other APIs, which netpold does not enforce.

use std::collections::BTreeSet;

use netpold_client::details::Details;

use crate::enforcers;
use crate::finding::{Check, Findings, Severity};

const NOT_ENFORCED: Check = Check {
    name: "foreign-policy",
    severity: Severity::Warning,
    problem: "{} is not enforced: netpold enforces NetworkPolicy of networking.k8s.io/v1 and ClusterNetworkPolicy of \
              policy.networking.k8s.io/v1alpha2, and no other enforcer of the kind is among the objects",
    fix: "write it as NetworkPolicy or, for the whole cluster, as ClusterNetworkPolicy \
          (deploy/cluster-network-policy.md), or delete it",
};
const BY_ANOTHER: Check = Check {
    name: "foreign-policy-of-other-enforcer",
    severity: Severity::Info,
    problem: "{} is not enforced by netpold; another enforcer of the kind is in the cluster",
    fix: "write it as NetworkPolicy or ClusterNetworkPolicy before that enforcer is removed",
};

/// Reports each policy of another API with its file or name.
pub(crate) fn examine(details: &Details, found: &mut Findings) {
    let here: BTreeSet<&str> = enforcers::in_cluster(details).map(|(name, ..)| name).collect();
    for (kind, policies) in &details.foreign {
        let is_enforced = kind.enforcers.iter().any(|name| here.contains(name));
        let check = if is_enforced { &BY_ANOTHER } else { &NOT_ENFORCED };
        let places = policies.objects.iter().map(|policy| {
            let source = policy.source.as_ref().map(|it| format!(" ({it})")).unwrap_or_default();
            format!("{} {policy}{source}", kind.kind)
        });
        found.add_counted(check, &kind.name(), places, policies.count);
    }
}
