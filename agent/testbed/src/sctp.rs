//! The parts of SCTP (RFC 9260) that a probe uses: INIT, INIT ACK and ABORT.

use bytes::{Buf, BufMut};

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const ABORT: u8 = 6;
const COMMON_HEADER: usize = 12;
const INIT_CHUNK: usize = 20;
/// Parameter of INIT ACK, section 3.3.3; carries the peer's name.
const STATE_COOKIE: u16 = 7;

/// The common header of a packet and its first chunk.
pub(crate) struct SctpPacket<'a> {
    pub(crate) source: u16,
    pub(crate) destination: u16,
    pub(crate) tag: u32,
    pub(crate) chunk: Chunk<'a>,
}

pub(crate) enum Chunk<'a> {
    Init { tag: u32 },
    InitAck { cookie: &'a [u8] },
    Abort,
}

/// A packet with an INIT chunk; the peer has to send `tag` back.
pub(crate) fn init(source: u16, destination: u16, tag: u32) -> Vec<u8> {
    let mut packet = header(source, destination, 0);
    push_init(&mut packet, INIT, tag, 0);
    finish(packet)
}

/// The answer to an INIT with tag `to`, from the INIT's destination port.
pub(crate) fn init_ack(source: u16, destination: u16, to: u32, cookie: &[u8]) -> Vec<u8> {
    let mut packet = header(source, destination, to);
    let parameter = 4 + cookie.len();
    push_init(&mut packet, INIT_ACK, to.wrapping_add(1).max(1), parameter);
    packet.put_u16(STATE_COOKIE);
    packet.put_u16(parameter as u16);
    packet.put_slice(cookie);
    packet.resize(packet.len().next_multiple_of(4), 0);
    finish(packet)
}

/// The answer to an INIT for a closed port (section 8.4).
pub(crate) fn abort(source: u16, destination: u16, to: u32) -> Vec<u8> {
    let mut packet = header(source, destination, to);
    packet.extend([ABORT, 0, 0, 4]);
    finish(packet)
}

/// Reads a packet; `None` if it is damaged or of another kind.
pub(crate) fn parse(packet: &[u8]) -> Option<SctpPacket<'_>> {
    let (mut header, chunks) = packet.split_at_checked(COMMON_HEADER)?;
    let (source, destination, tag) = (header.get_u16(), header.get_u16(), header.get_u32());
    let sent = header.get_u32_le();
    let mut unsummed = packet.to_vec();
    unsummed[8..12].fill(0);
    if crc32c(&unsummed) != sent {
        return None;
    }
    let length = usize::from(u16::from_be_bytes(chunks.get(2..4)?.try_into().ok()?));
    let chunk = chunks.get(..length)?;
    let chunk = match *chunk.first()? {
        INIT => Chunk::Init { tag: u32::from_be_bytes(chunk.get(4..8)?.try_into().ok()?) },
        INIT_ACK => Chunk::InitAck { cookie: chunk.get(INIT_CHUNK + 4..)? },
        ABORT => Chunk::Abort,
        _ => return None,
    };
    Some(SctpPacket { source, destination, tag, chunk })
}

fn header(source: u16, destination: u16, tag: u32) -> Vec<u8> {
    let mut packet = Vec::with_capacity(64);
    packet.put_u16(source);
    packet.put_u16(destination);
    packet.put_u32(tag);
    packet.put_u32(0);
    packet
}

fn push_init(packet: &mut Vec<u8>, kind: u8, tag: u32, parameters: usize) {
    packet.put_slice(&[kind, 0]);
    packet.put_u16((INIT_CHUNK + parameters) as u16);
    packet.put_u32(tag);
    packet.put_u32(65_536);
    packet.put_slice(&[0, 1, 0, 1]);
    packet.put_u32(tag);
}

/// Appendix A: the sum is stored with its least significant byte first.
fn finish(mut packet: Vec<u8>) -> Vec<u8> {
    let sum = crc32c(&packet).to_le_bytes();
    packet[8..12].copy_from_slice(&sum);
    packet
}

/// CRC-32C, bit by bit: the packets are tiny.
fn crc32c(data: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
    let sum = data
        .iter()
        .fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)));
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_crc32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn answers_parse_back() {
        let request = init(1000, 2000, 77);
        let Some(SctpPacket {
            source: 1000,
            destination: 2000,
            tag: 0,
            chunk: Chunk::Init { tag },
        }) = parse(&request)
        else {
            panic!("not an INIT");
        };
        let answer = init_ack(2000, 1000, tag, b"shop/web");
        let parsed = parse(&answer).expect("an INIT ACK");
        assert_eq!(parsed.tag, 77);
        assert!(matches!(parsed.chunk, Chunk::InitAck { cookie: b"shop/web" }));
        let refusal = abort(2000, 1000, tag);
        assert!(matches!(parse(&refusal).expect("an ABORT").chunk, Chunk::Abort));
    }

    #[test]
    fn damage_is_noticed() {
        let mut packet = init(1, 2, 3);
        packet[13] ^= 1;
        assert!(parse(&packet).is_none());
        assert!(parse(&[]).is_none());
    }
}
