//! Clock of the times in answers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the time since the epoch; zero if the clock is before it.
#[must_use]
pub fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
