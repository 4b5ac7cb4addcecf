//! Pods, and the owner of each pod address.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::claims::AddressClaims;
use crate::cluster::label_groups::PodsByLabels;
use crate::cluster::pods_by_name::PodsByName;
use crate::cluster::secondary::SecondaryClaims;
use crate::cluster::strings::Strings;
use crate::model::{Key, Pod};

/// Every pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pods {
    by_name: PodsByName,
    /// Pods that policy does not ignore.
    by_labels: PodsByLabels,
    /// Address claims of these pods.
    claims: AddressClaims,
    /// Claims of addresses on secondary networks.
    secondary: SecondaryClaims,
    node_names: Strings,
}

impl Pods {
    /// Pods by key.
    pub(super) fn by_name(&self) -> &PodsByName {
        &self.by_name
    }

    /// The pods that policy can select or match, by namespace and labels.
    pub(crate) fn by_labels(&self) -> &PodsByLabels {
        &self.by_labels
    }

    /// The pod that owns an address, see [`Pod::created`].
    pub(super) fn owner(&self, address: IpAddr) -> Option<&Arc<Pod>> {
        self.claimants(address).max_by_key(|pod| precedence(pod))
    }

    /// Returns the claims of addresses on secondary networks.
    pub(super) fn secondary(&self) -> &SecondaryClaims {
        &self.secondary
    }

    /// Whether a pod claims an address on a secondary network.
    pub(crate) fn is_claimed_second(&self, address: IpAddr) -> bool {
        self.secondary.has(address)
    }

    /// Whether several pods claim an address.
    pub(crate) fn is_contested(&self, address: IpAddr) -> bool {
        self.claims.is_contested(address)
    }

    /// The pods that claim an address.
    pub(crate) fn claimants(&self, address: IpAddr) -> impl Iterator<Item = &Arc<Pod>> {
        self.claims.pods_at(address)
    }

    /// Returns the pod with strings and labels shared with equal ones of known pods.
    pub(super) fn shared(&mut self, mut pod: Arc<Pod>) -> Arc<Pod> {
        // A pod shared with another cluster stays as it is.
        if let Some(own) = Arc::get_mut(&mut pod) {
            own.addresses.shrink_to_fit();
            own.ports.shrink_to_fit();
            own.secondary.shrink_to_fit();
            self.node_names.share(&mut own.node);
            if let Some(kin) = self.by_labels.kin(own) {
                own.labels.clone_from(&kin.labels);
            }
        }
        pod
    }

    /// Sets or removes (`None`) a pod. Returns the previous one.
    pub(super) fn set(&mut self, key: &Key, new: Option<Arc<Pod>>) -> Option<Arc<Pod>> {
        let old = self.by_name.get(key).cloned();
        if let Some(pod) = old.as_ref().filter(|pod| is_subject(pod)) {
            self.by_labels.remove(pod);
            self.claims.remove(pod);
            self.secondary.remove(pod);
        }
        if let Some(pod) = new.as_ref().filter(|pod| is_subject(pod)) {
            self.by_labels.add(pod);
            self.claims.add(pod);
            self.secondary.add(pod);
        }
        self.by_name.set(key, new)
    }
}

/// Order of the claimants of an address: the greatest owns it, see [`Pod::created`].
pub(crate) fn precedence(pod: &Pod) -> impl Ord + use<'_> {
    (Reverse(pod.terminating), pod.created, &pod.key)
}

/// Whether policy can select a pod or match it as a peer.
#[must_use]
pub fn is_subject(pod: &Pod) -> bool {
    !pod.host_network && !pod.finished
}

/// Whether policy applies to a pod without an address.
#[must_use]
pub fn is_unaddressed(pod: &Pod) -> bool {
    pod.addresses.is_empty() && is_subject(pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Labels;

    #[test]
    fn what_pods_have_equal_is_once_in_memory() {
        let mut pods = Pods::default();
        let taken = ["x", "y"].map(|name| {
            let labels = Labels::from_iter([("app".to_owned(), "web".to_owned())]);
            let key = Key::new("a", name);
            let pod = Pod { key: key.clone(), labels, node: "n".into(), ..Pod::default() };
            let pod = pods.shared(Arc::new(pod));
            pods.set(&key, Some(pod.clone()));
            pod
        });
        let [x, y] = taken.each_ref();
        let place = |pod: &Pod| pod.labels.get("app").map(|value| value.as_ptr());
        assert_eq!(place(x), place(y));
        assert!(std::ptr::eq(x.node.as_str(), y.node.as_str()));
        assert_eq!(pods.by_name().len(), 2);
        for pod in &taken {
            assert_eq!(pods.set(&pod.key, None).as_ref(), Some(pod));
        }
        assert!(pods.by_name().is_empty() && pods.by_name().values().next().is_none());
    }
}
