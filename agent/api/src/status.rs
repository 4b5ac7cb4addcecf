//! Status of a running agent.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netpold_core::model::{Direction, Key};
use serde::{Deserialize, Serialize};

use crate::source::SourceStatus;

/// Path of the request for an [`AgentStatus`].
pub const STATUS_REQUEST: &str = "/status";

/// Path of the request for the reasons why an agent is not ready, a list of strings.
pub const READY_REQUEST: &str = "/ready";

/// Status of a running agent: enforcement, drops and problems.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentStatus {
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
    /// Directions in which denied packets are answered (`netpold.io/deny: reject`).
    #[serde(default)]
    pub rejects: Vec<Direction>,
    /// No policy isolates the pod, and its flows are recorded for observers (`netpold.io/observe: flows`).
    #[serde(default)]
    pub observed: bool,
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
    /// The packet, such as `TCP 10.0.0.1:40000 to 10.0.0.2:80`.
    pub packet: String,
    /// Reason, as in the metrics.
    pub reason: String,
    /// Policies that isolate the pod, and the mismatch of the nearest rule, in lines.
    pub explanation: Vec<String>,
}
