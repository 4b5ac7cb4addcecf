//! A [`Difference`] for people, programs and pull requests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::Result;
use owo_colors::OwoColorize;
use serde_json::{Value, json};

use super::live::Cuts;
use super::{Change, Difference, Party, Ports, few, render_live};
use crate::cli::DiffOutput;
use crate::printable::{printable, printable_json};

/// The text to print, coloured where it is for people.
pub(super) fn render(
    difference: &Difference,
    cuts: Option<&Cuts>,
    output: DiffOutput,
) -> Result<String> {
    let with = |text: String, of: fn(&Cuts) -> String| text + &cuts.map(of).unwrap_or_default();
    Ok(match output {
        DiffOutput::Table => with(table(difference), render_live::table),
        DiffOutput::Json => {
            let mut document = document(difference);
            if let Some(cuts) = cuts {
                document["live"] = serde_json::to_value(cuts)?;
            }
            printable_json(&mut document);
            format!("{}\n", serde_json::to_string_pretty(&document)?)
        }
        DiffOutput::Markdown => with(markdown(difference), render_live::markdown),
        DiffOutput::Mermaid => with(mermaid(difference), render_live::mermaid),
    })
}

/// Pairs with an equal change: each of some senders to each of some receivers.
struct Line<'d> {
    from: Vec<usize>,
    to: Vec<usize>,
    change: What<'d>,
}

/// What is lost and gained, and whether by all.
type What<'d> = (&'d Ports, &'d Ports, bool);

/// The changes in few lines: by senders first, or by receivers, whichever has fewer.
fn lines(difference: &Difference) -> Vec<Line<'_>> {
    let by = |ends: fn(&Change) -> (usize, usize)| {
        let mut others: BTreeMap<(usize, What<'_>), Vec<usize>> = BTreeMap::new();
        for change in &difference.changes {
            let (one, other) = ends(change);
            let what = (&change.loses, &change.gains, change.some);
            others.entry((one, what)).or_default().push(other);
        }
        let mut ones: BTreeMap<(Vec<usize>, What<'_>), Vec<usize>> = BTreeMap::new();
        for ((one, what), others) in others {
            ones.entry((others, what)).or_default().push(one);
        }
        ones
    };
    let (senders, receivers) = (by(|c| (c.from, c.to)), by(|c| (c.to, c.from)));
    let mut lines: Vec<Line<'_>> = if senders.len() <= receivers.len() {
        let lines = senders.into_iter();
        lines.map(|((to, change), from)| Line { from, to, change }).collect()
    } else {
        let lines = receivers.into_iter();
        lines.map(|((from, change), to)| Line { from, to, change }).collect()
    };
    lines.sort_by(|a, b| (&a.from, &a.to).cmp(&(&b.from, &b.to)));
    lines
}

fn names(difference: &Difference, indexes: &[usize]) -> String {
    let names: Vec<String> = indexes.iter().map(|i| difference.parties[*i].to_string()).collect();
    printable(&few(&names)).into_owned()
}

/// Workloads that are in one of the clusters alone: before, after.
fn alone(difference: &Difference) -> [Vec<String>; 2] {
    let mut alone = [const { Vec::new() }; 2];
    for party in &difference.parties {
        if let Party::Workload(workload) = party {
            match workload.pods.each_ref().map(Vec::is_empty) {
                [false, true] => alone[0].push(workload.name.clone()),
                [true, false] => alone[1].push(workload.name.clone()),
                [true, true] | [false, false] => {}
            }
        }
    }
    alone
}

/// How many pairs lose something, and how many gain something.
fn counts(difference: &Difference) -> (usize, usize) {
    let count = |ports: fn(&Change) -> &Ports| {
        difference.changes.iter().filter(|change| !ports(change).is_empty()).count()
    };
    (count(|change| &change.loses), count(|change| &change.gains))
}

fn summary(difference: &Difference) -> String {
    let pairs = |count| if count == 1 { "1 pair".to_owned() } else { format!("{count} pairs") };
    match counts(difference) {
        (0, 0) => "no connection is cut or opened".to_owned(),
        (lose, gain) => format!("cut: {}, opened: {}", pairs(lose), pairs(gain)),
    }
}

fn footnotes(difference: &Difference) -> Vec<String> {
    let [before, after] = alone(difference);
    let told =
        [("gone", before), ("new", after)].into_iter().filter(|(_, names)| !names.is_empty());
    told.map(|(word, names)| {
        printable(&format!("{word}, so not compared: {}", few(&names))).into_owned()
    })
    .collect()
}

fn table(difference: &Difference) -> String {
    let mut text = String::new();
    for Line { from, to, change: (loses, gains, some) } in lines(difference) {
        let (from, to) = (names(difference, &from), names(difference, &to));
        let mut parts = Vec::new();
        if !loses.is_empty() {
            parts.push(format!("{} {loses}", "loses".red()));
        }
        if !gains.is_empty() {
            parts.push(format!("{} {gains}", "gains".green()));
        }
        let some = if some { " (some pods or addresses)" } else { "" };
        let _ = writeln!(text, "{} -> {}: {}{some}", from.bold(), to.bold(), parts.join(", "));
    }
    let _ = writeln!(text, "{}", summary(difference));
    for note in footnotes(difference) {
        let _ = writeln!(text, "{note}");
    }
    text
}

fn party(party: &Party) -> Value {
    match party {
        Party::Workload(workload) => json!({ "kind": "workload", "name": workload.name }),
        Party::OwnNode => json!({ "kind": "own-node" }),
        Party::Nodes { nodes, .. } => json!({ "kind": "nodes", "nodes": nodes }),
        Party::Outside { block, without, .. } => {
            json!({ "kind": "outside", "block": block, "without": without })
        }
    }
}

fn document(difference: &Difference) -> Value {
    let changes: Vec<Value> = difference
        .changes
        .iter()
        .map(|Change { from, to, loses, gains, some }| {
            let [from, to] = [from, to].map(|index| party(&difference.parties[*index]));
            json!({ "from": from, "to": to, "loses": loses, "gains": gains, "some": some })
        })
        .collect();
    let (cut, opened) = counts(difference);
    let [gone, new] = alone(difference);
    json!({ "cut": cut, "opened": opened, "changes": changes, "gone": gone, "new": new })
}

/// Text in a cell of a table of Markdown.
pub(super) fn cell(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if matches!(c, '|' | '`' | '<' | '*' | '_' | '[' | '\\' | '@') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

fn markdown(difference: &Difference) -> String {
    let mut text = format!("**Connections: {}**\n", summary(difference));
    let lines = lines(difference);
    if !lines.is_empty() {
        text.push_str("\n| From | To | Loses | Gains |\n|---|---|---|---|\n");
    }
    for Line { from, to, change: (loses, gains, some) } in lines {
        let [from, to] = [from, to].map(|ends| cell(&names(difference, &ends)));
        let some = if some { " (some pods or addresses)" } else { "" };
        let [loses, gains] = [loses, gains].map(|ports| match ports.is_empty() {
            true => String::new(),
            false => format!("{ports}{some}"),
        });
        let _ = writeln!(text, "| {from} | {to} | {loses} | {gains} |");
    }
    for note in footnotes(difference) {
        let _ = writeln!(text, "\n{}", cell(&note));
    }
    text
}

/// Text in a label of Mermaid.
pub(super) fn label(text: &str) -> String {
    printable(text).replace('#', "#35;").replace('"', "#quot;").replace('<', "#lt;")
}

fn mermaid(difference: &Difference) -> String {
    let mut text = "flowchart LR\n".to_owned();
    let named: BTreeSet<usize> = difference.changes.iter().flat_map(|c| [c.from, c.to]).collect();
    for index in named {
        let _ = writeln!(text, "  n{index}[\"{}\"]", label(&difference.parties[index].to_string()));
    }
    for Change { from, to, loses, gains, some } in &difference.changes {
        let some = if *some { " (some)" } else { "" };
        for (arrow, word, ports) in [("-.->", "loses", loses), ("-->", "gains", gains)] {
            if !ports.is_empty() {
                let _ = writeln!(text, "  n{from} {arrow}|\"{word} {ports}{some}\"| n{to}");
            }
        }
    }
    text
}
