//! Waiting for a moment that may never come.

use std::time::Instant;

/// Sleeps until then; for ever without a moment.
pub(crate) async fn pause_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
