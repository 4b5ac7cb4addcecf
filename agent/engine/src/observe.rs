//! Watchers of drops and flows: each reads the journal at its own pace via the control socket. Names and reasons of an
//! event are those of the cluster at the time of reading.

mod attribution;
mod feed;
mod filter;
mod server;

pub use attribution::{Attributions, EventAttribution};
pub use feed::{DroppedPackets, EventSink, Feed};
pub use filter::{EventNames, admits, admits_names, destination_port};
pub use server::ObserveServer;

#[cfg(test)]
mod tests;
