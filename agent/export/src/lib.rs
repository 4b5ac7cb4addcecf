//! Export of events and metrics to an OpenTelemetry collector: OTLP over HTTP with protobuf.
//!
//! | module | content |
//! |---|---|
//! | [`exporter`] | the task that sends, and its handle |
//! | [`queue`] | encoded log records until they are sent, bounded in bytes |
//! | [`logs`] | an event as a log record |
//! | [`metrics`] | the text of the metrics as data points |
//! | [`client`] | requests: gzip, TLS, headers, which failures to retry |
//! | [`wire`] | messages of the protocol |

mod client;
mod exporter;
mod logs;
mod metrics;
mod queue;
mod wire;

pub use client::{CollectorAddress, CollectorAddressError};
pub use exporter::{ExportNumbers, ExportSettings, Exporter};
pub use logs::Unreported;
