//! Output of a [`Difference`]: text, JSON, Markdown and Mermaid.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::Result;
use netpold_client::printable_document::printable_json;
use netpold_core::model::{Direction, Key};
use netpold_core::printable::printable;
use owo_colors::{OwoColorize, Style};
use serde_json::{Value, json};

use super::args::DiffOutput;
use super::difference::{ConnectivityChange, Difference, LostGained};
use super::escape::{cell, label};
use super::isolation::{HostNetworkChange, Isolation, IsolationChange, UnmatchedWorkload};
use super::live::ConnectionEffects;
use super::party::{DiffParty, SHOWN, list_names};
use super::ports::PortRanges;
use super::render_live;
use crate::parallel::both;

/// Renders the difference; text for people is coloured.
pub(super) fn render(
    difference: &Difference,
    cuts: Option<&ConnectionEffects>,
    output: DiffOutput,
) -> Result<String> {
    let with = |text: String, of: fn(&ConnectionEffects) -> String| {
        text + &cuts.map(of).unwrap_or_default()
    };
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

/// Pairs with an equal change: all of some senders to all of some receivers.
struct ChangeLine<'d> {
    from: Vec<usize>,
    to: Vec<usize>,
    change: PortChange<'d>,
}

/// Lost and gained ports, and whether only some members are concerned.
type PortChange<'d> = (&'d PortRanges, &'d PortRanges, bool);
/// Number of lost and gained ports, and whether only some members are concerned.
type ChangeNumber = (usize, bool);

/// Numbers of equal lost and gained ports. Most changes share their ports, so few are compared.
#[derive(Default)]
struct PortNumbers<'d> {
    by_place: HashMap<*const LostGained, usize>,
    by_content: BTreeMap<&'d LostGained, usize>,
}

impl<'d> PortNumbers<'d> {
    fn number(&mut self, ports: &'d Arc<LostGained>) -> usize {
        let Self { by_place, by_content } = self;
        *by_place.entry(Arc::as_ptr(ports)).or_insert_with(|| {
            let next = by_content.len();
            *by_content.entry(&**ports).or_insert(next)
        })
    }

    /// Returns the ports by their numbers.
    fn into_ports(self) -> Vec<&'d LostGained> {
        let mut all: Vec<(usize, &LostGained)> =
            self.by_content.into_iter().map(|(ports, number)| (number, ports)).collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, ports)| ports).collect()
    }
}

/// Groups the changes in few lines: by senders first or by receivers first, the shorter of both.
fn lines(difference: &Difference) -> Vec<ChangeLine<'_>> {
    let mut numbers = PortNumbers::default();
    let changes = difference.changes.iter();
    let changes = changes.map(|it| (it.from, it.to, (numbers.number(&it.ports), it.some)));
    let changes: Vec<(usize, usize, ChangeNumber)> = changes.collect();
    let ports = numbers.into_ports();
    let by = |ends: fn((usize, usize)) -> (usize, usize)| {
        let mut others: Vec<BTreeMap<ChangeNumber, Vec<usize>>> =
            vec![BTreeMap::new(); difference.parties.len()];
        for (from, to, change) in &changes {
            let (one, other) = ends((*from, *to));
            others[one].entry(*change).or_default().push(other);
        }
        let mut ones: BTreeMap<(Vec<usize>, ChangeNumber), Vec<usize>> = BTreeMap::new();
        for (one, others) in others.into_iter().enumerate() {
            for (change, others) in others {
                ones.entry((others, change)).or_default().push(one);
            }
        }
        ones
    };
    let (senders, receivers) = both(|| by(|(from, to)| (from, to)), || by(|(from, to)| (to, from)));
    let is_by_sender = senders.len() <= receivers.len();
    let shorter = if is_by_sender { senders } else { receivers };
    let line = |((others, (number, some)), ones): ((Vec<usize>, ChangeNumber), Vec<usize>)| {
        let (from, to) = if is_by_sender { (ones, others) } else { (others, ones) };
        let [loses, gains] = ports[number];
        ChangeLine { from, to, change: (loses, gains, some) }
    };
    let mut lines: Vec<ChangeLine<'_>> = shorter.into_iter().map(line).collect();
    lines.sort_by(|a, b| (&a.from, &a.to).cmp(&(&b.from, &b.to)));
    lines
}

fn names(difference: &Difference, indexes: &[usize]) -> String {
    let parties = indexes.iter().map(|index| &difference.parties[*index]);
    // Addresses outside of the cluster come first, and all of them, where names are cut off.
    let (outside, others): (Vec<&DiffParty>, Vec<&DiffParty>) = match indexes.len() > SHOWN + 1 {
        true => parties.partition(|party| matches!(party, DiffParty::Outside { .. })),
        false => (Vec::new(), parties.collect()),
    };
    let others: Vec<String> = others.into_iter().map(ToString::to_string).collect();
    let mut names: Vec<String> = outside.into_iter().map(ToString::to_string).collect();
    names.extend((!others.is_empty()).then(|| list_names(&others)));
    printable(&names.join(", ")).into_owned()
}

/// `ingress and egress`
fn in_words(directions: &[Direction]) -> String {
    let words: Vec<String> = directions.iter().map(ToString::to_string).collect();
    words.join(" and ")
}

fn policies(policies: &[Key]) -> String {
    list_names(&policies.iter().map(ToString::to_string).collect::<Vec<_>>())
}

/// Describes workloads that become open or isolated: a word and the rest of the line.
fn turned(difference: &Difference) -> Vec<(&'static str, String)> {
    let line = |it: &IsolationChange, isolates: bool| {
        let (workload, directions) = (&it.workload, in_words(&it.directions));
        let by = policies(&it.policies);
        let some = if it.some { " (some pods)" } else { "" };
        let text = match (isolates, it.by_network) {
            (true, false) => format!("{workload}: {by} isolates its {directions}{some}"),
            (true, true) => format!(
                "{workload}: it leaves the host's network, so {by} isolates its {directions}{some}"
            ),
            (false, false) => {
                format!("{workload}: no policy isolates its {directions} any more, {by} did{some}")
            }
            (false, true) => format!(
                "{workload}: it uses the host's network now, so no policy isolates its {directions} any more, {by} \
                 did{some}"
            ),
        };
        printable(&text).into_owned()
    };
    let Isolation { open, isolated, moved, .. } = &difference.isolation;
    let is_named = |it: &&HostNetworkChange| {
        open.iter().chain(isolated).any(|of| of.by_network && of.workload == it.workload)
    };
    let moved = moved.iter().filter(|it| !is_named(it)).map(moved_line);
    let open = open.iter().map(|it| ("open", line(it, false)));
    let isolated = isolated.iter().map(|it| ("isolated", line(it, true)));
    open.chain(isolated).chain(moved.map(|line| ("host network", line))).collect()
}

/// Describes a workload that begins or ceases to use the host's network, and that no policy isolates.
fn moved_line(HostNetworkChange { workload, is_on_host, some }: &HostNetworkChange) -> String {
    let some = if *some { " (some pods)" } else { "" };
    let text = match is_on_host {
        true => format!(
            "{workload}: it uses the host's network now: no policy applies to it any more{some}"
        ),
        false => {
            format!("{workload}: it leaves the host's network: policies apply to it now{some}")
        }
    };
    printable(&text).into_owned()
}

/// Describes a workload of one cluster and the policies that isolate it.
fn state(alone: &UnmatchedWorkload) -> String {
    let workload = &alone.workload;
    match alone.directions[..] {
        [] => format!("{workload} (open: no policy isolates it)"),
        ref directions => {
            let (directions, by) = (in_words(directions), policies(&alone.policies));
            format!("{workload} ({directions} isolated by {by})")
        }
    }
}

/// Counts pairs that lose ports, and pairs that gain ports.
#[must_use]
pub fn counts(difference: &Difference) -> (usize, usize) {
    let count = |ports: fn(&ConnectivityChange) -> &PortRanges| {
        difference.changes.iter().filter(|change| !ports(change).is_empty()).count()
    };
    (count(ConnectivityChange::loses), count(ConnectivityChange::gains))
}

fn summary(difference: &Difference) -> String {
    let pairs = |count| if count == 1 { "1 pair".to_owned() } else { format!("{count} pairs") };
    let Isolation { compared, alone, unknown, on_host, .. } = &difference.isolation;
    match counts(difference) {
        (0, 0) if *compared == 0 && !unknown.is_empty() => "nothing was compared".to_owned(),
        (0, 0) if *compared == 0 && *on_host > 0 => {
            "nothing was compared: the pods in both use the host's network, where no policy applies"
                .to_owned()
        }
        (0, 0) if *compared == 0 => {
            "nothing was compared: no pod and no pod template is in both".to_owned()
        }
        (0, 0) if !alone.is_empty() || !unknown.is_empty() => {
            "no connection is cut or opened among those compared".to_owned()
        }
        (0, 0) => "no connection is cut or opened".to_owned(),
        (lose, gain) => format!("cut: {}, opened: {}", pairs(lose), pairs(gain)),
    }
}

/// Returns the lines of the text output as JSON, at most `most`: names of the parties, lost and gained ports.
#[must_use]
pub fn line_documents(difference: &Difference, most: usize) -> Vec<Value> {
    let names = |indexes: &[usize]| -> Vec<String> {
        indexes.iter().map(|index| difference.parties[*index].to_string()).collect()
    };
    let document = |ChangeLine { from, to, change: (loses, gains, some) }| {
        let [loses, gains] =
            [loses, gains].map(|ports| (!ports.is_empty()).then(|| ports.to_string()));
        json!({ "from": names(&from), "to": names(&to), "loses": loses, "gains": gains, "some": some })
    };
    lines(difference).into_iter().take(most).map(document).collect()
}

fn footnotes(difference: &Difference) -> Vec<String> {
    let Isolation { alone, unknown, templates, .. } = &difference.isolation;
    let mut notes = Vec::new();
    for (word, is_new) in [("gone", false), ("new", true)] {
        let mut all: Vec<&UnmatchedWorkload> =
            alone.iter().filter(|it| it.is_new == is_new).collect();
        // Open workloads come first, so that the text names them instead of only counting them.
        all.sort_by_key(|it| !it.directions.is_empty());
        if !all.is_empty() {
            let names: Vec<String> = all.into_iter().map(state).collect();
            notes.push(format!("{word}, so not compared: {}", list_names(&names)));
        }
    }
    if !unknown.is_empty() {
        notes.push(format!("not compared: {}", list_names(unknown)));
    }
    if !templates.is_empty() {
        notes.push(format!("by pod template, no pods exist: {}", list_names(templates)));
    }
    notes.extend(difference.notes.iter().cloned());
    notes.iter().map(|note| printable(note).into_owned()).collect()
}

fn table(difference: &Difference) -> String {
    let mut text = String::new();
    for (word, line) in turned(difference) {
        let word = word.to_uppercase();
        let style = Style::new().bold();
        let style = if word == "OPEN" { style.red() } else { style };
        let _ = writeln!(text, "{}: {line}", word.style(style));
    }
    for ChangeLine { from, to, change: (loses, gains, some) } in lines(difference) {
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

fn party(party: &DiffParty) -> Value {
    match party {
        DiffParty::Workload(workload) => json!({ "kind": "workload", "name": workload.name }),
        DiffParty::Name(name) => json!({ "kind": "name", "name": name }),
        DiffParty::OwnNode => json!({ "kind": "own-node" }),
        DiffParty::Service(key) => json!({ "kind": "service", "name": key.to_string() }),
        DiffParty::Nodes { nodes, .. } => json!({ "kind": "nodes", "nodes": nodes }),
        DiffParty::Outside { block, without, .. } => {
            json!({ "kind": "outside", "block": block, "without": without })
        }
    }
}

/// Returns the difference as `diff -o json` prints it.
#[must_use]
pub fn document(difference: &Difference) -> Value {
    let changes: Vec<Value> = difference
        .changes
        .iter()
        .map(|change| {
            let (loses, gains) = (change.loses(), change.gains());
            let ConnectivityChange { from, to, some, .. } = change;
            let [from, to] = [from, to].map(|index| party(&difference.parties[*index]));
            json!({ "from": from, "to": to, "loses": loses, "gains": gains, "some": some })
        })
        .collect();
    let (cut, opened) = counts(difference);
    let Isolation { open, isolated, moved, alone, unknown, templates, compared, .. } =
        &difference.isolation;
    let named = |is_new: bool| {
        let names = alone.iter().filter(|it| it.is_new == is_new).map(|it| it.workload.clone());
        names.collect::<Vec<_>>()
    };
    let turned = |it: &IsolationChange| {
        let IsolationChange { workload, directions, policies, some, by_network: _ } = it;
        let policies: Vec<String> = policies.iter().map(ToString::to_string).collect();
        json!({ "workload": workload, "directions": directions, "policies": policies, "some": some })
    };
    let alone = alone.iter().map(|it| {
        let UnmatchedWorkload { workload, is_new, directions, policies } = it;
        let policies: Vec<String> = policies.iter().map(ToString::to_string).collect();
        let reason = if *is_new { "new" } else { "gone" };
        json!({ "workload": workload, "reason": reason, "isolated": directions, "policies": policies })
    });
    let moved = moved.iter().map(|it| {
        let HostNetworkChange { workload, is_on_host, some } = it;
        json!({ "workload": workload, "on_host": is_on_host, "some": some })
    });
    let unknown = unknown.iter().map(|reason| json!({ "reason": reason }));
    json!({
        "open": open.iter().map(turned).collect::<Vec<_>>(),
        "isolated": isolated.iter().map(turned).collect::<Vec<_>>(),
        "host_network": moved.collect::<Vec<_>>(),
        "cut": cut,
        "opened": opened,
        "changes": changes,
        "gone": named(false),
        "new": named(true),
        "compared": compared,
        "not_compared": alone.chain(unknown).collect::<Vec<_>>(),
        "templates": templates,
        "notes": difference.notes,
    })
}

fn markdown(difference: &Difference) -> String {
    let mut text = String::new();
    for (word, line) in turned(difference) {
        let _ = writeln!(text, "**{}: {}**\n", word.to_uppercase(), cell(&line));
    }
    let _ = writeln!(text, "**Connections: {}**", summary(difference));
    let lines = lines(difference);
    if !lines.is_empty() {
        text.push_str("\n| From | To | Loses | Gains |\n|---|---|---|---|\n");
    }
    for ChangeLine { from, to, change: (loses, gains, some) } in lines {
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

fn mermaid(difference: &Difference) -> String {
    let mut text = "flowchart LR\n".to_owned();
    let named: BTreeSet<usize> = difference.changes.iter().flat_map(|c| [c.from, c.to]).collect();
    for index in named {
        let _ = writeln!(text, "  n{index}[\"{}\"]", label(&difference.parties[index].to_string()));
    }
    for change in &difference.changes {
        let (loses, gains) = (change.loses(), change.gains());
        let ConnectivityChange { from, to, some, .. } = change;
        let some = if *some { " (some)" } else { "" };
        for (arrow, word, ports) in [("-.->", "loses", loses), ("-->", "gains", gains)] {
            if !ports.is_empty() {
                let _ = writeln!(text, "  n{from} {arrow}|\"{word} {ports}{some}\"| n{to}");
            }
        }
    }
    for (word, line) in turned(difference) {
        let _ = writeln!(text, "  %% {word}: {line}");
    }
    let _ = writeln!(text, "  %% {}", summary(difference));
    for note in footnotes(difference) {
        let _ = writeln!(text, "  %% {note}");
    }
    text
}
