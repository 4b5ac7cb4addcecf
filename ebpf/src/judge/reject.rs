//! Answers to packets that policy denies, where the endpoint's policies request them ([`EP_REJECT_EGRESS`],
//! [`EP_REJECT_INGRESS`]).
//!
//! An answer has the addresses of the denied packet, reversed. In pod egress the program sends it back to the pod. In
//! pod ingress it enters by the pod's interface as if the pod had sent it: the node routes it, and reverses a Service's
//! translation. The program of the same interface judges it like any packet, and lets it pass by its mark
//! ([`REJECTION`]), which only these programs write together with the proof ([`crate::judge::proof`]) and a secret
//! ([`seal`]).
//!
//! The source of the denied packet is the destination of its answer, so it must be proved:
//! * In pod egress it is one of the pod's own addresses. The answer goes to the pod itself.
//! * In pod ingress from a pod of the node, that pod's program has checked it and its station ([`EP_CHECK_SOURCE`]), as the
//!   proof shows.
//! * In pod ingress from elsewhere, it is not a pod's of the node, and the node's routes to it go by the interface that
//!   the packet arrived by.
//!
//! In pod ingress, "source" means the source before masquerading. The answer returns through the same connection of the
//! node's conntrack.
//!
//! A packet that policy denies after a Service's translation is answered at the exit that denies it, by the interface
//! of the endpoint in its mark. Its source is the address to which the endpoint sent, from the node's conntrack, and
//! its destination the endpoint's own address ([`as_sent`]). So nobody else gets it, regardless of the exit and its
//! routes.
//!
//! An answer is not longer than the denied packet and the headers before the quoted bytes. Their number is limited by
//! endpoint and direction, and by node. The first of each endpoint and direction in a second ([`OWN_TOKENS`]) do not count for
//! the node, so other endpoints cannot take them.

use crate::{
    direction::PodDirection,
    endpoint::EndpointRef,
    flow::memory::Memory,
    judge::proof::is_proven,
    layout::{
        ANY_UNCHECKED, ENDPOINT_SLOTS, EP_CHECK_SOURCE, EP_REJECT_EGRESS, EP_REJECT_INGRESS,
        EP_STATION_SHIFT, REJECTION, STRANGER, Settings,
    },
    packet::{
        bytes::Bytes,
        family::{Family, V4, V6},
        rejection::{self, Denied, Ends, RejectionFamily},
    },
    tables::{Tables, find_endpoint, local_endpoints::LocalEndpoints},
};

/// Whether an endpoint's flags request answers in a direction.
#[must_use]
#[inline(always)]
pub const fn is_requested<D: PodDirection>(flags: u64) -> bool {
    flags & (if D::EGRESS { EP_REJECT_EGRESS } else { EP_REJECT_INGRESS }) != 0
}

/// Whether a packet is an answer of these programs to the interface's endpoint or from it, by fields of
/// `struct __sk_buff`: every program overwrites the second field of any other packet that it gives the proof. A pod with
/// an eBPF program of its own can write both, and `bpf_redirect_peer` keeps them. So the third one is [`seal`].
#[must_use]
#[inline(always)]
pub fn is_rejection<T: Tables>(tables: &T, mark: u32, tc_index: u32, cb: [u32; 2]) -> bool {
    tc_index == REJECTION && is_proven(tables, mark) && cb == seal(tables)
}

/// First words of `__sk_buff.cb` on an answer: a secret, which the program that recognises the answer erases.
#[must_use]
#[inline(always)]
pub fn seal<T: Tables>(tables: &T) -> [u32; 2] {
    let [first, second] = tables.settings().map_or([0; 2], |it| [it.hash_keys[0], it.hash_keys[3]]);
    // No pod can derive the keys from it.
    let product = first.wrapping_mul(second);
    [(product ^ product >> 32) as u32 | 1, (product >> 16) as u32]
}

/// Reads a denied packet of an endpoint; `None`: it gets no answer, regardless of its source.
#[inline(always)]
pub fn read_denied<D: PodDirection, F: RejectionFamily, B: Bytes>(
    bytes: &B,
    endpoint: EndpointRef,
) -> Option<Denied<F::Address>> {
    let denied = rejection::read_denied::<F, B>(bytes)?;
    let (local, remote) = ends::<D, F>(&denied);
    if !F::owns(endpoint, local) || !F::is_host(remote) {
        return None;
    }
    // In a frame to an unknown station, which a bridge has flooded, the answer's source would mislead the bridge.
    let station = endpoint.flags() >> EP_STATION_SHIFT;
    let own = denied.stations[0];
    let is_own = station != 0 && station == octets(own);
    (D::EGRESS || is_own).then_some(denied)
}

/// The pod's address and the other side's.
#[inline(always)]
pub(crate) fn ends<D: PodDirection, F: Family>(
    denied: &Denied<F::Address>,
) -> (F::Address, F::Address) {
    let (source, destination) = (denied.network.source, denied.network.destination);
    if D::EGRESS { (source, destination) } else { (destination, source) }
}

/// A packet that is denied after its translation, as its sender sent it; the answer to it goes to the sender's own
/// station. `None`: it gets no answer. `before`: its ends before the translation.
#[inline(always)]
pub fn as_sent<F: RejectionFamily>(
    sender: EndpointRef,
    denied: Denied<F::Address>,
    before: &Ends<F::Address>,
) -> Option<Denied<F::Address>> {
    let [source, destination] = before.addresses;
    let station = sender.flags() >> EP_STATION_SHIFT;
    if station == 0 || !F::owns(sender, source) || !F::is_host(destination) {
        return None;
    }
    let [_, _, own @ ..] = station.to_be_bytes();
    let [_, by] = denied.stations;
    Some(denied.with_ends(before, [by, own]))
}

/// A hardware address, first octet highest.
#[inline(always)]
const fn octets([first, second, rest @ ..]: [u8; 6]) -> u64 {
    (u16::from_be_bytes([first, second]) as u64) << 32 | u32::from_be_bytes(rest) as u64
}

/// Proof of the source of a denied packet in pod ingress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceProof {
    /// The source is its sender's.
    Proven,
    /// The source may be forged.
    Unproven,
    /// The node's routes decide.
    Routed,
}

/// Proof of a packet's source at a pod's interface, by fields of `struct __sk_buff`. `ingress_ifindex` is not 0. `address`:
/// the source before the node masqueraded the packet.
#[inline(always)]
pub fn source_proof<F: LocalFamily, T: Tables + LocalEndpoints>(
    tables: &T,
    ingress_ifindex: u32,
    (mark, tc_index): (u32, u32),
    address: F::Address,
) -> SourceProof {
    let proven = is_proven(tables, mark) && tc_index != STRANGER;
    // If its hardware address is unknown, the pod may send frames with another's.
    let checked = |sender: EndpointRef| {
        if proven && sender.flags() & EP_CHECK_SOURCE != 0 && sender.station() != 0 {
            SourceProof::Proven
        } else {
            SourceProof::Unproven
        }
    };
    if let Some(sender) = find_endpoint(tables, ingress_ifindex) {
        return checked(sender);
    }
    match F::local(tables, address) {
        // Routed from a bridge, whose ports all have programs: any of its pods may be the sender.
        Some(slot) if checks_all(tables) => {
            tables.endpoint(slot).map_or(SourceProof::Unproven, checked)
        }
        Some(_) => SourceProof::Unproven,
        // A pod of the node sent it, with a source that is not a pod's.
        None if proven => SourceProof::Unproven,
        None => SourceProof::Routed,
    }
}

/// Whether all endpoints have the flag [`EP_CHECK_SOURCE`].
#[inline(always)]
fn checks_all<T: Tables>(tables: &T) -> bool {
    tables.settings().is_some_and(|settings| !settings.holds_for_any(ANY_UNCHECKED))
}

/// An IP version, to find pods by address.
pub trait LocalFamily: RejectionFamily {
    /// Endpoint slot of the pod with an address.
    fn local<T: LocalEndpoints>(tables: &T, address: Self::Address) -> Option<u32>;
}

impl LocalFamily for V4 {
    #[inline(always)]
    fn local<T: LocalEndpoints>(tables: &T, address: u32) -> Option<u32> {
        tables.local4(address)
    }
}

impl LocalFamily for V6 {
    #[inline(always)]
    fn local<T: LocalEndpoints>(tables: &T, address: [u64; 2]) -> Option<u32> {
        tables.local6(address)
    }
}

/// Number of an endpoint's answers in a direction and second that do not count for the node.
pub const OWN_TOKENS: u32 = 5;

/// Number of words for [`take_token`]: by direction and endpoint slot, and last the node's.
pub const TOKEN_WORDS: u32 = NODE_WORD + 1;
/// The node's word.
pub const NODE_WORD: u32 = 2 * ENDPOINT_SLOTS;

/// The word of an endpoint slot.
#[must_use]
#[inline(always)]
pub const fn token_word<D: PodDirection>(slot: u32) -> u32 {
    if D::EGRESS { ENDPOINT_SLOTS + slot } else { slot }
}

/// Whether a word still allows an answer in this second, of `most`. The word holds the start of the second in its upper
/// half, and the number of taken answers in its lower half.
///
/// # Safety
/// As [`Memory::load`].
#[inline(always)]
pub unsafe fn has_token<M: Memory>(
    memory: &M,
    word: *const u64,
    now: u32,
    settings: &Settings,
    most: u32,
) -> bool {
    // SAFETY: as the caller promises.
    next(unsafe { memory.load(word) }, now, settings) as u32 <= most
}

/// Takes one of the answers that a word still allows, see [`has_token`]; returns its number in this second, from 1 on.
///
/// # Safety
/// As [`Memory::swap`].
#[inline(always)]
pub unsafe fn take_token<M: Memory>(
    memory: &M,
    word: *mut u64,
    now: u32,
    settings: &Settings,
    most: u32,
) -> Option<u32> {
    // SAFETY: as the caller promises.
    let before = unsafe { memory.load(word) };
    let after = next(before, now, settings);
    let number = after as u32;
    // If the swap fails, another processor took the answer, and this packet gets none.
    // SAFETY: as the caller promises.
    let taken = number <= most && unsafe { memory.swap(word, before, after) == before };
    taken.then_some(number)
}

/// The word after one more answer.
#[inline(always)]
const fn next(before: u64, now: u32, settings: &Settings) -> u64 {
    let began = (before >> 32) as u32;
    if now.wrapping_sub(began) >= settings.refresh_after {
        (now as u64) << 32 | 1
    } else {
        before.wrapping_add(1)
    }
}
