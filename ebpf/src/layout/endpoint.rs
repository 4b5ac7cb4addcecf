//! Local pods' interfaces.

/// Number of address slots in an [`Endpoint`], per family. A pod uses at most half of them, so
/// that a changed address is written beside the old one before it is flipped in.
pub const ENDPOINT_ADDRS: usize = 4;
/// [`Endpoint::flags`]: bit n says that `addr4[n]` is one of the endpoint's addresses.
pub const EP_ADDR4_SHIFT: u32 = 0;
/// [`Endpoint::flags`]: bit 4 + n says that `addr6[n]` is one of the endpoint's addresses.
pub const EP_ADDR6_SHIFT: u32 = 4;
/// [`Endpoint::flags`]: the pod has its addresses and no others. What it sends from another, or in
/// another's name, drops; what comes for another is not its traffic.
pub const EP_CHECK_SOURCE: u64 = 1 << 8;
/// [`Endpoint::flags`]: above this bit is the hardware address of the pod's side of the veth, the first octet
/// highest; 0: unknown. With [`EP_CHECK_SOURCE`], frames of another station drop.
pub const EP_STATION_SHIFT: u32 = 16;

/// Highest number of endpoint slots; see [`endpoint_slot`].
pub const ENDPOINT_SLOTS: u32 = 8192;
/// How many consecutive slots are probed for an interface index.
pub const ENDPOINT_PROBES: u32 = 4;

/// A local pod's interface under policy. Free slots are all zero (interface index 0 is no
/// interface). `rows` is one aligned word so that both directions change at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Moves everything behind it, for the upgrade test.
    #[cfg(feature = "other-layout")]
    pub other: u64,
    /// Interface index of the host side of the veth; 0: free slot. Written last, cleared first.
    pub ifindex: u32,
    /// Number of this pod instance, never reused within one conntrack table: conntrack keys carry
    /// it, so that nothing is inherited with an address or an interface index.
    pub id: u32,
    /// Row of pod ingress in the low half, row of pod egress in the high half;
    /// [`ROW_NOT_ISOLATED`](crate::layout::ROW_NOT_ISOLATED) in a half: that direction is not isolated.
    pub rows: u64,
    /// `EP_*` bits; one aligned word, since the hardware address in it changes at once.
    pub flags: u64,
    /// First half of the pod's UID hash: lets a new agent recognise the pod, see `id`.
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

    /// The part of `flags` that a hardware address is.
    #[must_use]
    pub const fn pack_station(station: [u8; 6]) -> u64 {
        let [first, second, rest @ ..] = station;
        let high = u16::from_be_bytes([first, second]) as u64;
        high << 48 | (u32::from_be_bytes(rest) as u64) << EP_STATION_SHIFT
    }

    /// The hardware address in `flags`; `None`: unknown.
    #[must_use]
    pub const fn unpack_station(&self) -> Option<[u8; 6]> {
        if self.flags >> EP_STATION_SHIFT == 0 {
            return None;
        }
        self.flags.to_be_bytes().first_chunk::<6>().copied()
    }
}

/// First slot to probe for an interface index. Indexes are handed out in sequence, so live ones
/// rarely share a slot; [`ENDPOINT_PROBES`] consecutive slots are tried.
#[must_use]
#[inline(always)]
pub const fn endpoint_slot(ifindex: u32, probe: u32) -> u32 {
    ifindex.wrapping_add(probe) & (ENDPOINT_SLOTS - 1)
}

const _: () = {
    let other = if cfg!(feature = "other-layout") { 8 } else { 0 };
    assert!(size_of::<Endpoint>() == 112 + other && align_of::<Endpoint>() == 8);
    assert!(ENDPOINT_SLOTS.is_power_of_two());
};
