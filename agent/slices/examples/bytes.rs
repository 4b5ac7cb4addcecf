//! Bytes of slices that each agent receives: at the start, and in a rollout of 1,000 pods in 10 s, each scheduled,
//! given an address and ready, while the old ones terminate and are deleted. Slices are written each 300 ms, with
//! metadata.
#![expect(clippy::print_stdout, reason = "its result")]
#![expect(clippy::unwrap_used, reason = "an example")]

use std::collections::BTreeSet;

use netpold_core::model::{Key, Pod};
use netpold_slices::{Packing, SliceNumber, Vocabulary, encode};
use netpold_testkit::objects;
use serde_json::json;

/// Pods before the rollout, in workloads of [`WORKLOAD`] pods, two of each namespace.
const PODS: u32 = 20_000;
const WORKLOAD: u32 = 50;
/// Pods that are replaced in [`SECONDS`].
const REPLACED: u32 = 1_000;
const SECONDS: u32 = 10;
const WRITES_A_SECOND: u32 = 3;

fn pod(workload: u32, number: u32, life: u32) -> Pod {
    let name = format!("workload-{workload}-7d4b9c{life:x}-{number:05x}");
    let app = format!("workload-{workload}");
    let address = format!("10.{}.{}.{}", life, number >> 8, number & 255);
    let namespace = format!("namespace-{}", workload / 2);
    let mut pod = objects::pod(&namespace, &name, &[("app", &app), ("tier", "web")], &[&address]);
    pod.node = format!("node-{}.example.internal", number % 1_000).into();
    pod.created = 1_764_200_000 + i64::from(number);
    let label_keys = ["app".to_owned(), "tier".to_owned()].into();
    Vocabulary { label_keys, ..Vocabulary::default() }.reduce(&pod).unwrap()
}

/// Returns the length of the event of a slice's change.
fn bytes(packing: &Packing, number: SliceNumber) -> usize {
    let pods = packing.slice(number).into_iter().flat_map(|pods| pods.values());
    let slice = json!({
        "apiVersion": "netpold.io/v1alpha1",
        "kind": "PeerSlice",
        "metadata": {
            "name": format!("peers-{number}"),
            "uid": "6f1dd2cb-4f5b-4ec8-a2a5-0123456789ab",
            "resourceVersion": "1234567890",
            "generation": 100,
            "creationTimestamp": "2026-11-27T12:00:00Z",
        },
        "spec": encode(pods),
    });
    json!({ "type": "MODIFIED", "object": slice }).to_string().len() + 1
}

fn rollout(title: &str, replaced: impl Fn(u32) -> (u32, u32)) {
    let mut packing = Packing::default();
    for number in 0..PODS {
        packing.set(pod(number / WORKLOAD, number, 0));
    }
    let start: usize = packing.slices().map(|(number, _)| bytes(&packing, number)).sum();
    let (writes, mut sent, mut written) = (SECONDS * WRITES_A_SECOND, 0, 0);
    for write in 0..=writes {
        let mut touched = BTreeSet::new();
        let due = |step: u32| step * REPLACED / writes..(step + 1) * REPLACED / writes;
        let new = if write < writes { due(write) } else { 0..0 };
        for (workload, number) in new.map(&replaced) {
            touched.extend(packing.set(pod(workload, number, 1)).slices());
            let old = pod(workload, number, 0);
            touched.extend(packing.set(Pod { terminating: true, ..old }).slices());
        }
        // The old pods are removed one write later.
        for (workload, number) in write.checked_sub(1).into_iter().flat_map(due).map(&replaced) {
            let Pod { key: Key { namespace, name }, .. } = pod(workload, number, 0);
            touched.extend(packing.remove(&Key { namespace, name }));
        }
        sent += touched.iter().map(|number| bytes(&packing, *number)).sum::<usize>();
        written += touched.len();
    }
    let slices = packing.slices().count();
    println!(
        "{title}: start {start} bytes; rollout {sent} bytes in {written} slices; {slices} slices"
    );
}

fn main() {
    rollout("20 whole workloads one after the other", |n| (n / WORKLOAD, n));
    rollout("5 pods of each of 200 workloads", |n| {
        let workload = n % 200;
        (workload, workload * WORKLOAD + n / 200)
    });
}
