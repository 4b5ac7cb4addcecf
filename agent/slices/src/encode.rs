//! Encodes pods into the content of a slice.

use std::collections::BTreeMap;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use netpold_api::peer_slice::{PeerClaims, PeerSliceSpec};
use netpold_core::model::Pod;

use crate::varint;

/// Bit of a pod's flags: `spec.hostNetwork`.
pub(crate) const HOST_NETWORK: u64 = 1;
/// Bit of a pod's flags: `metadata.deletionTimestamp` is set.
pub(crate) const TERMINATING: u64 = 1 << 1;
/// Bit of a pod's flags: an index into the nodes follows.
pub(crate) const HAS_NODE: u64 = 1 << 2;
/// Place of the number of IPv4 addresses in a pod's flags.
pub(crate) const ADDRESSES_SHIFT: u32 = 3;

/// Returns the content of a slice with these pods, which [`crate::Vocabulary::reduce`] reduced, sorted by key.
///
/// Of each pod, in this order; numbers without a size are variable-length integers:
///
/// | part | meaning |
/// |---|---|
/// | flags | bits 0 to 2: hostNetwork, terminating, has a node; from bit 3: number of IPv4 addresses |
/// | number | IPv6 addresses |
/// | index | of the namespace; of the labels; of the ports; of the node, if it has one |
/// | signed number | creation, in seconds after the one of the pod before |
/// | number, number, bytes | length of the beginning that the name shares with the name before; length of the rest; the rest |
/// | 4 bytes each, then 16 bytes each | addresses in ascending order |
pub fn encode<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> PeerSliceSpec {
    let (mut namespaces, mut labels) = (DistinctValues::default(), DistinctValues::default());
    let (mut ports, mut nodes) = (DistinctValues::default(), DistinctValues::default());
    let (mut bytes, mut claims) = (Vec::new(), Vec::new());
    let (mut name, mut created) = ("", 0_i64);
    for (number, pod) in (0_u32..).zip(pods) {
        let v6 = pod.addresses.iter().filter(|address| address.is_ipv6()).count();
        let v4 = (pod.addresses.len() - v6) as u64;
        let has_node = pod.host_network || !pod.secondary.is_empty();
        let mut flags = v4 << ADDRESSES_SHIFT;
        let bits = [
            (pod.host_network, HOST_NETWORK),
            (pod.terminating, TERMINATING),
            (has_node, HAS_NODE),
        ];
        bits.iter().filter(|(is_set, _)| *is_set).for_each(|(_, bit)| flags |= bit);
        varint::write(&mut bytes, flags);
        varint::write(&mut bytes, v6 as u64);
        varint::write(&mut bytes, namespaces.index(&pod.key.namespace));
        varint::write(&mut bytes, labels.index(&pod.labels));
        varint::write(&mut bytes, ports.index(&pod.ports));
        if has_node {
            varint::write(&mut bytes, nodes.index(&pod.node.to_string()));
        }
        varint::write_signed(&mut bytes, pod.created.wrapping_sub(created));
        let shared = shared_length(name, &pod.key.name);
        let rest = &pod.key.name.as_bytes()[shared..];
        varint::write(&mut bytes, shared as u64);
        varint::write(&mut bytes, rest.len() as u64);
        bytes.extend_from_slice(rest);
        for address in &pod.addresses {
            match address {
                IpAddr::V4(address) => bytes.extend_from_slice(&address.octets()),
                IpAddr::V6(address) => bytes.extend_from_slice(&address.octets()),
            }
        }
        if !pod.secondary.is_empty() {
            claims.push(PeerClaims { pod: number, interfaces: pod.secondary.clone() });
        }
        (name, created) = (&pod.key.name, pod.created);
    }
    PeerSliceSpec {
        namespaces: namespaces.all,
        labels: labels.all,
        ports: ports.all,
        nodes: nodes.all,
        pods: STANDARD_NO_PAD.encode(bytes),
        claims,
        vocabulary: None,
        heartbeat: None,
    }
}

/// Returns the number of bytes with which both names begin, as far as that is a whole number of characters.
fn shared_length(a: &str, b: &str) -> usize {
    let shared = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    (0..=shared).rev().find(|length| b.is_char_boundary(*length)).unwrap_or(0)
}

/// Distinct values in the order of their first occurrence.
struct DistinctValues<T> {
    all: Vec<T>,
    index: BTreeMap<T, u64>,
}

impl<T> Default for DistinctValues<T> {
    fn default() -> Self {
        Self { all: Vec::new(), index: BTreeMap::new() }
    }
}

impl<T: Clone + Ord> DistinctValues<T> {
    fn index(&mut self, value: &T) -> u64 {
        if let Some(index) = self.index.get(value) {
            return *index;
        }
        let next = self.all.len() as u64;
        self.all.push(value.clone());
        self.index.insert(value.clone(), next);
        next
    }
}
