//! Flow of the packet that an ICMP error quotes.

use crate::{
    direction::PodDirection,
    packet::{
        bytes::Bytes,
        family::Family,
        parse::{self, Network},
        tuple::FlowTuple,
    },
};

/// Bytes of an ICMP error before the packet it quotes (RFC 792, RFC 4443).
const ERROR_HEADER: u32 = 8;

/// Flow of the packet that an ICMP error quotes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quoted<F: Family> {
    pub(crate) quote: Quote,
    pub(crate) flow: FlowTuple<F>,
}

/// State of [`Quoted::flow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quote {
    /// Not read: the fast path skips it.
    Unread,
    /// No quoted packet that could be the pod's.
    Nothing,
    /// The flow was read.
    Flow,
}

impl<F: Family> Quoted<F> {
    #[inline(always)]
    pub(crate) fn none(quote: Quote) -> Self {
        Self { quote, flow: FlowTuple::default() }
    }

    /// Reads the flow that an ICMP error quotes. Any router may send an error to the pod, so the quoted packet must be
    /// one that the pod sent. The pod's own errors must go to the sender of the quoted packet, since they could carry
    /// any data.
    #[inline(always)]
    pub(crate) fn read<D: PodDirection, B: Bytes>(bytes: &B, error: &Network<F::Address>) -> Self {
        let Ok(mut quoted) = F::network(bytes, error.payload + ERROR_HEADER, true) else {
            return Self::none(Quote::Nothing);
        };
        if F::extensions(bytes, &mut quoted).is_err() || quoted.fragment.is_later() {
            return Self::none(Quote::Nothing);
        }
        let Ok(transport) = parse::transport(bytes, &quoted, true) else {
            return Self::none(Quote::Nothing);
        };
        // An error to the pod quotes a packet of the pod, and the other way round.
        let (own, local, remote) = if D::EGRESS {
            (error.source, quoted.destination, quoted.source)
        } else {
            (error.destination, quoted.source, quoted.destination)
        };
        if !F::same(local, own) || (D::EGRESS && !F::same(remote, error.destination)) {
            return Self::none(Quote::Nothing);
        }
        let flow = FlowTuple::new(remote, &transport, !D::EGRESS);
        Self { quote: Quote::Flow, flow }
    }
}
