//! Decodes the content of a slice into pods. Every size is bounded, and a slice with any fault is refused as a whole.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use netpold_api::peer_slice::PeerSliceSpec;
use netpold_core::model::{Key, Pod, SecondaryInterface};

use crate::encode::{ADDRESSES_SHIFT, HAS_NODE, HOST_NETWORK, TERMINATING};
use crate::packing::MAX_PODS;
use crate::varint;
use crate::vocabulary::is_possible;

/// Maximum number of characters of the pods' binary form. A pod has at most 253 characters of a name, 16 addresses and
/// six numbers.
const MAX_TEXT: usize = MAX_PODS * 800;
/// Maximum number of addresses of a pod; the API server accepts two.
const MAX_ADDRESSES: u64 = 16;
/// Maximum number of bytes of all texts of a slice: an object on the API server has at most 1.5 MB.
const MAX_TEXTS: usize = 1_500_000;

/// Fault of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SliceError {
    /// A part has more entries or bytes than any slice of the controller.
    #[error("{0}: more than any slice has")]
    TooLarge(&'static str),
    /// The pods' binary form is malformed, or ends early.
    #[error("pods: byte {0} of the binary form is wrong, or it ends there")]
    Malformed(usize),
    /// A pod refers to an entry that the slice does not have.
    #[error("pod {0}: an index is out of bounds")]
    OutOfBounds(usize),
    /// A pod, or an entry of a list, is not in ascending order or occurs twice.
    #[error("pod {0}: the pods are not in ascending order")]
    Unsorted(usize),
    /// No pod can have this address.
    #[error("pod {0}: an address that no pod can have")]
    Address(usize),
}

/// Returns the pods of a slice.
///
/// # Errors
/// The slice was not made by [`crate::encode()`] of at most [`MAX_PODS`] pods.
pub fn decode(spec: &PeerSliceSpec) -> Result<Vec<Pod>, SliceError> {
    check_sizes(spec)?;
    let text = &spec.pods;
    let bytes = STANDARD_NO_PAD.decode(text).map_err(|_| SliceError::Malformed(0))?;
    let mut reader = Reader { spec, rest: &bytes, length: bytes.len(), before: None, created: 0 };
    let mut pods: Vec<Pod> = Vec::new();
    while !reader.rest.is_empty() {
        if pods.len() == MAX_PODS {
            return Err(SliceError::TooLarge("pods"));
        }
        let pod = reader.pod(pods.len())?;
        pods.push(pod);
    }
    let mut last = None;
    for claims in &spec.claims {
        let number = claims.pod as usize;
        let pod = pods.get_mut(number).ok_or(SliceError::OutOfBounds(number))?;
        if last.replace(claims.pod).is_some_and(|last| last >= claims.pod) {
            return Err(SliceError::Unsorted(number));
        }
        pod.secondary.clone_from(&claims.interfaces);
        check_claims(pod, number)?;
    }
    Ok(pods)
}

fn check_sizes(spec: &PeerSliceSpec) -> Result<(), SliceError> {
    let lists = [
        ("namespaces", spec.namespaces.len()),
        ("labels", spec.labels.len()),
        ("ports", spec.ports.len()),
        ("nodes", spec.nodes.len()),
        ("claims", spec.claims.len()),
    ];
    if let Some((name, _)) = lists.iter().find(|(_, length)| *length > MAX_PODS) {
        return Err(SliceError::TooLarge(name));
    }
    if spec.pods.len() > MAX_TEXT {
        return Err(SliceError::TooLarge("pods"));
    }
    let labels = spec.labels.iter().flat_map(|labels| labels.iter());
    let labels = labels.map(|(key, value)| key.len() + value.len());
    let ports = spec.ports.iter().flatten().map(|port| port.name.len() + 4);
    let names = spec.namespaces.iter().chain(&spec.nodes).map(String::len);
    let claims = spec.claims.iter().flat_map(|claims| &claims.interfaces);
    let claims = claims.map(|SecondaryInterface { name, network, addresses, device }| {
        name.len() + network.len() + device.len() + 16 * addresses.len()
    });
    let all: usize = labels.chain(ports).chain(names).chain(claims).sum();
    if all > MAX_TEXTS { Err(SliceError::TooLarge("texts")) } else { Ok(()) }
}

fn check_claims(pod: &Pod, number: usize) -> Result<(), SliceError> {
    match pod.secondary_addresses().all(is_possible) {
        true => Ok(()),
        false => Err(SliceError::Address(number)),
    }
}

/// The part of the binary form that is still to be read.
struct Reader<'a> {
    spec: &'a PeerSliceSpec,
    rest: &'a [u8],
    length: usize,
    before: Option<Key>,
    created: i64,
}

impl Reader<'_> {
    fn pod(&mut self, number: usize) -> Result<Pod, SliceError> {
        let flags = self.number()?;
        let (v4, v6) = (flags >> ADDRESSES_SHIFT, self.number()?);
        if v4.saturating_add(v6) > MAX_ADDRESSES {
            return Err(SliceError::TooLarge("addresses"));
        }
        let spec = self.spec;
        let namespace = self.entry(number, &spec.namespaces)?.clone();
        let labels = self.entry(number, &spec.labels)?.clone();
        let ports = self.entry(number, &spec.ports)?.clone();
        let has_node = flags & HAS_NODE != 0;
        let node = if has_node { self.entry(number, &spec.nodes)?.as_str() } else { "" };
        let step = varint::read_signed(&mut self.rest).ok_or_else(|| self.malformed())?;
        self.created = self.created.wrapping_add(step);
        let key = Key::new(namespace, self.name()?);
        if self.before.as_ref().is_some_and(|before| *before >= key) {
            return Err(SliceError::Unsorted(number));
        }
        self.before = Some(key.clone());
        let addresses = self.addresses(number, v4, v6)?;
        Ok(Pod {
            uid: key.to_string(),
            key,
            labels,
            node: node.into(),
            addresses,
            host_network: flags & HOST_NETWORK != 0,
            finished: false,
            terminating: flags & TERMINATING != 0,
            created: self.created,
            ports,
            foreign_sources: false,
            secondary: Vec::new(),
            workload: None,
        })
    }

    /// Reads a name: the length of the prefix that it shares with the previous name, then the rest.
    fn name(&mut self) -> Result<String, SliceError> {
        let (shared, rest) = (self.number()?, self.number()?);
        let before = self.before.as_ref().map_or("", |key| key.name.as_str());
        let shared = usize::try_from(shared).ok().and_then(|length| before.get(..length));
        let shared = shared.ok_or_else(|| self.malformed())?.to_owned();
        let rest = usize::try_from(rest).ok().and_then(|length| self.rest.split_at_checked(length));
        let (rest, after) = rest.ok_or_else(|| self.malformed())?;
        let rest = std::str::from_utf8(rest).map_err(|_| self.malformed())?;
        self.rest = after;
        Ok(shared + rest)
    }

    fn addresses(&mut self, number: usize, v4: u64, v6: u64) -> Result<Vec<IpAddr>, SliceError> {
        let mut addresses = Vec::new();
        for _ in 0..v4 {
            let octets: [u8; 4] = self.octets()?;
            addresses.push(IpAddr::V4(Ipv4Addr::from(octets)));
        }
        for _ in 0..v6 {
            let octets: [u8; 16] = self.octets()?;
            addresses.push(IpAddr::V6(Ipv6Addr::from(octets)));
        }
        let is_sorted = addresses.is_sorted_by(|a, b| a < b);
        let distinct: BTreeSet<&IpAddr> = addresses.iter().collect();
        if !is_sorted || distinct.len() != addresses.len() {
            return Err(SliceError::Unsorted(number));
        }
        match addresses.iter().all(|address| is_possible(*address)) {
            true => Ok(addresses),
            false => Err(SliceError::Address(number)),
        }
    }

    fn octets<const N: usize>(&mut self) -> Result<[u8; N], SliceError> {
        let (octets, rest) = self.rest.split_first_chunk().ok_or_else(|| self.malformed())?;
        self.rest = rest;
        Ok(*octets)
    }

    fn entry<'s, T>(&mut self, number: usize, of: &'s [T]) -> Result<&'s T, SliceError> {
        let index = self.number()?;
        let entry = usize::try_from(index).ok().and_then(|index| of.get(index));
        entry.ok_or(SliceError::OutOfBounds(number))
    }

    fn number(&mut self) -> Result<u64, SliceError> {
        varint::read(&mut self.rest).ok_or_else(|| self.malformed())
    }

    fn malformed(&self) -> SliceError {
        SliceError::Malformed(self.length - self.rest.len())
    }
}
