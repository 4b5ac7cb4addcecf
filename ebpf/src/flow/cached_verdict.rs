//! Cached verdict of a flow, in its entry of the flow table.
//!
//! Under unchanged policy the next packet of a flow gets the verdict of the last one. So the entry keeps the reason
//! for which a packet passed, with the revision of policy that was read *before* policy was: an update in between
//! changes the revision after its last word, which invalidates the cached reason. Drops are not cached.
//!
//! Entries are fresh for [`crate::layout::Settings::refresh_after`]. The next packet after that is judged by policy
//! again, so that no cached reason lasts longer, even if the revision failed to change.

use crate::{direction::PodDirection, reason::Reason};

/// From the top: 32 bits policy revision, 16 bits incarnation of the entry, 8 bits [`Reason`] for pod egress, 8 for pod
/// ingress. [`Reason::NotEndpoint`], 0, means an unknown reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedVerdict(pub u64);

/// Bits of the two reasons.
const REASONS: u32 = 16;

impl CachedVerdict {
    /// Cached verdict without reasons, of an entry's incarnation under a revision.
    #[must_use]
    #[inline(always)]
    pub const fn nothing(revision: u32, incarnation: u16) -> Self {
        Self((revision as u64) << 32 | (incarnation as u64) << REASONS)
    }

    const fn shift<D: PodDirection>() -> u32 {
        if D::EGRESS { 8 } else { 0 }
    }

    /// Cached reason for which packets of this direction pass, if it is valid under `current`:
    /// [`CachedVerdict::nothing`] of the current revision and incarnation.
    #[must_use]
    #[inline(always)]
    pub const fn reason<D: PodDirection>(self, current: Self) -> Option<Reason> {
        let reasons = self.0 ^ current.0;
        let number = (reasons >> Self::shift::<D>()) as u8;
        if reasons >> REASONS != 0 || number == 0 || number >= Reason::FIRST_DROP as u8 {
            return None;
        }
        // SAFETY: every number below the first drop's is a reason's, see `Reason::ALL`.
        Some(unsafe { core::mem::transmute::<u8, Reason>(number) })
    }

    /// Sets the reason of this direction; keeps the other direction's if it is valid under `current`.
    #[must_use]
    #[inline(always)]
    pub const fn with<D: PodDirection>(self, current: Self, reason: Reason) -> Self {
        let base = if (self.0 ^ current.0) >> REASONS == 0 { self.0 } else { current.0 };
        let cleared = base & !(0xff << Self::shift::<D>());
        Self(cleared | (reason as u64) << Self::shift::<D>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direction::{Egress, Ingress};

    #[test]
    fn what_is_remembered_is_of_one_revision_and_incarnation() {
        let current = CachedVerdict::nothing(7, 3);
        assert_eq!(current.reason::<Ingress>(current), None);
        let sent = current.with::<Egress>(current, Reason::Translated);
        assert_eq!(sent.reason::<Egress>(current), Some(Reason::Translated));
        assert_eq!(sent.reason::<Ingress>(current), None);
        let both = sent.with::<Ingress>(current, Reason::Reply);
        assert_eq!(both.reason::<Egress>(current), Some(Reason::Translated));
        assert_eq!(both.reason::<Ingress>(current), Some(Reason::Reply));
        for other in [CachedVerdict::nothing(8, 3), CachedVerdict::nothing(7, 4)] {
            assert_eq!(both.reason::<Ingress>(other), None);
            let renewed = both.with::<Ingress>(other, Reason::Allowed);
            assert_eq!(renewed.reason::<Ingress>(other), Some(Reason::Allowed));
            assert_eq!(renewed.reason::<Egress>(other), None, "the other's is not carried along");
        }
    }

    #[test]
    fn no_number_is_a_drop() {
        let current = CachedVerdict::nothing(1, 1);
        for number in 0..=u8::MAX {
            let reason = CachedVerdict(current.0 | u64::from(number)).reason::<Ingress>(current);
            assert!(reason.is_none_or(|reason| !reason.is_drop()));
            assert_eq!(
                reason.map_or(0, |reason| reason as u8) != 0,
                (1..Reason::FIRST_DROP as u8).contains(&number)
            );
        }
    }
}
