//! Frames of the measured pod, and the offsets of their varying fields.

use std::net::{IpAddr, Ipv4Addr};

use netpold_testbed::packet;

/// TCP flag.
pub(crate) const SYN: u8 = 0x02;
/// TCP flag.
pub(crate) const ACK: u8 = 0x10;

const ETHERNET: usize = 14;
const TCP: u8 = 6;

/// An Ethernet frame with a TCP segment without data.
pub(crate) fn tcp(from: (IpAddr, u16), to: (IpAddr, u16), flags: u8) -> Vec<u8> {
    segment([2, 0, 0, 0, 0, 1], from, to, flags, (1, 2))
}

fn segment(
    to_mac: [u8; 6],
    from: (IpAddr, u16),
    to: (IpAddr, u16),
    flags: u8,
    numbers: (u32, u32),
) -> Vec<u8> {
    let segment = packet::tcp_message(from.into(), to.into(), flags, numbers, &[]);
    let packet = packet::packet(from.0, to.0, TCP, &segment);
    packet::frame(to_mac, [2, 0, 0, 0, 0, 2], &packet)
}

/// An Ethernet frame with an echo request without data.
pub(crate) fn echo(from: IpAddr, to: IpAddr) -> Vec<u8> {
    let kind = if from.is_ipv4() { 8 } else { 128 };
    let packet = packet::icmp_packet((from, to), (kind, 0), [0, 1, 0, 1], &[]);
    packet::frame([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], &packet)
}

/// An Ethernet frame with an IPv4 TCP SYN, padded to 60 bytes. The sequence number is 0.
pub(crate) fn syn(to_mac: [u8; 6], from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> Vec<u8> {
    let ends = [from, to].map(|(address, port)| (address.into(), port));
    let mut frame = segment(to_mac, ends[0], ends[1], SYN, (0, 0));
    frame.resize(60, 0);
    frame
}

/// Offsets of the address and port of one end in a frame of [`tcp`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndOffsets {
    /// Byte offset of the address.
    pub(crate) address: i16,
    /// Length of the address.
    pub(crate) length: i16,
    /// Byte offset of the port.
    pub(crate) port: i16,
}

impl EndOffsets {
    /// Offsets for the sender or the receiver of a frame.
    pub(crate) fn of(v6: bool, sender: bool) -> Self {
        let (before, length, header) = if v6 { (8, 16, 40) } else { (12, 4, 20) };
        let second = i16::from(!sender);
        let start = ETHERNET as i16;
        Self {
            address: start + before + second * length,
            length,
            port: start + header + second * 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_where_the_frame_has_them() {
        for (v6, from, to) in [(false, "10.1.2.3", "10.4.5.6"), (true, "fd00::1:2", "fd00::3:4")] {
            let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let frame = tcp((from, 0x1234), (to, 80), SYN);
            for (sender, address, port) in [(true, from, 0x1234_u16), (false, to, 80)] {
                let end = EndOffsets::of(v6, sender);
                let bytes = match address {
                    IpAddr::V4(v4) => v4.octets().to_vec(),
                    IpAddr::V6(v6) => v6.octets().to_vec(),
                };
                let at = end.address as usize;
                assert_eq!(frame[at..at + end.length as usize], bytes);
                let at = end.port as usize;
                assert_eq!(frame[at..at + 2], port.to_be_bytes());
            }
        }
    }
}
