//! Kubernetes NetworkPolicy enforced in eBPF at every pod's veth: the agent's parts.

pub mod dataplane;
pub mod endpoint;
pub mod engine;
pub mod events;
pub mod netlink;
pub mod object;
pub mod source;
