//! Real traffic between network namespaces under real agents. Needs root.
//!
//! Each test builds its own nodes and pods, so tests run side by side. An allowed packet has seconds to arrive, a
//! denied packet a moment.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of a test are not seen as tests by the lints"
)]

mod clsact;
mod cni_results;
mod edits;
mod ends;
mod errors;
mod established;
mod explained;
mod export;
mod failures;
mod flood;
mod fragments;
mod growth;
mod hooks;
mod identity;
mod injected;
mod kernel;
mod latency;
mod learn;
mod link;
mod load;
mod marks;
mod metrics;
mod names;
mod netkit;
mod networks;
mod newpods;
mod observe;
mod observed;
mod open_connections;
mod pods;
mod reach;
mod readback;
mod reject;
mod restart;
mod rules;
mod seeded;
mod sent;
mod services;
mod spoof;
mod startup;
mod state;
mod trace;
mod trials;
mod udp;
mod uninstall;
mod updates;
mod upgrade;
mod uplink;
