//! Workloads between their runs: a Job's next pods are as the last ones were.

use std::collections::BTreeMap;

use netpold_core::model::Change;

use super::workloads::{Group, group};

/// The same objects, where of each workload of which only finished pods are there the latest is taken for one that
/// has yet to start: it has no address.
pub(super) fn go_on(mut objects: Vec<Change>) -> Vec<Change> {
    // Of each workload: whether a pod runs, and the latest finished one.
    type Seen = (bool, Option<(i64, usize)>);
    let mut workloads: BTreeMap<(&str, Group<'_>), Seen> = BTreeMap::new();
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
