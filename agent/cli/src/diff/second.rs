//! Addresses of pods on secondary networks, before and after a change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netpold_core::cluster::{is_subject, is_unaddressed};
use netpold_core::model::Pod;

use super::ends::{PartyEnd, PartyEndsBuilder};

/// An address before and after, and whether each counts for no pod.
pub(super) type SecondPair<'c> = ([PartyEnd<'c>; 2], [bool; 2]);

/// Claimed addresses by network and family, which is true for IPv6.
type Claims<'c> = BTreeMap<(&'c str, bool), Vec<IpAddr>>;

impl<'c> PartyEndsBuilder<'c> {
    /// Pairs the claimed addresses of a pod before with those of its counterpart after, by network; and describes the
    /// networks on which their numbers differ. A pod without any address stands for one with the counterpart's addresses.
    pub(super) fn of_second(&self, pods: [&'c Pod; 2]) -> (Vec<SecondPair<'c>>, Vec<String>) {
        let (mut pairs, mut gaps) = (Vec::new(), Vec::new());
        if !pods.into_iter().all(is_subject) || pods.iter().all(|pod| pod.second.is_empty()) {
            return (pairs, gaps);
        }
        let [mut before, mut after] = pods.map(claims);
        if is_unaddressed(pods[0]) && pods[0].second.is_empty() {
            before.clone_from(&after);
        } else if is_unaddressed(pods[1]) && pods[1].second.is_empty() {
            after.clone_from(&before);
        }
        let networks: BTreeSet<_> = before.keys().chain(after.keys()).copied().collect();
        for network in networks {
            let [before, after] =
                [&before, &after].map(|it| it.get(&network).map_or(&[][..], Vec::as_slice));
            if before.len() != after.len() {
                let family = if network.1 { "IPv6" } else { "IPv4" };
                gaps.push(format!(
                    "its {family} addresses on the secondary network {} are {} before and {} after",
                    network.0,
                    before.len(),
                    after.len()
                ));
                continue;
            }
            for addresses in before.iter().zip(after) {
                let addresses = [*addresses.0, *addresses.1];
                let end = |i: usize| PartyEnd {
                    pod: Some(pods[i]),
                    node: &pods[i].node,
                    address: addresses[i],
                };
                let pair = [end(0), end(1)];
                pairs.push((pair, [0, 1].map(|i| self.is_refused(i, pair[i]))));
            }
        }
        (pairs, gaps)
    }

    /// Returns whether a claimed address does not count for its pod.
    fn is_refused(&self, cluster: usize, end: PartyEnd<'c>) -> bool {
        end.pod.is_some_and(|pod| {
            !is_unaddressed(pod) && self.clusters[cluster].refused(pod, end.address).is_some()
        })
    }
}

fn claims(pod: &Pod) -> Claims<'_> {
    let mut claims = Claims::new();
    for interface in &pod.second {
        for address in &interface.addresses {
            let of_network = claims.entry((interface.network.as_str(), address.is_ipv6()));
            of_network.or_default().push(*address);
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
