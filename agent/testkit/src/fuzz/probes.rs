//! JSON lines for `netpold explain --probes`: parsing never panics, and every valid probe can be written and parsed
//! again.

use crate::generate;
use netpold_core::cluster::Cluster;
use netpold_core::explain::{Explainer, Verdict};
use netpold_core::probe::Probe;

/// Runs one input.
///
/// # Panics
/// The input shows a mistake.
pub fn run(bytes: &[u8]) {
    thread_local! {
        static CLUSTER: Cluster = generate::GeneratedCluster::from_seed(3).objects.into_iter().collect();
    }
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(probe) = serde_json::from_slice::<Probe>(line) else { continue };
        let written = serde_json::to_string(&probe).expect("a probe is JSON");
        assert_eq!(serde_json::from_str::<Probe>(&written).expect("its own JSON"), probe);
        CLUSTER.with(|cluster| {
            let explainer = Explainer::new(cluster);
            let explained = explainer.explain(&probe);
            let (verdict, reason) = explainer.verdict(&probe);
            assert_eq!(explained.verdict, verdict, "{written}");
            assert_eq!(verdict == Verdict::Unknown, reason.is_some(), "{written}");
            assert!(!explained.lines().is_empty());
        });
    }
}
