//! Reasons why an answer to a pod, or a part of it, opens no address: one closed list, also the label of the metric.

use crate::reason::{COUNTERS, COUNTERS_PER_DIRECTION};

/// Reason why an answer, or a part of it, opens no address. Answers without an address of a name in the pod's rules
/// have no reason.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IgnoredAnswer {
    /// From port 53 of an address that is not a trusted resolver.
    NotResolver = 0,
    /// The pod has not asked this question of this resolver within ten seconds, or was answered before.
    NoQuestion = 1,
    /// Not an answer to one question, shorter than its records, or over UDP longer than
    /// [`MESSAGE`](crate::names::work::MESSAGE).
    Malformed = 2,
    /// In IP fragments.
    Fragment = 3,
    /// Records after the first [`RECORDS`](crate::names::conversation::RECORDS).
    TooManyRecords = 4,
    /// An address or a question that displaced another one before its time.
    NoRoom = 5,
    /// A segment with data of a resolver, in a connection that is not read: see [`crate::names::stream`].
    UnreadSegment = 6,
}

impl IgnoredAnswer {
    /// Number of reasons.
    pub const COUNT: usize = 7;

    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [
        Self::NotResolver,
        Self::NoQuestion,
        Self::Malformed,
        Self::Fragment,
        Self::TooManyRecords,
        Self::NoRoom,
        Self::UnreadSegment,
    ];

    /// Name of the reason as metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotResolver => "not_resolver",
            Self::NoQuestion => "no_question",
            Self::Malformed => "malformed",
            Self::Fragment => "fragment",
            Self::TooManyRecords => "too_many_records",
            Self::NoRoom => "no_room",
            Self::UnreadSegment => "unread_segment",
        }
    }

    /// Index of the reason's counter, behind those of both directions.
    #[must_use]
    #[inline(always)]
    pub const fn counter(self) -> u32 {
        2 * COUNTERS_PER_DIRECTION + self as u32
    }
}

const _: () =
    assert!(2 * COUNTERS_PER_DIRECTION as usize + IgnoredAnswer::COUNT <= COUNTERS as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_order_of_all() {
        for (number, reason) in IgnoredAnswer::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
    }
}
