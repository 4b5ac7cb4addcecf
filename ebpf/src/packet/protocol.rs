//! Protocol numbers and header flags.

/// IPv4, as Ethernet type.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// IPv6, as Ethernet type.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// ARP, as Ethernet type.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// ICMP for IPv4.
pub const ICMP: u8 = 1;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// ICMP for IPv6.
pub const ICMPV6: u8 = 58;
/// SCTP.
pub const SCTP: u8 = 132;
/// TCP header flag FIN.
pub const TCP_FIN: u8 = 0x01;
/// TCP header flag SYN.
pub const TCP_SYN: u8 = 0x02;
/// TCP header flag RST.
pub const TCP_RST: u8 = 0x04;
/// TCP header flag PSH.
pub const TCP_PSH: u8 = 0x08;
/// TCP header flag ACK.
pub const TCP_ACK: u8 = 0x10;

/// Whether a protocol's header begins with a source and a destination port.
#[must_use]
#[inline(always)]
pub const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | SCTP)
}

/// First port of the range for clients: the start of Linux's `net.ipv4.ip_local_port_range`, which includes the range
/// of RFC 6335 section 6 (49152 and up).
pub const CLIENT_PORTS: u16 = 32_768;

/// Whether the ports of a packet in the middle of a connection show that it goes to the server: from a client port to
/// one below. With both ports on one side of [`CLIENT_PORTS`] they do not show the initiator.
#[must_use]
#[inline(always)]
pub const fn is_to_server(source: u16, destination: u16) -> bool {
    destination < CLIENT_PORTS && source >= CLIENT_PORTS
}
