//! Memory of an agent's view of 150,000 pods in slices, and of the same pods in a watch of all pods.
#![expect(clippy::print_stdout, reason = "its result")]
#![expect(clippy::unwrap_used, reason = "an example")]

use netpold_core::model::{Change, Pod};
use netpold_slices::{Packing, PeerView, Vocabulary};
use netpold_testkit::objects;

const PODS: u32 = 150_000;
/// Pods of a workload, of which a namespace has two.
const WORKLOAD: u32 = 50;

fn pod(number: u32) -> Pod {
    let workload = number / WORKLOAD;
    let name = format!("workload-{workload}-7d4b9c5f4-{number:05x}");
    let [_, a, b, c] = number.to_be_bytes();
    let app = format!("workload-{workload}");
    let labels = [("app", &*app), ("tier", "web"), ("pod-template-hash", "7d4b9c5f4")];
    let namespace = format!("namespace-{}", workload / 2);
    let mut pod = objects::pod(&namespace, &name, &labels, &[&format!("10.{a}.{b}.{c}")]);
    pod.node = format!("node-{}.example.internal", number % 5_000).into();
    pod.uid = format!("6f1dd2cb-4f5b-4ec8-a2a5-{number:012}");
    pod
}

/// Returns the resident memory of this process, in MB.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: f64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096.0 / 1e6
}

fn main() {
    let label_keys = ["app".to_owned(), "tier".to_owned()].into();
    let vocabulary = Vocabulary { label_keys, ..Vocabulary::default() };
    let mut packing = Packing::default();
    (0..PODS).for_each(|number| _ = packing.set(vocabulary.reduce(&pod(number)).unwrap()));
    let before = resident();
    let mut view = PeerView::new("own".to_owned());
    view.start();
    for (number, pods) in packing.slices() {
        view.take_slice(number, 1, pods.values().cloned().collect());
    }
    let slices = resident();
    for number in 0..PODS {
        view.take_watched(Change::Pod(pod(number)));
    }
    println!(
        "{} pods: slices {:.0} MB, a watch of all pods {:.0} MB more while both are known",
        view.len(),
        slices - before,
        resident() - slices
    );
}
