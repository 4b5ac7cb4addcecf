//! `netpold status`: the status of an agent, or of all agents of a cluster.

mod client;
mod cluster;
mod render;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use netpold_api::socket::DEFAULT_SOCKET;
use netpold_api::status::AgentStatus;
use netpold_client::live::ClusterArgs;
use netpold_client::output::Output;
use netpold_client::printable_document::printable_json;
use netpold_client::socket::NOT_UNDERSTOOD;

pub use client::run;
use cluster::text as cluster_text;
pub use cluster::{ClusterStatus, merge};

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

/// Renders a status document as text. All names in it are made printable here, in one place.
///
/// # Errors
/// The document is of another version.
pub(crate) fn text(mut status: serde_json::Value) -> Result<String> {
    printable_json(&mut status);
    let status: AgentStatus = serde_json::from_value(status).context(NOT_UNDERSTOOD)?;
    Ok(render::render(&status))
}

#[cfg(test)]
mod tests {
    use netpold_api::status::{EndpointStatus, RecentDrop};
    use netpold_core::model::{Direction, Key};

    use super::*;

    #[test]
    fn names_forge_no_lines() {
        let forged = "x\nproblems\x1b[2J\u{202e}";
        let status = AgentStatus {
            node: forged.to_owned(),
            problems: vec![format!("policy {forged}: refused")],
            waiting: vec![forged.to_owned()],
            not_enforced: vec![forged.to_owned()],
            devices: vec![forged.to_owned()],
            recent_drops: vec![RecentDrop {
                at: 0,
                pod: forged.to_owned(),
                direction: Direction::Ingress,
                packet: String::new(),
                reason: forged.to_owned(),
                explanation: vec![forged.to_owned()],
            }],
            endpoints: vec![EndpointStatus {
                pod: Key::new(forged, forged),
                interface: Some(forged.to_owned()),
                ifindex: Some(1),
                addresses: Vec::new(),
                isolated: Vec::new(),
                rejects: Vec::new(),
                observed: false,
                hook: Some(forged.to_owned()),
                xdp: None,
            }],
            ..AgentStatus::default()
        };
        let shown = text(serde_json::to_value(&status).unwrap()).unwrap();
        let shown = anstream::adapter::strip_str(&shown).to_string();
        let plain = AgentStatus { problems: vec!["x".into()], ..status.clone() };
        let lines = |text: &str| text.lines().count();
        let same = text(serde_json::to_value(&plain).unwrap()).unwrap();
        assert_eq!(lines(&shown), lines(&same), "{shown}");
        let named = shown.matches(r"x\nproblems\u{1b}[2J\u{202e}").count();
        assert_eq!(named, 12, "{shown}");
        assert!(!shown.lines().any(|line| line.starts_with("problems\x1b")), "{shown}");
    }
}
