//! Attacks on the packet path with real packets through a real node: raw sockets send from the outside, and a raw
//! socket in the victim counts the arrivals. Needs root.
//!
//! Every attack runs twice: without policy, where it must arrive (else the test proves nothing), and with policy, where
//! nothing may arrive. An attack that still succeeds is marked `#[ignore]`; to run these too:
//! `cargo nextest run -p netpold --test node attacks:: --run-ignored all`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of a test are not seen as tests by the lints"
)]

mod around;
mod aside;
mod behind;
mod bounce;
mod bridges;
mod checksum;
mod doors;
mod errors;
mod forgotten;
mod handover;
mod identity;
mod itself;
mod joined;
mod lists;
mod marks;
mod mirror;
mod node_scope;
mod numbers;
mod overlay;
mod own_address;
mod refragmented;
mod reject;
mod segments;
mod slots;
mod spliced;
mod synproxy;
mod tunnel;
mod turned;
mod unreached;
mod volley;
