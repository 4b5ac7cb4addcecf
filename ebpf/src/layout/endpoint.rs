//! Records of local pods' interfaces.

/// Number of address slots in an [`Endpoint`], per family. A pod uses at most half of them, so that a changed address
/// is written next to the old one before the flags switch over.
pub const ENDPOINT_ADDRS: usize = 4;
/// Shift in [`Endpoint::flags`]: bit n marks `addr4[n]` as one of the endpoint's addresses.
pub const EP_ADDR4_SHIFT: u32 = 0;
/// Shift in [`Endpoint::flags`]: bit 4 + n marks `addr6[n]` as one of the endpoint's addresses.
pub const EP_ADDR6_SHIFT: u32 = 4;
/// Flag in [`Endpoint::flags`]: the pod's addresses are the listed ones and no others. Packets that it sends from
/// another address, or claims of another, drop; packets for another address are not its traffic.
pub const EP_CHECK_SOURCE: u64 = 1 << 8;
/// Flag in [`Endpoint::flags`]: packets that policy denies in pod ingress get an answer, see [`crate::judge::reject`].
pub const EP_REJECT_INGRESS: u64 = 1 << 9;
/// The same for pod egress.
pub const EP_REJECT_EGRESS: u64 = 1 << 10;
/// Flag in [`Endpoint::flags`]: flows of the pod are recorded while no policy selects it, see [`crate::observe`].
pub const EP_OBSERVE: u64 = 1 << 11;
/// Shift in [`Endpoint::flags`] of the hardware address of the pod's side of the veth, first octet highest; 0:
/// unknown. With [`EP_CHECK_SOURCE`], frames with another source address drop.
pub const EP_STATION_SHIFT: u32 = 16;

/// Maximum number of endpoint slots; see [`endpoint_slot`].
pub const ENDPOINT_SLOTS: u32 = 8192;
/// Number of consecutive slots that are probed for an interface index.
pub const ENDPOINT_PROBES: u32 = 4;

/// A local pod's interface under policy. Free slots are all zero (no interface has index 0). `rows` is one aligned
/// word so that both directions change at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Shifts all later fields, for the upgrade test.
    #[cfg(feature = "other-layout")]
    pub other: u64,
    /// Interface index of the host side of the veth; 0: free slot. Written last, cleared first.
    pub ifindex: u32,
    /// Number of this pod instance, never reused within one conntrack table. Conntrack keys carry it, so that no flow
    /// is inherited with an address or an interface index.
    pub id: u32,
    /// Row of pod ingress in the low half, row of pod egress in the high half;
    /// [`ROW_NOT_ISOLATED`](crate::layout::ROW_NOT_ISOLATED) in a half: that direction is not isolated.
    pub rows: u64,
    /// `EP_*` bits and the hardware address; one aligned word, so that the hardware address changes at once.
    pub flags: u64,
    /// First half of the pod's UID hash, by which a new agent recognises the pod and keeps its `id`.
    pub uid_hash: u64,
    /// The pod's IPv4 addresses, as `u32::from_be_bytes`.
    pub addr4: [u32; ENDPOINT_ADDRS],
    /// The pod's IPv6 addresses, network byte order.
    pub addr6: [[u8; 16]; ENDPOINT_ADDRS],
}

impl Endpoint {
    /// The `rows` word of an ingress and an egress row number; [`crate::endpoint::Rows`] reads it.
    #[must_use]
    pub const fn pack_rows(ingress: u32, egress: u32) -> u64 {
        ingress as u64 | (egress as u64) << 32
    }

    /// Hardware address, shifted to its place in `flags`.
    #[must_use]
    pub const fn pack_station(station: [u8; 6]) -> u64 {
        let [first, second, rest @ ..] = station;
        let high = u16::from_be_bytes([first, second]) as u64;
        high << 48 | (u32::from_be_bytes(rest) as u64) << EP_STATION_SHIFT
    }

    /// Hardware address in `flags`; `None`: unknown.
    #[must_use]
    pub const fn unpack_station(&self) -> Option<[u8; 6]> {
        if self.flags >> EP_STATION_SHIFT == 0 {
            return None;
        }
        self.flags.to_be_bytes().first_chunk::<6>().copied()
    }
}

/// Slot of an interface index at a probe; [`ENDPOINT_PROBES`] consecutive slots are tried.
///
/// The kernel hands out indexes in sequence, so the pods of a node have blocks of consecutive indexes. They are
/// scattered: a block in consecutive slots would leave no slot for later indexes that lead into it.
#[must_use]
#[inline(always)]
pub const fn endpoint_slot(ifindex: u32, probe: u32) -> u32 {
    scattered(ifindex, ENDPOINT_SLOTS).wrapping_add(probe) & (ENDPOINT_SLOTS - 1)
}

/// Place of an interface index among `places`, a power of two. Consecutive indexes are far apart (multiplicative
/// hashing by 2^32 divided by the golden ratio; Knuth, The Art of Computer Programming, volume 3, 6.4).
#[must_use]
#[inline(always)]
pub(super) const fn scattered(ifindex: u32, places: u32) -> u32 {
    ifindex.wrapping_mul(0x9e37_79b1) >> (u32::BITS - places.trailing_zeros())
}

const _: () = {
    let other = if cfg!(feature = "other-layout") { 8 } else { 0 };
    assert!(size_of::<Endpoint>() == 112 + other && align_of::<Endpoint>() == 8);
    assert!(ENDPOINT_SLOTS.is_power_of_two());
};
