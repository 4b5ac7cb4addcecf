//! Workloads between runs: the next pods of a Job are like the last ones.

use std::collections::BTreeMap;

use netpold_core::model::Change;

use super::workloads::{WorkloadKey, group};

/// Turns, for each workload with finished pods only, the latest pod into one that has yet to start: unfinished and
/// without an address.
pub(super) fn unfinish_latest_runs(mut objects: Vec<Change>) -> Vec<Change> {
    // Per workload: whether a pod runs, and the latest finished pod.
    type WorkloadRuns = (bool, Option<(i64, usize)>);
    let mut workloads: BTreeMap<(&str, WorkloadKey<'_>), WorkloadRuns> = BTreeMap::new();
    for (index, object) in objects.iter().enumerate() {
        let Change::Pod(pod) = object else { continue };
        let (runs, latest) = workloads.entry(group(pod)).or_default();
        if pod.finished {
            *latest = (*latest).max(Some((pod.created, index)));
        } else {
            *runs = true;
        }
    }
    let between = workloads.into_values().filter(|(runs, _)| !runs);
    let latest: Vec<usize> = between.filter_map(|(_, latest)| Some(latest?.1)).collect();
    for index in latest {
        if let Change::Pod(pod) = &mut objects[index] {
            pod.finished = false;
            pod.addresses.clear();
        }
    }
    objects
}
