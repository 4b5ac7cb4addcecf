//! Answers to denied packets: a TCP reset (RFC 9293 section 3.10.7.1), or an ICMP error that quotes the packet (RFC 792,
//! RFC 4443 section 3.1). The answer goes from the destination of the packet to its source.

use crate::packet::{
    bytes::{Bytes, Window as _},
    family::{Family, V4, V6},
    icmp::{Echo, echo, is_icmp},
    parse::{self, Network, Transport},
    protocol::{
        ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMP, ICMPV6, TCP, TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN,
        has_ports,
    },
};

/// Length of the Ethernet header; packets with a tag get no answer.
pub const LINK_HEADER: usize = 14;
/// Offset of the frame in a [`RejectionFrame`]: its IP header is aligned to four bytes.
pub const FRAME_OFFSET: usize = 2;
/// Maximum number of quoted bytes, a multiple of four. So IPv4 answers are shorter than the 576 bytes that every host
/// accepts (RFC 1812 section 4.3.2.3).
pub const QUOTED: u32 = 508;
/// Length of an ICMP header, and of a TCP header without options.
const ICMP_HEADER: usize = 8;
const TCP_HEADER: usize = 20;
/// Hop limit of an answer.
const HOPS: u8 = 64;
/// Type and code of an ICMP error: communication administratively prohibited.
const PROHIBITED4: [u8; 2] = [3, 13];
/// The same of ICMPv6.
const PROHIBITED6: [u8; 2] = [1, 1];

/// Room for the frame of an answer.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug)]
pub struct RejectionFrame(pub [u8; 576]);

const _: () = assert!(
    FRAME_OFFSET + LINK_HEADER + V6::HEADER + ICMP_HEADER + QUOTED as usize
        <= size_of::<RejectionFrame>()
);

/// Sums of bytes in the one's complement, as Internet checksums have them (RFC 1071).
pub trait Sums {
    /// Adds `length` bytes of a frame, from an offset on, to a sum. All three are multiples of four; the length is at
    /// most [`QUOTED`].
    fn add(&self, frame: &RejectionFrame, at: usize, length: u32, sum: u32) -> u32;
}

/// The denied packet, as far as the answer depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Denied<A> {
    /// The IP header's fields.
    pub network: Network<A>,
    /// Destination and source hardware address.
    pub stations: [[u8; 6]; 2],
    /// The answer to it.
    pub rejection: Rejection,
}

/// Answer to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// A TCP reset: the ports of the denied packet, sequence and acknowledgement number, and flags of the reset.
    Reset {
        /// Source and destination port of the denied packet.
        ports: [u16; 2],
        /// Sequence number.
        sequence: u32,
        /// Acknowledgement number.
        acknowledgement: u32,
        /// Header flags.
        flags: u8,
    },
    /// An ICMP error with a number of quoted bytes.
    Prohibited(u32),
    /// None: the packet is a TCP reset.
    Nothing,
}

/// Source and destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends<A> {
    /// The addresses.
    pub addresses: [A; 2],
    /// The ports; 0 of a protocol without ports.
    pub ports: [u16; 2],
}

impl<A: Copy> Denied<A> {
    /// Source and destination of the packet; `None`: it ends before its ports.
    #[inline(always)]
    pub fn ends<B: Bytes>(&self, bytes: &B) -> Option<Ends<A>> {
        let Network { source, destination, payload, protocol, .. } = self.network;
        let ports = if has_ports(protocol) {
            let header = bytes.window::<4>(payload)?;
            [header.be16(0), header.be16(2)]
        } else {
            [0; 2]
        };
        Some(Ends { addresses: [source, destination], ports })
    }

    /// The packet with other ends, and in a frame between other stations.
    #[must_use]
    #[inline(always)]
    pub fn with_ends(mut self, ends: &Ends<A>, stations: [[u8; 6]; 2]) -> Self {
        [self.network.source, self.network.destination] = ends.addresses;
        self.stations = stations;
        if let Rejection::Reset { ports, .. } = &mut self.rejection {
            *ports = ends.ports;
        }
        self
    }
}

/// Reads a denied packet. `None`: it gets no answer. These are frames to a group of stations, packets with a tag, IPv4
/// options or extension headers, fragments other than the first, TCP fragments, and all ICMP messages except requests
/// (RFC 1122 section 3.2.2).
#[inline(always)]
pub fn read_denied<F: RejectionFamily, B: Bytes>(bytes: &B) -> Option<Denied<F::Address>> {
    let link = bytes.window::<14>(0)?;
    let stations = [0, 6].map(|at| station(&link, at));
    if link.be16(12) != F::ETHERTYPE || stations.iter().any(|station| station[0] & 1 != 0) {
        return None;
    }
    let network = F::network(bytes, LINK_HEADER as u32, false).ok()?;
    let has_options = network.payload != network.start + F::HEADER as u32;
    let has_extension = F::IS_V6 && parse::is_extension(network.protocol);
    if has_options || has_extension || network.fragment.is_later() {
        return None;
    }
    let transport = parse::transport(bytes, &network, false).ok()?;
    let rejection = if transport.protocol == TCP {
        answering_reset(bytes, &network, &transport)?
    } else {
        let request = matches!(echo(&transport), Echo::Request) && F::ICMP == transport.protocol;
        if is_icmp(transport.protocol) && !request {
            return None;
        }
        // Whole words, so that the sum needs no padding.
        let quoted = (network.end - network.start).min(QUOTED) & !3;
        Rejection::Prohibited(quoted)
    };
    Some(Denied { network, stations, rejection })
}

#[inline(always)]
fn station<W: super::bytes::Window>(link: &W, at: usize) -> [u8; 6] {
    let [high, middle, low] = [0, 2, 4].map(|byte| link.be16(at + byte).to_be_bytes());
    [high[0], high[1], middle[0], middle[1], low[0], low[1]]
}

/// The reset of a TCP packet: acceptable to its sender in every state.
#[inline(always)]
fn answering_reset<B: Bytes, A>(
    bytes: &B,
    network: &Network<A>,
    transport: &Transport,
) -> Option<Rejection> {
    let flags = transport.flags;
    if network.fragment.more {
        return None;
    }
    if flags & TCP_RST != 0 {
        return Some(Rejection::Nothing);
    }
    let header = bytes.window::<20>(network.payload)?;
    let ports = [transport.source, transport.destination];
    let headers = u32::from(header.byte(12) >> 4) * 4;
    let data = (network.end - network.payload).checked_sub(headers)?;
    if flags & TCP_ACK != 0 {
        let sequence = header.be32(8);
        return Some(Rejection::Reset { ports, sequence, acknowledgement: 0, flags: TCP_RST });
    }
    let controls = u32::from(flags & TCP_SYN != 0) + u32::from(flags & TCP_FIN != 0);
    let acknowledgement = header.be32(4).wrapping_add(data).wrapping_add(controls);
    Some(Rejection::Reset { ports, sequence: 0, acknowledgement, flags: TCP_RST | TCP_ACK })
}

/// The reset forwarded to the receiver in place of a denied TCP segment of a connection: with the segment's sequence
/// and acknowledgement number, and nothing else of it. `None`: not TCP, or a segment that opens a connection.
#[inline(always)]
pub fn as_reset<B: Bytes, A: Copy>(bytes: &B, denied: &Denied<A>) -> Option<Denied<A>> {
    let Network { source, destination, payload, protocol, .. } = denied.network;
    if protocol != TCP {
        return None;
    }
    let header = bytes.window::<20>(payload)?;
    let flags = header.byte(13);
    if flags & TCP_SYN != 0 || flags & (TCP_ACK | TCP_RST) == 0 {
        return None;
    }
    let acknowledgement = if flags & TCP_ACK != 0 { header.be32(8) } else { 0 };
    let rejection = Rejection::Reset {
        ports: [header.be16(2), header.be16(0)],
        sequence: header.be32(4),
        acknowledgement,
        flags: TCP_RST | flags & TCP_ACK,
    };
    let network = Network { source: destination, destination: source, ..denied.network };
    let [to, from] = denied.stations;
    Some(Denied { network, stations: [from, to], rejection })
}

/// An IP version, for writing headers.
pub trait RejectionFamily: Family {
    /// Length of the IP header.
    const HEADER: usize;
    /// Ethernet type.
    const ETHERTYPE: u16;
    /// Protocol number of the version's ICMP.
    const ICMP: u8;
    /// Type and code of the error.
    const PROHIBITED: [u8; 2];

    /// Whether an address is one host's, and answers may go there: no group, no broadcast, not unspecified, not the
    /// host's own (RFC 1122 section 3.2.2).
    fn is_host(address: Self::Address) -> bool;

    /// Writes an IP header without its checksum, from the denied packet's destination to its source. `length`: of the
    /// payload. Returns the sum of the pseudo header for `protocol`.
    fn write_header(
        frame: &mut RejectionFrame,
        denied: &Network<Self::Address>,
        protocol: u8,
        length: u32,
        sums: &impl Sums,
    ) -> u32;

    /// Writes addresses into the header of a quoted packet.
    fn readdress(frame: &mut RejectionFrame, addresses: [Self::Address; 2], sums: &impl Sums);
}

/// Offset of the IP header in a frame.
const IP: usize = FRAME_OFFSET + LINK_HEADER;

impl RejectionFamily for V4 {
    const HEADER: usize = 20;
    const ETHERTYPE: u16 = ETHERTYPE_IPV4;
    const ICMP: u8 = ICMP;
    const PROHIBITED: [u8; 2] = PROHIBITED4;

    #[inline(always)]
    fn is_host(address: u32) -> bool {
        !matches!(address >> 24, 0 | 127) && !Self::is_shared(address)
    }

    #[inline(always)]
    fn write_header(
        frame: &mut RejectionFrame,
        denied: &Network<u32>,
        protocol: u8,
        length: u32,
        sums: &impl Sums,
    ) -> u32 {
        let total = (length + 20) as u16;
        write_bytes(frame, IP, [0x45, 0]);
        write_bytes(frame, IP + 2, total.to_be_bytes());
        // No identification, and not to be fragmented.
        write_bytes(frame, IP + 4, [0, 0, 0x40, 0]);
        write_bytes(frame, IP + 8, [HOPS, protocol, 0, 0]);
        write_bytes(frame, IP + 12, denied.destination.to_be_bytes());
        write_bytes(frame, IP + 16, denied.source.to_be_bytes());
        let sum = sums.add(frame, IP, 20, 0);
        write_bytes(frame, IP + 10, checksum(sum));
        // ICMP has no pseudo header.
        if protocol == ICMP {
            return 0;
        }
        let pseudo = sum_of_two(u16::from(protocol), length as u16);
        sums.add(frame, IP + 12, 8, pseudo)
    }

    #[inline(always)]
    fn readdress(frame: &mut RejectionFrame, [source, destination]: [u32; 2], sums: &impl Sums) {
        let quote = quote_at::<Self>();
        write_bytes(frame, quote + 10, [0; 2]);
        write_bytes(frame, quote + 12, source.to_be_bytes());
        write_bytes(frame, quote + 16, destination.to_be_bytes());
        let sum = sums.add(frame, quote, 20, 0);
        write_bytes(frame, quote + 10, checksum(sum));
    }
}

impl RejectionFamily for V6 {
    const HEADER: usize = 40;
    const ETHERTYPE: u16 = ETHERTYPE_IPV6;
    const ICMP: u8 = ICMPV6;
    const PROHIBITED: [u8; 2] = PROHIBITED6;

    #[inline(always)]
    fn is_host(address: [u64; 2]) -> bool {
        let loopback_or_none = address[0] == 0 && u64::from_be(address[1]) <= 1;
        !loopback_or_none && !Self::is_shared(address)
    }

    #[inline(always)]
    fn write_header(
        frame: &mut RejectionFrame,
        denied: &Network<[u64; 2]>,
        protocol: u8,
        length: u32,
        sums: &impl Sums,
    ) -> u32 {
        write_bytes(frame, IP, [0x60, 0, 0, 0]);
        write_bytes(frame, IP + 4, (length as u16).to_be_bytes());
        write_bytes(frame, IP + 6, [protocol, HOPS]);
        write_bytes(frame, IP + 8, denied.destination[0].to_ne_bytes());
        write_bytes(frame, IP + 16, denied.destination[1].to_ne_bytes());
        write_bytes(frame, IP + 24, denied.source[0].to_ne_bytes());
        write_bytes(frame, IP + 32, denied.source[1].to_ne_bytes());
        sums.add(frame, IP + 8, 32, sum_of_two(u16::from(protocol), length as u16))
    }

    #[inline(always)]
    fn readdress(
        frame: &mut RejectionFrame,
        [source, destination]: [[u64; 2]; 2],
        _sums: &impl Sums,
    ) {
        let quote = quote_at::<Self>();
        write_bytes(frame, quote + 8, source[0].to_ne_bytes());
        write_bytes(frame, quote + 16, source[1].to_ne_bytes());
        write_bytes(frame, quote + 24, destination[0].to_ne_bytes());
        write_bytes(frame, quote + 32, destination[1].to_ne_bytes());
    }
}

/// Writes the answer to a packet; returns the length of its frame, which begins at [`FRAME_OFFSET`]. 0: none. `quote` copies
/// that number of bytes from the start of the IP packet to [`quote_at`], and returns their number, 0 on failure.
#[inline(always)]
pub fn compose<F: RejectionFamily>(
    frame: &mut RejectionFrame,
    denied: &Denied<F::Address>,
    quote: impl FnOnce(&mut RejectionFrame, u32) -> u32,
    sums: &impl Sums,
) -> u32 {
    write_link::<F>(frame, denied.stations);
    match denied.rejection {
        Rejection::Reset { ports, sequence, acknowledgement, flags } => {
            let numbers = [sequence, acknowledgement];
            write_reset::<F>(frame, &denied.network, ports, numbers, flags, sums)
        }
        Rejection::Nothing => 0,
        Rejection::Prohibited(quoted) => match quote(frame, quoted) {
            0 => 0,
            quoted => write_error::<F>(frame, &denied.network, quoted, sums),
        },
    }
}

/// Writes the link header: back to the station that sent the denied packet.
#[inline(always)]
fn write_link<F: RejectionFamily>(frame: &mut RejectionFrame, [to, from]: [[u8; 6]; 2]) {
    write_bytes(frame, FRAME_OFFSET, from);
    write_bytes(frame, FRAME_OFFSET + 6, to);
    write_bytes(frame, FRAME_OFFSET + 12, F::ETHERTYPE.to_be_bytes());
}

/// Writes a reset, the link header excepted. Returns the length of the frame.
#[inline(always)]
fn write_reset<F: RejectionFamily>(
    frame: &mut RejectionFrame,
    denied: &Network<F::Address>,
    [source, destination]: [u16; 2],
    [sequence, acknowledgement]: [u32; 2],
    flags: u8,
    sums: &impl Sums,
) -> u32 {
    let tcp = IP + F::HEADER;
    let pseudo = F::write_header(frame, denied, TCP, TCP_HEADER as u32, sums);
    write_bytes(frame, tcp, destination.to_be_bytes());
    write_bytes(frame, tcp + 2, source.to_be_bytes());
    write_bytes(frame, tcp + 4, sequence.to_be_bytes());
    write_bytes(frame, tcp + 8, acknowledgement.to_be_bytes());
    // Five words of header; window, checksum and urgent pointer are zero.
    write_bytes(frame, tcp + 12, [5 << 4, flags, 0, 0]);
    write_bytes(frame, tcp + 16, [0; 4]);
    let sum = sums.add(frame, tcp, TCP_HEADER as u32, pseudo);
    write_bytes(frame, tcp + 16, checksum(sum));
    (LINK_HEADER + F::HEADER + TCP_HEADER) as u32
}

/// Offset of the quoted packet in a frame.
#[must_use]
pub const fn quote_at<F: RejectionFamily>() -> usize {
    IP + F::HEADER + ICMP_HEADER
}

/// Writes the ends of a packet before its translation into a quotation of it, which is longer than its ports. The checksum
/// of the transport stays that of the translated packet; no host verifies that of a quotation, which is not whole.
#[inline(always)]
pub fn restore_ends<F: RejectionFamily>(
    frame: &mut RejectionFrame,
    ends: &Ends<F::Address>,
    protocol: u8,
    sums: &impl Sums,
) {
    F::readdress(frame, ends.addresses, sums);
    if has_ports(protocol) {
        let transport = quote_at::<F>() + F::HEADER;
        write_bytes(frame, transport, ends.ports[0].to_be_bytes());
        write_bytes(frame, transport + 2, ends.ports[1].to_be_bytes());
    }
}

/// Writes an ICMP error in front of the quoted packet, which is in the frame already; the link header excepted.
/// Returns the length of the frame.
#[inline(always)]
fn write_error<F: RejectionFamily>(
    frame: &mut RejectionFrame,
    denied: &Network<F::Address>,
    quoted: u32,
    sums: &impl Sums,
) -> u32 {
    let icmp = IP + F::HEADER;
    let length = ICMP_HEADER as u32 + quoted;
    let pseudo = F::write_header(frame, denied, F::ICMP, length, sums);
    let [kind, code] = F::PROHIBITED;
    write_bytes(frame, icmp, [kind, code, 0, 0]);
    write_bytes(frame, icmp + 4, [0; 4]);
    let sum = sums.add(frame, icmp, ICMP_HEADER as u32, pseudo);
    let sum = sums.add(frame, quote_at::<F>(), quoted, sum);
    write_bytes(frame, icmp + 2, checksum(sum));
    (LINK_HEADER + F::HEADER) as u32 + length
}

/// Writes bytes at a constant offset.
#[inline(always)]
fn write_bytes<const N: usize>(frame: &mut RejectionFrame, at: usize, bytes: [u8; N]) {
    let mut byte = 0;
    while byte < N {
        frame.0[at + byte] = bytes[byte];
        byte += 1;
    }
}

/// Sum of two 16-bit fields in network byte order, as memory holds them.
#[inline(always)]
const fn sum_of_two(first: u16, second: u16) -> u32 {
    first.to_be() as u32 + second.to_be() as u32
}

/// The checksum of a sum, as its field holds it.
#[inline(always)]
const fn checksum(sum: u32) -> [u8; 2] {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    (!(sum as u16)).to_ne_bytes()
}
