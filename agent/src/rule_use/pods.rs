//! Pods of a sweep's flows. They include the pods that went since the last sweep, since the sweep also attributes ended
//! flows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use netpold_core::compile::Compiler;
use netpold_core::model::Pod;

/// Addresses of former pods that are remembered for a sweep.
const FORMER_MAX: usize = 16_384;

/// Pods of a sweep's flows.
#[derive(Debug, Default)]
pub(super) struct Pods {
    /// Local pods by their endpoints' numbers.
    endpoints: BTreeMap<u32, Arc<Pod>>,
    /// Value of [`Compiler::endpoints_version`] for `endpoints`.
    version: Option<u64>,
    /// Pods that went since the last sweep, by address.
    former: BTreeMap<IpAddr, Arc<Pod>>,
}

impl Pods {
    /// Remembers the addresses of a pod that goes.
    pub(super) fn goes(&mut self, pod: &Arc<Pod>) {
        for address in &pod.addresses {
            if self.former.len() < FORMER_MAX {
                self.former.insert(*address, Arc::clone(pod));
            }
        }
    }

    /// Reads the endpoints' pods after an update, if the endpoints have changed.
    pub(super) fn follow(&mut self, compiler: &Compiler) {
        if self.version != Some(compiler.endpoints_version()) {
            self.read(compiler);
        }
    }

    /// Reads the endpoints' pods with their current labels; returns the endpoints' version.
    pub(super) fn read(&mut self, compiler: &Compiler) -> u64 {
        let cluster = compiler.cluster();
        for endpoint in compiler.endpoints().filter(|endpoint| !endpoint.waiting) {
            let interface = cluster.interfaces().get(&endpoint.ifindex);
            let behind = interface.and_then(|interface| cluster.pod_behind(interface));
            // The cluster's pod has the current labels.
            let pod = cluster.pods().get(&endpoint.pod).or(behind);
            if let Some(pod) = pod {
                self.endpoints.insert(endpoint.id, Arc::clone(pod));
            }
        }
        *self.version.insert(compiler.endpoints_version())
    }

    /// The local pods.
    pub(super) fn local(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.endpoints.values()
    }

    /// The pod of an endpoint number.
    pub(super) fn of(&self, endpoint: u32) -> Option<&Arc<Pod>> {
        self.endpoints.get(&endpoint)
    }

    /// Pod with an address that went since the last sweep.
    pub(super) fn former(&self, address: IpAddr) -> Option<&Pod> {
        self.former.get(&address).map(|pod| &**pod)
    }

    /// Forgets former pods at the end of a sweep, and endpoints that are not `live`. Returns whether flows may have
    /// been attributed to a former pod.
    pub(super) fn forget(&mut self, live: &BTreeSet<u32>) -> bool {
        self.endpoints.retain(|number, _| live.contains(number));
        !std::mem::take(&mut self.former).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use netpold_testkit::objects;

    use super::*;

    #[test]
    fn a_pod_that_went_is_known_for_one_sweep() {
        let pod = Arc::new(objects::pod("x", "a", &[], &["10.0.0.1"]));
        let address = pod.addresses[0];
        let mut pods =
            Pods { endpoints: BTreeMap::from([(7, Arc::clone(&pod))]), ..Pods::default() };
        pods.goes(&pod);
        assert_eq!((pods.of(7), pods.former(address)), (Some(&pod), Some(&*pod)));
        assert!(pods.forget(&BTreeSet::new()));
        assert_eq!((pods.of(7), pods.former(address)), (None, None));
        assert!(!pods.forget(&BTreeSet::new()));
    }
}
