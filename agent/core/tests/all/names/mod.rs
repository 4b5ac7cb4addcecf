//! Domain names: addresses that pods may reach after DNS conversations, by the packet path over compiled tables and by
//! the oracle.
#![expect(clippy::unwrap_used, reason = "tests")]

mod attacks;
mod connections;
mod doubts;
mod generated;
mod lookups;
mod net;
mod resolvers;
mod room;
mod streams;
mod unread;
