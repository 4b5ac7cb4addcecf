//! `netpold rules`: the use of rules by traffic.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use netpold_api::rules::{RULES_REQUEST, RulesAnswer, merge};
use netpold_api::socket::DEFAULT_SOCKET;
use netpold_client::arguments::time;
use netpold_client::live::{self, ALL_ANSWERED, ClusterArgs, SOME_ANSWERED};
use netpold_client::output::{Output, print};
use netpold_client::printable_document::printable_document;
use netpold_client::socket;

/// Units of times: limit (exclusive) and length in seconds, and name.
const UNITS: [(u64, u64, &str); 3] =
    [(7200, 60, "min"), (172_800, 3600, "h"), (u64::MAX, 86_400, "d")];

/// Flags of `netpold rules`.
#[derive(Debug, Args)]
pub struct RulesArgs {
    /// Control socket of the agent
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Show only rules that were watched and unused for this long, as in 7d, 12h, 30m or 60s
    #[arg(long, value_name = "TIME", env = "NETPOLD_UNUSED", value_parser = time)]
    pub unused: Option<Duration>,
    /// Show only rules of policies in this namespace
    #[arg(short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Show rules of policies in all namespaces; the default
    #[arg(short = 'A', long, env = "NETPOLD_ALL_NAMESPACES", conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Cluster to ask.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Format of the answer
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: Output,
}

/// Prints the use of rules on this node or in a cluster, as text or JSON. Returns the exit status.
///
/// # Errors
/// No agent answers, or the answer is of another version.
pub fn run(args: &RulesArgs) -> Result<u8> {
    let mut answer: RulesAnswer = if args.cluster.is_requested() {
        let all = live::request_all::<RulesAnswer>(&args.cluster, &["rules", "-o", "json"])?;
        let failures = all.unanswered();
        merge(all.answers, failures)
    } else {
        socket::request(&args.socket, RULES_REQUEST, &())?
    };
    answer.select(args.namespace.as_deref(), args.unused);
    print(&match args.output {
        Output::Json => format!("{:#}\n", serde_json::to_value(&answer)?),
        Output::Text => text(&answer)?,
    })?;
    Ok(if answer.unanswered.is_empty() { ALL_ANSWERED } else { SOME_ANSWERED })
}

/// Renders the answer as text. All names in it are made printable here, in one place.
///
/// # Errors
/// The answer cannot be converted to JSON and back.
pub fn text(answer: &RulesAnswer) -> Result<String> {
    let answer: RulesAnswer = printable_document(answer)?;
    Ok(render(&answer))
}

fn render(answer: &RulesAnswer) -> String {
    let mut text = String::new();
    if answer.rules.is_empty() {
        let place = match answer.nodes.len() {
            0 => format!("node {}", answer.node),
            nodes => format!("{nodes} nodes"),
        };
        let _ = writeln!(text, "no matching rule on {place}");
    } else {
        let mut table = Table::new();
        let header = ["POLICY", "RULE", "FLOWS", "LAST USED", "ALLOWS"];
        table.load_style(NOTHING).set_header(header);
        for rule in &answer.rules {
            let used = rule.last_used.map(|at| format!("{} ago", ago(answer.as_of, at)));
            let never = || format!("never in {}", ago(answer.as_of, rule.watched_since));
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
        let _ = writeln!(text, "{missed} flows ended before they were counted");
    }
    if answer.unwatched_policies > 0 {
        let policies = answer.unwatched_policies;
        let _ = writeln!(text, "not watched, too many rules: {policies} policies");
    }
    text
}

fn ago(now: u64, at: u64) -> String {
    let seconds = now.saturating_sub(at);
    if seconds < 120 {
        return format!("{seconds} s");
    }
    let unit = UNITS.into_iter().find(|(below, ..)| seconds < *below);
    unit.map_or_else(String::new, |(_, length, name)| format!("{} {name}", seconds / length))
}
