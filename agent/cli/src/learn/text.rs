//! Recorded flows as a table.

use std::fmt::Write as _;

use anyhow::Result;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use netpold_api::learn::{LearnAnswer, ObservedFlow};
use netpold_client::printable_document::printable_document;
use netpold_core::model::Direction;

/// Renders the records; makes all names in them printable.
///
/// # Errors
/// The records cannot be converted to JSON, which they were parsed from.
pub fn text(answer: &LearnAnswer) -> Result<String> {
    let answer: LearnAnswer = printable_document(answer)?;
    Ok(render(&answer))
}

fn render(answer: &LearnAnswer) -> String {
    let mut text = String::new();
    if answer.flows.is_empty() {
        let _ = writeln!(text, "no matching flow on node {}", answer.node);
    } else {
        let mut table = Table::new();
        let header = ["WORKLOAD", "", "PEER", "PORT", "FLOWS", "AUDITED", "DENIED", "LAST"];
        table.load_style(NOTHING).set_header(header);
        for flow in &answer.flows {
            let ObservedFlow { workload, direction, peer, protocol, port, .. } = flow;
            let word = if *direction == Direction::Ingress { "from" } else { "to" };
            let port = match protocol.has_ports() {
                true => format!("{protocol} {port}"),
                false => protocol.to_string(),
            };
            table.add_row([
                workload.to_string(),
                word.to_owned(),
                match flow.names.is_empty() {
                    true => peer.to_string(),
                    false => {
                        let names: Vec<String> =
                            flow.names.iter().map(ToString::to_string).collect();
                        format!("{peer} ({})", names.join(", "))
                    }
                },
                port,
                flow.flows.to_string(),
                flow.on_trial.to_string(),
                flow.denied.to_string(),
                format!("{} ago", ago(answer.as_of.saturating_sub(flow.last))),
            ]);
        }
        for line in table.lines() {
            let _ = writeln!(text, "{}", line.trim());
        }
    }
    for (namespace, flows) in &answer.left_out {
        let _ = writeln!(text, "no room for {flows} flows of namespace {namespace}");
    }
    if answer.missed_flows > 0 {
        let missed = answer.missed_flows;
        let _ = writeln!(text, "{missed} flows ended before they were recorded");
    }
    text
}

fn ago(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}
