//! Flows of the kernel's conntrack, and its entries as they are read.

use std::net::{IpAddr, SocketAddr};

use netpold_core::probe::IpProtocol;
use netpold_ebpf::layout::{CT_FIN_INGRESS, CT_REPLIED, CT_STREAM, CT_SYN, CT_SYN_ACK};
use netpold_ebpf::packet::icmp;
use netpold_ebpf::packet::protocol::{SCTP, TCP, UDP};

/// One direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConntrackTuple {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: u8,
    /// Source port; ICMP echo: the identifier.
    pub(super) source_port: u16,
    /// Destination port; ICMP echo: [`icmp::exchange_type`].
    pub(super) destination_port: u16,
}

/// A partially read tuple.
#[derive(Default)]
pub(super) struct PartialTuple {
    pub(super) source: Option<IpAddr>,
    pub(super) destination: Option<IpAddr>,
    pub(super) source_port: u16,
    pub(super) destination_port: u16,
    /// ICMP message type.
    pub(super) message: Option<u8>,
}

impl PartialTuple {
    /// Completes the tuple; `None` if an address is missing.
    pub(super) fn whole(self, protocol: u8) -> Option<ConntrackTuple> {
        let Self { source_port, destination_port, message, .. } = self;
        let (source, destination) = (self.source?, self.destination?);
        let destination_port =
            message.map_or(destination_port, |it| icmp::exchange_type(protocol, it));
        Some(ConntrackTuple { source, destination, protocol, source_port, destination_port })
    }
}

/// A flow of the kernel's conntrack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFlow {
    /// Tuple of the initiator's packets.
    pub(super) original: ConntrackTuple,
    /// Tuple of the responder's packets.
    pub(super) reply: ConntrackTuple,
    /// State of the flow as `CT_*` flags.
    pub(super) flags: u16,
    /// Seconds until the kernel's entry expires without further packets; `None` if the flow is offloaded.
    pub remaining: Option<u32>,
    /// Whether the kernel saw the first packet, which makes the initiator reliable; `None` if unknown.
    pub seen_from_start: Option<bool>,
}

impl KernelFlow {
    /// Protocol of a TCP, UDP or SCTP flow with a translated destination, and its source and destination before and
    /// after the translation.
    #[must_use]
    pub fn sent_on(&self) -> Option<(u8, [[SocketAddr; 2]; 2])> {
        let Self { original, reply, .. } = self;
        let source = |it: &ConntrackTuple| SocketAddr::new(it.source, it.source_port);
        let destination =
            |it: &ConntrackTuple| SocketAddr::new(it.destination, it.destination_port);
        let sent = [source(original), destination(original)];
        let on = [destination(reply), source(reply)];
        let has_ports = IpProtocol(original.protocol).has_ports();
        (has_ports && sent[1] != on[1]).then_some((original.protocol, [sent, on]))
    }
}

/// An entry of the kernel's conntrack, of a live or ended flow.
#[derive(Debug)]
pub(super) struct ConntrackEntry {
    pub(super) original: ConntrackTuple,
    pub(super) reply: ConntrackTuple,
    pub(super) remaining: Option<u32>,
    /// `enum tcp_conntrack`; 0 for other protocols.
    pub(super) tcp_state: u8,
    /// TCP: whether the kernel picked the flow up in the middle (`IP_CT_TCP_FLAG_BE_LIBERAL`); `None` if unknown.
    pub(super) picked_up: Option<bool>,
    /// Status bit `IPS_SEEN_REPLY`.
    pub(super) replied: bool,
    /// Status bit `IPS_ASSURED`.
    pub(super) assured: bool,
}

/// Values of `enum tcp_conntrack`.
const TCP_SYN_SENT: u8 = 1;
const TCP_SYN_RECV: u8 = 2;
const TCP_FIN_WAIT: u8 = 4;
const TCP_LAST_ACK: u8 = 6;
const TCP_TIME_WAIT: u8 = 7;

impl ConntrackEntry {
    /// Returns the value of [`KernelFlow::seen_from_start`]. A TCP flow in its handshake began with a SYN. An SCTP
    /// HEARTBEAT of either side re-creates the entry, which does not show it. Other protocols have no first packet: the
    /// sender after a silence is the initiator, in netpold's table as in the kernel's.
    fn seen_from_start(&self) -> Option<bool> {
        match (self.original.protocol, self.tcp_state) {
            (TCP, TCP_SYN_SENT | TCP_SYN_RECV) => Some(true),
            (TCP, _) => self.picked_up.map(|picked_up| !picked_up),
            (protocol, _) => Some(protocol != SCTP),
        }
    }

    /// Converts to a flow; `None` if the flow has ended.
    pub(super) fn flow(self) -> Option<KernelFlow> {
        let seen_from_start = self.seen_from_start();
        let replied = if self.replied { CT_REPLIED } else { 0 };
        let flags = match (self.original.protocol, self.tcp_state) {
            (TCP, TCP_SYN_SENT) => CT_SYN,
            (TCP, TCP_SYN_RECV) => CT_SYN | CT_SYN_ACK,
            // The timeout does not depend on the sender of the FIN.
            (TCP, TCP_FIN_WAIT..=TCP_LAST_ACK) => replied | CT_FIN_INGRESS,
            (TCP, TCP_TIME_WAIT..) => return None,
            // The kernel sets IPS_ASSURED of UDP once the flow is a stream.
            (UDP, _) if self.assured => replied | CT_STREAM,
            _ => replied,
        };
        let Self { original, reply, remaining, .. } = self;
        Some(KernelFlow { original, reply, flags, remaining, seen_from_start })
    }
}
