//! Numbers of the export to an OpenTelemetry collector.

use std::fmt;

use super::writer::Writer;

/// Numbers since the agent's start; all 0 without an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Log records that the collector accepted.
    pub sent: u64,
    /// Log records lost: no room, or refused.
    pub lost: u64,
    /// Failed requests.
    pub failures: u64,
    /// Log records that wait.
    pub waiting: u64,
}

impl Exported {
    pub(super) fn write(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let help = "Log records exported by OTLP, and records lost before: no room, or refused";
        let records = [("sent", self.sent), ("lost", self.lost)];
        let records = records.map(|(result, count)| ([("result", result)], count));
        writer.counters("otlp_log_records", help, records)?;
        writer.gauge("otlp_waiting_log_records", "Log records to be exported", self.waiting)?;
        writer.counter("otlp_failed_requests", "Failed requests to the collector", self.failures)
    }
}
