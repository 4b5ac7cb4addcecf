//! A [`Status`] for people.

use std::fmt::Display;
use std::fmt::Write as _;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use netpold_core::model::Direction;
use owo_colors::{OwoColorize, Style};

use super::{EndpointStatus, Status, TableStatus};

/// The document as text, coloured; the caller strips colour where it is not wanted.
pub(super) fn render(status: &Status) -> String {
    let mut text = String::new();
    header(&mut text, status);
    problems(&mut text, status);
    files(&mut text, status);
    endpoints(&mut text, &status.endpoints);
    tables(&mut text, status.tables.iter().chain(&status.conntrack));
    drops(&mut text, status);
    text
}

fn header(text: &mut String, status: &Status) {
    let revision = status.revision;
    let (word, style) = match (status.in_sync, revision.desired == revision.enforced) {
        (true, true) => ("enforced", Style::new().green().bold()),
        (true, false) => ("behind", Style::new().yellow().bold()),
        (false, _) => ("not in sync", Style::new().yellow().bold()),
    };
    let (desired, enforced) = (revision.desired, revision.enforced);
    line(text, format!("node {}, netpold {}", status.node, status.version));
    line(text, format!("{}: revision {enforced} of {desired}", word.style(style)));
    if !status.in_sync {
        line(text, "not everything is known yet; what was installed before stays".dimmed());
    }
    line(text, format!("source: {}", status.source.origin));
}

fn problems(text: &mut String, status: &Status) {
    let source = status.source.problems.iter().map(ToString::to_string);
    let all: Vec<String> = status.problems.iter().cloned().chain(source).collect();
    if all.is_empty() {
        return;
    }
    heading(text, "problems");
    for problem in all {
        line(text, format!("  {}", problem.red()));
    }
}

fn files(text: &mut String, status: &Status) {
    let mut table = table(&["file", "objects", "content"]);
    for file in &status.source.files {
        let content = if file.current { "current" } else { "last good" };
        table.add_row([file.name.clone(), file.objects.to_string(), content.to_owned()]);
    }
    show(text, "files", &table);
}

fn endpoints(text: &mut String, endpoints: &[EndpointStatus]) {
    let mut table = table(&["pod", "interface", "addresses", "isolated", "attached"]);
    for endpoint in endpoints {
        let interface = match (&endpoint.interface, endpoint.ifindex) {
            (Some(name), Some(index)) => format!("{name} ({index})"),
            (Some(name), None) => name.clone(),
            _ => "none yet".to_owned(),
        };
        table.add_row([
            endpoint.pod.to_string(),
            interface,
            list(&endpoint.addresses),
            isolated(&endpoint.isolated),
            endpoint.hook.clone().unwrap_or_else(|| "no".to_owned()),
        ]);
    }
    show(text, "pods", &table);
}

fn tables<'a>(text: &mut String, tables: impl Iterator<Item = &'a TableStatus>) {
    let mut table = table(&["table", "used", "of", "fill"]);
    for TableStatus { name, used, capacity } in tables {
        let percent = (used * 100).checked_div(*capacity).unwrap_or(0);
        table.add_row([
            name.clone(),
            used.to_string(),
            capacity.to_string(),
            format!("{percent}%"),
        ]);
    }
    show(text, "tables", &table);
}

fn drops(text: &mut String, status: &Status) {
    let mut table = table(&["reason", "direction", "packets"]);
    for drop in &status.drops {
        let packets = drop.packets.to_string();
        table.add_row([drop.reason.clone(), drop.direction.to_string(), packets]);
    }
    show(text, "drops", &table);
    if !status.recent_drops.is_empty() {
        heading(text, "dropped last");
    }
    for drop in &status.recent_drops {
        let (pod, direction, packet) = (&drop.pod, drop.direction, &drop.packet);
        line(text, format!("  {direction} of {pod}: {packet}: {}", drop.reason));
        for detail in &drop.explanation {
            line(text, format!("    {}", detail.dimmed()));
        }
    }
}

fn isolated(directions: &[Direction]) -> String {
    if directions.is_empty() { "no".to_owned() } else { list(directions) }
}

fn list<T: Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.iter().map(|h| h.to_uppercase()));
    table
}

fn show(text: &mut String, title: &str, table: &Table) {
    if table.row_count() > 0 {
        heading(text, title);
        line(text, table);
    }
}

fn heading(text: &mut String, title: &str) {
    line(text, format!("\n{}", title.bold()));
}

fn line(text: &mut String, line: impl Display) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{line}");
}
