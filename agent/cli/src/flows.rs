//! `netpold flows`: the flows of a node's pods, from each pod's view, with their last verdicts.
//!
//! Flows of isolated pods are in netpold's flow table. Packets of other pods leave no entry there, so their flows are
//! read from the kernel's conntrack, if the node has one. Entries have no start time: the idle time of a flow is known,
//! its age is not.
//!
//! A table can hold 786,432 flows and any pod can fill it, so an agent answers in pages. It holds the engine's lock
//! while it collects the input of a page (the pods, a mapping of the tables), but not while it reads the table.

pub mod client;
mod render;

use std::path::PathBuf;

use clap::Args;
use netpold_api::socket::DEFAULT_SOCKET;
use netpold_client::live::ClusterArgs;
use netpold_client::output::Output;

pub use render::text;

/// Flags of `netpold flows`.
#[derive(Debug, Args)]
pub struct FlowsArgs {
    /// Control socket of the agent
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// List only flows of pods in this namespace
    #[arg(short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE")]
    pub namespace: Option<String>,
    /// List only flows of this pod, by its name in the namespace of -n
    #[arg(long, value_name = "NAME", env = "NETPOLD_POD", requires = "namespace")]
    pub pod: Option<String>,
    /// Maximum number of flows to list; the rest is counted by pod. 0: all
    #[arg(long, value_name = "COUNT", env = "NETPOLD_LIMIT", default_value = "10000")]
    pub limit: u32,
    /// Agents to ask.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Format of the answer
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: Output,
}
