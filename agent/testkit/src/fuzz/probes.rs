//! JSON lines for `netpold explain --probes`: never a panic, and what is understood can be written
//! and read again.

use crate::generate::Cluster;
use netpold_core::explain::{Explainer, Verdict};
use netpold_core::probe::Probe;

/// Tries one input.
///
/// # Panics
/// It shows a mistake.
pub fn run(bytes: &[u8]) {
    thread_local! {
        static EXPLAINER: Explainer = Explainer::new(Cluster::from_seed(3).objects);
    }
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(probe) = serde_json::from_slice::<Probe>(line) else { continue };
        let written = serde_json::to_string(&probe).expect("a probe is JSON");
        assert_eq!(serde_json::from_str::<Probe>(&written).expect("its own JSON"), probe);
        EXPLAINER.with(|explainer| {
            let explained = explainer.explain(&probe);
            let (verdict, reason) = explainer.verdict(&probe);
            assert_eq!(explained.verdict, verdict, "{written}");
            assert_eq!(verdict == Verdict::Unknown, reason.is_some(), "{written}");
            assert!(!explained.lines().is_empty());
        });
    }
}
