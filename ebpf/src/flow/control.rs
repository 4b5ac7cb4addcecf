//! Control word of a conntrack entry: time stamp, incarnation, flags; and the timeouts that follow from them.

use crate::{
    flow::memory::Memory,
    layout::{
        CT_BUSY, CT_FIN_EGRESS, CT_FIN_INGRESS, CT_REPLIED, CT_RST, CT_RST_SENT, CT_STREAM,
        CT_SYN_ACK, CT_USED, CT_VALID, Settings, TIMEOUT_ECHO, TIMEOUT_FRAGMENT, TIMEOUT_IDLE,
        TIMEOUT_ONE_WAY, TIMEOUT_OTHER, TIMEOUT_SCTP_ESTABLISHED, TIMEOUT_SCTP_OPENING,
        TIMEOUT_TCP_ANSWERED, TIMEOUT_TCP_CLOSED, TIMEOUT_TCP_ESTABLISHED, TIMEOUT_TCP_FINISHED,
        TIMEOUT_TCP_HALF_CLOSED, TIMEOUT_TCP_OPENING, TIMEOUT_TCP_RESET, TIMEOUT_UDP_ANSWERED,
        TIMEOUT_UDP_STREAM, TIMEOUTS,
    },
    packet::protocol::{ICMP, ICMPV6, SCTP, TCP, UDP},
};

/// Both FIN flags.
const CT_FINS: u16 = CT_FIN_INGRESS | CT_FIN_EGRESS;
/// Flags of an RST in either direction.
const CT_RSTS: u16 = CT_RST | CT_RST_SENT;
/// Ages from here on are stamps of a CPU that read its clock a little later.
const FUTURE: u32 = 0xffff_0000;

/// Rank of a way that is never evicted. Established flows that have been idle for long rank above it, by their age.
pub const PROTECTED: u64 = 0;
/// Rank of the youngest half-open flow; its age is added.
pub(crate) const HALF_OPEN: u64 = 1 << 33;
/// Rank of a closed or closing flow; its age is added.
pub(crate) const OVER: u64 = 1 << 34;
/// Rank of a way without a live flow.
pub(crate) const FREE: u64 = 1 << 35;

/// A control word: 32 bits last-seen jiffies, 16 bits incarnation, 16 bits `CT_*` flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control(pub u64);

impl Control {
    /// Assembles a control word.
    #[must_use]
    #[inline(always)]
    pub const fn new(seen: u32, incarnation: u16, flags: u16) -> Self {
        Self((seen as u64) << 32 | (incarnation as u64) << 16 | flags as u64)
    }

    /// Control word of the way after its flow is removed. The incarnation stays, so that a reader of the flow notices
    /// the next one, and the way is not [`Control::is_unused`].
    #[must_use]
    #[inline(always)]
    pub const fn freed(self) -> Self {
        Self::new(0, self.incarnation(), CT_USED)
    }

    /// Whether the way never held a flow, or was reset by [`crate::flow::sweep::renew`]. A new flow takes the first
    /// vacant way of its first bucket, so no flow with this first bucket is in a later way or in its second bucket.
    #[must_use]
    #[inline(always)]
    pub const fn is_unused(self) -> bool {
        self.flags() == 0
    }

    /// The `CT_*` flags.
    #[must_use]
    #[inline(always)]
    pub const fn flags(self) -> u16 {
        self.0 as u16
    }

    /// Number of times the way was claimed, modulo 2^16.
    #[must_use]
    #[inline(always)]
    pub const fn incarnation(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Time stamp of the flow's last packet, in jiffies.
    #[must_use]
    #[inline(always)]
    pub const fn last_seen(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Jiffies since the flow's last packet. A stamp from the near future (of another CPU) counts as 0.
    #[must_use]
    #[inline(always)]
    pub const fn age(self, now: u32) -> u32 {
        let age = now.wrapping_sub(self.last_seen());
        if age < FUTURE { age } else { 0 }
    }

    /// Whether the key may be compared.
    #[must_use]
    #[inline(always)]
    pub const fn is_valid(self) -> bool {
        self.flags() & (CT_VALID | CT_BUSY) == CT_VALID
    }

    /// Whether the way neither holds a flow nor is being written.
    #[must_use]
    #[inline(always)]
    pub const fn is_vacant(self) -> bool {
        self.flags() & (CT_VALID | CT_BUSY) == 0
    }

    /// Whether the way holds an unanswered flow.
    #[inline(always)]
    pub(crate) const fn is_half_open(self) -> bool {
        self.flags() & (CT_VALID | CT_BUSY | CT_REPLIED) == CT_VALID
    }

    /// Whether a flow was last seen before another.
    #[inline(always)]
    pub(crate) const fn is_older(self, other: Self) -> bool {
        self.last_seen().wrapping_sub(other.last_seen()).cast_signed() < 0
    }

    /// Whether a TCP flow is being closed: a FIN or RST was seen.
    #[must_use]
    #[inline(always)]
    pub const fn is_closing(self) -> bool {
        self.flags() & (CT_FINS | CT_RSTS) != 0
    }

    /// Whether a TCP flow is over, if its RST or FINs are genuine: RST, or FIN from both sides.
    #[must_use]
    #[inline(always)]
    pub const fn is_closed(self) -> bool {
        self.flags() & CT_RSTS != 0 || self.flags() & CT_FINS == CT_FINS
    }

    /// Index of the timeout in [`Settings::timeouts`].
    #[must_use]
    #[inline(always)]
    pub const fn timeout(self, protocol: u8) -> usize {
        let replied = self.flags() & CT_REPLIED != 0;
        match (protocol, replied) {
            (TCP | SCTP, _) if self.is_closing() => self.closing_timeout(protocol),
            (TCP, true) => TIMEOUT_TCP_ESTABLISHED,
            (TCP, false) if self.flags() & CT_SYN_ACK != 0 => TIMEOUT_TCP_ANSWERED,
            (TCP, false) => TIMEOUT_TCP_OPENING,
            (SCTP, true) => TIMEOUT_SCTP_ESTABLISHED,
            (SCTP, false) => TIMEOUT_SCTP_OPENING,
            (ICMP | ICMPV6, _) => TIMEOUT_ECHO,
            (_, false) => TIMEOUT_ONE_WAY,
            (UDP, true) if self.flags() & CT_STREAM != 0 => TIMEOUT_UDP_STREAM,
            (UDP, true) => TIMEOUT_UDP_ANSWERED,
            (_, true) => TIMEOUT_OTHER,
        }
    }

    /// Index of the timeout of a closing flow. An RST of the pod is genuine; one that arrived at the pod may be forged,
    /// and must not end an established flow.
    #[inline(always)]
    const fn closing_timeout(self, protocol: u8) -> usize {
        let flags = self.flags();
        if flags & CT_RST_SENT != 0 || flags & (CT_REPLIED | CT_RST) == CT_RST {
            TIMEOUT_TCP_CLOSED
        } else if flags & CT_REPLIED == 0 {
            TIMEOUT_TCP_OPENING
        } else if protocol == SCTP {
            TIMEOUT_SCTP_ESTABLISHED
        } else if flags & CT_FINS == CT_FINS {
            TIMEOUT_TCP_FINISHED
        } else if flags & CT_FINS != 0 {
            TIMEOUT_TCP_HALF_CLOSED
        } else {
            TIMEOUT_TCP_RESET
        }
    }

    /// Whether the flow has been idle for its timeout.
    #[must_use]
    #[inline(always)]
    pub fn is_expired<M: Memory>(
        self,
        memory: &M,
        protocol: u8,
        settings: &Settings,
        now: u32,
    ) -> bool {
        // The mask keeps the verifier from following each of the timeouts.
        const { assert!(TIMEOUTS.is_power_of_two()) };
        let age = self.age(now);
        if age < settings.refresh_after {
            return false;
        }
        let timeout = memory.opaque(self.timeout(protocol), self.0) & (TIMEOUTS - 1);
        age >= settings.timeouts[timeout]
    }
}

/// Memory with flows that expire. The programs have these as functions of their own, which the kernel verifies once and
/// not wherever a flow is found.
pub trait Timeouts: Memory + Sized {
    /// [`Control::is_expired`].
    #[inline(always)]
    fn is_expired(&self, control: Control, protocol: u8, settings: &Settings, now: u32) -> bool {
        control.is_expired(self, protocol, settings, now)
    }
    /// [`Control::rank`].
    #[inline(always)]
    fn rank(&self, control: Control, protocol: u8, settings: &Settings, now: u32) -> u64 {
        control.rank(self, protocol, settings, now)
    }
}

impl Control {
    /// Eviction order of a way, highest first: [`FREE`], then [`OVER`], [`HALF_OPEN`], then established flows that
    /// have been idle for long; within each the oldest. [`PROTECTED`] ways are never evicted.
    #[must_use]
    #[inline(always)]
    pub fn rank<M: Memory>(self, memory: &M, protocol: u8, settings: &Settings, now: u32) -> u64 {
        let flags = self.flags();
        if flags & CT_BUSY != 0 {
            return PROTECTED;
        }
        if flags & CT_VALID == 0 || self.is_expired(memory, protocol, settings, now) {
            return FREE;
        }
        let age = u64::from(self.age(now)) + 1;
        if flags & CT_REPLIED == 0 {
            return HALF_OPEN + age;
        }
        let (protection, rank) =
            if self.is_closing() { (self.closing_protection(), OVER) } else { (TIMEOUT_IDLE, 0) };
        let protection = memory.opaque(protection, self.0) & (TIMEOUTS - 1);
        if age <= settings.timeouts[protection].into() { PROTECTED } else { rank + age }
    }

    /// Index of the idle time for which a closing flow is protected.
    #[inline(always)]
    const fn closing_protection(self) -> usize {
        // One of the FINs is the pod's own; only the other one can be forged.
        let finished = self.flags() & CT_FINS == CT_FINS || self.flags() & CT_RST_SENT != 0;
        if finished { TIMEOUT_TCP_CLOSED } else { TIMEOUT_TCP_HALF_CLOSED }
    }
}

/// Timeouts in jiffies of a kernel with `hz` ticks a second; the agent adapts them to those of the node's conntrack.
/// TCP as in the kernel, except that five days are capped at the span of 32-bit stamps.
#[must_use]
pub fn timeouts(hz: u32) -> [u32; TIMEOUTS] {
    let seconds = |seconds: u32| seconds.saturating_mul(hz.max(1)).min(u32::MAX / 4);
    let mut timeouts = [0; TIMEOUTS];
    timeouts[TIMEOUT_TCP_OPENING] = seconds(120);
    timeouts[TIMEOUT_TCP_ANSWERED] = seconds(60);
    timeouts[TIMEOUT_TCP_ESTABLISHED] = seconds(5 * 24 * 3600);
    timeouts[TIMEOUT_TCP_HALF_CLOSED] = seconds(120);
    timeouts[TIMEOUT_TCP_FINISHED] = seconds(120);
    timeouts[TIMEOUT_TCP_CLOSED] = seconds(10);
    // The kernel detects a forged RST by its sequence number, this table cannot. RFC 5382 requires this time for a
    // flow that may be silent between two keepalives.
    timeouts[TIMEOUT_TCP_RESET] = seconds(2 * 3600 + 4 * 60);
    timeouts[TIMEOUT_ONE_WAY] = seconds(30);
    timeouts[TIMEOUT_UDP_ANSWERED] = seconds(180);
    timeouts[TIMEOUT_UDP_STREAM] = seconds(180);
    timeouts[TIMEOUT_OTHER] = seconds(180);
    timeouts[TIMEOUT_SCTP_OPENING] = seconds(120);
    timeouts[TIMEOUT_SCTP_ESTABLISHED] = seconds(5 * 24 * 3600);
    timeouts[TIMEOUT_ECHO] = seconds(30);
    timeouts[TIMEOUT_FRAGMENT] = seconds(30);
    timeouts[TIMEOUT_IDLE] = seconds(2 * 3600);
    timeouts
}
