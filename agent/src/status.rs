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

use crate::printable::printable_json;
use crate::source::SourceStatus;

const NOT_UNDERSTOOD: &str = "the agent's answer is not understood; is it another version?";

/// What a running agent enforces, drops and has problems with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Version of the agent.
    pub version: String,
    /// Name of the node.
    pub node: String,
    /// Number of the policy set.
    pub revision: Revision,
    /// Everything there is to enforce is known; until then what was installed before stays.
    pub in_sync: bool,
    /// Where the policies come from.
    pub source: SourceStatus,
    /// NetworkPolicies that are known.
    pub policies: usize,
    /// The local pods' interfaces.
    pub endpoints: Vec<EndpointStatus>,
    /// The node's other devices at which packets to Services are judged behind their translation.
    pub devices: Vec<String>,
    /// Devices at which XDP drops what policy denies.
    pub uplinks: Vec<UplinkStatus>,
    /// How full the tables are.
    pub tables: Vec<TableStatus>,
    /// How full the connection tracking is.
    pub conntrack: Vec<TableStatus>,
    /// Packets dropped since the agent's tables were made, by reason and direction.
    pub drops: Vec<DropCount>,
    /// Some of the packets dropped last, newest first.
    pub recent_drops: Vec<RecentDrop>,
    /// What somebody else had changed or removed and was put right.
    pub repairs: u64,
    /// The same by kind: `entries` of tables, `programs`, their `order` at a hook, `pins`.
    pub repaired: BTreeMap<String, u64>,
    /// Interfaces that are denied until their pod is known (`--new-pods deny`).
    pub waiting: Vec<String>,
    /// Further interfaces of pods that are not under policy, or of which too little is known; and why.
    pub not_enforced: Vec<String>,
    /// What else is wrong, beside the source's problems.
    pub problems: Vec<String>,
}

/// Numbers of policy sets, counted from the agent's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// What the source describes.
    pub desired: u64,
    /// What the kernel enforces.
    pub enforced: u64,
}

/// A local pod's interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// The pod.
    pub pod: Key,
    /// Name of the host side of its veth; none as long as it has no interface.
    pub interface: Option<String>,
    /// Index of that.
    pub ifindex: Option<u32>,
    /// The pod's addresses.
    pub addresses: Vec<IpAddr>,
    /// Directions in which some policy isolates the pod.
    pub isolated: Vec<Direction>,
    /// How the program is attached: `tcx`, `clsact`; none: it is not.
    pub hook: Option<String>,
    /// How XDP drops in front of it what the pod may not send: `native`, `generic`; none: it does not.
    #[serde(default)]
    pub xdp: Option<String>,
}

/// A device with an XDP program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkStatus {
    /// Its name.
    pub interface: String,
    /// `native`: in its driver; `generic`: in the stack, which saves little.
    pub mode: String,
}

/// How full a table is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableStatus {
    /// What it holds.
    pub name: String,
    /// Elements in use.
    pub used: u64,
    /// Elements there are.
    pub capacity: u64,
}

/// Packets dropped for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropCount {
    /// Why, as in the metrics.
    pub reason: String,
    /// As the pod sees it.
    pub direction: Direction,
    /// How many.
    pub packets: u64,
}

/// A packet that was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentDrop {
    /// When, in seconds since the epoch.
    pub at: u64,
    /// Whose packet, or the interface's name if the pod is gone.
    pub pod: String,
    /// As the pod sees it.
    pub direction: Direction,
    /// The packet, as `TCP 10.0.0.1:40000 to 10.0.0.2:80`.
    pub packet: String,
    /// Why, as in the metrics.
    pub reason: String,
    /// Which policies isolate the pod and what the nearest rule lacked, in lines.
    pub explanation: Vec<String>,
}

/// Renders a status document as text. All names in it are made printable here, in one place.
///
/// # Errors
/// The document is not one of this version.
pub(crate) fn text(json: &str) -> Result<String> {
    let mut value = understood(json)?;
    printable_json(&mut value);
    let status: Status = serde_json::from_value(value).context(NOT_UNDERSTOOD)?;
    Ok(render::render(&status))
}

/// Parses a status document, or a part of one.
///
/// # Errors
/// The document is not one of this version.
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
