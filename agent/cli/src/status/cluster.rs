//! The status of all agents of a cluster.

use std::collections::BTreeMap;

use anyhow::Result;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use netpold_api::status::AgentStatus;
use netpold_client::printable_document::printable_document;
use netpold_core::first_names::short_list;
use owo_colors::{OwoColorize, Style};
use serde::{Deserialize, Serialize};

/// Most nodes named for one problem.
const NAMED: usize = 5;

/// Status of each agent, and the nodes without an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterStatus {
    /// Status of the nodes with an answer, by name.
    pub nodes: Vec<AgentStatus>,
    /// Errors of the other nodes.
    pub unanswered: BTreeMap<String, String>,
}

/// Merges the answers of agents. Node names come from the API, not from the answers.
#[must_use]
pub fn merge(
    answers: Vec<(String, AgentStatus)>,
    unanswered: BTreeMap<String, String>,
) -> ClusterStatus {
    let mut nodes: Vec<AgentStatus> =
        answers.into_iter().map(|(node, status)| AgentStatus { node, ..status }).collect();
    nodes.sort_by(|one, other| one.node.cmp(&other.node));
    ClusterStatus { nodes, unanswered }
}

/// Renders the status as text. All names in it are made printable here, in one place.
///
/// # Errors
/// The status cannot be converted to JSON and back.
pub(crate) fn text(status: &ClusterStatus) -> Result<String> {
    let mut status: ClusterStatus = printable_document(status)?;
    // `printable_document` leaves keys as they are.
    let named = std::mem::take(&mut status.unanswered).into_iter();
    status.unanswered = named
        .map(|(node, why)| (netpold_core::printable::printable(&node).into_owned(), why))
        .collect();
    Ok(render(&status))
}

fn render(status: &ClusterStatus) -> String {
    let mut table = Table::new();
    let header = ["NODE", "AGENT", "STATE", "PODS ENFORCED", "POLICIES", "DROPS", "PROBLEMS"];
    table.load_style(NOTHING).set_header(header);
    let mut rows = BTreeMap::new();
    for node in &status.nodes {
        rows.insert(node.node.as_str(), row(node));
    }
    for node in status.unanswered.keys() {
        let none = || "-".to_owned();
        let row = [node.clone(), none(), "no answer".to_owned(), none(), none(), none(), none()];
        rows.insert(node, (row, Style::new().red()));
    }
    // Cells have no colour: the table would count its escape sequences as characters.
    let mut styles = vec![Style::new()];
    for (row, style) in rows.into_values() {
        table.add_row(row);
        styles.push(style);
    }
    let lines = table.lines().zip(styles);
    let mut text: String =
        lines.map(|(line, style)| format!("{}\n", line.trim().style(style))).collect();
    let problems = problems(status);
    if !problems.is_empty() {
        text.push_str(&format!("\n{}\n", "problems".bold()));
        for (problem, nodes) in problems {
            text.push_str(&format!("  {}: {}\n", short_list(nodes.iter(), NAMED), problem.red()));
        }
    }
    text
}

fn row(status: &AgentStatus) -> ([String; 7], Style) {
    let revision = status.revision;
    let (state, style) = match (status.in_sync, revision.desired == revision.enforced) {
        (true, true) => ("enforced", Style::new()),
        (true, false) => ("behind", Style::new().yellow()),
        (false, _) => ("not in sync", Style::new().yellow()),
    };
    let judged = status.endpoints.iter().filter(|endpoint| endpoint.hook.is_some()).count();
    let drops: u64 = status.drops.iter().map(|drop| drop.packets).fold(0, u64::saturating_add);
    let problems = status.problems.len() + status.source.problems.len();
    let row = [
        status.node.clone(),
        status.version.clone(),
        state.to_owned(),
        format!("{judged} of {}", status.endpoints.len()),
        status.policies.to_string(),
        drops.to_string(),
        problems.to_string(),
    ];
    (row, style)
}

/// Returns every problem once, with its nodes.
fn problems(status: &ClusterStatus) -> BTreeMap<String, Vec<&str>> {
    let mut problems: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for node in &status.nodes {
        let source = node.source.problems.iter().map(ToString::to_string);
        for problem in node.problems.iter().cloned().chain(source) {
            problems.entry(problem).or_default().push(&node.node);
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use netpold_api::status::Revision;

    use super::*;

    fn node(name: &str, problem: &str) -> (String, AgentStatus) {
        let status = AgentStatus {
            version: "0.1.0".into(),
            node: "somebody else".into(),
            in_sync: true,
            revision: Revision { desired: 3, enforced: 3 },
            policies: 2,
            problems: vec![problem.into()],
            ..AgentStatus::default()
        };
        (name.to_owned(), status)
    }

    #[test]
    fn each_node_has_a_row_and_each_problem_a_line() {
        let unanswered = BTreeMap::from([("n\x1b[2J".to_owned(), "gone".to_owned())]);
        let answers = vec![node("n2", "full"), node("n1", "full")];
        let shown = text(&merge(answers, unanswered)).unwrap();
        let shown = anstream::adapter::strip_str(&shown).to_string();
        assert_eq!(
            shown,
            "NODE        AGENT  STATE      PODS ENFORCED  POLICIES  DROPS  PROBLEMS\n\
             n1          0.1.0  enforced   0 of 0         2         0      1\n\
             n2          0.1.0  enforced   0 of 0         2         0      1\n\
             n\\u{1b}[2J  -      no answer  -              -         -      -\n\
             \nproblems\n  n1, n2: full\n"
        );
    }
}
