//! The flow that an ICMP error is about.

use crate::{
    direction::Direction,
    packet::{
        bytes::Bytes,
        family::Family,
        parse::{self, Network},
        tuple::FlowTuple,
    },
};

/// Bytes of an ICMP error before the packet it quotes (RFC 792, RFC 4443).
const ERROR_HEADER: u32 = 8;

/// The flow that an ICMP error is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quoted<F: Family> {
    pub(crate) quote: Quote,
    pub(crate) flow: FlowTuple<F>,
}

/// Whether there is a [`Quoted::flow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quote {
    /// The fast path does not read it.
    Unread,
    /// None that could be the pod's.
    Nothing,
    /// There is.
    Flow,
}

impl<F: Family> Quoted<F> {
    #[inline(always)]
    pub(crate) fn none(quote: Quote) -> Self {
        Self { quote, flow: FlowTuple::default() }
    }

    /// The flow that an ICMP error quotes. Any router may send one to the pod, so the quoted packet
    /// must be one that the pod sent. The pod's own errors go to who sent the quoted packet, and
    /// to nobody else: they could carry anything.
    #[inline(always)]
    pub(crate) fn read<D: Direction, B: Bytes>(bytes: &B, error: &Network<F::Address>) -> Self {
        let Ok(mut quoted) = F::network(bytes, error.payload + ERROR_HEADER, true) else {
            return Self::none(Quote::Nothing);
        };
        if F::extensions(bytes, &mut quoted).is_err() || quoted.fragment.is_later() {
            return Self::none(Quote::Nothing);
        }
        let Ok(transport) = parse::transport(bytes, &quoted, true) else {
            return Self::none(Quote::Nothing);
        };
        // What comes to the pod quotes what the pod sent, and the other way round.
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
