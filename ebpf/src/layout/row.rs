//! Rows and port sets: the ports that a policy allows each class.

use crate::layout::names::{NAME_GROUPS, RowNames};

/// Allowed ports of one distinct policy, by class. Most clusters have less than 256 classes, so the words of the
/// first 256 are inline; [`RowBlock`]s hold the others.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// [`PortWord`]s of classes below 256.
    pub first: RowBlock,
    /// Index of the [`RowBlock`] of classes from 256 on, at `class >> 8`. Word 0 is not used. Block 0 is always
    /// empty: it allows no port.
    pub blocks: [u32; 256],
    /// Domain names of the rules; never changes while the row is in use.
    pub names: RowNames,
}

impl Row {
    /// Row without any allowed port.
    pub const EMPTY: Self = Self {
        first: [0; 256],
        blocks: [0; 256],
        names: RowNames { list: 0, rows: [0; NAME_GROUPS] },
    };
}

/// [`PortWord`]s of 256 classes, at `class & 255`.
pub type RowBlock = [PortWord; 256];
/// Row number of a direction that is not isolated.
pub const ROW_NOT_ISOLATED: u32 = 0;
/// Flag in the egress half of [`Endpoint::rows`](crate::layout::Endpoint::rows): the row has [`Row::names`].
pub const ROW_NAMES: u32 = 1 << 31;

/// A [`PortSet`] in one word, see [`PortSet::word`]. 0 allows no protocol.
pub type PortWord = u64;
/// Bits of a protocol's part of a [`PortWord`].
pub const PORT_BITS: u32 = 21;
/// Word that allows every protocol and port.
pub const PORTS_EVERY: PortWord =
    PortSet { tcp: PORTS_ALL, udp: PORTS_ALL, sctp: PORTS_ALL, other: PORTS_ALL }.word();

/// No port of the protocol.
pub const PORTS_NONE: u32 = 0;
/// Every port of the protocol.
pub const PORTS_ALL: u32 = 1;
/// First [`PortBitmap`] index that may be allocated; smaller numbers are [`PORTS_NONE`] and [`PORTS_ALL`].
pub const PORTS_FIRST_BITMAP: u32 = 2;
/// Flag of a single port, which is in the low 16 bits. Indexes of bitmaps are below it.
pub const PORTS_ONE: u32 = 1 << 20;

/// Allowed ports by protocol: [`PORTS_NONE`], [`PORTS_ALL`], [`PORTS_ONE`] with the port, or the index of a
/// [`PortBitmap`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortSet {
    /// TCP destination ports.
    pub tcp: u32,
    /// UDP destination ports.
    pub udp: u32,
    /// SCTP destination ports.
    pub sctp: u32,
    /// Every other protocol, ICMP included: [`PORTS_NONE`] or [`PORTS_ALL`].
    pub other: u32,
}

impl PortSet {
    /// Word of the tables: TCP in the lowest [`PORT_BITS`], then UDP, SCTP, and one bit for all other protocols.
    #[must_use]
    pub const fn word(self) -> PortWord {
        self.tcp as u64
            | (self.udp as u64) << PORT_BITS
            | (self.sctp as u64) << (2 * PORT_BITS)
            | (self.other as u64) << (3 * PORT_BITS)
    }
}

/// Part of a protocol in a [`PortWord`]: [`PORTS_NONE`], [`PORTS_ALL`], a port with [`PORTS_ONE`], or a bitmap.
#[must_use]
#[inline(always)]
pub const fn ports_of(word: PortWord, protocol: u8) -> u32 {
    let shift = match protocol {
        6 => 0,
        17 => PORT_BITS,
        132 => 2 * PORT_BITS,
        _ => 3 * PORT_BITS,
    };
    (word >> shift) as u32 & ((1 << PORT_BITS) - 1)
}

/// One bit per port: bit `port & 63` of word `port >> 6`.
pub type PortBitmap = [u64; 1024];

const _: () = {
    assert!(size_of::<Row>() == 3136 && size_of::<RowBlock>() == 2048);
    assert!(3 * PORT_BITS + 1 == PortWord::BITS && PORTS_ONE << 1 == 1 << PORT_BITS);
    assert!(size_of::<PortBitmap>() == 8192);
};
