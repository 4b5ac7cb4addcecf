//! Answers to denied packets: the annotation `netpold.io/deny`, and the list of packets without an answer in
//! deploy/reject.md, read literally.

use std::net::IpAddr;

use netpold_core::model::{Action, Denial, Direction, Enforcement, Pod, Tier};

use super::matching::selects;
use super::state::Oracle;

impl Oracle {
    /// Whether a pod's denied packets are answered: every policy that may deny a packet must have `reject`, by its own
    /// annotation or by that of the pod's namespace. Without an annotation, packets are not answered.
    #[must_use]
    pub fn rejects(&self, pod: &Pod, direction: Direction) -> bool {
        let namespace = self.namespaces.iter().find(|it| it.name == pod.key.namespace);
        let by_default = namespace.and_then(|namespace| namespace.denial);
        let mut said = Vec::new();
        for policy in &self.policies {
            let isolates = match direction {
                Direction::Ingress => policy.ingress.is_some(),
                Direction::Egress => policy.egress.is_some(),
            };
            if isolates
                && policy.enforcement == Enforcement::Enforce
                && policy.key.namespace == pod.key.namespace
                && selects(&policy.pod_selector, &pod.labels)
            {
                said.push(policy.denial);
            }
        }
        let isolated = !said.is_empty();
        for policy in &self.cluster_policies {
            let rules = match direction {
                Direction::Ingress => &policy.ingress,
                Direction::Egress => &policy.egress,
            };
            if rules.iter().any(|rule| rule.action == Action::Deny)
                && policy.enforcement == Enforcement::Enforce
                && (policy.tier == Tier::Admin || !isolated)
                && self.selects_namespace(&policy.subject.namespaces, pod)
                && selects(&policy.subject.pods, &pod.labels)
            {
                said.push(policy.denial);
            }
        }
        !said.is_empty() && said.iter().all(|it| it.or(by_default) == Some(Denial::Reject))
    }
}

/// Arrival of a denied packet.
#[derive(Clone, Copy, Debug)]
pub struct DeniedFrame<'a> {
    /// The frame.
    pub frame: &'a [u8],
    /// Direction, as the pod sees it.
    pub direction: Direction,
    /// Addresses of the pod.
    pub pod: &'a [IpAddr],
    /// Hardware address of the pod.
    pub station: [u8; 6],
    /// Whether the source of a packet to the pod is proved.
    pub proved: bool,
}

impl DeniedFrame<'_> {
    /// Whether a denied packet gets an answer if the policies have `reject` and the limits allow an answer.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        let Some((addresses, protocol, message)) = plain(self.frame) else { return false };
        let (own, other) = match self.direction {
            Direction::Egress => (addresses[0], addresses[1]),
            Direction::Ingress => (addresses[1], addresses[0]),
        };
        let for_the_pod = self.frame[..6] == self.station;
        let is_received = self.direction == Direction::Ingress;
        let to_one_station = self.frame[0] & 1 == 0 && self.frame[6] & 1 == 0;
        let arrives = !is_received || (self.proved && for_the_pod);
        let kind = message.first().copied();
        let is_asked = match (protocol, own) {
            (6, _) => is_whole_segment(message) && message[13] & 4 == 0 && !has_more(self.frame),
            (1, IpAddr::V4(_)) => matches!(kind, Some(8 | 13 | 42)),
            (58, IpAddr::V6(_)) => matches!(kind, Some(128 | 160)),
            (1 | 58, _) => false,
            _ => true,
        };
        self.pod.contains(&own) && is_one_host(other) && to_one_station && arrives && is_asked
    }
}

/// Addresses, protocol and payload of a packet without tag, IPv4 options and extension headers, which is not a later
/// fragment.
fn plain(frame: &[u8]) -> Option<([IpAddr; 2], u8, &[u8])> {
    let packet = frame.get(14..)?;
    match frame.get(12..14)? {
        [0x08, 0x00] => {
            let header = packet.get(..20)?;
            let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let is_later = u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0;
            let at = |at: usize| <[u8; 4]>::try_from(&header[at..at + 4]).ok().map(IpAddr::from);
            let payload = packet.get(20..length)?;
            (header[0] == 0x45 && !is_later).then_some(([at(12)?, at(16)?], header[9], payload))
        }
        [0x86, 0xdd] => {
            let header = packet.get(..40)?;
            let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
            let at = |at: usize| <[u8; 16]>::try_from(&header[at..at + 16]).ok().map(IpAddr::from);
            let payload = packet.get(40..40 + length)?;
            let has_extension = matches!(header[6], 0 | 43 | 44 | 51 | 60);
            (!has_extension).then_some(([at(8)?, at(24)?], header[6], payload))
        }
        _ => None,
    }
}

/// Whether a TCP segment has all of its header.
fn is_whole_segment(segment: &[u8]) -> bool {
    segment.len() >= 20 && usize::from(segment[12] >> 4) * 4 <= segment.len()
}

/// Whether further fragments follow.
fn has_more(frame: &[u8]) -> bool {
    frame[12..14] == [0x08, 0x00] && frame[20] & 0x20 != 0
}

/// Whether an address is that of one host behind a link: no group, no broadcast, not unspecified, not the host's own,
/// and not link-local in IPv6.
fn is_one_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !matches!(address.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(address) => {
            let is_special = address.is_unspecified() || address.is_loopback();
            !is_special && !address.is_multicast() && !address.is_unicast_link_local()
        }
    }
}
