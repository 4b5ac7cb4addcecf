//! What is known of a pod's further interface.

use crate::cluster::Cluster;
use crate::model::{Bound, Pod};
use crate::options::{Options, SECOND_OPEN, SecondInterfaces};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Second {
    /// Some object or CNI plugin names addresses of it, whether or not the pod may have them.
    is_known: bool,
}

impl Second {
    /// Of an interface that is bound to a pod.
    pub(super) fn of(bound: &Bound) -> Self {
        let pod = &bound.pod;
        Self { is_known: pod.all_addresses().next().is_some() }
    }

    /// Whether it is not under policy.
    pub(super) fn is_open(self, pod: &Pod, cluster: &Cluster, options: &Options) -> bool {
        let (label, open) = SECOND_OPEN;
        let labels = cluster.namespace_labels(&pod.key.namespace);
        match options.second_interfaces {
            SecondInterfaces::Off => true,
            SecondInterfaces::Enforce | SecondInterfaces::Strict => {
                !self.is_known && labels.get(label).is_some_and(|value| value == open)
            }
        }
    }

    /// Whether what it sends must come from its addresses.
    pub(super) fn is_checked(self, options: &Options) -> bool {
        self.is_known || options.second_interfaces == SecondInterfaces::Strict
    }
}
