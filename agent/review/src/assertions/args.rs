//! Flags of `netpold test`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use netpold_client::live::ClusterArgs;
use netpold_client::offline::ReviewArgs;

/// Flags of `netpold test`.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// Files of assertions, comma-separated or each after a -f; `-` is standard input. Kubernetes objects in
    /// them are applied to the objects of --manifests or of the cluster
    #[arg(
        short,
        long,
        value_name = "FILE",
        env = "NETPOLD_FILE",
        value_delimiter = ',',
        required = true
    )]
    pub file: Vec<PathBuf>,
    /// Also open the connections from inside the cluster's pods, with the tools of their images; TCP
    /// only
    #[arg(long, env = "NETPOLD_PROBE", conflicts_with_all = ["manifests", "local"])]
    pub probe: bool,
    /// Directory of Kubernetes objects: *.yaml, *.yml and *.json; `-` is standard input; or a cluster, see below
    #[arg(long, value_name = "DIR", env = "NETPOLD_MANIFESTS")]
    pub manifests: Option<PathBuf>,
    /// Subdirectories of --manifests, and addresses of pods without one.
    #[command(flatten)]
    pub review: ReviewArgs,
    /// Cluster to ask.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Namespace of pods that assertions name without one, and of manifests without one; also the only namespace to read where RBAC forbids to list
    /// objects in all namespaces [default: the context's; without a cluster: default]
    #[arg(short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Format of the answer
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: TestOutput,
}

/// Format of the outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TestOutput {
    /// Human-readable text
    Text,
    /// Test Anything Protocol, version 14
    Tap,
    /// XML for CI servers
    Junit,
    /// JSON for programs
    Json,
}
