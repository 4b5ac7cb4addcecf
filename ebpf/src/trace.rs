//! Trace of a judgement, by the traced variant of the programs for `netpold trace`.
//!
//! The judgement records its steps by [`PolicyTables::record_step`](crate::tables::policy::PolicyTables::record_step), which does
//! nothing in the ordinary programs and on the host. The traced variant (feature `trace`) records the steps of a
//! packet that [`TraceFilter`] admits, and writes them out once the packet is judged, one line per step.

use crate::{layout::DropEvent, packet::family::V6};

/// A step of a judgement. Each has two words, named `first` and `second` below.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The packet: direction, IP version, protocol and length from the lowest byte of `first` on ([`packet`]); the
    /// pod's port and the remote port in `second`.
    Packet = 1,
    /// The pod's address, in memory order; IPv4 in the first four bytes.
    Local = 2,
    /// The remote address, in the form of [`Step::Local`].
    Remote = 3,
    /// The slow path reads the headers.
    SlowPath = 4,
    /// The endpoint's number, with the revision of policy in the upper half; its rows.
    Endpoint = 5,
    /// The verdict is cached in the flow's entry: the reason's number; the entry's control word.
    Cached = 6,
    /// Class of the remote address, with its flags.
    Class = 7,
    /// A row was read: the row, with the class in the upper half; the row's word for that class.
    Row = 8,
    /// Result of the row's word for this packet: protocol, port (from bit 8), and whether it is allowed (bit 32).
    Ports = 9,
    /// Lookup in the flow table: 2 found, 1 found but expired, 0 none; the control word.
    Flow = 10,
    /// A flow is recorded, with these flags.
    NewFlow = 11,
    /// Verdict for the sender on a packet that the node may have translated: the reason's number.
    Sender = 12,
    /// Final verdict: the reason's number, or [`SETTLED`]; 0 passes, 1 drops, and from bit 8 on the number of lines
    /// before this one.
    Verdict = 13,
}

/// Number in place of a reason: [`Step::Sender`] has the reason.
pub const SETTLED: u64 = 0xff;

impl Step {
    /// Every step, at its number less one.
    pub const ALL: [Self; 13] = [
        Self::Packet,
        Self::Local,
        Self::Remote,
        Self::SlowPath,
        Self::Endpoint,
        Self::Cached,
        Self::Class,
        Self::Row,
        Self::Ports,
        Self::Flow,
        Self::NewFlow,
        Self::Sender,
        Self::Verdict,
    ];

    /// The step of a number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        Self::ALL.get(index).copied()
    }
}

/// Word `first` of [`Step::Packet`].
#[must_use]
#[inline(always)]
pub const fn packet(event: &DropEvent) -> u64 {
    event.direction as u64
        | (event.family as u64) << 8
        | (event.protocol as u64) << 16
        | (event.length as u64) << 32
}

/// Maximum number of clauses in a filter.
pub const CLAUSES: usize = 16;

/// Clause of a filter, about a packet's other side; 0 in a field admits any value.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clause {
    /// Remote address, in memory order; IPv4 in the first four bytes.
    pub remote: [u64; 2],
    /// Mask of the compared address bits.
    pub mask: [u64; 2],
    /// Port of the pod.
    pub local_port: u16,
    /// Remote port.
    pub remote_port: u16,
    /// Port of either side.
    pub port: u16,
    /// IP version, 4 or 6.
    pub family: u8,
    /// IP protocol number; with a port, 0 admits every protocol with ports.
    pub protocol: u8,
}

/// Filter of the traced packets.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceFilter {
    /// Jiffies (low 32 bits) at which the trace ends.
    pub until: u32,
    /// Jiffies per second.
    pub second: u32,
    /// Packets that each CPU reports per second.
    pub burst: u32,
    /// Number of clauses, one of which must admit the packet.
    pub count: u32,
    /// The clauses.
    pub clauses: [Clause; CLAUSES],
}

/// Maximum number of recorded steps of a packet.
pub const STEPS: usize = 24;

/// A CPU's record of the packet that it judges.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TraceRecord {
    /// Packets that the filter admitted, reported or not.
    pub matched: u64,
    /// Jiffies at which the current second began.
    pub window: u32,
    /// Packets reported in that second.
    pub told: u32,
    /// Not zero while a reported packet is judged.
    pub active: u32,
    /// Number of its steps.
    pub count: u32,
    /// Description of the packet, as in a drop event.
    pub event: DropEvent,
    /// Steps, each with `first` and `second`.
    pub steps: [[u64; 3]; STEPS],
}

const _: () = {
    assert!(size_of::<Clause>() == 40 && size_of::<TraceFilter>() == 16 + 40 * CLAUSES);
    assert!(size_of::<TraceRecord>() == 24 + 56 + 24 * STEPS);
};

/// Whether a protocol has ports.
const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17 | 132)
}

impl Clause {
    /// Whether the clause admits a packet.
    #[must_use]
    #[inline(always)]
    pub fn admits(&self, event: &DropEvent, remote: [u64; 2]) -> bool {
        let of_family = self.family == 0 || self.family == event.family;
        let of_protocol = self.protocol == 0 || self.protocol == event.protocol;
        let of_remote = (remote[0] ^ self.remote[0]) & self.mask[0] == 0
            && (remote[1] ^ self.remote[1]) & self.mask[1] == 0;
        if !of_family || !of_protocol || !of_remote {
            return false;
        }
        if self.local_port | self.remote_port | self.port == 0 {
            return true;
        }
        has_ports(event.protocol)
            && (self.local_port == 0 || self.local_port == event.local_port)
            && (self.remote_port == 0 || self.remote_port == event.remote_port)
            && (self.port == 0 || self.port == event.local_port || self.port == event.remote_port)
    }
}

impl TraceFilter {
    /// Whether the trace has ended.
    #[must_use]
    #[inline(always)]
    pub const fn is_over(&self, now: u32) -> bool {
        self.until.wrapping_sub(now).cast_signed() <= 0
    }

    /// Whether the filter admits a packet.
    #[must_use]
    #[inline(always)]
    pub fn admits(&self, event: &DropEvent) -> bool {
        let remote = V6::words(&event.remote);
        let mut index = 0;
        while index < CLAUSES {
            if index as u32 >= self.count {
                return false;
            }
            if self.clauses[index].admits(event, remote) {
                return true;
            }
            index += 1;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> DropEvent {
        let mut remote = [0; 16];
        remote[..4].copy_from_slice(&[10, 0, 0, 7]);
        DropEvent {
            family: 4,
            protocol: 6,
            local_port: 8080,
            remote_port: 40_000,
            remote,
            ..DropEvent::default()
        }
    }

    fn admits(clauses: &[Clause], event: &DropEvent) -> bool {
        let mut all = [Clause::default(); CLAUSES];
        all[..clauses.len()].copy_from_slice(clauses);
        let count = clauses.len() as u32;
        TraceFilter { until: 9, second: 1, burst: 1, count, clauses: all }.admits(event)
    }

    #[test]
    fn clauses_are_alternatives() {
        let event = event();
        let any = Clause::default();
        assert!(admits(&[any], &event));
        assert!(!admits(&[], &event));
        let mut net = [0; 16];
        net[..4].copy_from_slice(&[10, 0, 0, 0]);
        let mut mask = [0; 16];
        mask[..3].fill(0xff);
        let within = Clause { remote: V6::words(&net), mask: V6::words(&mask), family: 4, ..any };
        assert!(admits(&[within], &event));
        net[2] = 1;
        let beside = Clause { remote: V6::words(&net), ..within };
        assert!(!admits(&[beside], &event));
        assert!(admits(&[beside, within], &event));
        assert!(!admits(&[Clause { family: 6, ..any }], &event));
        assert!(admits(&[Clause { local_port: 8080, ..any }], &event));
        assert!(!admits(&[Clause { remote_port: 8080, ..any }], &event));
        assert!(admits(&[Clause { port: 40_000, protocol: 6, ..any }], &event));
        assert!(!admits(&[Clause { port: 8080, protocol: 17, ..any }], &event));
        // For ICMP the field holds type and code.
        let icmp = DropEvent { protocol: 1, ..event };
        assert!(!admits(&[Clause { port: 8080, ..any }], &icmp));
    }

    #[test]
    fn time_wraps_around() {
        let filter =
            TraceFilter { until: 5, second: 1, burst: 1, count: 0, clauses: Default::default() };
        assert!(filter.is_over(5) && filter.is_over(6) && !filter.is_over(4));
        assert!(!filter.is_over(u32::MAX));
    }

    #[test]
    fn steps_are_numbered() {
        for step in Step::ALL {
            assert_eq!(Step::from_number(step as u64), Some(step));
        }
        assert_eq!(Step::from_number(0), None);
        assert_eq!(Step::from_number(14), None);
    }
}
