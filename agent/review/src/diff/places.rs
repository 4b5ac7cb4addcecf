//! Nodes of pods that are on a node in one of two clusters only.

use std::collections::BTreeMap;

use netpold_core::model::{Change, Key, Pod};

use super::workloads::workloads_of;

/// Places each pod without a node, such as a pod template's, on the node of its counterpart before or after the change:
/// a pod that is not scheduled may get any node, and its counterpart's node makes their own nodes comparable.
pub(super) fn place(mut objects: [Vec<Change>; 2]) -> [Vec<Change>; 2] {
    let is_unplaced = |object: &Change| as_pod(object).is_some_and(|pod| pod.node.is_empty());
    if !objects.iter().flatten().any(is_unplaced) {
        return objects;
    }
    let pods = objects.each_ref().map(|objects| {
        let pods = objects.iter().filter_map(as_pod);
        pods.map(|pod| (&pod.key, pod)).collect::<BTreeMap<&Key, &Pod>>()
    });
    let mut nodes = [const { BTreeMap::new() }; 2];
    for workload in workloads_of(pods.each_ref().map(|pods| pods.values().copied().collect())) {
        for (before, after) in workload.counterparts() {
            let (Some(first), Some(second)) = (pods[0].get(before), pods[1].get(after)) else {
                continue;
            };
            match (first.node.is_empty(), second.node.is_empty()) {
                (true, false) => nodes[0].entry(before.clone()).or_insert(second.node.clone()),
                (false, true) => nodes[1].entry(after.clone()).or_insert(first.node.clone()),
                (true, true) | (false, false) => continue,
            };
        }
    }
    for (objects, nodes) in objects.iter_mut().zip(nodes) {
        for object in objects {
            if let Change::Pod(pod) = object
                && let Some(node) = nodes.get(&pod.key)
            {
                pod.node = node.clone();
            }
        }
    }
    objects
}

fn as_pod(object: &Change) -> Option<&Pod> {
    if let Change::Pod(pod) = object { Some(pod) } else { None }
}
