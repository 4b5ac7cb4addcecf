//! Output of `netpold rules` as text.

use std::fmt::Write as _;

use anyhow::Result;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use netpold_api::rules::Answer;

use crate::printable_document::printable_document;

/// Units of times: limit (exclusive) and length in seconds, and name.
const UNITS: [(u64, u64, &str); 3] =
    [(7200, 60, "min"), (172_800, 3600, "h"), (u64::MAX, 86_400, "d")];

/// Renders the answer as text. All names in it are made printable here, in one place.
///
/// # Errors
/// The answer cannot be converted to JSON and back.
pub fn text(answer: &Answer) -> Result<String> {
    let answer: Answer = printable_document(answer)?;
    Ok(render(&answer))
}

fn render(answer: &Answer) -> String {
    let mut text = String::new();
    if answer.rules.is_empty() {
        let place = match answer.nodes.len() {
            0 => format!("node {}", answer.node),
            nodes => format!("{nodes} nodes"),
        };
        let _ = writeln!(text, "no such rule on {place}");
    } else {
        let mut table = Table::new();
        let header = ["POLICY", "RULE", "FLOWS", "LAST USED", "ALLOWS"];
        table.load_style(NOTHING).set_header(header);
        for rule in &answer.rules {
            let used = rule.last_used.map(|at| format!("{} ago", time(answer.as_of, at)));
            let never = || format!("never in {}", time(answer.as_of, rule.watched_since));
            table.add_row([
                match rule.namespace.as_str() {
                    "" => rule.name.clone(),
                    namespace => format!("{namespace}/{}", rule.name),
                },
                format!("{}[{}]", rule.direction, rule.index),
                rule.flows.to_string(),
                used.unwrap_or_else(never),
                rule.rule.clone(),
            ]);
        }
        for line in table.lines() {
            let _ = writeln!(text, "{}", line.trim());
        }
    }
    if answer.missed_flows > 0 {
        let missed = answer.missed_flows;
        let _ = writeln!(text, "{missed} flows were over before they could be counted");
    }
    if answer.unwatched_policies > 0 {
        let policies = answer.unwatched_policies;
        let _ = writeln!(text, "not watched, too many rules: {policies} policies");
    }
    text
}

fn time(now: u64, at: u64) -> String {
    let seconds = now.saturating_sub(at);
    if seconds < 120 {
        return format!("{seconds} s");
    }
    let unit = UNITS.into_iter().find(|(below, ..)| seconds < *below);
    unit.map_or_else(String::new, |(_, length, name)| format!("{} {name}", seconds / length))
}
