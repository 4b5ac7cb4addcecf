//! TCP frames between the measured pod and others, and where their varying parts are.

use std::net::{IpAddr, Ipv4Addr};

/// TCP flag.
pub(crate) const SYN: u8 = 0x02;
/// TCP flag.
pub(crate) const ACK: u8 = 0x10;

const ETHERNET: usize = 14;

/// A TCP segment without data, in Ethernet. Checksums are zero: no program here reads them.
pub(crate) fn tcp(from: (IpAddr, u16), to: (IpAddr, u16), flags: u8) -> Vec<u8> {
    let mut segment = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    segment.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    match (from.0, to.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            frame.extend([0x08, 0x00, 0x45, 0, 0, 20 + segment.len() as u8]);
            frame.extend([0x12, 0x34, 0x40, 0, 64, 6, 0, 0]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        (from, to) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, segment.len() as u8, 6, 64]);
            frame.extend(octets16(from));
            frame.extend(octets16(to));
        }
    }
    frame.extend(segment);
    frame
}

/// A TCP segment that opens a connection over IPv4, in Ethernet, padded to 60 bytes, its checksums
/// right. Port and sequence number of the sender are 0.
pub(crate) fn syn(to_mac: [u8; 6], from: Ipv4Addr, to: (Ipv4Addr, u16)) -> Vec<u8> {
    let mut frame = tcp((from.into(), 0), (to.0.into(), to.1), SYN);
    frame[..6].copy_from_slice(&to_mac);
    let segment = ETHERNET + 20;
    frame[segment + 6..segment + 8].fill(0);
    let header = checksum(&frame[ETHERNET..segment]);
    frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&header.to_be_bytes());
    // The pseudo header: addresses, protocol and length.
    let covered = [&frame[ETHERNET + 12..], &[0, 6, 0, 20]].concat();
    let sum = checksum(&covered);
    frame[segment + 16..segment + 18].copy_from_slice(&sum.to_be_bytes());
    frame.resize(60, 0);
    frame
}

/// RFC 1071, of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let (words, _) = bytes.as_chunks::<2>();
    let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let folded = (sum >> 16) + (sum & 0xffff);
    !((folded + (folded >> 16)) as u16)
}

fn octets16(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Where one end's address and port are in a frame of [`tcp`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// Byte offset of the address.
    pub(crate) address: i16,
    /// Length of the address.
    pub(crate) length: i16,
    /// Byte offset of the port.
    pub(crate) port: i16,
}

impl End {
    /// The sender of a frame, or its receiver.
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
    fn what_opens_a_connection_has_right_checksums() {
        let frame = syn([1; 6], Ipv4Addr::new(10, 64, 0, 2), (Ipv4Addr::new(10, 200, 0, 1), 80));
        assert_eq!(frame.len(), 60);
        assert_eq!(checksum(&frame[14..34]), 0);
        assert_eq!(checksum(&[&frame[26..54], &[0, 6, 0, 20]].concat()), 0);
    }

    #[test]
    fn ends_are_where_the_frame_has_them() {
        for (v6, from, to) in [(false, "10.1.2.3", "10.4.5.6"), (true, "fd00::1:2", "fd00::3:4")] {
            let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let frame = tcp((from, 0x1234), (to, 80), SYN);
            for (sender, address, port) in [(true, from, 0x1234_u16), (false, to, 80)] {
                let end = End::of(v6, sender);
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
