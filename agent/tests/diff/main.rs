//! `netpold diff`: against the oracle, and as people meet it.
#![expect(clippy::unwrap_used, reason = "helpers of tests, outside of test functions")]

mod commands;
mod generated;
mod workloads;
