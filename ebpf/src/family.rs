//! What differs between IPv4 and IPv6, so that the verdict is written once.

use crate::{
    conntrack::{self, Key, words4, words6},
    layout::{ClassId, Ct4Key, ENDPOINT_ADDRS, EP_ADDR4_SHIFT, EP_ADDR6_SHIFT, Settings},
    neighbour::{self, Discovery, is_link_local, is_multicast},
    order,
    packet::{self, Bytes, Network, Transport},
    policy::class4,
    reason::Reason,
    tables::{EndpointRef, Tables},
};

/// An IP version.
pub trait Family: Copy + Default + core::fmt::Debug {
    /// Which of the two.
    const IS_V6: bool;
    /// 0 for IPv4, 2 for IPv6: added to [`crate::layout::FragmentKey::direction`].
    const FRAGMENT_OFFSET: u32;
    /// An address.
    type Address: Copy + Default + core::fmt::Debug;
    /// A conntrack key.
    type Key: Key;

    /// Reads the IP header at an offset and what is between it and the transport header.
    ///
    /// # Errors
    /// As [`packet::ipv4`] and [`packet::extensions`].
    fn network<B: Bytes>(
        bytes: &B,
        offset: u32,
        quoted: bool,
    ) -> Result<Network<Self::Address>, Reason>;

    /// Follows extension headers.
    ///
    /// # Errors
    /// As [`packet::extensions`].
    fn extensions<B: Bytes>(bytes: &B, network: &mut Network<Self::Address>) -> Result<(), Reason>;

    /// Class of an address.
    fn class<T: Tables>(tables: &T, address: Self::Address) -> ClassId;

    /// Whether an address is one of the endpoint's own.
    fn owns(endpoint: EndpointRef, address: Self::Address) -> bool;

    /// The same address; what is looked up by it is read only once `read` is known, see [`order`].
    fn after_load(address: Self::Address, read: u32) -> Self::Address;

    /// Whether two addresses are the same.
    fn same(a: Self::Address, b: Self::Address) -> bool;

    /// Inserts a flow, by [`Tables::insert4`] or [`Tables::insert6`].
    ///
    /// # Errors
    /// [`conntrack::Full`] if there is no room.
    fn insert<T: Tables>(
        tables: &T,
        key: Self::Key,
        hash: u64,
        flags: u16,
    ) -> Result<(), conntrack::Full>;

    /// Buckets in the flow table less one.
    fn mask(settings: &Settings) -> u32;

    /// First word of a bucket of the flow table.
    fn bucket<T: Tables>(tables: &T, index: u32) -> Option<*mut u64>;

    /// The flow's key.
    fn key(
        endpoint: u32,
        remote: Self::Address,
        local_port: u16,
        remote_port: u16,
        protocol: u8,
    ) -> Self::Key;

    /// What the packet is to its link, by neighbour and multicast listener discovery. `sender`, `sent`:
    /// as of [`neighbour::discovery`].
    #[expect(private_interfaces, reason = "the trait is the crate's")]
    fn discovery<B: Bytes>(
        bytes: &B,
        network: &Network<Self::Address>,
        transport: &Transport,
        sender: Option<EndpointRef>,
        sent: bool,
    ) -> Discovery;

    /// Whether it is a neighbour's solicitation or advertisement that no router has forwarded.
    fn is_solicitation(network: &Network<Self::Address>, transport: &Transport) -> bool;

    /// An address that a pod uses before it has its own, or beside it on the link.
    fn is_link_scope(address: Self::Address) -> bool;

    /// An address that a pod may be reached by though it is none of its own.
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
    type Key = [u64; 2];

    #[inline(always)]
    fn network<B: Bytes>(bytes: &B, offset: u32, quoted: bool) -> Result<Network<u32>, Reason> {
        packet::ipv4(bytes, offset, quoted)
    }

    #[inline(always)]
    fn extensions<B: Bytes>(_bytes: &B, _network: &mut Network<u32>) -> Result<(), Reason> {
        Ok(())
    }

    #[inline(always)]
    fn class<T: Tables>(tables: &T, address: u32) -> ClassId {
        class4(tables, address)
    }

    #[inline(always)]
    fn owns(endpoint: EndpointRef, address: u32) -> bool {
        let flags = endpoint.flags();
        let (endpoint, flags) = (endpoint.after_load(flags), flags >> EP_ADDR4_SHIFT);
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
    fn insert<T: Tables>(
        tables: &T,
        key: [u64; 2],
        hash: u64,
        flags: u16,
    ) -> Result<(), conntrack::Full> {
        tables.insert4(key, hash, flags)
    }

    #[inline(always)]
    fn mask(settings: &Settings) -> u32 {
        settings.ct4_mask
    }

    #[inline(always)]
    fn bucket<T: Tables>(tables: &T, index: u32) -> Option<*mut u64> {
        tables.bucket4(index)
    }

    #[inline(always)]
    fn key(
        endpoint: u32,
        remote: u32,
        local_port: u16,
        remote_port: u16,
        protocol: u8,
    ) -> [u64; 2] {
        let protocol = u32::from(protocol);
        words4(&Ct4Key { endpoint, remote, local_port, remote_port, protocol })
    }

    #[inline(always)]
    #[expect(private_interfaces, reason = "the trait is the crate's")]
    fn discovery<B: Bytes>(
        _bytes: &B,
        _network: &Network<u32>,
        _transport: &Transport,
        _sender: Option<EndpointRef>,
        _sent: bool,
    ) -> Discovery {
        Discovery::No
    }

    #[inline(always)]
    fn is_solicitation(_network: &Network<u32>, _transport: &Transport) -> bool {
        false
    }

    #[inline(always)]
    fn is_link_scope(address: u32) -> bool {
        address == 0
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
    /// An address' octets as words in memory order; [`Family::octets`] the other way round.
    #[must_use]
    #[inline(always)]
    #[expect(clippy::many_single_char_names, reason = "the octets in their order")]
    pub const fn words(octets: &[u8; 16]) -> [u64; 2] {
        let [a, b, c, d, e, f, g, h, rest @ ..] = *octets;
        [u64::from_ne_bytes([a, b, c, d, e, f, g, h]), u64::from_ne_bytes(rest)]
    }
}

impl Family for V6 {
    const IS_V6: bool = true;
    const FRAGMENT_OFFSET: u32 = 2;
    type Address = [u64; 2];
    type Key = [u64; 4];

    #[inline(always)]
    fn network<B: Bytes>(
        bytes: &B,
        offset: u32,
        quoted: bool,
    ) -> Result<Network<[u64; 2]>, Reason> {
        packet::ipv6(bytes, offset, quoted)
    }

    #[inline(always)]
    fn extensions<B: Bytes>(bytes: &B, network: &mut Network<[u64; 2]>) -> Result<(), Reason> {
        packet::extensions(bytes, network)
    }

    #[inline(always)]
    fn class<T: Tables>(tables: &T, address: [u64; 2]) -> ClassId {
        tables.class6(address)
    }

    #[inline(always)]
    fn owns(endpoint: EndpointRef, address: [u64; 2]) -> bool {
        let flags = endpoint.flags();
        let (endpoint, flags) = (endpoint.after_load(flags), flags >> EP_ADDR6_SHIFT);
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
    fn insert<T: Tables>(
        tables: &T,
        key: [u64; 4],
        hash: u64,
        flags: u16,
    ) -> Result<(), conntrack::Full> {
        tables.insert6(key, hash, flags)
    }

    #[inline(always)]
    fn mask(settings: &Settings) -> u32 {
        settings.ct6_mask
    }

    #[inline(always)]
    fn bucket<T: Tables>(tables: &T, index: u32) -> Option<*mut u64> {
        tables.bucket6(index)
    }

    #[inline(always)]
    fn key(
        endpoint: u32,
        remote: [u64; 2],
        local_port: u16,
        remote_port: u16,
        protocol: u8,
    ) -> [u64; 4] {
        words6(endpoint, local_port, remote_port, remote, protocol)
    }

    #[inline(always)]
    #[expect(private_interfaces, reason = "the trait is the crate's")]
    fn discovery<B: Bytes>(
        bytes: &B,
        network: &Network<[u64; 2]>,
        transport: &Transport,
        sender: Option<EndpointRef>,
        sent: bool,
    ) -> Discovery {
        neighbour::discovery(bytes, network, transport, sender, sent)
    }

    #[inline(always)]
    fn is_solicitation(network: &Network<[u64; 2]>, transport: &Transport) -> bool {
        neighbour::is_solicitation(network, transport)
    }

    #[inline(always)]
    fn is_link_scope(address: [u64; 2]) -> bool {
        is_link_local(address) || Self::same(address, [0; 2])
    }

    /// Multicast, and link-local ones, which nobody knows.
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
