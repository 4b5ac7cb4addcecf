//! Access to the bytes of a packet: packet memory or a copying helper in the kernel, a slice on the host.

use crate::{packet::network::Network, reason::Reason};

/// Bytes of a packet that are known to exist, read at constant offsets. A window may share its memory with the next
/// one of the same packet, so read it before taking another.
pub trait Window: Copy {
    /// The byte at an offset.
    fn byte(&self, at: usize) -> u8;
    /// Big-endian 16 bits at an offset.
    fn be16(&self, at: usize) -> u16;
    /// Big-endian 32 bits at an offset.
    fn be32(&self, at: usize) -> u32;
    /// 16 bytes at an offset, as two words in memory order.
    fn words(&self, at: usize) -> [u64; 2];
}

/// Bytes of a packet, from its Ethernet header on.
pub trait Bytes {
    /// Whether only plain packets are read; all others end in [`Reason::Deferred`].
    const PLAIN: bool;
    /// Whether VLAN tags are skipped.
    const TAGS: bool = !Self::PLAIN;
    /// Whether IPv4 is read; otherwise it ends in [`Reason::Deferred`].
    const IPV4: bool = true;
    /// Whether IPv6 is read; otherwise it ends in [`Reason::Deferred`].
    const IPV6: bool = true;
    /// Whether SCTP is read; otherwise plain packets are TCP and UDP only.
    const SCTP: bool = !Self::PLAIN;
    /// Result of [`Bytes::window`].
    type Window: Window;
    /// Length of the whole packet.
    fn length(&self) -> u32;
    /// `N` bytes from an offset; `None` if the packet is shorter, or with [`Bytes::PLAIN`] if they are not in directly
    /// accessible memory. `N` is at most [`MAX_WINDOW`], `offset` at most 64 if plain.
    fn window<const N: usize>(&self, offset: u32) -> Option<Self::Window>;
    /// The same number, hidden from the kernel's verifier. Otherwise the verifier follows all later code once for each
    /// path that led to the number.
    #[inline(always)]
    fn opaque(&self, number: u32) -> u32 {
        number
    }
    /// Follows IPv6 extension headers as [`crate::packet::parse::follow`] does, by a function of its own; `None` if there is
    /// none. Not with [`Bytes::PLAIN`].
    #[inline(always)]
    fn follow(&self, _network: &mut Network<[u64; 2]>) -> Option<Result<(), Reason>> {
        None
    }
}

/// Largest window in bytes.
pub const MAX_WINDOW: usize = 40;

/// Reason of a missing window.
#[inline(always)]
pub(crate) const fn short<B: Bytes>() -> Reason {
    if B::PLAIN { Reason::Deferred } else { Reason::Truncated }
}

/// Bytes of a packet on the host.
impl Window for &[u8] {
    #[inline(always)]
    fn byte(&self, at: usize) -> u8 {
        self[at]
    }

    #[inline(always)]
    fn be16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self[at], self[at + 1]])
    }

    #[inline(always)]
    fn be32(&self, at: usize) -> u32 {
        u32::from(self.be16(at)) << 16 | u32::from(self.be16(at + 2))
    }

    #[inline(always)]
    fn words(&self, at: usize) -> [u64; 2] {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&self[at..at + 8]);
            u64::from_ne_bytes(bytes)
        };
        [word(at), word(at + 8)]
    }
}

impl<'a> Bytes for &'a [u8] {
    const PLAIN: bool = false;
    type Window = &'a [u8];

    fn length(&self) -> u32 {
        self.len() as u32
    }

    fn window<const N: usize>(&self, offset: u32) -> Option<&'a [u8]> {
        let start = offset as usize;
        self.get(start..start.checked_add(N)?)
    }
}
