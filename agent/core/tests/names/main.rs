//! Domain names: what pods may reach after which conversations with resolvers, by the packet path over compiled
//! tables, and by the oracle.
#![expect(clippy::unwrap_used, reason = "tests")]

mod attacks;
mod connections;
mod lookups;
mod net;
mod streams;
