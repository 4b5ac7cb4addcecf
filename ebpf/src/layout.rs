//! Contents of the maps, word for word as the kernel program and the agent both see them.
//!
//! Every type is `repr(C)`, has no implicit padding and a size that is asserted below: the agent writes most of these
//! tables with plain aligned stores through mmap (`BPF_F_MMAPABLE`, kernel 5.5) while packets are being judged. Every
//! change in this module needs a new [`LAYOUT_VERSION`]: maps of another version are never reused, but replaced as a
//! generation.
//!
//! Order of the reads for one packet: [`Endpoint`] by interface index; class of the remote address ([`TrieRoot`] and
//! [`TrieBlock`], or the IPv6 tables); [`Row`] (and [`RowBlock`]) of the endpoint's direction, which holds a
//! [`PortSet`]; rarely a [`PortBitmap`]. Identifiers never change meaning while they are in use.

mod address;
mod endpoint;
mod flow;
mod marks;
mod names;
mod row;
mod settings;

pub use address::*;
pub use endpoint::*;
pub use flow::*;
pub use marks::*;
pub use names::*;
pub use row::*;
pub use settings::*;

use crate::reason::COUNTERS;

/// Version of this module's layouts; part of the pin path. The feature `other-layout` builds the second agent of the
/// upgrade test, with different layouts of endpoints, flows and flow flags.
pub const LAYOUT_VERSION: u32 = if cfg!(feature = "other-layout") { 1016 } else { 16 };

/// Event of a dropped packet in the ring buffer, rate limited per CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropEvent {
    /// Host-side interface index.
    pub ifindex: u32,
    /// [`Endpoint::id`].
    pub endpoint: u32,
    /// `crate::reason::Reason` as a number.
    pub reason: u8,
    /// 0 pod ingress, 1 pod egress.
    pub direction: u8,
    /// 4 or 6; 0 if the packet was not parsed that far.
    pub family: u8,
    /// IP protocol number, valid if `family` is not 0.
    pub protocol: u8,
    /// The pod's port, or ICMP type << 8 | code.
    pub local_port: u16,
    /// The other side's port.
    pub remote_port: u16,
    /// The pod's address in this packet; IPv4 in the first four bytes.
    pub local: [u8; 16],
    /// The other side's address; IPv4 in the first four bytes.
    pub remote: [u8; 16],
    /// Packet length in bytes.
    pub length: u32,
    /// Events this CPU suppressed since its last one.
    pub suppressed: u32,
}

/// Number of [`Counters::shares`]; interfaces with the same index modulo this number share a counter.
pub const EVENT_SHARES: usize = 64;
/// Value of [`Counters::shares`]: the interface's share of the window is used up.
pub const SHARE_SPENT: u8 = u8::MAX;

/// Drop counters and event budget of one CPU. One record, since a denied packet needs both.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    /// Packets by [`crate::reason::counter`], evictions by [`crate::reason::evictions`], ignored answers by
    /// [`crate::names::ignored::IgnoredAnswer::counter`].
    pub packets: [u64; COUNTERS as usize],
    /// Jiffies at which the event window began.
    pub window: u32,
    /// Events in the window.
    pub events: u32,
    /// Events suppressed since the last emitted one.
    pub suppressed: u32,
    /// Zero.
    pub reserved: u32,
    /// Events in the window per interface index modulo [`EVENT_SHARES`]; [`SHARE_SPENT`] once one was refused.
    pub shares: [u8; EVENT_SHARES],
}

impl Counters {
    /// Adds 1 to the counter at an index.
    #[inline(always)]
    pub const fn count(&mut self, index: u32) {
        self.packets[(index & (COUNTERS - 1)) as usize] += 1;
    }
}

const _: () = {
    assert!(size_of::<DropEvent>() == 56);
    assert!(size_of::<Counters>() == 1_104 && COUNTERS.is_power_of_two());
};
