//! Echo requests and replies of ICMP (RFC 792) and ICMPv6 (RFC 4443).

const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;

/// An echo request. The kernel fills in the checksum of ICMPv6 on a raw socket.
pub(crate) fn echo(v6: bool, identifier: u16) -> Vec<u8> {
    let mut packet = vec![if v6 { ECHO_REQUEST_V6 } else { ECHO_REQUEST }, 0, 0, 0];
    packet.extend(identifier.to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(*b"netpold.");
    if !v6 {
        let sum = checksum(&packet).to_be_bytes();
        packet[2..4].copy_from_slice(&sum);
    }
    packet
}

/// Whether a packet is the reply to [`echo`] with that identifier.
pub(crate) fn is_reply(v6: bool, identifier: u16, packet: &[u8]) -> bool {
    let kind = if v6 { ECHO_REPLY_V6 } else { ECHO_REPLY };
    packet.len() >= 8 && packet[0] == kind && packet[4..6] == identifier.to_be_bytes()
}

/// The Internet checksum (RFC 1071).
pub(crate) fn checksum(data: &[u8]) -> u16 {
    let mut sum: u32 = data
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::checksum;

    #[test]
    fn checksum_of_the_rfc() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }
}
