//! Answers of agents as text or JSON.

use anyhow::Result;
use netpold_api::flows::{FlowFilter, merge};
use netpold_client::flows::{ask_cluster, request_flows};
use netpold_client::live::{ALL_ANSWERED, SOME_ANSWERED};
use netpold_client::output::{Output, print};
use serde_json::json;

use super::{FlowsArgs, text};

/// Prints the flows of this node, or of a cluster's nodes, as text or JSON. Returns the exit status.
///
/// # Errors
/// No agent answers, or the answer is of another version.
pub fn run(args: &FlowsArgs) -> Result<u8> {
    let filter = FlowFilter { namespace: args.namespace.clone(), pod: args.pod.clone() };
    let limit = (args.limit > 0).then_some(args.limit);
    if args.cluster.is_requested() {
        let all = ask_cluster(&args.cluster, &filter, limit)?;
        let unanswered = all.unanswered();
        let nodes = merge(all.answers);
        print(&match args.output {
            Output::Json => format!("{}\n", json!({ "nodes": nodes, "unanswered": unanswered })),
            Output::Text => text(&nodes)?,
        })?;
        return Ok(if unanswered.is_empty() { ALL_ANSWERED } else { SOME_ANSWERED });
    }
    let answer = request_flows(&args.socket, &filter, limit)?;
    print(&match args.output {
        Output::Json => format!("{}\n", serde_json::to_string(&answer)?),
        Output::Text => text(&[answer])?,
    })?;
    Ok(ALL_ANSWERED)
}
