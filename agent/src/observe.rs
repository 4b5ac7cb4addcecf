//! `netpold observe`: drops, flows that policies on trial would deny, and new flows, as they happen.
//!
//! The agent records them in a [`Journal`](crate::events::Journal); each watcher reads it at its own pace via the
//! control socket. A line is put together when it is read: names and reasons are those of the cluster as it is
//! then. Nobody's packets wait for a watcher.
//!
//! Drops come from the kernel at once; it sends at most 100 a second for each CPU and counts the others. Flows are
//! met by the sweep of the flow table, so a new or audited one is seen up to `--readback` seconds later, and costs
//! its packets nothing.

mod args;
mod attribution;
mod client;
mod event;
mod filter;
mod render;
mod server;

pub use args::{FilterArgs, ObserveArgs};
pub use attribution::{Attributed, Attributions};
pub use client::{Lines, run, understood};
pub use event::{Attribution, Event, Line, PolicyName, RuleName};
pub use filter::{Filter, Name, Names, Peer, Request, destination_port};
pub use render::{lost_text, peer_name, pod_name, printable_line, text, why};
pub use server::{OBSERVE_REQUEST, Observer};

#[cfg(test)]
mod tests;
