//! Answers to denied packets, by the code compiled for the host.

use netpold_core::model::Direction;
use netpold_ebpf::direction::{self, Egress, Ingress};
use netpold_ebpf::host::HostSums;
use netpold_ebpf::judge::cut;
use netpold_ebpf::judge::hook::PacketHook;
use netpold_ebpf::judge::reject::{self, LocalFamily, SourceProof};
use netpold_ebpf::packet::family::{V4, V6};
use netpold_ebpf::packet::rejection::{
    self, Denied, FRAME_OFFSET, LINK_HEADER, RejectionFamily, RejectionFrame, quote_at,
};
use netpold_ebpf::reason::Reason;
use netpold_ebpf::tables::{TableFamily, find_endpoint};

use crate::node::NodeTables;

/// Arrival of a packet at a pod's interface.
#[derive(Clone, Copy, Debug)]
pub struct PacketArrival {
    /// Direction, as the pod sees it.
    pub direction: Direction,
    /// The interfaces.
    pub hook: PacketHook,
    /// `skb->mark`.
    pub mark: u32,
    /// `skb->tc_index`.
    pub tc_index: u32,
    /// Whether the node routes packets to the source out of the interface that the packet arrived by.
    pub routed: bool,
}

/// Packets in place of a denied one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frame that goes back to the sender.
    pub back: Option<Vec<u8>>,
    /// Frame forwarded to the receiver.
    pub onward: Option<Vec<u8>>,
}

/// The answer to a frame, apart from its limit; `None`: there is none. Judges the frame.
#[must_use]
pub fn answer(tables: &NodeTables, arrival: &PacketArrival, frame: &[u8]) -> Option<Vec<u8>> {
    sent(tables, arrival, frame).back
}

/// The packets in place of a frame, apart from their limit. Judges the frame.
#[must_use]
pub fn sent(tables: &NodeTables, arrival: &PacketArrival, frame: &[u8]) -> Sent {
    sent_within(tables, arrival, frame, true)
}

/// The packets in place of a frame, where the limit of answers allows forwarded resets or does not. Judges the frame.
#[must_use]
pub fn sent_within(
    tables: &NodeTables,
    arrival: &PacketArrival,
    frame: &[u8],
    has_left: bool,
) -> Sent {
    let verdict = tables.judge(arrival.direction, arrival.hook, frame);
    if verdict.reason() != Reason::Policy {
        return Sent::default();
    }
    let is_v6 = frame.get(12..14) == Some(&[0x86, 0xdd]);
    match (arrival.direction, is_v6) {
        (Direction::Ingress, false) => of::<Ingress, V4>(tables, arrival, frame, has_left),
        (Direction::Ingress, true) => of::<Ingress, V6>(tables, arrival, frame, has_left),
        (Direction::Egress, false) => of::<Egress, V4>(tables, arrival, frame, has_left),
        (Direction::Egress, true) => of::<Egress, V6>(tables, arrival, frame, has_left),
    }
}

fn of<D: direction::PodDirection, F: LocalFamily + TableFamily>(
    tables: &NodeTables,
    arrival: &PacketArrival,
    frame: &[u8],
    has_left: bool,
) -> Sent {
    let endpoint = find_endpoint(tables, arrival.hook.ifindex);
    let endpoint = endpoint.filter(|endpoint| reject::is_requested::<D>(endpoint.flags()));
    let Some(endpoint) = endpoint else { return Sent::default() };
    let Some(denied) = reject::read_denied::<D, F, _>(&frame, endpoint) else {
        return Sent::default();
    };
    let PacketArrival { hook, mark, tc_index, routed, .. } = *arrival;
    if !D::EGRESS {
        let source = denied.network.source;
        match reject::source_proof::<F, _>(tables, hook.ingress_ifindex, (mark, tc_index), source) {
            SourceProof::Proven => {}
            SourceProof::Routed if routed => {}
            SourceProof::Routed | SourceProof::Unproven => return Sent::default(),
        }
    }
    let onward = cut::forwarded_reset::<D, F, _, _>(&frame, tables, endpoint, &denied, || has_left);
    let onward = onward.and_then(|reset| composed::<F>(&reset, frame));
    Sent { back: composed::<F>(&denied, frame), onward }
}

/// The frame of a packet in place of another.
fn composed<F: RejectionFamily>(denied: &Denied<F::Address>, frame: &[u8]) -> Option<Vec<u8>> {
    let mut letter = RejectionFrame([0; 576]);
    let quote = |letter: &mut RejectionFrame, quoted: u32| {
        let end = LINK_HEADER + quoted as usize;
        letter.0[quote_at::<F>()..][..quoted as usize].copy_from_slice(&frame[LINK_HEADER..end]);
        quoted
    };
    let length = rejection::compose::<F>(&mut letter, denied, quote, &HostSums) as usize;
    (length > 0).then(|| letter.0[FRAME_OFFSET..FRAME_OFFSET + length].to_vec())
}
