//! What is in `deploy/` is what it says: rendered by kubectl, held against the types that Kubernetes
//! publishes, against netpold's own flags and metrics, against a real API server where it serves the
//! kind, and run where it is a program (alerts, admission expressions, scripts).

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests")]

mod admission;
mod agreement;
mod monitoring;
mod rendered;
mod scripts;
mod server;
mod types;

/// Says loudly that a test is skipped; under CI, where it must not be, it fails.
fn skip(test: &str, why: &str) {
    eprintln!("SKIPPED {test}: {why}");
    let ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!ci, "CI=true allows no skipping: {test} needs {why}");
}
