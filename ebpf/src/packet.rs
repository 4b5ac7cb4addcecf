//! Packets: their bytes, their parsed headers, and the differences between IPv4 and IPv6.

pub mod bytes;
pub mod family;
pub mod icmp;
pub(crate) mod neighbour;
pub mod network;
pub mod parse;
pub mod parsed;
pub mod protocol;
pub(crate) mod quoted;
pub mod rejection;
pub mod tuple;
