//! Requests to the agent's control socket, or to all agents of a cluster.

use std::path::Path;

use anyhow::Result;
use netpold_api::status::{AgentStatus, READY_REQUEST, STATUS_REQUEST};
use netpold_client::live::{self, ALL_ANSWERED, SOME_ANSWERED};
use netpold_client::output::{Output, print};
use netpold_client::socket;

use super::args::StatusArgs;
use super::cluster::{merge, text as cluster_text};
use super::render::text;

/// Prints the status of the agent or of all agents of a cluster, as text or JSON. Returns the exit status.
///
/// # Errors
/// No agent answers, or the answer is of another version.
pub fn run(args: &StatusArgs) -> Result<u8> {
    if args.cluster.is_requested() {
        return print_cluster(args);
    }
    if args.ready {
        return ready(&args.socket);
    }
    let status: serde_json::Value = socket::request(&args.socket, STATUS_REQUEST, &())?;
    let text = match args.output {
        Output::Json => format!("{status:#}\n"),
        Output::Text => text(status)?,
    };
    print(&text)?;
    Ok(ALL_ANSWERED)
}

/// Prints the reasons why the agent is not ready. Returns the exit status.
fn ready(socket: &Path) -> Result<u8> {
    let reasons: Vec<String> = socket::request(socket, READY_REQUEST, &())?;
    reasons.iter().try_for_each(|reason| print(&format!("{reason}\n")))?;
    Ok(if reasons.is_empty() { ALL_ANSWERED } else { SOME_ANSWERED })
}

/// Prints the status of all agents of a cluster. Returns the exit status.
fn print_cluster(args: &StatusArgs) -> Result<u8> {
    let all = live::request_all::<AgentStatus>(&args.cluster, &["status", "-o", "json"])?;
    let failures = all.unanswered();
    let status = merge(all.answers, failures);
    print(&match args.output {
        Output::Json => format!("{:#}\n", serde_json::to_value(&status)?),
        Output::Text => cluster_text(&status)?,
    })?;
    Ok(if status.unanswered.is_empty() { ALL_ANSWERED } else { SOME_ANSWERED })
}
