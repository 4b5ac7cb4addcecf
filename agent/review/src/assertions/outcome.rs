//! Outcomes of assertions.

use std::collections::{BTreeMap, BTreeSet};

use super::assertion::Assertion;
use super::probe_results::ProbeResults;

/// Most failures shown per assertion.
pub(super) const TOLD: usize = 5;
/// Most pods that an error names.
pub(super) const NAMED: usize = 5;

/// Outcome of an assertion.
pub(super) struct AssertionOutcome {
    pub(super) assertion: Assertion,
    /// Number of judged connections.
    pub(super) asked: usize,
    /// Explanations of the first connections with an unexpected verdict, by line.
    pub(super) failures: Vec<Vec<String>>,
    /// Number of connections with an unexpected verdict.
    pub(super) failed: usize,
    /// Answers for the first connections whose verdict depends on the address of a domain name.
    pub(super) depends: Vec<String>,
    /// Number of these connections.
    pub(super) depending: usize,
    /// Results of opened connections, with `--probe`.
    pub(super) probed: Option<ProbeResults>,
    /// Pod templates among the assertion's sides, as `Deployment shop/web (template)`.
    pub(super) templates: BTreeSet<String>,
    /// Pods that match a selection of the assertion but have no part in it, by reason.
    pub(super) left_out: BTreeMap<&'static str, BTreeSet<String>>,
    /// Reason for which there is no answer, or none for some connection.
    pub(super) unknown: Option<String>,
    /// Reason for which the assertion does not apply to the cluster.
    pub(super) skipped: Option<String>,
}

/// Result of an assertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verified {
    /// Every connection is as expected.
    Pass,
    /// Some connection is not.
    Fail,
    /// No connection is known to be otherwise; for some the answer depends on the address of a domain name.
    Depends,
    /// No connection is known to be otherwise; for some there is no answer.
    Unknown,
    /// The cluster can have no such connection.
    Skipped,
}

impl AssertionOutcome {
    pub(super) const fn new(assertion: Assertion) -> Self {
        Self {
            assertion,
            asked: 0,
            failures: Vec::new(),
            failed: 0,
            depends: Vec::new(),
            depending: 0,
            probed: None,
            templates: BTreeSet::new(),
            left_out: BTreeMap::new(),
            unknown: None,
            skipped: None,
        }
    }

    pub(super) fn result(&self) -> Verified {
        let fails = self.failed > 0 || self.probed.as_ref().is_some_and(|probed| probed.wrong > 0);
        match (&self.unknown, &self.skipped) {
            _ if fails => Verified::Fail,
            (Some(_), _) => Verified::Unknown,
            _ if self.depending > 0 => Verified::Depends,
            (None, Some(_)) => Verified::Skipped,
            (None, None) => Verified::Pass,
        }
    }

    /// Notes pods that match a selection but are left out.
    pub(super) fn leave_out(
        &mut self,
        reason: &'static str,
        pods: impl IntoIterator<Item = String>,
    ) {
        let mut pods = pods.into_iter().peekable();
        if pods.peek().is_some() {
            self.left_out.entry(reason).or_default().extend(pods);
        }
    }
}
