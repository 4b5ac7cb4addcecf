//! `netpold doctor`: misconfigurations that keep policy from working as its author expects, each with a fix.
//!
//! On a node, doctor asks the kernel (programs, chains, pins, devices) and the agent; these checks are the binary's. For objects, from manifests or
//! from the API server, doctor looks for mistakes of policies that the API server accepts. Findings are grouped by
//! kind, in bounded memory, because tenants write most of the shown text.

mod backend_index;
mod block_scope;
mod blocks;
mod callers;
mod dns;
pub mod enforcers;
mod examine;
mod finding;
mod foreign;
mod host_peers;
mod ingresses;
mod live;
mod mesh;
mod names;
mod node_ports;
mod objects;
mod one_end;
mod outside;
mod ports;
mod reading;
mod render;
mod rule_ports;
mod second;
mod selectors;
mod service_peers;
mod service_ports;
mod services;
mod some_endpoints;
mod void_rules;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use netpold_api::socket::{DEFAULT_BPFFS, DEFAULT_SOCKET};
use netpold_client::arguments::check_namespace;
use netpold_client::details::Details;
use netpold_client::live::ClusterArgs;
use netpold_client::offline::{self, Recursive};
use netpold_client::output::{Output, print};
use netpold_kube::convert::DEFAULT_NAMESPACE;

pub use examine::examine;
pub use finding::{Check, DoctorReport, Finding, Findings, Severity, merge};
pub use live::examine_cluster;
pub use render::text;

/// Exit status: no finding but information.
const HEALTHY: u8 = 0;
/// Exit status: some error or warning.
const FOUND: u8 = 1;
/// Exit status: no error or warning, but some checks were not possible.
const CANNOT_TELL: u8 = 2;

/// Flags of `netpold doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Check the Kubernetes objects in this directory (*.yaml, *.yml and *.json) instead of this node; `-` is standard
    /// input
    #[arg(long, value_name = "DIR", env = "NETPOLD_MANIFESTS")]
    pub manifests: Option<PathBuf>,
    /// Subdirectories of --manifests.
    #[command(flatten)]
    pub depth: Recursive,
    /// Namespace of objects of --manifests without one [default: default]; with a cluster, the only namespace to check
    /// where RBAC forbids to list objects in all namespaces
    #[arg(short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Control socket of the agent
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Pin root of the agent: the directory of its pinned maps and links
    #[arg(long, value_name = "DIR", env = "NETPOLD_BPFFS", default_value = DEFAULT_BPFFS)]
    pub bpffs: PathBuf,
    /// Format of the answer
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: Output,
    /// Cluster to check instead of this node: its objects, and each node by its agent.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Prints the report to standard output; `node` checks this node. Returns the exit status.
///
/// # Errors
/// The manifests or the cluster's objects cannot be read.
pub fn run(args: &DoctorArgs, node: impl FnOnce(&DoctorArgs) -> DoctorReport) -> Result<u8> {
    let report = match &args.manifests {
        Some(directory) => {
            let depth = args.depth;
            offline::refuse_kustomization("doctor", "--manifests", directory, depth)?;
            let namespace = args.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
            check_namespace(namespace)?;
            let mut reviewed =
                offline::review_directory("--manifests", directory, namespace, depth)?;
            let details = Details::read(directory, namespace, depth)?;
            let objects = std::mem::take(&mut reviewed.objects);
            let report = examine(offline::stand_in(objects), &details);
            reading::add(report, directory, reviewed)
        }
        None if args.cluster.is_requested() => {
            examine_cluster(&args.cluster, args.namespace.as_deref())?
        }
        None => node(args),
    };
    print(&match args.output {
        Output::Json => format!("{:#}\n", serde_json::to_value(&report)?),
        Output::Text => text(&report),
    })?;
    Ok(status(&report))
}

/// Returns the exit status of a report.
#[must_use]
pub fn status(report: &DoctorReport) -> u8 {
    let is_wrong = |finding: &Finding| finding.severity != Severity::Info;
    match (report.findings.iter().any(is_wrong), report.unknown.is_empty()) {
        (true, _) => FOUND,
        (false, true) => HEALTHY,
        (false, false) => CANNOT_TELL,
    }
}
