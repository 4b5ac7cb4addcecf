//! Sleep until an optional deadline.

use std::time::Instant;

/// Sleeps until `instant`; forever if there is none.
pub async fn pause_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
