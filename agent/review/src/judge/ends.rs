//! Pods at the ends of an answer.

use std::sync::Arc;

use netpold_core::cluster::Cluster;
use netpold_core::explain::Explanation;
use netpold_core::model::Pod;
use netpold_core::probe::Party;

/// Returns the pods that may be the sender of an answer, and the receiver with the backends. An address whose claims are refused
/// has each claimant.
pub(super) fn pods_of_answer<'c>(cluster: &'c Cluster, answer: &Explanation) -> [Vec<&'c Pod>; 2] {
    let of = |party: &Party| -> Vec<&'c Arc<Pod>> {
        match party {
            Party::Pod(key) => cluster.pods().get(key).into_iter().collect(),
            Party::Address(address) => match cluster.owner(*address) {
                Some(owner) => vec![owner],
                None => cluster.refused_claimants(*address),
            },
            Party::Service(_) => Vec::new(),
        }
    };
    let backends = answer.backends.iter().filter_map(|backend| backend.pod.as_ref());
    let backends = backends.filter_map(|key| cluster.pods().get(key));
    let to = of(&answer.probe.to).into_iter().chain(backends).collect();
    let pods = |found: Vec<&'c Arc<Pod>>| found.into_iter().map(|pod| &**pod).collect();
    [of(&answer.probe.from), to].map(pods)
}
