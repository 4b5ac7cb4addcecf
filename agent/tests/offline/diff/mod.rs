//! `netpold diff`: differences compared with the oracle, and the command's output.
#![expect(clippy::unwrap_used, reason = "helpers of tests, outside of test functions")]

mod commands;
mod generated;
mod workloads;
