//! Rendering of lines as text.

use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::Result;
use netpold_api::events::TrafficVerdict;
use netpold_api::trace::{TraceLine, TraceStep, TracedFlowEntry, TracedPacket};
use netpold_client::printable_document::printable_document;
use netpold_core::cluster::AddressOwner;
use netpold_core::model::Direction;
use owo_colors::{OwoColorize, Style};

use crate::observe::why;

/// Renders a line of the stream as coloured text; the caller strips colours if necessary. All names in it are made
/// printable here.
///
/// # Errors
/// The line cannot be converted to JSON and back.
pub(super) fn text(line: &TraceLine) -> Result<String> {
    Ok(match printable_document(line)? {
        TraceLine::Started { node, pod, interfaces, seconds } => {
            let at = interfaces.join(", ");
            format!("{node}: packets of {pod} at {at}, for {seconds} s").dimmed().to_string()
        }
        TraceLine::Packet(packet) => render(&packet),
        TraceLine::Lost { node, packets } => {
            let text =
                format!("{node}: {packets} packets were judged and are not shown (too many)");
            text.yellow().to_string()
        }
        TraceLine::Ended { node, reason } => format!("{node}: {reason}").dimmed().to_string(),
    })
}

fn render(packet: &TracedPacket) -> String {
    let TracedPacket { time, node, direction, reason, pod, .. } = packet;
    let (word, style) = match packet.verdict {
        TrafficVerdict::Deny => ("deny", Style::new().red().bold()),
        TrafficVerdict::Audit | TrafficVerdict::Allow => ("allow", Style::new().green().bold()),
    };
    let protocol = packet.protocol.map_or_else(|| "not IP".to_owned(), |it| it.to_string());
    let local = with_port(&pod.to_string(), packet.local_port);
    let remote = with_port(&peer(packet), packet.remote_port);
    let arrow = match direction {
        Direction::Ingress => "<-",
        Direction::Egress => "->",
    };
    let mut text = format!(
        "{} {node} {direction} {} {arrow} {remote} {protocol}, {} bytes",
        time.dimmed(),
        local.bold(),
        packet.length
    );
    for step in &packet.steps {
        let _ = write!(text, "\n  {}", step_text(step, packet));
    }
    let _ = write!(text, "\n  {}: {reason}", word.style(style));
    let why = why(&packet.attribution);
    if !why.is_empty() {
        let _ = write!(text, ", {why}");
    }
    text
}

fn with_port(name: &str, port: u16) -> String {
    match port {
        0 => name.to_owned(),
        port if name.contains(':') => format!("[{name}]:{port}"),
        port => format!("{name}:{port}"),
    }
}

fn peer(packet: &TracedPacket) -> String {
    match (&packet.peer, packet.remote) {
        (Some(AddressOwner::Outside) | None, Some(remote)) => remote.to_string(),
        (Some(peer), _) => peer.to_string(),
        (None, None) => "unknown".to_owned(),
    }
}

fn step_text(step: &TraceStep, packet: &TracedPacket) -> String {
    match step {
        TraceStep::SlowPath => "slow path: the headers were copied to be read".to_owned(),
        TraceStep::Endpoint { id, revision, ingress_row, egress_row } => {
            let row = |row: u32| match row {
                0 => "not isolated".to_owned(),
                row => format!("row {row}"),
            };
            format!(
                "endpoint {id}: ingress {}, egress {} (revision {revision})",
                row(*ingress_row),
                row(*egress_row)
            )
        }
        TraceStep::Cached { reason, flow } => {
            format!("flow table: {}; cached verdict: {reason}", flow_text(*flow))
        }
        TraceStep::Class { class, translated, service } => {
            let remote = packet.remote.map_or_else(|| "the address".to_owned(), name_of);
            let kind = match (service, translated) {
                (true, _) => ", a Service's address",
                (false, true) => ", may be translated",
                (false, false) => "",
            };
            match class {
                0 => format!("class of {remote}: 0, in no peer{kind}"),
                class => format!("class of {remote}: {class}{kind}"),
            }
        }
        TraceStep::Row { direction, row, class, protocol, port, ports, allows } => {
            let asked = if protocol.has_ports() {
                format!("{protocol} {port}")
            } else {
                protocol.to_string()
            };
            let set = match ports.as_str() {
                one if one.parse::<u16>().is_ok() => format!("port {one}"),
                other => other.replace("set ", "set of ports "),
            };
            let verdict = if *allows { "allows" } else { "does not allow" };
            format!("{direction} row {row}, class {class}: {verdict} {asked} ({protocol}: {set})")
        }
        TraceStep::Flow { flow: None, .. } => "flow table: no entry".to_owned(),
        TraceStep::Flow { flow: Some(_), expired: true } => {
            "flow table: an expired entry".to_owned()
        }
        TraceStep::Flow { flow: Some(flow), expired: false } => {
            format!("flow table: {}", flow_text(*flow))
        }
        TraceStep::NewFlow => "flow table: new entry".to_owned(),
        TraceStep::Sender { reason } => format!("for its sender, after translation: {reason}"),
        TraceStep::Unknown { number } => format!("step {number} of another version"),
    }
}

fn name_of(address: IpAddr) -> String {
    address.to_string()
}

fn flow_text(flow: TracedFlowEntry) -> String {
    let begun = match (flow.node, flow.ingress, flow.egress) {
        (true, ..) => "a flow that the node initiated",
        (false, true, true) => "a flow that was allowed in both directions",
        (false, true, false) => "a flow that was allowed into the pod",
        (false, false, true) => "a flow that was allowed out of the pod",
        (false, false, false) => "a flow",
    };
    let state = match (flow.closing, flow.replied) {
        (true, _) => ", closing",
        (false, true) => ", established",
        (false, false) => ", not answered yet",
    };
    format!("{begun}{state}")
}
