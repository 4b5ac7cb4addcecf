//! Packets of probes. Policy judges each as the opening of a flow, but only few kinds create a conntrack entry.

use std::net::IpAddr;

use netpold_core::probe::IpProtocol;
use netpold_ebpf::packet::protocol::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMP, ICMPV6, SCTP, TCP, UDP,
};

/// Source port of probes, which no connection uses.
pub const SOURCE_PORT: u16 = 0;
/// Addresses in the link header, locally administered and unused.
const TO: [u8; 6] = [2, 0, 0, 0, 0, 1];
const FROM: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const SCTP_INIT: u8 = 1;
const SCTP_ABORT: u8 = 6;
/// ICMP types for experiments (RFC 4727), which open no exchange and quote no packet.
const EXPERIMENT: u8 = 253;
const EXPERIMENT6: u8 = 200;
const ECHO: u8 = 8;
const ECHO6: u8 = 128;
const HOPS: u8 = 64;

/// Packet of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbePacket {
    /// Source address.
    pub from: IpAddr,
    /// Destination address, of the same family.
    pub to: IpAddr,
    /// IP protocol.
    pub protocol: IpProtocol,
    /// Destination port.
    pub port: u16,
    /// Whether the node sends the packet. Then it must open a flow: packets of the node that only answer record none.
    pub by_node: bool,
}

impl ProbePacket {
    /// Returns whether the packet path may record a flow for the packet. A TCP RST, an SCTP ABORT and an ICMP message
    /// without a request record none; their verdict is that of an opening packet.
    #[must_use]
    pub const fn may_leave_flow(&self) -> bool {
        self.by_node || !matches!(self.protocol.0, TCP | SCTP | ICMP | ICMPV6)
    }

    /// Returns source and destination port in conntrack keys.
    #[must_use]
    pub const fn ports(&self) -> (u16, u16) {
        if self.protocol.has_ports() { (SOURCE_PORT, self.port) } else { (0, 0) }
    }

    /// Returns the IP protocol number on the wire; policy treats both ICMPs as one.
    #[must_use]
    pub const fn number(&self) -> u8 {
        match (self.protocol.0, self.from.is_ipv4()) {
            (ICMP | ICMPV6, true) => ICMP,
            (ICMP | ICMPV6, false) => ICMPV6,
            (other, _) => other,
        }
    }

    fn payload(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32);
        match self.number() {
            TCP => {
                bytes.extend(SOURCE_PORT.to_be_bytes());
                bytes.extend(self.port.to_be_bytes());
                bytes.extend([0; 8]);
                bytes.extend_from_slice(&[5 << 4, if self.by_node { SYN } else { RST }]);
                bytes.extend([0; 6]);
            }
            UDP => {
                bytes.extend(SOURCE_PORT.to_be_bytes());
                bytes.extend(self.port.to_be_bytes());
                bytes.extend(8_u16.to_be_bytes());
                bytes.extend(0_u16.to_be_bytes());
            }
            SCTP => {
                bytes.extend(SOURCE_PORT.to_be_bytes());
                bytes.extend(self.port.to_be_bytes());
                bytes.extend([0; 8]);
                bytes.extend_from_slice(&[
                    if self.by_node { SCTP_INIT } else { SCTP_ABORT },
                    0,
                    0,
                    20,
                ]);
                bytes.extend([0; 16]);
            }
            ICMP => bytes.extend_from_slice(&[if self.by_node { ECHO } else { EXPERIMENT }, 0]),
            ICMPV6 => bytes.extend_from_slice(&[if self.by_node { ECHO6 } else { EXPERIMENT6 }, 0]),
            _ => bytes.extend([0; 8]),
        }
        if matches!(self.number(), ICMP | ICMPV6) {
            bytes.extend([0; 6]);
        }
        bytes
    }

    /// Builds the frame, with an optional link-layer source; `None` if the addresses are of two families.
    #[must_use]
    pub fn frame(&self, station: Option<[u8; 6]>) -> Option<Vec<u8>> {
        let payload = self.payload();
        let length = u16::try_from(payload.len()).ok()?;
        let mut frame = [TO, station.unwrap_or(FROM)].concat();
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame.extend(ETHERTYPE_IPV4.to_be_bytes());
                frame.extend_from_slice(&[0x45, 0]);
                frame.extend((20 + length).to_be_bytes());
                frame.extend(u32::to_be_bytes(0));
                frame.extend_from_slice(&[HOPS, self.number(), 0, 0]);
                frame.extend(from.octets());
                frame.extend(to.octets());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend(ETHERTYPE_IPV6.to_be_bytes());
                frame.extend(u32::to_be_bytes(0x6000_0000));
                frame.extend(length.to_be_bytes());
                frame.extend_from_slice(&[self.number(), HOPS]);
                frame.extend(from.octets());
                frame.extend(to.octets());
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
        }
        frame.extend(payload);
        Some(frame)
    }
}
