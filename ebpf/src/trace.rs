//! What the traced variant of the programs tells of a judgement, for `netpold trace`.
//!
//! The judgement notes its steps by [`PolicyTables::note`](crate::tables::policy::PolicyTables::note). In the
//! ordinary programs, and on the host, that is nothing. In the traced variant (feature `trace`) the steps of a packet
//! that [`TraceFilter`] admits are recorded, and told once the packet is judged, a line a step.

use crate::{layout::DropEvent, packet::family::V6};

/// A step of a judgement. Each comes with two words, named here `first` and `second`.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The packet: direction, IP version, protocol and length from the lowest byte of `first` on ([`packet`]);
    /// the pod's port and the other side's in `second`.
    Packet = 1,
    /// The pod's address, in memory order; IPv4 in the first four bytes.
    Local = 2,
    /// The other side's address, as [`Step::Local`].
    Remote = 3,
    /// The headers were not read in place.
    SlowPath = 4,
    /// The endpoint was found: its number and the revision of policy (upper half); its rows.
    Endpoint = 5,
    /// The verdict is the one that the flow's entry remembers: the reason's number; the entry's control word.
    Cached = 6,
    /// Class of the remote address, with its flags.
    Class = 7,
    /// A row was asked: the row and the class (upper half); the row's word for that class.
    Row = 8,
    /// What the row's word means for this packet: protocol, port (from bit 8), and whether it allows it (bit 32).
    Ports = 9,
    /// An entry of the flow table was looked for: 2 found, 1 found but expired, 0 none; its control word.
    Flow = 10,
    /// A flow is recorded, with these flags.
    NewFlow = 11,
    /// A packet that the node may have translated was judged for its sender first: the reason's number.
    Sender = 12,
    /// The end: the reason's number, or [`SETTLED`]; 0 passes, 1 drops, and from bit 8 on the number of lines
    /// before this one.
    Verdict = 13,
}

/// Instead of a reason: [`Step::Sender`] has it.
pub const SETTLED: u64 = 0xff;

impl Step {
    /// Every step, by its number less one.
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

/// `first` of [`Step::Packet`].
#[must_use]
#[inline(always)]
pub const fn packet(event: &DropEvent) -> u64 {
    event.direction as u64
        | (event.family as u64) << 8
        | (event.protocol as u64) << 16
        | (event.length as u64) << 32
}

/// Most clauses of a filter.
pub const CLAUSES: usize = 16;

/// One other side that is asked for; 0 in a field admits anything.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clause {
    /// The other side's address, in memory order; IPv4 in the first four bytes.
    pub remote: [u64; 2],
    /// Which bits of it count.
    pub mask: [u64; 2],
    /// The pod's port.
    pub local_port: u16,
    /// The other side's port.
    pub remote_port: u16,
    /// Either port.
    pub port: u16,
    /// 4 or 6.
    pub family: u8,
    /// IP protocol number; with a port also 0: any that has ports.
    pub protocol: u8,
}

/// Which packets are told of.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceFilter {
    /// Jiffies (low 32 bits) from which on none is.
    pub until: u32,
    /// Jiffies of a second.
    pub second: u32,
    /// Packets that each CPU tells of in a second.
    pub burst: u32,
    /// Clauses, one of which must admit the packet.
    pub count: u32,
    /// They.
    pub clauses: [Clause; CLAUSES],
}

/// Most steps of a packet that are told of.
pub const STEPS: usize = 24;

/// What a CPU keeps of the packet that it judges.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TraceRecord {
    /// Packets that the filter admitted, told or not.
    pub matched: u64,
    /// Jiffies at which the second began.
    pub window: u32,
    /// Packets told of in it.
    pub told: u32,
    /// Not zero while a packet is judged that is to be told of.
    pub active: u32,
    /// Steps of it.
    pub count: u32,
    /// The packet, as the event of a drop has it.
    pub event: DropEvent,
    /// Step, `first` and `second`.
    pub steps: [[u64; 3]; STEPS],
}

const _: () = {
    assert!(size_of::<Clause>() == 40 && size_of::<TraceFilter>() == 16 + 40 * CLAUSES);
    assert!(size_of::<TraceRecord>() == 24 + 56 + 24 * STEPS);
};

/// Protocols that have ports.
const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17 | 132)
}

impl Clause {
    /// Whether a packet is asked for.
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
    /// Whether it is too late.
    #[must_use]
    #[inline(always)]
    pub const fn is_over(&self, now: u32) -> bool {
        self.until.wrapping_sub(now).cast_signed() <= 0
    }

    /// Whether a packet is to be told of.
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
        // Of ICMP the field holds type and code.
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
