//! Wire fuzzing: raw senders in pods and outside, raw sockets in every receiver, the real stack in between.
//! Needs root.
//!
//! ```text
//! generate ── frames with a cookie that names the sender ──► pods, bridge, routing, conntrack, NAT, VXLAN
//! judge  ◄── whatever arrives at a pod's eth0 or outside ───────────────────────────────────────────┘
//! ```
//!
//! A frame that arrives must be allowed by the oracle for its real sender, regardless of its source address, or answer
//! (or be an error about) a flow that the oracle allows: [`judge`]. Connections between allowed pods run alongside the
//! fuzzing.
//!
//! `NETPOLD_WIREFUZZ_SECONDS`: duration of all worlds together; default 120 if `CI=true`, else 60.
//! `NETPOLD_WIREFUZZ_SEED`: seed of the random numbers; default 1, or the clock if only the duration is set.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of a test are not seen as tests by the lints"
)]

mod generate;
mod judge;
mod read;
mod run;
mod shape;
mod tally;
mod traits;
mod world;

use netpold_testbed::require_root;
use world::Kind;

#[test]
fn nothing_gets_around_without_netfilter() {
    require_root!();
    run::fuzz(Kind::Plain);
}

#[test]
fn nothing_gets_around_with_translation() {
    require_root!();
    run::fuzz(Kind::Translated);
}

#[test]
fn nothing_gets_around_over_vxlan() {
    require_root!();
    run::fuzz(Kind::Overlay);
}
