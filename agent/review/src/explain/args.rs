//! Flags of `netpold explain`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use netpold_client::arguments::PartyArg;
use netpold_client::live::{self, ClusterArgs};
use netpold_client::offline::ReviewArgs;
use netpold_client::output::Output;
use netpold_core::probe::{IpProtocol, Probe};

/// Flags of `netpold explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Directory of Kubernetes objects: *.yaml, *.yml and *.json; `-` is standard input; or a cluster, see below
    #[arg(long, value_name = "DIR", env = "NETPOLD_MANIFESTS")]
    pub manifests: Option<PathBuf>,
    /// Subdirectories of --manifests, and addresses of pods without one.
    #[command(flatten)]
    pub review: ReviewArgs,
    /// Control socket of an agent, to ask instead of manifests: the agent compares its objects, its
    /// tables and the kernel's programs
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Sender: namespace/pod, namespace/workload, a pod or workload of the namespace of -n (also as deployment/web),
    /// or an address
    #[arg(long, value_name = "WHO", env = "NETPOLD_FROM", required_unless_present = "probes")]
    pub from: Option<PartyArg>,
    /// Receiver: as --from, or svc/namespace/name
    #[arg(long, value_name = "WHO", env = "NETPOLD_TO", required_unless_present = "probes")]
    pub to: Option<PartyArg>,
    /// Destination port (TCP, UDP and SCTP need one)
    #[arg(long, env = "NETPOLD_PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// TCP, UDP, SCTP, ICMP, ICMPv6 or an IP protocol number
    #[arg(long, env = "NETPOLD_PROTOCOL", default_value = "TCP")]
    pub protocol: IpProtocol,
    /// Answer many probes at once: JSON lines with from, to, port and protocol in, the same lines with
    /// verdict out; `-` is standard input
    #[arg(long, value_name = "FILE", env = "NETPOLD_PROBES", conflicts_with_all = ["from", "to", "port"])]
    pub probes: Option<PathBuf>,
    /// In a cluster, also ask the agents of the pods' nodes, and compare their objects, their tables and the kernel's
    /// programs
    #[arg(long, env = "NETPOLD_NODES", conflicts_with_all = ["probes", "manifests", "local"])]
    pub nodes: bool,
    /// Cluster to ask.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Namespace of pods named without one, and of manifests without one; also the only namespace to read where RBAC forbids to list objects in all
    /// namespaces [default: the context's; without a cluster: default]
    #[arg(short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Format of the answer
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: Output,
}

/// Builds the probe of the flags.
pub(super) fn probe(args: &ExplainArgs) -> Result<Probe> {
    let (Some(from), Some(to)) = (args.from.clone(), args.to.clone()) else {
        bail!("--from and --to are needed, or --probes");
    };
    let mut namespace = String::new();
    if from.lacks_namespace() || to.lacks_namespace() {
        let (manifests, given) = (args.manifests.as_deref(), args.namespace.as_deref());
        namespace = live::namespace(manifests, &args.cluster, given)?;
    }
    let [from, to] = [from, to].map(|who| who.in_namespace(&namespace));
    Probe::new(from, to, args.protocol, args.port)
        .map_err(|error| anyhow::anyhow!("{error}: give --port"))
}
