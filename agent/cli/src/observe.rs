//! `netpold observe`: drops, flows that audited policies would deny, and new flows, as they happen.
//!
//! The agent records events in a journal; each watcher reads it at its own pace
//! via the control socket. A line is built at the time of reading: names and reasons are those of the cluster at that
//! time. A slow watcher delays no packets.
//!
//! Drops come from the kernel at once; it sends at most 100 a second for each CPU and counts the others. The sweep of
//! the flow table finds new and audited flows, so they appear up to `--readback` seconds later and cost their packets
//! nothing.

mod args;
mod client;
mod render;

pub(crate) use args::arguments;
pub use args::{FilterArgs, ObserveArgs};
pub use client::{open_stream, run};
pub use render::{lost_text, peer_name, pod_name, printable_line, text, why};

#[cfg(test)]
mod tests;
