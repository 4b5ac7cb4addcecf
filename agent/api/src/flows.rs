//! Flows of a node's pods.

use std::net::{IpAddr, SocketAddr};

use netpold_core::model::{Direction, Key};
use netpold_core::probe::IpProtocol;
use serde::{Deserialize, Serialize};

/// Path of a [`FlowsRequest`] for a [`FlowPage`].
pub const FLOWS_REQUEST: &str = "/flows";

/// Maximum number of flows in a page of netpold's table.
pub const PAGE: u32 = 2048;

/// Selection of flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowFilter {
    /// Namespace of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

impl FlowFilter {
    /// Returns whether the filter selects the flows of a pod.
    #[must_use]
    pub fn selects(&self, pod: &Key) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| *namespace == pod.namespace)
            && self.pod.as_ref().is_none_or(|name| *name == pod.name)
    }
}

/// A request to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowsRequest {
    /// Selection of flows.
    #[serde(flatten)]
    pub filter: FlowFilter,
    /// Way in the flow table at which the page starts: 0, or [`FlowPage::next`] of the previous page.
    pub from: u32,
    /// Maximum number of flows in the page; 0 only counts flows.
    pub limit: u32,
    /// Whether to read the kernel's conntrack, as one page, instead of netpold's flow table.
    pub kernel: bool,
}

/// An agent's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowPage {
    /// Name of the node.
    pub node: String,
    /// Listed flows.
    pub flows: Vec<ListedFlow>,
    /// Flows that were only counted, by pod.
    pub left_out: Vec<PodFlows>,
    /// Way at which the next page starts; `None` on the last page.
    pub next: Option<u32>,
    /// Reason why flows are not known.
    pub problem: Option<String>,
    /// In the page of the kernel's conntrack: flows with a translated destination from pods that are selected by the
    /// filter, at most [`FlowsRequest::limit`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub translated: Vec<DnatFlow>,
}

/// A flow before and after the node's translation of its destination (DNAT).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DnatFlow {
    /// IP protocol.
    pub protocol: IpProtocol,
    /// Address and port of the pod.
    pub from: SocketAddr,
    /// Destination before the translation.
    pub to: SocketAddr,
    /// Source and destination after the translation.
    pub on: TranslatedFlow,
}

/// Flows of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowsAnswer {
    /// Name of the node.
    pub node: String,
    /// Time of the answer, in seconds since the epoch.
    pub as_of: u64,
    /// Listed flows, sorted by pod.
    pub flows: Vec<ListedFlow>,
    /// Flows beyond the limit, by pod.
    pub left_out: Vec<PodFlows>,
    /// Reasons why flows are not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// Number of flows of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFlows {
    /// Key of the pod.
    pub pod: Key,
    /// Number of flows.
    pub flows: u64,
}

/// A flow from its pod's view.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListedFlow {
    /// Key of the pod.
    pub pod: Key,
    /// Directions in which policy allowed the flow's first packet; packets in the other direction are replies.
    pub began: Vec<Direction>,
    /// Whether the node itself sends the ingress packets; no policy denies them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_node: bool,
    /// IP protocol.
    pub protocol: IpProtocol,
    /// Address of the pod in this family; the first of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpAddr>,
    /// Port of the pod; the identifier of an ICMP echo.
    pub local_port: u16,
    /// Address of the other side before translation; for a Service, the Service's address.
    pub remote: IpAddr,
    /// Port of the other side; 0 where the protocol has none.
    pub remote_port: u16,
    /// Name of the other side: `namespace/pod` or `svc/namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_name: Option<String>,
    /// Source and destination after translation, if the node is known to translate the flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translated: Option<TranslatedFlow>,
    /// Whether the other side is the node itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub to_own_node: bool,
    /// State of the flow.
    pub state: FlowState,
    /// Milliseconds since the last packet, accurate to a second, because active entries are refreshed once a second.
    /// `None` for flows of the kernel's conntrack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// Last verdicts; `None` if none is cached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<CachedVerdicts>,
    /// Whether the flow is from the kernel's conntrack, because no policy isolates the pod.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kernel: bool,
}

/// Source and destination of a flow after translation, from the kernel's conntrack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TranslatedFlow {
    /// Source: the pod's address and port, or the node's (masquerade).
    pub from: SocketAddr,
    /// Destination: the Service's backend.
    pub to: SocketAddr,
}

/// State of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowState {
    /// Packets were sent in one direction.
    Opening,
    /// Packets were sent in both directions.
    Open,
    /// One side of a connection has closed it.
    Closing,
    /// The connection has ended.
    Closed,
}

/// Verdicts cached in the flow's entry; only verdicts to pass are cached.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CachedVerdicts {
    /// Whether the verdict is of an earlier policy revision; then the next packet is judged again.
    pub stale: bool,
    /// Reason why packets into the pod pass, as `netpold_ebpf::reason::Reason::as_str`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<String>,
    /// Reason why packets out of the pod pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<String>,
}

impl ListedFlow {
    /// Returns the destination port of packets in a direction; 0 where the protocol has none.
    #[must_use]
    pub fn port(&self, direction: Direction) -> u16 {
        match (direction, self.protocol.has_ports()) {
            (_, false) => 0,
            (Direction::Ingress, true) => self.local_port,
            (Direction::Egress, true) => self.remote_port,
        }
    }
}

/// Returns the answers of nodes, sorted by node name.
#[must_use]
pub fn merge(answers: Vec<(String, FlowsAnswer)>) -> Vec<FlowsAnswer> {
    let mut all: Vec<FlowsAnswer> =
        answers.into_iter().map(|(node, answer)| FlowsAnswer { node, ..answer }).collect();
    all.sort_by(|a, b| a.node.cmp(&b.node));
    all
}
