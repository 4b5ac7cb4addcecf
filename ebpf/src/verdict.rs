//! Verdict on a packet.

use crate::reason::Reason;

/// Verdict on a packet, with its reason.
#[must_use = "a verdict that nobody acts on lets everything pass"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketVerdict(pub(crate) Reason);

impl PacketVerdict {
    /// Reason of the verdict.
    #[must_use]
    #[inline(always)]
    pub const fn reason(self) -> Reason {
        self.0
    }

    /// Number of the reason.
    #[must_use]
    #[inline(always)]
    pub const fn number(self) -> u32 {
        self.0 as u32
    }

    /// Whether the packet passes.
    #[must_use]
    #[inline(always)]
    pub const fn passes(self) -> bool {
        !self.0.is_drop()
    }
}

/// Inner functions return the reason on either side.
impl From<Result<Reason, Reason>> for PacketVerdict {
    #[inline(always)]
    fn from(result: Result<Reason, Reason>) -> Self {
        let (Ok(reason) | Err(reason)) = result;
        Self(reason)
    }
}
