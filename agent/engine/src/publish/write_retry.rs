//! Retry time and log state of a kind of writes that fails at present.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use netpold_kube::cluster::connection::Connection;
use tokio::time::Instant;
use tracing::{info, warn};

use super::write::WriteError;

/// Retry time and log state of a kind of writes.
pub(super) struct WriteRetry {
    /// Verb and resource, as in `patch pods/status`.
    what: &'static str,
    /// HTTP status last logged; 0 without an answer.
    said: Option<u16>,
    backoff: DefaultBackoff,
    retry_at: Instant,
}

impl WriteRetry {
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, said: None, backoff: DefaultBackoff::default(), retry_at: Instant::now() }
    }

    /// Returns whether it is too early to retry.
    pub(super) fn is_pausing(&self) -> bool {
        Instant::now() < self.retry_at
    }

    /// Returns the time until a retry.
    pub(super) fn pause(&self) -> Duration {
        self.retry_at.saturating_duration_since(Instant::now())
    }

    /// Logs a failure that pauses nothing. Logs each HTTP status once, because texts differ by object.
    pub(super) fn complain(&mut self, error: &WriteError, connection: &Connection) {
        let code = error.code.unwrap_or(0);
        if self.said.replace(code) != Some(code) {
            let problem = error.failure.text(self.what, connection.server());
            warn!(problem, "cannot report enforcement to the API server; enforcement continues");
        }
    }

    /// Logs a failure that concerns every object, and pauses.
    pub(super) async fn failed(&mut self, error: &WriteError, connection: &Connection) {
        self.complain(error, connection);
        self.retry_at = Instant::now() + self.backoff.next().unwrap_or(Duration::from_secs(30));
        if error.failure.calls_for_renewal() {
            connection.renew().await;
        }
    }

    /// Delays the retry until at least `pause` from now.
    pub(super) fn not_before(&mut self, pause: Duration) {
        self.retry_at = self.retry_at.max(Instant::now() + pause);
    }

    pub(super) fn worked(&mut self) {
        self.retry_at = Instant::now();
        if self.said.take().is_some() {
            info!(to = self.what, "reporting enforcement to the API server again");
            self.backoff.reset();
        }
    }
}
