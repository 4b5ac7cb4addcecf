//! Counters of the export to an OpenTelemetry collector.

use std::fmt;

use super::writer::MetricWriter;

/// Counters since the agent's start; all 0 without an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Log records that the collector accepted.
    pub sent: u64,
    /// Log records lost: no room in the queue, or refused by the collector.
    pub lost: u64,
    /// Failed requests.
    pub failures: u64,
    /// Log records in the queue.
    pub waiting: u64,
}

impl Exported {
    pub(super) fn write(&self, writer: &mut MetricWriter<'_>) -> fmt::Result {
        let help = "Log records sent to the OTLP collector, and lost ones: no room, or refused by the collector";
        let records = [("sent", self.sent), ("lost", self.lost)];
        let records = records.map(|(result, count)| ([("result", result)], count));
        writer.counters("otlp_log_records", help, records)?;
        writer.gauge("otlp_waiting_log_records", "Log records waiting for export", self.waiting)?;
        writer.counter("otlp_failed_requests", "Failed requests to the collector", self.failures)
    }
}
