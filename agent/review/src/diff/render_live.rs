//! Output of [`ConnectionEffects`] beside a difference: text, Markdown and Mermaid.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use netpold_core::printable::printable;
use owo_colors::OwoColorize;

use super::escape::{cell, label};
use super::live::{ConnectionEffects, ConnectionGroup};
use super::party::list_names;

/// Most groups in text; JSON has all.
const GROUPS: usize = 100;

/// Counts the connections of these groups.
fn count(groups: &[ConnectionGroup]) -> usize {
    groups.iter().map(|group| group.connections.len()).sum()
}

fn summary(cuts: &ConnectionEffects) -> String {
    let mut text = format!("open connections: {} of {} are cut", count(&cuts.cut), cuts.open);
    match count(&cuts.unsure) {
        0 => {}
        unsure => {
            let _ = write!(text, ", {unsure} may be, depending on their Service's backend");
        }
    }
    text
}

/// Returns the notes below the connections.
fn notes(cuts: &ConnectionEffects) -> Vec<String> {
    let mut notes = Vec::new();
    let hidden = (cuts.cut.len() + cuts.unsure.len()).saturating_sub(GROUPS);
    if hidden > 0 {
        notes.push(format!("{hidden} more groups of connections: see -o json"));
    }
    if cuts.gone > 0 {
        let gone = cuts.gone;
        notes.push(format!(
            "not judged: {gone} connections of pods that were deleted or created since"
        ));
    }
    let problems = cuts.problems.iter();
    notes.extend(problems.map(|problem| format!("unknown: {}", printable(problem))));
    notes
}

/// Returns the groups to show, and whether the cut is certain.
fn shown(cuts: &ConnectionEffects) -> impl Iterator<Item = (&ConnectionGroup, bool)> {
    let cut = cuts.cut.iter().map(|group| (group, true));
    cut.chain(cuts.unsure.iter().map(|group| (group, false))).take(GROUPS)
}

fn port(group: &ConnectionGroup) -> String {
    match group.port {
        0 => group.protocol.to_string(),
        port => format!("{} {port}", group.protocol),
    }
}

fn ends(group: &ConnectionGroup) -> String {
    let sent = |it: &super::live::OpenConnection| match &it.sent_to {
        Some(sent_to) => format!("{} to {sent_to}", it.from),
        None => it.from.clone(),
    };
    list_names(&group.connections.iter().map(sent).collect::<Vec<_>>())
}

pub(super) fn table(cuts: &ConnectionEffects) -> String {
    let mut text = String::new();
    for (group, sure) in shown(cuts) {
        let (from, to) = (printable(&group.from), printable(&group.to));
        let verb = if sure { "cuts" } else { "may cut" };
        let (number, port) = (group.connections.len(), port(group));
        let (from, to, verb) = (from.bold(), to.bold(), verb.red());
        let _ = writeln!(text, "{from} -> {to}: {verb} {number} open {port}: {}", ends(group));
    }
    let _ = writeln!(text, "{}", summary(cuts));
    for note in notes(cuts) {
        let _ = writeln!(text, "{note}");
    }
    text
}

pub(super) fn markdown(cuts: &ConnectionEffects) -> String {
    let mut text = format!("\n**{}**\n", summary(cuts).replace("open", "Open"));
    if !cuts.cut.is_empty() || !cuts.unsure.is_empty() {
        text.push_str("\n| From | To | Port | Open | Connections |\n|---|---|---|---|---|\n");
    }
    for (group, sure) in shown(cuts) {
        let [from, to] = [&group.from, &group.to].map(|name| cell(&printable(name)));
        let (number, port) = (group.connections.len(), port(group));
        let maybe = if sure { "" } else { " (may be cut)" };
        let _ = writeln!(text, "| {from} | {to} | {port} | {number}{maybe} | {} |", ends(group));
    }
    for note in notes(cuts) {
        let _ = writeln!(text, "\n{}", cell(&note));
    }
    text
}

pub(super) fn mermaid(cuts: &ConnectionEffects) -> String {
    let mut text = String::new();
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    for (group, _) in shown(cuts) {
        for name in [&group.from, &group.to] {
            let next = numbers.len();
            numbers.entry(name).or_insert(next);
        }
    }
    for (name, number) in &numbers {
        let _ = writeln!(text, "  o{number}[\"{}\"]", label(name));
    }
    for (group, sure) in shown(cuts) {
        let [from, to] = [&group.from, &group.to].map(|name| numbers[name.as_str()]);
        let verb = if sure { "cuts" } else { "may cut" };
        let (open, port) = (group.connections.len(), port(group));
        let _ = writeln!(text, "  o{from} -.->|\"{verb} {open} open {port}\"| o{to}");
    }
    for note in std::iter::once(summary(cuts)).chain(notes(cuts)) {
        let _ = writeln!(text, "  %% {}", printable(&note));
    }
    text
}
