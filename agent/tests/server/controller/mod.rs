//! Controllers against a real API server. Needs the binaries that `cargo xtask setup` provides.
//!
//! No agent runs: the tests write the `NodePolicyStatus` objects. No garbage collector runs.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod callers;
mod fair;
mod leader;
mod life;
pub(crate) mod peers;
mod rights;
mod scale;
mod silent;
mod webhook;
mod world;
