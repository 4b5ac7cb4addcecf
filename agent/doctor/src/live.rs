//! `netpold doctor` of a cluster: its objects, and the report of every node's agent.

use anyhow::Result;
use netpold_client::details;
use netpold_client::live::{self, Agents, ClusterArgs};

use crate::examine::examine;
use crate::finding::{DoctorReport, merge};

/// Checks the objects of a cluster, and merges the reports of all agents.
///
/// # Errors
/// The objects cannot be read.
pub fn examine_cluster(cluster: &ClusterArgs, namespace: Option<&str>) -> Result<DoctorReport> {
    live::block_on(async {
        let objects = live::objects(cluster, namespace).await?;
        let (details, unread) = details::read_cluster(cluster).await;
        let mut report = examine(objects, &details);
        report.unknown.extend(unread);
        match Agents::find(cluster).await {
            Ok(agents) => {
                let all = agents.answers::<DoctorReport>(&["doctor", "-o", "json"]).await;
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
