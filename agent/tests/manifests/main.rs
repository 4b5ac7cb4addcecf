//! What is in `deploy/` is what it says: rendered by kubectl, held against the types that Kubernetes
//! publishes, against netpold's own flags and metrics, against a real API server where it serves the
//! kind, and run where it is a program (alerts, admission expressions, scripts).

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod admission;
mod agreement;
mod callers;
mod expressions;
mod gates;
mod guard_rails;
mod least_privilege;
mod monitoring;
mod rendered;
mod scripts;
mod server;
mod types;
