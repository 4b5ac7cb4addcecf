//! Ways around the packet path, tried with real packets through a real node: each from the outside, as
//! somebody hostile would, with a raw socket in the victim that sees what arrives. Needs root.
//!
//! Every attack is run twice: without policy, where it must arrive (else the test shows nothing), and with
//! policy, where nothing may. What is still open is left out by `#[ignore]`; to see how much of it arrives:
//! `cargo nextest run -p netpold --test attacks --run-ignored all`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of a test are not seen as tests by the lints"
)]

mod around;
mod bounce;
mod bridges;
mod checksum;
mod doors;
mod errors;
mod forgotten;
mod handover;
mod identity;
mod itself;
mod marks;
mod mirror;
mod overlay;
mod own_address;
mod refragmented;
mod synproxy;
mod turned;
mod unreached;
mod volley;
