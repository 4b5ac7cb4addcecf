//! Wire types of netpold: kinds of its API, requests to an agent, and the answers. Data and its serialization only: no
//! I/O but the clock, no client, no kernel.
#![forbid(unsafe_code)]

pub mod crd;
pub mod events;
pub mod filter;
pub mod flows;
pub mod learn;
pub mod observe;
pub mod peer_slice;
pub mod probe;
pub mod rules;
#[cfg(feature = "samples")]
pub mod samples;
pub mod socket;
pub mod source;
pub mod status;
pub mod trace;
pub mod unix_time;
pub mod workload;
