//! Addresses of pods on secondary networks, before and after a change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netpold_core::cluster::{is_subject, is_unaddressed};
use netpold_core::model::Pod;

use super::class::PartyEnd;
use super::ends_builder::PartyEndsBuilder;

/// An address before and after, and whether each counts for no pod.
pub(super) type SecondaryPair<'c> = ([PartyEnd<'c>; 2], [bool; 2]);

/// Claimed addresses by network and family, which is true for IPv6.
type Claims<'c> = BTreeMap<(&'c str, bool), Vec<IpAddr>>;

impl<'c> PartyEndsBuilder<'c> {
    /// Pairs the claimed addresses of a pod before with those of its counterpart after, by network; and describes the
    /// networks on which their numbers differ, or on which other objects have an address before or after. Where pods
    /// without an address are judged, one without any stands for one with the counterpart's addresses.
    pub(super) fn of_second(
        &self,
        pods: [&'c Pod; 2],
    ) -> (Vec<SecondaryPair<'c>>, BTreeSet<String>) {
        let (mut pairs, mut gaps) = (Vec::new(), BTreeSet::new());
        if !pods.into_iter().all(is_subject) || pods.iter().all(|pod| pod.secondary.is_empty()) {
            return (pairs, gaps);
        }
        let [mut before, mut after] = pods.map(claims);
        let lacks = pods.map(|pod| is_unaddressed(pod) && pod.secondary.is_empty());
        match lacks {
            [false, false] => {}
            _ if !self.judges_unaddressed() => return (pairs, gaps),
            [true, _] => before.clone_from(&after),
            [false, true] => after.clone_from(&before),
        }
        let networks: BTreeSet<_> = before.keys().chain(after.keys()).copied().collect();
        for network in networks {
            let [before, after] =
                [&before, &after].map(|it| it.get(&network).map_or(&[][..], Vec::as_slice));
            if before.len() != after.len() {
                let family = if network.1 { "IPv6" } else { "IPv4" };
                gaps.insert(format!(
                    "its {family} addresses on the secondary network {} are {} before and {} after",
                    network.0,
                    before.len(),
                    after.len()
                ));
                continue;
            }
            for addresses in before.iter().zip(after) {
                let addresses = [*addresses.0, *addresses.1];
                let pair = [0, 1].map(|i| PartyEnd {
                    pod: Some(pods[i]),
                    node: &pods[i].node,
                    address: addresses[i],
                });
                match [0, 1].map(|i| self.counts(i, pods[i], addresses[i])) {
                    [Some(before), Some(after)] => pairs.push((pair, [!before, !after])),
                    // On neither side is the address the pod's.
                    [None, None] => {}
                    [None, Some(_)] | [Some(_), None] => {
                        gaps.insert(format!(
                            "other objects have, before or after, addresses that it claims on the secondary network {}",
                            network.0
                        ));
                    }
                }
            }
        }
        (pairs, gaps)
    }

    /// Returns whether an address counts for a pod; `None` if the pod claims an address that another object has.
    fn counts(&self, cluster: usize, pod: &Pod, address: IpAddr) -> Option<bool> {
        let cluster = self.clusters[cluster];
        // An address that the pod does not claim is its counterpart's.
        if cluster.refused(pod, address).is_none() {
            return Some(true);
        }
        let claimants = cluster.refused_claimants(address);
        claimants.iter().any(|claimant| claimant.key == pod.key).then_some(false)
    }
}

/// Returns the claimed addresses of a pod without those of its status.
fn claims(pod: &Pod) -> Claims<'_> {
    let mut claims = Claims::new();
    for interface in &pod.secondary {
        for address in pod.claimed_at(interface) {
            let of_network = claims.entry((interface.network.as_str(), address.is_ipv6()));
            of_network.or_default().push(address);
        }
    }
    claims
}

/// Describes an address that begins or ceases to count.
pub(super) fn recounted(pair: [PartyEnd<'_>; 2]) -> Option<String> {
    let [before, after] = pair;
    let pod = &after.pod?.key;
    Some(match before.address == after.address {
        true => format!("{} of {pod}", after.address),
        false => format!("{} of {pod}, before {}", after.address, before.address),
    })
}
