//! IP versions: the differences in headers and addresses, so that the verdict is written once.

use crate::{
    endpoint::EndpointRef,
    layout::{ENDPOINT_ADDRS, EP_ADDR4_SHIFT, EP_ADDR6_SHIFT},
    order,
    packet::{
        bytes::Bytes,
        icmp,
        parse::{self, Network, Transport},
        protocol::{ICMPV6, UDP},
    },
    reason::Reason,
};

/// IGMP (RFC 3376).
const IGMP: u8 = 2;
/// UDP ports of DHCP (RFC 2131 section 4.1).
const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;

/// An IP version.
pub trait Family: Copy + Default + core::fmt::Debug {
    /// Whether the version is IPv6.
    const IS_V6: bool;
    /// Addend for [`crate::layout::FragmentKey::direction`]: 0 for IPv4, 2 for IPv6.
    const FRAGMENT_OFFSET: u32;
    /// Address of the version.
    type Address: Copy + Default + core::fmt::Debug;

    /// Reads the IP header at an offset; IPv6 extension headers are left to [`Family::extensions`].
    ///
    /// # Errors
    /// As [`parse::ipv4`] and [`parse::ipv6`].
    fn network<B: Bytes>(
        bytes: &B,
        offset: u32,
        quoted: bool,
    ) -> Result<Network<Self::Address>, Reason>;

    /// Follows IPv6 extension headers.
    ///
    /// # Errors
    /// As [`parse::extensions`].
    fn extensions<B: Bytes>(bytes: &B, network: &mut Network<Self::Address>) -> Result<(), Reason>;

    /// Whether an address is one of the endpoint's own.
    fn owns(endpoint: EndpointRef, address: Self::Address) -> bool;

    /// The same address, with lookups by it ordered after the read that returned `read`, see [`order`].
    fn after_load(address: Self::Address, read: u32) -> Self::Address;

    /// Whether two addresses are equal.
    fn same(a: Self::Address, b: Self::Address) -> bool;

    /// Whether the packet is a neighbour solicitation or advertisement that no router has forwarded.
    fn is_solicitation(network: &Network<Self::Address>, transport: &Transport) -> bool;

    /// Whether an address is link-local: a pod may use such an address besides its own, in any packet.
    fn is_link_local(address: Self::Address) -> bool;

    /// Whether an address is unspecified.
    fn is_unspecified(address: Self::Address) -> bool;

    /// Whether a packet may come from the unspecified address, before its sender has an address.
    fn needs_no_source(network: &Network<Self::Address>, transport: &Transport) -> bool;

    /// Whether an address may reach a pod without being its own.
    fn is_shared(address: Self::Address) -> bool;

    /// The address in network byte order, IPv4 in the first four bytes.
    fn octets(address: Self::Address) -> [u8; 16];
}

/// IPv4.
#[derive(Clone, Copy, Debug, Default)]
pub struct V4;

/// IPv6.
#[derive(Clone, Copy, Debug, Default)]
pub struct V6;

impl Family for V4 {
    const IS_V6: bool = false;
    const FRAGMENT_OFFSET: u32 = 0;
    type Address = u32;

    #[inline(always)]
    fn network<B: Bytes>(bytes: &B, offset: u32, quoted: bool) -> Result<Network<u32>, Reason> {
        parse::ipv4(bytes, offset, quoted)
    }

    #[inline(always)]
    fn extensions<B: Bytes>(_bytes: &B, _network: &mut Network<u32>) -> Result<(), Reason> {
        Ok(())
    }

    #[inline(always)]
    fn owns(endpoint: EndpointRef, address: u32) -> bool {
        let flags = endpoint.flags();
        let (endpoint, flags) = (endpoint.after_load(flags as u32), flags >> EP_ADDR4_SHIFT);
        (0..ENDPOINT_ADDRS).any(|slot| flags >> slot & 1 != 0 && endpoint.addr4(slot) == address)
    }

    #[inline(always)]
    fn after_load(address: u32, read: u32) -> u32 {
        address | order::zero(read.into()) as u32
    }

    #[inline(always)]
    fn same(a: u32, b: u32) -> bool {
        a == b
    }

    #[inline(always)]
    fn is_solicitation(_network: &Network<u32>, _transport: &Transport) -> bool {
        false
    }

    #[inline(always)]
    fn is_link_local(_address: u32) -> bool {
        false
    }

    #[inline(always)]
    fn is_unspecified(address: u32) -> bool {
        address == 0
    }

    /// DHCP from a client to a server (RFC 2131 section 4.1), and IGMP (RFC 3376 section 4.2.13) to a group.
    #[inline(always)]
    fn needs_no_source(network: &Network<u32>, transport: &Transport) -> bool {
        match transport.protocol {
            UDP => transport.source == DHCP_CLIENT && transport.destination == DHCP_SERVER,
            IGMP => network.destination >> 28 == 0xe,
            _ => false,
        }
    }

    /// Multicast and the limited broadcast.
    #[inline(always)]
    fn is_shared(address: u32) -> bool {
        address >= 0xe000_0000
    }

    #[inline(always)]
    fn octets(address: u32) -> [u8; 16] {
        let mut octets = [0; 16];
        octets[..4].copy_from_slice(&address.to_be_bytes());
        octets
    }
}

impl V6 {
    /// Octets of an address as words in memory order; the inverse of [`Family::octets`].
    #[must_use]
    #[inline(always)]
    #[expect(clippy::many_single_char_names, reason = "the octets in their order")]
    pub const fn words(octets: &[u8; 16]) -> [u64; 2] {
        let [a, b, c, d, e, f, g, h, rest @ ..] = *octets;
        [u64::from_ne_bytes([a, b, c, d, e, f, g, h]), u64::from_ne_bytes(rest)]
    }
}

/// `fe80::/10`
#[inline(always)]
pub(crate) const fn is_link_local(address: [u64; 2]) -> bool {
    u64::from_be(address[0]) >> 54 == 0xfe80 >> 6
}

/// `ff00::/8`
#[inline(always)]
pub(crate) const fn is_multicast(address: [u64; 2]) -> bool {
    u64::from_be(address[0]) >> 56 == 0xff
}

impl Family for V6 {
    const IS_V6: bool = true;
    const FRAGMENT_OFFSET: u32 = 2;
    type Address = [u64; 2];

    #[inline(always)]
    fn network<B: Bytes>(
        bytes: &B,
        offset: u32,
        quoted: bool,
    ) -> Result<Network<[u64; 2]>, Reason> {
        parse::ipv6(bytes, offset, quoted)
    }

    #[inline(always)]
    fn extensions<B: Bytes>(bytes: &B, network: &mut Network<[u64; 2]>) -> Result<(), Reason> {
        parse::extensions(bytes, network)
    }

    #[inline(always)]
    fn owns(endpoint: EndpointRef, address: [u64; 2]) -> bool {
        let flags = endpoint.flags();
        let (endpoint, flags) = (endpoint.after_load(flags as u32), flags >> EP_ADDR6_SHIFT);
        (0..ENDPOINT_ADDRS)
            .any(|slot| flags >> slot & 1 != 0 && Self::same(endpoint.addr6(slot), address))
    }

    #[inline(always)]
    fn after_load(address: [u64; 2], read: u32) -> [u64; 2] {
        let zero = order::zero(read.into()) as u64;
        [address[0] | zero, address[1] | zero]
    }

    #[inline(always)]
    fn same(a: [u64; 2], b: [u64; 2]) -> bool {
        a[0] == b[0] && a[1] == b[1]
    }

    #[inline(always)]
    fn is_solicitation(network: &Network<[u64; 2]>, transport: &Transport) -> bool {
        icmp::is_solicitation(network, transport)
    }

    #[inline(always)]
    fn is_link_local(address: [u64; 2]) -> bool {
        is_link_local(address)
    }

    #[inline(always)]
    fn is_unspecified(address: [u64; 2]) -> bool {
        Self::same(address, [0; 2])
    }

    /// Neighbour and listener discovery, to a group: router solicitation (RFC 4861 section 4.1), solicitation of an
    /// address about to be used (RFC 4862 section 5.4.2), listener queries, reports and dones (RFC 3590, RFC 3810
    /// section 5.2.13).
    #[inline(always)]
    fn needs_no_source(network: &Network<[u64; 2]>, transport: &Transport) -> bool {
        transport.protocol == ICMPV6
            && matches!(transport.destination >> 8, 130..=133 | 135 | 143)
            && is_multicast(network.destination)
    }

    /// Multicast and link-local addresses: no table contains the pods' link-local addresses.
    #[inline(always)]
    fn is_shared(address: [u64; 2]) -> bool {
        is_link_local(address) || is_multicast(address)
    }

    #[inline(always)]
    fn octets(address: [u64; 2]) -> [u8; 16] {
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&address[0].to_ne_bytes());
        octets[8..].copy_from_slice(&address[1].to_ne_bytes());
        octets
    }
}

/// An address as 16 octets of IPv6; an IPv4 address is mapped (RFC 4291, 2.5.5.2).
#[inline(always)]
pub fn mapped<F: Family>(address: F::Address) -> [u64; 2] {
    let octets = F::octets(address);
    let words = V6::words(&octets);
    if F::IS_V6 { words } else { [0, 0xffff_0000 | words[0] << 32] }
}
