//! Documents that cannot be read, on which an answer may depend: corrected, they may hold any further object.

use netpold_api::source::SourceProblem;
use netpold_core::cluster::{AddressOwner, Cluster};
use netpold_core::explain::{Cause, Explanation, Judgement, Verdict};
use netpold_core::model::Direction;
use netpold_core::probe::Party;

/// Returns the reason for which an answer may depend on one of these documents.
pub(super) fn reason_unknown(
    cluster: &Cluster,
    unread: &[SourceProblem],
    answer: &Explanation,
) -> Option<String> {
    let first = unread.first()?;
    let are_known = answer.verdict == Verdict::Unknown || holds_with_any_policy(cluster, answer);
    let more = match unread.len() - 1 {
        0 => String::new(),
        more => format!(", and on {more} more"),
    };
    (!are_known).then(|| {
        let verdict = answer.verdict;
        format!(
            "the answer may depend on a document that cannot be read: {first}{more}; by the others: {verdict}"
        )
    })
}

/// Returns whether an answer is the same with any further policy, pod and Service.
fn holds_with_any_policy(cluster: &Cluster, answer: &Explanation) -> bool {
    let sides = [(&answer.probe.from, &answer.egress), (&answer.probe.to, &answer.ingress)];
    let loopback = |party: &Party| matches!(party, Party::Address(it) if it.is_loopback());
    if loopback(&answer.probe.from) || loopback(&answer.probe.to) {
        return true;
    }
    answer.services.is_empty()
        && sides.into_iter().all(|(party, judgement)| match (judgement, party) {
            (Some(judgement), _) => is_beyond_policy(judgement),
            (None, Party::Address(address)) => {
                matches!(cluster.owner_of_address(*address), AddressOwner::Node { .. })
            }
            (None, Party::Pod(_) | Party::Service(_)) => false,
        })
}

/// Returns whether no policy can change a verdict.
fn is_beyond_policy(judgement: &Judgement) -> bool {
    match judgement.cause {
        Cause::Itself | Cause::HostNetwork => true,
        Cause::OwnNode => judgement.direction == Direction::Ingress,
        Cause::NotIsolated
        | Cause::Rule
        | Cause::NoRule
        | Cause::TierRule
        | Cause::Backend
        | Cause::BackendDenied => false,
    }
}
