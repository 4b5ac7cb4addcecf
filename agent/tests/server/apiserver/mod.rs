//! Agents against a real API server, with real pods and real traffic. Needs root, and the binaries that `cargo xtask
//! setup` provides.
//!
//! The test plays the scheduler and the kubelet: it creates pods through the API, gives each a network namespace
//! behind a veth, and writes its status. Each test starts its own server, because tests stop, freeze or fill it.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod cluster_policies;
mod denials;
mod doctor;
mod follow;
mod hostile;
mod in_force;
mod latency;
mod live;
mod load;
mod outage;
mod rbac;
mod report_writes;
mod silent_agent;
mod tenants;
mod trace;
mod world;
