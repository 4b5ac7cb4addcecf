//! Fields of an IP header, as [`crate::packet::parse`] reads them.

/// Place of a packet in its datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fragment {
    /// Identification, the same in all fragments.
    pub ident: u32,
    /// Protocol, for IPv6 the Fragment header's next header, which may differ from the transport protocol. The same in
    /// all fragments.
    pub next: u8,
    /// Offset in units of 8 bytes.
    pub offset: u16,
    /// Whether more fragments follow.
    pub more: bool,
}

impl Fragment {
    /// Whether this is a fragment other than the first.
    #[must_use]
    #[inline(always)]
    pub const fn is_later(&self) -> bool {
        self.offset != 0
    }

    /// Whether this is the first of several fragments.
    #[must_use]
    #[inline(always)]
    pub const fn is_first(&self) -> bool {
        self.offset == 0 && self.more
    }
}

/// Fields of the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network<A> {
    /// Source address.
    pub source: A,
    /// Destination address.
    pub destination: A,
    /// Protocol; for IPv6 the first next header until [`crate::packet::parse::extensions`] is called.
    pub protocol: u8,
    /// Time to live or hop limit; 0 if plain.
    pub hop_limit: u8,
    /// Offset of the IP header in the frame.
    pub start: u32,
    /// Offset of the payload in the frame.
    pub payload: u32,
    /// Offset of the end of the IP packet in the frame.
    pub end: u32,
    /// Fragmentation.
    pub fragment: Fragment,
}
