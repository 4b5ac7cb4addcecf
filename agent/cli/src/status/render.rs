//! Rendering of a [`AgentStatus`] as text.

use std::fmt::Display;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use netpold_api::status::{AgentStatus, EndpointStatus, TableStatus, UplinkStatus};
use netpold_api::unix_time::unix_time;
use netpold_client::printable_document::printable_json;
use netpold_client::socket::NOT_UNDERSTOOD;
use owo_colors::{OwoColorize, Style};

/// Renders a status document as text. All names in it are made printable here, in one place.
///
/// # Errors
/// The document is of another version.
pub(super) fn text(mut status: serde_json::Value) -> Result<String> {
    printable_json(&mut status);
    let status: AgentStatus = serde_json::from_value(status).context(NOT_UNDERSTOOD)?;
    Ok(render(&status))
}

/// Renders the status as coloured text; the caller strips unwanted colour.
fn render(status: &AgentStatus) -> String {
    let mut text = String::new();
    header(&mut text, status);
    problems(&mut text, status);
    not_enforced(&mut text, &status.not_enforced);
    interference(&mut text, status);
    files(&mut text, status);
    kinds(&mut text, status);
    endpoints(&mut text, &status.endpoints);
    devices(&mut text, &status.devices);
    uplinks(&mut text, &status.uplinks);
    tables(&mut text, status.tables.iter().chain(&status.conntrack));
    drops(&mut text, status);
    text
}

fn header(text: &mut String, status: &AgentStatus) {
    let revision = status.revision;
    let (word, style) = match (status.in_sync, revision.desired == revision.enforced) {
        (true, true) => ("enforced", Style::new().green().bold()),
        (true, false) => ("behind", Style::new().yellow().bold()),
        (false, _) => ("not in sync", Style::new().yellow().bold()),
    };
    let (desired, enforced) = (revision.desired, revision.enforced);
    write_line(text, format!("node {}, netpold {}", status.node, status.version));
    write_line(text, format!("{}: revision {enforced} of {desired}", word.style(style)));
    if !status.in_sync {
        write_line(text, "objects not in sync; the previous state stays in force".dimmed());
    }
    write_line(text, format!("source: {}", status.source.origin));
}

fn problems(text: &mut String, status: &AgentStatus) {
    let source = status.source.problems.iter().map(ToString::to_string);
    let all: Vec<String> = status.problems.iter().cloned().chain(source).collect();
    if all.is_empty() {
        return;
    }
    write_heading(text, "problems");
    for problem in all {
        write_line(text, format!("  {}", problem.red()));
    }
}

fn not_enforced(text: &mut String, interfaces: &[String]) {
    if !interfaces.is_empty() {
        write_heading(text, "further interfaces not enforced in full");
        for interface in interfaces {
            write_line(text, format!("  {}", interface.yellow()));
        }
    }
}

/// Renders repairs after changes by other programs, and interfaces with unknown pods.
fn interference(text: &mut String, status: &AgentStatus) {
    if !status.repaired.is_empty() {
        let counts: Vec<String> =
            status.repaired.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        write_line(
            text,
            format!("repaired after changes by other programs: {}", join_all(&counts)),
        );
    }
    if !status.waiting.is_empty() {
        write_line(
            text,
            format!("denied until their pods are known: {}", join_all(&status.waiting)),
        );
    }
}

fn files(text: &mut String, status: &AgentStatus) {
    let mut table = table(&["file", "objects", "content"]);
    for file in &status.source.files {
        let content = if file.current { "current" } else { "last good" };
        table.add_row([file.name.clone(), file.objects.to_string(), content.to_owned()]);
    }
    write_table(text, "files", &table);
}

fn kinds(text: &mut String, status: &AgentStatus) {
    let now = unix_time().as_secs();
    let mut table = table(&["watched", "objects", "state", "last event", "lists", "failures"]);
    for kind in &status.source.kinds {
        let state = match (&kind.error, kind.served, kind.in_sync) {
            (_, false, true) => "not served",
            (Some(_), _, _) => "failing",
            (None, _, true) => "in sync",
            (None, _, false) => "listing",
        };
        let heard = kind.last_event.map(|at| format!("{} s ago", now.saturating_sub(at)));
        table.add_row([
            kind.kind.clone(),
            kind.objects.to_string(),
            state.to_owned(),
            heard.unwrap_or_else(|| "never".to_owned()),
            kind.lists.to_string(),
            kind.restarts.to_string(),
        ]);
    }
    write_table(text, "watches", &table);
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
            join_all(&endpoint.addresses),
            isolated(endpoint),
            attached(endpoint),
        ]);
    }
    write_table(text, "pods", &table);
}

/// Formats the attachments of programs, XDP first.
fn attached(endpoint: &EndpointStatus) -> String {
    let xdp = endpoint.xdp.iter().map(|mode| format!("{mode} XDP"));
    let all: Vec<String> = xdp.chain(endpoint.hook.clone()).collect();
    if all.is_empty() { "no".to_owned() } else { all.join(", ") }
}

fn devices(text: &mut String, devices: &[String]) {
    if !devices.is_empty() {
        write_heading(text, "node devices");
        write_line(text, format!("  {}: {}", devices.len(), devices.join(", ")));
    }
}

fn uplinks(text: &mut String, uplinks: &[UplinkStatus]) {
    let mut table = table(&["device", "XDP"]);
    for uplink in uplinks {
        table.add_row([uplink.interface.clone(), uplink.mode.clone()]);
    }
    write_table(text, "uplinks", &table);
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
    write_table(text, "tables", &table);
}

fn drops(text: &mut String, status: &AgentStatus) {
    let mut table = table(&["reason", "direction", "packets"]);
    for drop in &status.drops {
        let packets = drop.packets.to_string();
        table.add_row([drop.reason.clone(), drop.direction.to_string(), packets]);
    }
    write_table(text, "drops", &table);
    if !status.recent_drops.is_empty() {
        write_heading(text, "recent drops");
    }
    for drop in &status.recent_drops {
        let (pod, direction, packet) = (&drop.pod, drop.direction, &drop.packet);
        write_line(text, format!("  {direction} of {pod}: {packet}: {}", drop.reason));
        for detail in &drop.explanation {
            write_line(text, format!("    {}", detail.dimmed()));
        }
    }
}

/// Formats the isolated directions, and whether denied packets are answered there; without any, whether flows are
/// recorded.
fn isolated(endpoint: &EndpointStatus) -> String {
    let directions = endpoint.isolated.iter().map(|direction| {
        let rejects = endpoint.rejects.contains(direction);
        format!("{direction}{}", if rejects { " (reject)" } else { "" })
    });
    let directions: Vec<String> = directions.collect();
    match (directions.is_empty(), endpoint.observed) {
        (false, _) => join_all(&directions),
        (true, true) => "no (observed)".to_owned(),
        (true, false) => "no".to_owned(),
    }
}

fn join_all<T: Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.iter().map(|h| h.to_uppercase()));
    table
}

fn write_table(text: &mut String, title: &str, table: &Table) {
    if table.row_count() > 0 {
        write_heading(text, title);
        write_line(text, table);
    }
}

fn write_heading(text: &mut String, title: &str) {
    write_line(text, format!("\n{}", title.bold()));
}

fn write_line(text: &mut String, line: impl Display) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{line}");
}

#[cfg(test)]
mod tests {
    use netpold_api::source::{FileStatus, KindStatus, SourceProblem, SourceStatus};
    use netpold_api::status::{DropCount, RecentDrop, Revision};
    use netpold_core::model::Direction;
    use netpold_core::model::Key;

    use super::*;

    fn full() -> AgentStatus {
        let table = |name: &str| TableStatus { name: name.into(), used: 3, capacity: 12 };
        AgentStatus {
            version: "0.1.0".into(),
            node: "n1".into(),
            revision: Revision { desired: 7, enforced: 6 },
            policies: 1,
            in_sync: true,
            source: SourceStatus {
                origin: "manifests in /m".into(),
                in_sync: true,
                files: vec![FileStatus { name: "a.yaml".into(), objects: 5, current: false }],
                kinds: vec![KindStatus {
                    kind: "pods".into(),
                    error: Some("no".into()),
                    ..KindStatus::default()
                }],
                problems: vec![SourceProblem { file: "a.yaml".into(), line: 4, text: "no".into() }],
            },
            endpoints: vec![EndpointStatus {
                pod: Key::new("x", "a"),
                interface: Some("veth1".into()),
                ifindex: Some(9),
                addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
                isolated: vec![Direction::Ingress, Direction::Egress],
                rejects: vec![Direction::Egress],
                observed: false,
                hook: Some("tcx".into()),
                xdp: Some("generic".into()),
            }],
            devices: vec!["eth0".into(), "vxlan1".into()],
            uplinks: vec![UplinkStatus { interface: "eth1".into(), mode: "native".into() }],
            tables: vec![table("rows")],
            repairs: 3,
            repaired: [("entries".to_owned(), 3)].into(),
            waiting: vec!["veth9".into()],
            not_enforced: vec!["pod x/a: net1".into()],
            conntrack: vec![table("conntrack IPv4")],
            drops: vec![DropCount {
                reason: "policy".into(),
                direction: Direction::Ingress,
                packets: 12,
            }],
            recent_drops: vec![RecentDrop {
                at: 0,
                pod: "x/a".into(),
                direction: Direction::Ingress,
                packet: "TCP 10.0.0.2:4000 to 10.0.0.1:80".into(),
                reason: "policy".into(),
                explanation: vec!["isolated by x/p".into()],
            }],
            problems: vec!["two agents".into()],
        }
    }

    #[test]
    fn everything_is_shown() {
        let text = anstream::adapter::strip_str(&render(&full())).to_string();
        for part in [
            "node n1, netpold 0.1.0",
            "behind: revision 6 of 7",
            "  two agents",
            "eth1",
            "native",
            "  a.yaml:4: no",
            "last good",
            "failing",
            "never",
            "veth1 (9)",
            "10.0.0.1, fd00::1",
            "ingress, egress",
            "generic XDP, tcx",
            "25%",
            "conntrack IPv4",
            "repaired after changes by other programs: 3 entries",
            "denied until their pods are known: veth9",
            "  pod x/a: net1",
            "  ingress of x/a: TCP 10.0.0.2:4000 to 10.0.0.1:80: policy",
            "    isolated by x/p",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    #[test]
    fn an_observed_pod_is_marked() {
        let mut status = full();
        let pod =
            EndpointStatus { isolated: Vec::new(), observed: true, ..status.endpoints.remove(0) };
        status.endpoints = vec![pod];
        let text = anstream::adapter::strip_str(&render(&status)).to_string();
        assert!(text.contains("no (observed)"), "{text}");
    }

    #[test]
    fn nothing_is_shown_of_what_is_not_there() {
        let text = render(&AgentStatus::default());
        assert!(!text.contains("PACKETS") && !text.contains("problems"), "{text}");
        assert!(text.contains("not in sync"), "{text}");
    }

    #[test]
    fn a_document_of_another_version_is_read_as_far_as_it_goes() {
        let json = r#"{"node": "n", "in_sync": true, "news": 1}"#;
        let status: AgentStatus = serde_json::from_str(json).unwrap();
        assert!(status.in_sync && status.node == "n" && status.endpoints.is_empty());
    }
}
