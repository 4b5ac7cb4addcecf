//! Flags of `netpold status`.

use std::path::PathBuf;

use clap::Args;
use netpold_api::socket::DEFAULT_SOCKET;
use netpold_client::live::ClusterArgs;
use netpold_client::output::Output;

/// Flags of `netpold status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Control socket of the agent
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Cluster to ask.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Format of the answer
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: Output,
    /// Print only the reasons why the agent is not ready (as /readyz), with exit status 1 if there are
    /// any: for a probe that must not reach another agent of the node
    #[arg(long, env = "NETPOLD_READY", conflicts_with = "output")]
    pub ready: bool,
}
