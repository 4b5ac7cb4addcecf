//! Treatment of a pod's interface on a secondary network.

use crate::cluster::Cluster;
use crate::model::{Bound, Pod};
use crate::options::{Options, SECONDARY_OPEN, SecondaryInterfaces};

/// Evidence about a pod's interface on a secondary network.
#[derive(Clone, Copy, Debug)]
pub(super) struct SecondaryPolicy {
    /// Whether the Pod object or a CNI result has addresses of the interface, accepted or not.
    is_known: bool,
}

impl SecondaryPolicy {
    /// Evaluates an interface that is bound to a pod.
    pub(super) fn from_bound(bound: &Bound) -> Self {
        let pod = &bound.pod;
        Self { is_known: pod.all_addresses().next().is_some() }
    }

    /// Whether the interface is exempt from policy.
    pub(super) fn is_open(self, pod: &Pod, cluster: &Cluster, options: &Options) -> bool {
        let (label, open) = SECONDARY_OPEN;
        let labels = cluster.namespace_labels(&pod.key.namespace);
        match options.secondary_interfaces {
            SecondaryInterfaces::Off => true,
            SecondaryInterfaces::Enforce | SecondaryInterfaces::Strict => {
                !self.is_known && labels.get(label).is_some_and(|value| value == open)
            }
        }
    }

    /// Whether packets of the interface must have a permitted source address.
    pub(super) fn is_checked(self, options: &Options) -> bool {
        self.is_known || options.secondary_interfaces == SecondaryInterfaces::Strict
    }
}
