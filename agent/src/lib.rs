//! Kubernetes NetworkPolicy enforced in eBPF at every pod's veth: the agent's parts.

pub mod admin;
pub mod cli;
pub mod config;
pub mod conntrack;
pub mod dataplane;
pub mod endpoint;
pub mod engine;
pub mod events;
pub mod explain;
pub mod listen;
pub mod metrics;
pub mod netlink;
pub mod object;
pub mod pattern;
mod printable;
pub mod requirements;
pub mod run;
pub mod seed;
pub mod service_manager;
pub mod source;
pub mod state;
pub mod status;
pub mod uninstall;
mod watched;
