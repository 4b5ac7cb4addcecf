//! Changes of policies that API servers refuse or change: the former policy stays in force, if there is one.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use ipnet::IpNet;
use netpold_core::cluster::Cluster;
use netpold_core::model::Change;

use super::compare::compare_until;
use super::difference::Difference;
use super::worlds::ComparisonOutcome;
use crate::judge::{RefusedPolicy, RefusedReading, all_read_as, all_refused, problem};

/// Refused policies of two clusters.
pub(super) struct RefusedPolicies {
    /// The objects as they are written.
    written: [Vec<Change>; 2],
    is_partial: bool,
    /// A text for each policy.
    texts: Vec<String>,
}

/// Returns the refused policies of objects before and after a change; `None` if there are none.
pub(super) fn refused(objects: &[Vec<Change>; 2], is_partial: bool) -> Option<RefusedPolicies> {
    let mut texts = BTreeMap::new();
    for object in objects.iter().flatten() {
        if let Some(problem) = problem(object, is_partial)
            && let Some(policy) = RefusedPolicy::of_policy(object)
        {
            let text = format!(
                "connections that depend on {policy}, which API servers refuse or change: {problem}"
            );
            texts.insert(policy, text);
        }
    }
    let texts: Vec<String> = texts.into_values().collect();
    (!texts.is_empty()).then(|| RefusedPolicies { written: objects.clone(), is_partial, texts })
}

/// Returns the objects that are in force: without the refused policies, and after the change with the former ones in their
/// places.
pub(super) fn in_force(objects: [Vec<Change>; 2], is_partial: bool) -> [Vec<Change>; 2] {
    let read = |objects| all_read_as(objects, is_partial, RefusedReading::Absent);
    let [before, after] = objects;
    let refused = all_refused(&after, is_partial);
    let (before, mut after) = (read(before), read(after));
    let is_former = |object: &&Change| {
        RefusedPolicy::of_policy(object).is_some_and(|policy| refused.contains(&policy))
    };
    let former: Vec<Change> = before.iter().filter(is_former).cloned().collect();
    after.extend(former);
    [before, after]
}

impl RefusedPolicies {
    /// Returns a text for each policy if the difference is another one with the policies closed, or open.
    ///
    /// # Errors
    /// As [`compare_until`].
    pub(super) fn depending(
        self,
        difference: &Difference,
        ranges: &[IpNet],
        ended: &AtomicBool,
    ) -> Result<Vec<String>> {
        let outcome = ComparisonOutcome::new(difference);
        for reading in [RefusedReading::Closed, RefusedReading::Open] {
            let read = |objects| all_read_as(objects, self.is_partial, reading);
            let [before, after]: [Cluster; 2] =
                self.written.clone().map(|objects| read(objects).into_iter().collect());
            let other = compare_until(&before, &after, ranges, ended)?;
            if ComparisonOutcome::new(&other) != outcome {
                return Ok(self.texts);
            }
        }
        Ok(Vec::new())
    }
}
