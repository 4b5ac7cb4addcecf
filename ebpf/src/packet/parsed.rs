//! Parsed packets.

use crate::{
    direction::PodDirection,
    packet::{
        bytes::Bytes,
        family::Family,
        neighbour,
        parse::{self, Fragment, Network, Transport, is_opening},
        quoted::{Quote, Quoted},
    },
    reason::Reason,
};

/// Parsed fields of an IP packet: all input of a verdict. In the kernel one function leaves it in a map for another,
/// so every field is always written.
#[derive(Clone, Copy, Debug)]
pub struct ParsedPacket<F: Family> {
    pub(crate) network: Network<F::Address>,
    pub(crate) transport: Transport,
    /// Reason of a missing transport header.
    pub(crate) parse_error: Option<Reason>,
    pub(crate) quoted: Quoted<F>,
}

impl<F: Family> ParsedPacket<F> {
    /// Whether the packet is a whole datagram with a transport header.
    #[inline(always)]
    pub(crate) fn is_whole(&self) -> bool {
        let Fragment { offset, more, .. } = self.network.fragment;
        offset == 0 && !more && self.parse_error.is_none()
    }

    /// Whether the packet has IPv4 options.
    #[must_use]
    #[inline(always)]
    pub fn has_options(&self) -> bool {
        !F::IS_V6 && self.network.payload.wrapping_sub(self.network.start) != 20
    }

    /// Checks IPv4 options for a source route: a packet that is forwarded from its destination cannot be judged.
    #[inline(always)]
    pub fn look_for_route<B: Bytes>(&mut self, bytes: &B) {
        self.look_for_route_by(|at, end| parse::has_route(bytes, at, end));
    }

    /// [`ParsedPacket::look_for_route`] by a function like [`parse::has_route`].
    #[inline(always)]
    pub fn look_for_route_by(&mut self, has_route: impl FnOnce(u32, u32) -> bool) {
        let options = self.network.start.wrapping_add(20);
        if self.has_options() && has_route(options, self.network.payload) {
            self.parse_error = Some(Reason::Malformed);
        }
    }

    /// Whether [`crate::judge::evaluator::PacketEvaluator::judge_link_message`] may have a verdict on the packet.
    #[must_use]
    #[inline(always)]
    pub fn is_of_link(&self) -> bool {
        F::IS_V6
            && self.parse_error.is_none()
            && neighbour::may_be_one(&self.network, &self.transport)
    }

    /// Whether the packet begins a connection, and so is never a reply.
    #[inline(always)]
    pub(crate) const fn is_opening(&self) -> bool {
        is_opening(&self.transport)
    }
}

/// Parsed packet from the endpoint's view.
#[derive(Clone, Copy)]
pub(crate) struct Packet<'a, F: Family> {
    pub(crate) network: &'a Network<F::Address>,
    pub(crate) transport: Transport,
    pub(crate) quoted: &'a Quoted<F>,
    /// Whether the node itself generated the packet, see [`crate::judge::proof`].
    pub(crate) from_node: bool,
}

impl<F: Family> Packet<'_, F> {
    /// Whether the packet was read with [`Bytes::PLAIN`]: it is no fragment, and of TCP or UDP.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.quoted.quote == Quote::Unread
    }

    /// The pod's address.
    #[inline(always)]
    pub(crate) const fn local<D: PodDirection>(&self) -> F::Address {
        if D::EGRESS { self.network.source } else { self.network.destination }
    }

    /// The remote address.
    #[inline(always)]
    pub(crate) const fn remote<D: PodDirection>(&self) -> F::Address {
        if D::EGRESS { self.network.destination } else { self.network.source }
    }
}
