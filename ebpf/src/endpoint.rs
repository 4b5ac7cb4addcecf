//! Access to an endpoint's record under concurrent writes by the agent.

use crate::{
    direction::PodDirection,
    layout::{ENDPOINT_ADDRS, EP_STATION_SHIFT, Endpoint, ROW_NAMES, ROW_NOT_ISOLATED},
    order,
};

/// [`Endpoint::rows`]: the rows of both directions at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows(pub u64);

impl Rows {
    /// Row of pod ingress.
    #[must_use]
    #[inline(always)]
    pub const fn ingress(self) -> u32 {
        self.0 as u32
    }

    /// Row of pod egress.
    #[must_use]
    #[inline(always)]
    pub const fn egress(self) -> u32 {
        (self.0 >> 32) as u32 & !ROW_NAMES
    }

    /// Whether rules of pod egress have domain names.
    #[must_use]
    #[inline(always)]
    pub const fn has_names(self) -> bool {
        (self.0 >> 32) as u32 & ROW_NAMES != 0
    }

    /// The same rows, with another one of pod egress, which has no names.
    #[must_use]
    #[inline(always)]
    pub const fn with_egress(self, row: u32) -> Self {
        Self(self.0 as u32 as u64 | (row as u64) << 32)
    }

    /// Row of a direction.
    #[must_use]
    #[inline(always)]
    pub const fn in_direction<D: PodDirection>(self) -> u32 {
        if D::EGRESS { self.egress() } else { self.ingress() }
    }

    /// Row of the opposite direction.
    #[must_use]
    #[inline(always)]
    pub const fn opposite<D: PodDirection>(self) -> u32 {
        if D::EGRESS { self.ingress() } else { self.egress() }
    }

    /// Whether policy selects the pod for egress.
    #[must_use]
    #[inline(always)]
    pub const fn isolates_egress(self) -> bool {
        self.egress() != ROW_NOT_ISOLATED
    }

    /// Whether policy selects the pod for neither direction.
    #[must_use]
    #[inline(always)]
    pub const fn isolates_none(self) -> bool {
        self.0 == 0
    }
}

/// Reference to an endpoint's record that the agent may write at any time: every field is read on its own, once, and
/// `rows` as one word.
#[derive(Clone, Copy, Debug)]
pub struct EndpointRef(*const Endpoint);

#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "where a word is, and reading it, is one step"
)]
impl EndpointRef {
    /// A record in a table.
    ///
    /// # Safety
    /// The pointer must stay readable for as long as the value is used.
    #[must_use]
    #[inline(always)]
    pub const unsafe fn new(record: *const Endpoint) -> Self {
        Self(record)
    }

    /// The same record, with reads of its fields ordered after the one that returned `read`, see [`order`].
    #[must_use]
    #[inline(always)]
    pub(crate) fn after_load(self, read: u32) -> Self {
        Self(order::after_load(self.0.cast_mut(), u64::from(read)))
    }

    /// [`Endpoint::ifindex`].
    #[must_use]
    #[inline(always)]
    pub fn ifindex(self) -> u32 {
        // SAFETY: readable, by `new`.
        unsafe { (&raw const (*self.0).ifindex).read_volatile() }
    }

    /// [`Endpoint::id`].
    #[must_use]
    #[inline(always)]
    pub fn id(self) -> u32 {
        // SAFETY: readable, by `new`.
        unsafe { (&raw const (*self.0).id).read_volatile() }
    }

    /// [`Endpoint::rows`].
    #[must_use]
    #[inline(always)]
    pub fn rows(self) -> Rows {
        // SAFETY: readable, by `new`.
        Rows(unsafe { (&raw const (*self.0).rows).read_volatile() })
    }

    /// [`Endpoint::flags`].
    #[must_use]
    #[inline(always)]
    pub fn flags(self) -> u64 {
        // SAFETY: readable, by `new`.
        unsafe { (&raw const (*self.0).flags).read_volatile() }
    }

    /// Hardware address of the pod's side of the veth, first octet highest; 0: unknown.
    #[must_use]
    #[inline(always)]
    pub(crate) fn station(self) -> u64 {
        self.flags() >> EP_STATION_SHIFT
    }

    /// A slot of [`Endpoint::addr4`].
    #[must_use]
    #[inline(always)]
    pub(crate) fn addr4(self, slot: usize) -> u32 {
        debug_assert!(slot < ENDPOINT_ADDRS);
        // SAFETY: readable, by `new`; callers count to ENDPOINT_ADDRS.
        unsafe { (&raw const (*self.0).addr4).cast::<u32>().add(slot).read_volatile() }
    }

    /// A slot of [`Endpoint::addr6`], as words in memory order.
    #[must_use]
    #[inline(always)]
    #[expect(clippy::cast_ptr_alignment, reason = "asserted below")]
    pub(crate) fn addr6(self, slot: usize) -> [u64; 2] {
        const { assert!(core::mem::offset_of!(Endpoint, addr6) % 8 == 0) };
        debug_assert!(slot < ENDPOINT_ADDRS);
        // SAFETY: readable, by `new`; aligned, by the assertion above.
        unsafe {
            let words = (&raw const (*self.0).addr6).cast::<u64>().add(slot * 2);
            [words.read_volatile(), words.add(1).read_volatile()]
        }
    }
}
