//! Denials for Events on pods, in namespaces with the label for Events.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use netpold_core::explain::Explainer;
use netpold_core::model::Key;
use netpold_core::turns::in_turns;
use netpold_kube::cluster::{DenialReport, Denials};

use super::Engine;
use super::interfaces::pod_of;
use super::report::explain;
use crate::events::DropLogLine;

/// Label of a namespace, and its value, that enables Events on its pods.
const EVENTS_LABEL: (&str, &str) = ("netpold.io/events", "denied");
/// Maximum number of denials explained at a time: the engine's lock is held during explanations.
const EXPLAINED: usize = 16;

/// Returns the denials of pods in namespaces with [`EVENTS_LABEL`].
#[must_use]
pub fn denials(engine: &Engine, dropped: BTreeMap<u32, Vec<DropLogLine>>) -> Denials {
    let compiler = &engine.reconciler.compiler;
    let cluster = compiler.cluster();
    let (label, value) = EVENTS_LABEL;
    let has_label = |pod: &Key| {
        let labels = cluster.namespace_labels(&pod.namespace);
        labels.get(label).is_some_and(|given| given == value)
    };
    // First the first denial of each pod, then the second denial of each pod, and so on.
    let mut wanted: Vec<(usize, Key, DropLogLine)> = Vec::new();
    for (endpoint, lines) in dropped {
        let Some(pod) = pod_of(compiler, endpoint).filter(has_label) else { continue };
        wanted.extend(lines.into_iter().enumerate().map(|(n, line)| (n, pod.clone(), line)));
    }
    if wanted.is_empty() {
        return Denials { all: Vec::new(), nodes: cluster.node_count() };
    }
    wanted.sort_by_key(|(number, ..)| *number);
    // Namespaces in turns, in a random order: more than [`EXPLAINED`] namespaces may have denials.
    let order = RandomState::new();
    let turn = |namespace: &str| (order.hash_one(namespace), namespace.to_owned());
    let wanted = in_turns(wanted, |(_, pod, _)| turn(&pod.namespace));
    let resolved = engine.reconciler.resolved_or_none();
    let explainer = Explainer::new(cluster).with_resolved(&resolved);
    let explained = wanted.into_iter().take(EXPLAINED).filter_map(|(_, pod, line)| {
        let DropLogLine { dropped, times } = line;
        let uid = cluster.pods().get(&pod)?.uid.clone();
        let why = explain(&explainer, Some(&pod), &dropped);
        let why = why.iter().map(|line| line.trim()).collect::<Vec<_>>().join("; ");
        let times = if times == 1 { String::new() } else { format!(" ({times} times)") };
        let direction = dropped.direction;
        let text = format!("Denied {direction}: {dropped}{times}: {why}");
        Some(DenialReport { pod, uid, key: dropped.key(), text })
    });
    Denials { all: explained.collect(), nodes: cluster.node_count() }
}
