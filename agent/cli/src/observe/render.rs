//! Text of a line.

use std::fmt::Write as _;
use std::net::Ipv6Addr;

use anyhow::Result;
use netpold_api::events::{LostEvents, TrafficVerdict};
use netpold_api::observe::{Attribution, ObserveLine, ObservedEvent};
use netpold_client::printable_document::printable_document;
use netpold_core::cluster::AddressOwner;
use netpold_core::model::Direction;
use netpold_ebpf::reason::Reason;
use owo_colors::{OwoColorize, Style};

/// Renders a line of the stream as coloured text; the caller strips colours if necessary. All names are made printable
/// here.
///
/// # Errors
/// The line cannot be converted to JSON, which it was parsed from.
pub fn text(line: &ObserveLine) -> Result<String> {
    Ok(match printable_line(line)? {
        ObserveLine::Event(event) => render(&event),
        ObserveLine::Lost { node, lost } => {
            format!("{node}: {}", lost_text(&lost)).yellow().to_string()
        }
    })
}

/// Makes all names in a line printable.
///
/// # Errors
/// See [`text`].
pub fn printable_line(line: &ObserveLine) -> Result<ObserveLine> {
    printable_document(line)
}

fn render(event: &ObservedEvent) -> String {
    let ObservedEvent { time, node, direction, reason, .. } = event;
    let (word, style) = match event.verdict {
        TrafficVerdict::Deny => ("deny", Style::new().red().bold()),
        TrafficVerdict::Audit => ("audit", Style::new().yellow().bold()),
        TrafficVerdict::Allow => ("allow", Style::new().green().bold()),
    };
    let protocol = event.protocol.map_or_else(|| "not IP".to_owned(), |it| it.to_string());
    let (local, remote) = (local(event), remote(event));
    let arrow = match direction {
        Direction::Ingress => "<-",
        Direction::Egress => "->",
    };
    let mut text = format!(
        "{} {node} {} {direction} {} {arrow} {remote} {protocol}",
        time.dimmed(),
        word.style(style),
        local.bold(),
    );
    if event.verdict == TrafficVerdict::Deny || reason == Reason::Node.as_str() {
        let _ = write!(text, " {reason}");
    }
    let why = why(&event.attribution);
    if !why.is_empty() {
        let _ = write!(text, ": {why}");
    }
    text
}

/// Returns the pod's name, or the interface of a deleted pod.
#[must_use]
pub fn pod_name(event: &ObservedEvent) -> String {
    let name = event.pod.as_ref().map(ToString::to_string).or_else(|| event.interface.clone());
    name.unwrap_or_else(|| "unknown".to_owned())
}

/// Returns the remote side's name, or its address if no object has the address.
#[must_use]
pub fn peer_name(event: &ObservedEvent) -> String {
    match (&event.peer, event.remote) {
        (Some(AddressOwner::Outside) | None, Some(remote)) => remote.to_string(),
        (Some(peer), _) => peer.to_string(),
        (None, None) => "unknown".to_owned(),
    }
}

fn local(event: &ObservedEvent) -> String {
    let name = pod_name(event);
    if event.local_port == 0 { name } else { format!("{name}:{}", event.local_port) }
}

fn remote(event: &ObservedEvent) -> String {
    let name = peer_name(event);
    match event.remote_port {
        0 => name,
        port if name.parse::<Ipv6Addr>().is_ok() => format!("[{name}]:{port}"),
        port => format!("{name}:{port}"),
    }
}

/// Describes policy and rule, or the nearest rule and its first lack.
#[must_use]
pub fn why(attribution: &Attribution) -> String {
    let Attribution { policies, more_policies, rule, nearest, lacks, rejected, explanation } =
        attribution;
    let mut names: Vec<String> = policies.iter().map(ToString::to_string).collect();
    if *more_policies > 0 {
        names.push(format!("{more_policies} more"));
    }
    let mut text = names.join(", ");
    if let Some(rule) = rule {
        let _ = write!(text, " rule {} ({})", rule.index + 1, rule.matches);
    }
    if let Some(nearest) = nearest {
        let _ = write!(text, "; nearest is rule {} of {}", nearest.index + 1, nearest.policy);
        if let Some(lack) = lacks.first() {
            let _ = write!(text, ": {lack}");
        }
    }
    if *rejected && !text.is_empty() {
        text.push_str("; rejected");
    }
    if text.is_empty() {
        // The first line of an explanation of a pod begins with the pod's name.
        let first = explanation.first().map(String::as_str).unwrap_or_default();
        return first.split_once(": ").map_or(first, |(_, summary)| summary).to_owned();
    }
    text
}

/// Describes the lost events.
#[must_use]
pub fn lost_text(lost: &LostEvents) -> String {
    let LostEvents { kernel, flows, slow, unattributed } = *lost;
    let parts = [
        (kernel, "drops were only counted (the kernel reports 100 per second and CPU)"),
        (flows, "flows were too many or too short to be reported"),
        (slow, "events arrived faster than this client read them"),
        (unattributed, "events are without policy and rule (explaining them takes too long)"),
    ];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0);
    parts.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join("; ")
}
