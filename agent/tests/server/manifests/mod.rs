//! Objects of `deploy/`: rendered by kubectl, compared with the types that Kubernetes publishes, with netpold's own
//! flags and metrics, created on a real API server where it serves the kind, and executed if executable (alerts,
//! admission expressions, scripts).

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod admission;
mod agreement;
mod callers;
mod chart;
mod expressions;
mod gates;
mod guard_rails;
mod least_privilege;
mod monitoring;
mod peer_slices;
mod rendered;
mod scripts;
mod server;
mod types;
