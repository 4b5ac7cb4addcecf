//! Flags of `netpold diff`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use netpold_api::socket::DEFAULT_SOCKET;
use netpold_client::live::ClusterArgs;
use netpold_client::offline::ReviewArgs;

/// Flags of `netpold diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// Directory of Kubernetes objects before the change: *.yaml, *.yml and *.json; `-` is standard input
    #[arg(
        long,
        value_name = "DIR",
        env = "NETPOLD_FROM",
        requires = "to",
        conflicts_with = "file"
    )]
    pub from: Option<PathBuf>,
    /// Directory of Kubernetes objects after the change; or `-`
    #[arg(long, value_name = "DIR", env = "NETPOLD_TO", requires = "from")]
    pub to: Option<PathBuf>,
    /// Directory of the cluster's objects, to apply -f to, or `-`; or a cluster, see below. Unused with --from
    /// and --to
    #[arg(long, value_name = "DIR", env = "NETPOLD_MANIFESTS", requires = "file")]
    pub manifests: Option<PathBuf>,
    /// File or directory of the objects to apply; `-` is standard input
    #[arg(
        short,
        long,
        value_name = "FILE|DIR",
        env = "NETPOLD_FILE",
        required_unless_present = "from"
    )]
    pub file: Option<PathBuf>,
    /// Subdirectories of the directories, and addresses of pods without one.
    #[command(flatten)]
    pub review: ReviewArgs,
    /// Delete the objects of -f instead of applying them
    #[arg(long, env = "NETPOLD_DELETE", requires = "file")]
    pub delete: bool,
    /// Cluster to ask.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Namespace of manifests without one; also the only namespace to read where RBAC forbids to list objects in
    /// all namespaces [default: the context's; without a cluster: default]
    #[arg(short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Also show which of the connections open now are cut: on the agent's node,
    /// or on every node of the cluster
    #[arg(long, env = "NETPOLD_LIVE")]
    pub live: bool,
    /// Control socket of the agent that --live asks
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Differences that make the exit status 1
    #[arg(long, value_name = "KIND", env = "NETPOLD_FAIL_ON", default_value = "any")]
    pub fail_on: DiffKind,
    /// Format of the answer
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "table")]
    pub output: DiffOutput,
}

/// Kinds of differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiffKind {
    /// A connection is no longer allowed
    Cut,
    /// A connection is newly allowed
    Open,
    /// Either of them
    Any,
}

/// Format of differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiffOutput {
    /// Human-readable text: equal changes in one line
    Table,
    /// JSON
    Json,
    /// A table for a comment on a pull request
    Markdown,
    /// A Mermaid graph of the changes
    Mermaid,
}
