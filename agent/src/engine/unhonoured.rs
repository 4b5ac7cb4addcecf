//! Which policies cannot be honoured here, for Kubernetes Events.

use std::collections::BTreeMap;

use netpold_core::cluster::is_subject;
use netpold_core::model::Key;

use super::Engine;

impl Engine {
    /// Policies with a part that could not be understood which select a local pod, and the reasons.
    #[must_use]
    pub fn unhonoured(&self) -> BTreeMap<Key, Vec<String>> {
        let cluster = self.compiler.cluster();
        let troubled = cluster.policies().values().filter(|policy| !policy.problems.is_empty());
        let concerned = troubled.filter(|policy| {
            cluster.pods_in(&policy.key.namespace).any(|pod| {
                pod.node == cluster.node_name()
                    && is_subject(pod)
                    && policy.pod_selector.matches(&pod.labels)
            })
        });
        concerned.map(|policy| (policy.key.clone(), policy.problems.clone())).collect()
    }
}
