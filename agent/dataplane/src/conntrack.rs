//! The agent's side of conntrack: counts and sweeps the flow tables in their mapped memory.
//!
//! The kernel program treats an expired entry as absent, so a sweep decides nothing: it frees ways in advance and
//! counts the used ones. It frees an entry by compare-and-swap of the whole control word, time stamp included, so a
//! flow with a packet at that moment stays. A way that is still free at the next pass becomes unused again: programs
//! search neither later ways nor the second bucket past it.

mod clock;
mod entry;
mod import;
mod key;
mod sighting;
mod size;
mod sweeper;
pub mod timeouts;
mod walk;

pub use self::clock::{measure_hz, tick_rate};
pub use self::entry::BucketState;
pub use self::import::TrackedFlow;
pub use self::key::FlowKey;
pub use self::sighting::{EndpointFlow, Sighting};
pub use self::size::Buckets;
pub use self::sweeper::{FlowCounts, Occupancy, PassResult, Sweeper};

#[cfg(test)]
mod tests;
