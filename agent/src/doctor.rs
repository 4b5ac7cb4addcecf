//! `netpold doctor`: what keeps policy from working as its author expects, and the fix of each.
//!
//! On a node the kernel is asked (programs, chains, pins, devices) and the agent. Of objects, from manifests
//! or from the API server, everything is read that a policy may get wrong without being refused. What was
//! found is grouped by kind, in bounded memory: tenants write most of what is shown.

mod containers;
mod dns;
mod enforcers;
mod finding;
mod netfilter;
mod node;
mod objects;
mod ports;
mod render;
mod selectors;
mod services;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use netpold_core::cluster::Cluster;

pub use containers::Containers;
pub use finding::{Finding, Report, Severity, merge};
pub use objects::examine;
pub use render::text;

use crate::dataplane::bpffs::DEFAULT_BPFFS;
use crate::live::{self, Agents, ClusterArgs};
use crate::offline;
use crate::output::{Output, print};
use crate::socket::DEFAULT_SOCKET;

/// Exit status: nothing was found, but information.
const HEALTHY: u8 = 0;
/// Exit status: an error or a warning was found.
const FOUND: u8 = 1;
/// Exit status: nothing was found, but not everything could be looked at.
const CANNOT_TELL: u8 = 2;

/// Flags of `netpold doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Examine the Kubernetes objects in that directory (*.yaml, *.yml and *.json) instead of this node; `-` is standard
    /// input
    #[arg(long, value_name = "DIR", env = "NETPOLD_MANIFESTS")]
    pub manifests: Option<PathBuf>,
    /// Of a cluster: the namespace whose objects are examined where RBAC forbids those of all
    #[arg(short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Control socket of the agent
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Directory that the agent pins maps and links in
    #[arg(long, value_name = "DIR", env = "NETPOLD_BPFFS", default_value = DEFAULT_BPFFS)]
    pub bpffs: PathBuf,
    /// Format of the answer
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: Output,
    /// The cluster to ask, instead of this node: its objects, and each agent of its node.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Answer, on standard output. Returns the exit status.
///
/// # Errors
/// The manifests or the cluster's objects cannot be read.
pub fn run(args: &DoctorArgs) -> Result<u8> {
    let report = match &args.manifests {
        Some(directory) => {
            let objects = live::manifests_or_objects(Some(directory), &args.cluster, None)?;
            let cluster: Cluster = objects.into_iter().collect();
            let containers = match offline::is_standard_input(directory) {
                true => Containers::of_text(&offline::standard_input("--manifests")?)?,
                false => Containers::read(directory)?,
            };
            examine(&cluster, &containers)
        }
        None if args.cluster.is_meant() => of_cluster(args)?,
        None => node::examine(&args.socket, &args.bpffs),
    };
    print(&match args.output {
        Output::Json => format!("{:#}\n", serde_json::to_value(&report)?),
        Output::Text => text(&report),
    })?;
    Ok(status(&report))
}

/// The objects of a cluster, and every node as its agent sees it.
fn of_cluster(args: &DoctorArgs) -> Result<Report> {
    let cluster = &args.cluster;
    live::block_on(async {
        let objects = live::objects(cluster, args.namespace.as_deref()).await?;
        let (mut containers, mut unread) = (Containers::default(), Vec::new());
        for path in ["/api/v1/pods", "/apis/apps/v1/daemonsets"] {
            let read = live::pages(cluster, path, |page| containers.add_page(page)).await;
            unread.extend(read.err().map(|error| format!("containers: {error:#}")));
        }
        let services =
            live::pages(cluster, "/api/v1/services", |page| containers.add_services(page));
        unread.extend(services.await.err().map(|error| format!("targetPorts: {error:#}")));
        let mut report = examine(&objects.into_iter().collect(), &containers);
        report.unknown.extend(unread);
        match Agents::find(cluster).await {
            Ok(agents) => {
                let all = agents.answers::<Report>(&["doctor", "-o", "json"]).await;
                let silent = all.failures.iter();
                let silent = silent.map(|(node, error)| format!("node {node}: {error}"));
                report.unknown.extend(silent);
                report = report.and(merge(all.answers));
            }
            Err(error) => report.unknown.push(format!("nodes: {error:#}")),
        }
        Ok(report)
    })
}

/// The exit status that a report asks for.
#[must_use]
pub fn status(report: &Report) -> u8 {
    let is_wrong = |finding: &Finding| finding.severity != Severity::Info;
    match (report.findings.iter().any(is_wrong), report.unknown.is_empty()) {
        (true, _) => FOUND,
        (false, true) => HEALTHY,
        (false, false) => CANNOT_TELL,
    }
}
