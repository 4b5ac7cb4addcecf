//! Forwarding between two veths, by live frames.

use serde::Serialize;

use crate::report::Spread;

/// What one filter costs.
#[derive(Debug, Serialize)]
pub(crate) struct Forwarding {
    /// The filter.
    pub(crate) filter: &'static str,
    /// Nanoseconds per packet.
    pub(crate) total: Spread,
    /// Nanoseconds per packet more than without a filter.
    pub(crate) over_none: Spread,
}
