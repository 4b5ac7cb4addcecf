//! The status of a running agent: the document, and its rendering as text.

mod cluster;
mod render;

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use netpold_core::model::{Direction, Key};
use serde::{Deserialize, Serialize};

pub(crate) use cluster::text as cluster_text;
pub use cluster::{ClusterStatus, merge};

use netpold_api::source::SourceStatus;

use crate::printable_document::printable_json;

const NOT_UNDERSTOOD: &str = "cannot parse the agent's answer; is it another version?";

/// Status of a running agent: enforcement, drops and problems.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Version of the agent.
    pub version: String,
    /// Name of the node.
    pub node: String,
    /// Revisions of the policy set.
    pub revision: Revision,
    /// Whether all objects are known; until then the installed state stays.
    pub in_sync: bool,
    /// Source of the policies.
    pub source: SourceStatus,
    /// Number of known NetworkPolicies.
    pub policies: usize,
    /// Interfaces of local pods.
    pub endpoints: Vec<EndpointStatus>,
    /// Other devices of the node, where packets to Services are judged after translation.
    pub devices: Vec<String>,
    /// Devices at which XDP drops packets that policy denies.
    pub uplinks: Vec<UplinkStatus>,
    /// Fill levels of the tables.
    pub tables: Vec<TableStatus>,
    /// Fill levels of the conntrack tables.
    pub conntrack: Vec<TableStatus>,
    /// Packets dropped since the agent's tables were made, by reason and direction.
    pub drops: Vec<DropCount>,
    /// Some of the packets dropped last, newest first.
    pub recent_drops: Vec<RecentDrop>,
    /// Number of repairs after changes by other programs.
    pub repairs: u64,
    /// Repairs by kind: `entries` of tables, `programs`, their `order` at a hook, `pins`.
    pub repaired: BTreeMap<String, u64>,
    /// Interfaces that are denied until their pod is known (`--new-pods deny`).
    pub waiting: Vec<String>,
    /// Further interfaces of pods that are not under policy or not fully known, with the reason.
    pub not_enforced: Vec<String>,
    /// Further problems; the source has its own list.
    pub problems: Vec<String>,
}

/// Numbers of policy sets, counted from the agent's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// Policy set that the source describes.
    pub desired: u64,
    /// Policy set that the kernel enforces.
    pub enforced: u64,
}

/// A local pod's interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// Key of the pod.
    pub pod: Key,
    /// Name of the veth's host side; `None` if the pod has no interface yet.
    pub interface: Option<String>,
    /// Index of the veth's host side.
    pub ifindex: Option<u32>,
    /// Addresses of the pod.
    pub addresses: Vec<IpAddr>,
    /// Directions in which a policy isolates the pod.
    pub isolated: Vec<Direction>,
    /// Attachment of the program: `tcx`, `clsact`; `None` if not attached.
    pub hook: Option<String>,
    /// Mode of the XDP program that drops packets which the pod may not send: `native`, `generic`; `None` without one.
    #[serde(default)]
    pub xdp: Option<String>,
}

/// A device with an XDP program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkStatus {
    /// Name of the device.
    pub interface: String,
    /// Mode of XDP: `native` in the driver; `generic` in the stack, which saves little.
    pub mode: String,
}

/// Fill level of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableStatus {
    /// Name of the content.
    pub name: String,
    /// Elements in use.
    pub used: u64,
    /// Elements in total.
    pub capacity: u64,
}

/// Packets dropped for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropCount {
    /// Reason, as in the metrics.
    pub reason: String,
    /// Direction from the pod's view.
    pub direction: Direction,
    /// Number of packets.
    pub packets: u64,
}

/// A packet that was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentDrop {
    /// Time of the drop, in seconds since the epoch.
    pub at: u64,
    /// Pod of the packet, or the interface's name if the pod is gone.
    pub pod: String,
    /// Direction from the pod's view.
    pub direction: Direction,
    /// The packet, as `TCP 10.0.0.1:40000 to 10.0.0.2:80`.
    pub packet: String,
    /// Reason, as in the metrics.
    pub reason: String,
    /// Policies that isolate the pod, and the mismatch of the nearest rule, in lines.
    pub explanation: Vec<String>,
}

/// Renders a status document as text. All names in it are made printable here, in one place.
///
/// # Errors
/// The document is of another version.
pub(crate) fn text(json: &str) -> Result<String> {
    let mut value = understood(json)?;
    printable_json(&mut value);
    let status: Status = serde_json::from_value(value).context(NOT_UNDERSTOOD)?;
    Ok(render::render(&status))
}

/// Parses a status document, or a part of one.
///
/// # Errors
/// The document is of another version.
pub(crate) fn understood<'j, T: Deserialize<'j>>(json: &'j str) -> Result<T> {
    serde_json::from_str(json).context(NOT_UNDERSTOOD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_forge_no_lines() {
        let forged = "x\nproblems\x1b[2J\u{202e}";
        let status = Status {
            node: forged.to_owned(),
            problems: vec![format!("policy {forged}: refused")],
            waiting: vec![forged.to_owned()],
            not_enforced: vec![forged.to_owned()],
            devices: vec![forged.to_owned()],
            recent_drops: vec![RecentDrop {
                at: 0,
                pod: forged.to_owned(),
                direction: Direction::Ingress,
                packet: String::new(),
                reason: forged.to_owned(),
                explanation: vec![forged.to_owned()],
            }],
            endpoints: vec![EndpointStatus {
                pod: Key::new(forged, forged),
                interface: Some(forged.to_owned()),
                ifindex: Some(1),
                addresses: Vec::new(),
                isolated: Vec::new(),
                hook: Some(forged.to_owned()),
                xdp: None,
            }],
            ..Status::default()
        };
        let shown = text(&serde_json::to_string(&status).unwrap()).unwrap();
        let shown = anstream::adapter::strip_str(&shown).to_string();
        let plain = Status { problems: vec!["x".into()], ..status.clone() };
        let lines = |text: &str| text.lines().count();
        let same = text(&serde_json::to_string(&plain).unwrap()).unwrap();
        assert_eq!(lines(&shown), lines(&same), "{shown}");
        let named = shown.matches(r"x\nproblems\u{1b}[2J\u{202e}").count();
        assert_eq!(named, 12, "{shown}");
        assert!(!shown.lines().any(|line| line.starts_with("problems\x1b")), "{shown}");
    }
}
