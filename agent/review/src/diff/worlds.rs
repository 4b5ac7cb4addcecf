//! Comparisons by labels that the objects lack: those of Namespaces that are not among them, and those that controllers
//! set on pods.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use ipnet::IpNet;
use netpold_core::cluster::Cluster;

use super::compare::compare_until;
use super::difference::{ConnectivityChange, Difference};
use super::ports::PortRanges;
use crate::judge::Hypotheses;

/// Most comparisons with assumed labels.
const COMPARISONS: usize = 256;

/// Result of a comparison that a label may decide.
#[derive(PartialEq, Eq)]
pub(super) struct ComparisonOutcome {
    /// Names of sender and receiver, lost and gained ports.
    changes: BTreeSet<(String, String, PortRanges, PortRanges)>,
    /// Workloads that become open or isolated.
    turned: [Vec<String>; 2],
}

/// Compares the objects once for each combination of labels that one Namespace or one pod may have. Returns a text for
/// each on which the difference depends. `clusters`: before and after the change.
///
/// # Errors
/// As [`compare_until`].
pub(super) fn depending(
    clusters: [&Cluster; 2],
    ranges: &[IpNet],
    ended: &AtomicBool,
) -> Result<Vec<String>> {
    let all = Hypotheses::of_clusters(clusters);
    let mut depending = Vec::new();
    if all.is_empty() {
        return Ok(depending);
    }
    let [mut before, mut after] = clusters.map(Clone::clone);
    let (mut left, mut untried) = (COMPARISONS, 0);
    for one in &all {
        let Some(rest) = left.checked_sub(one.count()) else {
            untried += 1;
            continue;
        };
        left = rest;
        let mut outcomes = Vec::new();
        let worlds = one.worlds(clusters[0]).zip(one.worlds(clusters[1]));
        for (changes_before, changes_after) in worlds {
            before.extend(changes_before);
            after.extend(changes_after);
            outcomes.push(ComparisonOutcome::new(&compare_until(&before, &after, ranges, ended)?));
        }
        before.extend(one.undone(clusters[0]));
        after.extend(one.undone(clusters[1]));
        depending.extend(one.depending(clusters[1], &outcomes));
    }
    if untried > 0 {
        let word = if untried == 1 { "namespace or workload" } else { "namespaces or workloads" };
        depending.push(format!(
            "{untried} {word} with labels that the objects lack: more than {COMPARISONS} combinations of values"
        ));
    }
    Ok(depending)
}

impl ComparisonOutcome {
    pub(super) fn new(difference: &Difference) -> Self {
        let name = |party: usize| difference.parties[party].to_string();
        let change = |change: &ConnectivityChange| {
            let (loses, gains) = (change.loses().clone(), change.gains().clone());
            (name(change.from), name(change.to), loses, gains)
        };
        let isolation = &difference.isolation;
        let turned = [&isolation.open, &isolation.isolated].map(|turned| {
            turned.iter().map(|it| format!("{} {:?}", it.workload, it.directions)).collect()
        });
        Self { changes: difference.changes.iter().map(change).collect(), turned }
    }
}
