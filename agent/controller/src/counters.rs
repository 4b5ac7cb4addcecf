//! Counters of the controller.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

/// Counters for `/metrics`.
#[derive(Debug, Default)]
pub(super) struct ControllerCounters {
    /// Number of statuses written.
    pub(super) writes: Counter,
    /// Number of failed writes.
    pub(super) failures: Counter,
    /// Number of policies in the queue.
    pub(super) waiting: Gauge,
    /// Number of policies in the index.
    pub(super) policies: Gauge,
}
