//! Sides of a probe on secondary networks.
//!
//! A pod sends from the address of the outgoing interface, which its routes choose: the network's interface towards an
//! address on a secondary network of its own, any interface towards another secondary network, else the first
//! interface. A claimed address that counts for no pod still belongs to interfaces under policy: its claimants are
//! judged there, and no peer selected by labels matches the address.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::cluster::{Cluster, is_subject};
use crate::explain::answer::{Detail, Explanation, Verdict};
use crate::explain::unaddressed::{ProbeEnd, named, places};
use crate::model::{Direction, Pod, SecondaryInterface};
use crate::probe::{Party, Probe};

/// Pods and addresses of a probe's sides, as far as they depend on secondary networks.
#[derive(Clone, Copy)]
pub(super) struct SecondarySides<'c> {
    pub(super) cluster: &'c Cluster,
    /// Address ranges of pods without an address; empty: the blocks for secondary networks.
    pub(super) ranges: &'c [IpNet],
}

impl<'c> SecondarySides<'c> {
    /// Returns the possible senders and receivers of a probe; one pair if no secondary network matters.
    pub(super) fn pairs(
        self,
        probe: &Probe,
        from: ProbeEnd<'c>,
        to: ProbeEnd<'c>,
    ) -> Vec<(ProbeEnd<'c>, ProbeEnd<'c>)> {
        let is_plain = from.claimants.is_empty() && to.claimants.is_empty();
        if is_plain && from.pod.is_none_or(|pod| pod.secondary.is_empty()) {
            return vec![(from, to)];
        }
        let is_named = matches!(probe.from, Party::Pod(_));
        let receivers = receivers(&from, to);
        let pairs = alternatives(from).into_iter().flat_map(|from| {
            let pair = move |to: &ProbeEnd<'c>| match is_named {
                true => (self.sender(&from, to), to.clone()),
                false => (from.clone(), to.clone()),
            };
            receivers.iter().map(pair).collect::<Vec<_>>()
        });
        pairs.collect()
    }

    /// Returns a pod as the sender to an address: at the addresses from which it may send.
    fn sender(self, from: &ProbeEnd<'c>, to: &ProbeEnd<'c>) -> ProbeEnd<'c> {
        let (Some(sender), [destination]) = (from.pod, &to.addresses[..]) else {
            return from.clone();
        };
        let same_family = |address: &IpAddr| address.is_ipv4() == destination.is_ipv4();
        let is_known = from.places.is_empty() && is_subject(sender);
        let is_itself = to.pod.is_some_and(|receiver| receiver.key == sender.key);
        if !is_known || is_itself || sender.secondary.is_empty() {
            return from.clone();
        }
        let is_on_secondary = |pod: &&Pod| pod.secondary_with(*destination).next().is_some();
        let Some(receiver) = to.pod.filter(is_on_secondary) else {
            // Other networks are reached by the first interface, unless it has no address of the family.
            return match from.addresses.iter().any(same_family) {
                true => from.clone(),
                false => ProbeEnd::new(Some(sender), sender.all_addresses().collect()),
            };
        };
        let shared: Vec<&SecondaryInterface> = shared(sender, receiver, *destination).collect();
        let own = shared.iter().flat_map(|interface| interface.addresses.iter().copied());
        let own: Vec<IpAddr> = own.filter(same_family).collect();
        if !own.is_empty() {
            return ProbeEnd::new(Some(sender), own);
        }
        if shared.iter().any(|interface| interface.addresses.is_empty()) {
            let blocks = named(self.cluster, receiver, Direction::Ingress);
            let ranges = match self.ranges {
                [] => &self.cluster.secondary_networks().0,
                ranges => ranges,
            };
            let places = places(self.cluster, ranges, blocks);
            return ProbeEnd { places, ..ProbeEnd::new(Some(sender), Vec::new()) };
        }
        ProbeEnd::new(Some(sender), sender.all_addresses().collect())
    }

    /// Adds the facts about secondary networks on which a verdict depends. An allowed packet from an address that does not
    /// count, and a denied one at an interface that is never under policy, are [`Verdict::Unknown`].
    pub(super) fn with_claims(
        self,
        answer: Explanation,
        [from, to]: [&ProbeEnd<'_>; 2],
        detail: Detail,
    ) -> Explanation {
        let reason = match answer.verdict {
            Verdict::Allow => self.refused_source(from),
            Verdict::Deny => beyond_policy(&answer, [from, to]),
            Verdict::Unknown => None,
        };
        let verdict = if reason.is_some() { Verdict::Unknown } else { answer.verdict };
        let mut notes: Vec<String> = answer.note.clone().into_iter().collect();
        if detail == Detail::Reasons && answer.services.is_empty() {
            notes.extend(sent_from(&answer.probe, from));
            notes.extend([from, to].into_iter().flat_map(|side| self.refusals(side)));
            notes.dedup();
        }
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        Explanation { verdict, reason: reason.or(answer.reason), note, ..answer }
    }

    /// Describes the claims of a side's pod that do not count.
    fn refusals(self, side: &ProbeEnd<'_>) -> Vec<String> {
        let Some(pod) = side.pod else { return Vec::new() };
        let claims = side.addresses.iter().flat_map(|address| {
            pod.secondary_with(*address).take(1).map(move |interface| (*address, interface))
        });
        let refused = claims.filter_map(|(address, interface)| {
            let refusal = self.cluster.refused(pod, address)?;
            let (pod, title) = (&pod.key, interface.title());
            Some(format!(
                "{address} of {title} does not count as an address of pod {pod}, so no peer by label matches it: {refusal}"
            ))
        });
        refused.collect()
    }

    /// Returns the reason for which allowed packets of a side may be dropped as packets from a foreign address.
    fn refused_source(self, from: &ProbeEnd<'_>) -> Option<String> {
        let pod = from.pod?;
        let mut refused = from.addresses.iter().filter(|address| {
            pod.secondary_with(**address).next().is_some()
                && self.cluster.refused(pod, **address).is_some()
        });
        let address = refused.next()?;
        Some(format!(
            "policy allows it, but {address} does not count as an address of pod {}: its node drops packets from there \
             unless a CNI result proves the address",
            pod.key
        ))
    }
}

/// Returns the pods that may be behind a side: its own, or each claimant of the address.
fn alternatives(side: ProbeEnd<'_>) -> Vec<ProbeEnd<'_>> {
    if side.claimants.is_empty() {
        return vec![side];
    }
    let ProbeEnd { addresses, claimants, .. } = side;
    claimants.into_iter().map(|pod| ProbeEnd::new(Some(pod), addresses.clone())).collect()
}

/// Returns the pods that a sender may reach at an address: the claimants on a network of the sender, else all.
fn receivers<'c>(from: &ProbeEnd<'c>, to: ProbeEnd<'c>) -> Vec<ProbeEnd<'c>> {
    let mut all = alternatives(to);
    let Some(sender) = from.pod.filter(|_| all.len() > 1) else { return all };
    let is_near = |to: &ProbeEnd<'_>| {
        to.pod.is_some_and(|pod| {
            to.addresses.iter().any(|address| shared(sender, pod, *address).next().is_some())
        })
    };
    if all.iter().any(is_near) {
        all.retain(is_near);
    }
    all
}

/// Returns the interfaces of a sender on the network on which a receiver claims an address.
fn shared<'p>(
    sender: &'p Pod,
    receiver: &'p Pod,
    destination: IpAddr,
) -> impl Iterator<Item = &'p SecondaryInterface> {
    sender.secondary.iter().filter(move |own| {
        let mut networks = receiver.secondary_with(destination).map(|interface| &interface.network);
        !own.network.is_empty() && networks.any(|network| *network == own.network)
    })
}

/// Describes the secondary network from which a pod named by a probe sends.
fn sent_from(probe: &Probe, from: &ProbeEnd<'_>) -> Option<String> {
    let pod = from.pod.filter(|_| matches!(probe.from, Party::Pod(_)))?;
    let [address] = from.addresses[..] else { return None };
    let interface = pod.secondary_with(address).next()?;
    Some(format!("pod {} sends from {address}, {}", pod.key, interface.title()))
}

/// Returns the reason for which denied packets may pass: each denying end is a device that is not a veth.
fn beyond_policy(answer: &Explanation, [from, to]: [&ProbeEnd<'_>; 2]) -> Option<String> {
    let ends = [(&answer.egress, from), (&answer.ingress, to)];
    let mut denying = ends.into_iter().filter(|(judgement, _)| {
        judgement.as_ref().is_some_and(|judgement| judgement.verdict == Verdict::Deny)
    });
    let device = |side: &ProbeEnd<'_>| -> Option<(String, String)> {
        let pod = side.pod?;
        let mut interfaces = side.addresses.iter().map(|at| pod.secondary_with(*at).next());
        let first = interfaces.next()??;
        let is_device = !first.device.is_empty()
            && interfaces.all(|other| other.is_some_and(|other| !other.device.is_empty()));
        let title = format!("{} of pod {}", first.title(), pod.key);
        is_device.then(|| (title, first.device.clone()))
    };
    let (title, kind) = device(denying.next()?.1)?;
    denying.all(|(_, side)| device(side).is_some()).then(|| {
        format!(
            "policy denies it, but {title} is not under policy: it is no veth (device-info {kind})"
        )
    })
}

/// Describes answers that differ by the pods that claim an address.
pub(super) fn depends_on_pod(answers: [(&Explanation, [Option<&Pod>; 2]); 2]) -> String {
    let [one, other] = answers.map(|(answer, pods)| {
        let names: Vec<String> =
            pods.into_iter().flatten().map(|pod| pod.key.to_string()).collect();
        let verdict = if answer.verdict == Verdict::Allow { "allowed" } else { "denied" };
        format!("{} is {verdict}", names.join(" to "))
    });
    format!("it depends on the pod that has the address: {one}, {other}")
}
