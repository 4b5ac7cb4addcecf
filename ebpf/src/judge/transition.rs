//! Transitions of a flow's flags (`CT_*`) by its packets.

use crate::{
    direction::PodDirection,
    flow::table::FlagChanges,
    layout::{CT_BUSY, CT_REPLIED, CT_RST, CT_RST_SENT, CT_SYN_ACK},
    packet::{
        icmp::{self, Echo},
        parse::{Transport, has_handshake, is_opening},
        protocol::{TCP_ACK, TCP_FIN, TCP_PSH, TCP_RST, TCP_SYN, is_to_server},
    },
};

/// Whether a packet may begin an entry in its direction. In the middle of a connection that began before its pod was
/// isolated, the ports decide ([`is_to_server`]), unless the node sent the packet. Clients choose their own port, but
/// not their server's. A wrong guess cuts the connection; or it keeps a denied client's old connection to a server
/// with a port of the client range.
#[inline(always)]
pub(crate) const fn may_begin(transport: &Transport, of_node: bool) -> bool {
    if !has_handshake(transport) {
        return !matches!(icmp::echo(transport), Echo::Reply);
    }
    is_opening(transport)
        || (transport.flags & (TCP_SYN | TCP_RST) == 0
            && (of_node || is_to_server(transport.source, transport.destination)))
}

/// Whether the node sends such a packet only as a reply. If the request had the pod's address as a forged source, the
/// pod has no such flow.
#[inline(always)]
pub(crate) const fn is_always_reply(transport: &Transport) -> bool {
    let flags = transport.flags;
    flags & TCP_RST != 0 || flags & (TCP_SYN | TCP_ACK) == TCP_SYN | TCP_ACK
}

/// Flags that a reply adds to its flow. The second packet of a handshake does not prove the source of the first, and a
/// refusal establishes no flow.
#[inline(always)]
pub(crate) const fn reply_flags(transport: &Transport) -> u16 {
    match transport.flags & (TCP_SYN | TCP_RST) {
        0 => CT_REPLIED,
        TCP_SYN => CT_SYN_ACK,
        _ => 0,
    }
}

/// Flags that a further packet of the initiator adds to its flow.
#[inline(always)]
pub(crate) const fn confirmation_flags(flags: u16, transport: &Transport) -> u16 {
    let ends = transport.flags & (TCP_SYN | TCP_RST) != 0;
    if flags & CT_SYN_ACK != 0 && !ends { CT_REPLIED } else { 0 }
}

/// Returned in place of flags: the entry stays unchanged.
pub(crate) const UNCHANGED: u16 = CT_BUSY;

/// Flags of FIN and RST that any passing packet sets or clears. A FIN or RST can be forged, so later packets clear it:
/// any packet clears an RST, and data from the FIN's sender clears that FIN (PSH indicates data, so that nothing after
/// the header is read).
#[inline(always)]
pub(crate) const fn closing_changes<D: PodDirection>(transport: &Transport) -> FlagChanges {
    if transport.flags & TCP_RST != 0 {
        return FlagChanges::new(if D::EGRESS { CT_RST_SENT } else { CT_RST }, 0);
    }
    let fin = if transport.flags & TCP_FIN != 0 { D::FIN } else { 0 };
    let data = transport.flags & (TCP_SYN | TCP_PSH) == TCP_PSH;
    FlagChanges::new(fin, CT_RST | CT_RST_SENT | if data { D::FIN } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direction::{Egress, Ingress};
    use crate::layout::{CT_FIN_EGRESS, CT_FIN_INGRESS};
    use crate::packet::protocol::{ICMP, TCP, UDP};

    /// TCP packet from a low port to a higher one, as from a server.
    fn tcp(flags: u8) -> Transport {
        Transport { protocol: TCP, flags, source: 80, destination: 4000 }
    }

    #[test]
    fn a_flow_begins_with_its_opening_or_from_a_clients_port_to_a_servers() {
        assert!(may_begin(&tcp(TCP_SYN), false));
        for flags in [TCP_ACK, TCP_SYN | TCP_ACK, TCP_RST] {
            assert!(!may_begin(&tcp(flags), false), "{flags}");
        }
        let request = Transport { source: 40_000, destination: 80, ..tcp(TCP_ACK) };
        assert!(may_begin(&request, false) && may_begin(&tcp(TCP_ACK), true));
        // Replies of a server to a client with a port below the server's.
        for (source, destination) in [(8080, 1000), (40_000, 35_000), (8080, 40_000)] {
            assert!(!may_begin(&Transport { source, destination, ..tcp(TCP_ACK) }, false));
        }
        assert!(may_begin(&Transport { protocol: UDP, ..tcp(0) }, false));
        let echo = |kind: u16| Transport { protocol: ICMP, destination: kind << 8, ..tcp(0) };
        assert!(may_begin(&echo(8), false) && !may_begin(&echo(0), false));
    }

    #[test]
    fn a_handshake_takes_three_packets() {
        assert_eq!(reply_flags(&tcp(TCP_SYN | TCP_ACK)), CT_SYN_ACK);
        assert_eq!(reply_flags(&tcp(TCP_RST | TCP_ACK)), 0);
        assert_eq!(reply_flags(&tcp(TCP_ACK)), CT_REPLIED);
        assert_eq!(confirmation_flags(CT_SYN_ACK, &tcp(TCP_ACK)), CT_REPLIED);
        assert_eq!(confirmation_flags(CT_SYN_ACK, &tcp(TCP_RST)), 0);
        assert_eq!(confirmation_flags(0, &tcp(TCP_ACK)), 0);
        assert!(is_always_reply(&tcp(TCP_SYN | TCP_ACK)) && is_always_reply(&tcp(TCP_RST)));
        assert!(!is_always_reply(&tcp(TCP_SYN)) && !is_always_reply(&tcp(TCP_ACK)));
    }

    #[test]
    fn what_shows_that_a_flow_goes_on_takes_back_its_end() {
        assert_eq!(closing_changes::<Egress>(&tcp(TCP_RST)), FlagChanges::new(CT_RST_SENT, 0));
        assert_eq!(closing_changes::<Ingress>(&tcp(TCP_RST)), FlagChanges::new(CT_RST, 0));
        let resets = CT_RST | CT_RST_SENT;
        assert_eq!(closing_changes::<Ingress>(&tcp(TCP_ACK)), FlagChanges::new(0, resets));
        assert_eq!(
            closing_changes::<Egress>(&tcp(TCP_PSH)),
            FlagChanges::new(0, resets | CT_FIN_EGRESS)
        );
        assert_eq!(
            closing_changes::<Ingress>(&tcp(TCP_FIN)),
            FlagChanges::new(CT_FIN_INGRESS, resets)
        );
    }
}
