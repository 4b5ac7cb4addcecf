//! `netpold flows`: the flows of a node's pods, as each pod sees them, and how policy judged them last.
//!
//! Flows of pods that policy isolates are in netpold's flow table. The packets of other pods leave nothing
//! there, so their flows are read from the kernel's conntrack, if the node has one. Entries have no time of
//! birth: how long a flow has been idle is known, how long it has lived is not.
//!
//! A table can hold 786,432 flows and any pod can fill it, so an agent answers in pages. It takes the engine's
//! lock for what belongs to one page (the pods, a mapping of the tables), and not while it reads the table.

pub mod client;
pub mod reader;
mod render;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use netpold_core::model::{Direction, Key};
use netpold_core::probe::IpProtocol;
use serde::{Deserialize, Serialize};

use crate::live::ClusterArgs;
use crate::output::Output;
use crate::socket::DEFAULT_SOCKET;

pub(crate) use render::socket;
pub use render::text;

/// The name of a [`Request`] for a [`Page`] on the control socket.
pub const FLOWS_REQUEST: &str = "flows";

/// Flags of `netpold flows`.
#[derive(Debug, Args)]
pub struct FlowsArgs {
    /// Control socket of the agent
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Only flows of pods in that namespace
    #[arg(short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Only flows of that pod, by its name in the namespace of -n
    #[arg(long, value_name = "NAME", env = "NETPOLD_POD", requires = "namespace")]
    pub pod: Option<String>,
    /// Most flows to list; the others are counted by pod. 0: all
    #[arg(long, value_name = "COUNT", env = "NETPOLD_LIMIT", default_value = "10000")]
    pub limit: u32,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Format of the answer
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: Output,
}

/// Which flows are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Of pods in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Of the pod of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

impl Filter {
    fn wants(&self, pod: &Key) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| *namespace == pod.namespace)
            && self.pod.as_ref().is_none_or(|name| *name == pod.name)
    }
}

/// What is asked of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Whose flows.
    #[serde(flatten)]
    pub filter: Filter,
    /// Where to begin: 0, or what the last page said.
    pub from: u32,
    /// Most flows of the answer; 0: the rest is counted.
    pub limit: u32,
    /// Of the kernel's conntrack instead of netpold's table, all in one page.
    pub kernel: bool,
}

/// What an agent answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Name of the node.
    pub node: String,
    /// The flows.
    pub flows: Vec<Flow>,
    /// Flows that were counted.
    pub left_out: Vec<PodFlows>,
    /// Where the next page begins; none: this was the last.
    pub next: Option<u32>,
    /// Why flows are not known.
    pub problem: Option<String>,
    /// Of the kernel's page: flows of other pods that the node translates, at most as many as flows were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub translated: Vec<SentOn>,
}

/// A flow as its pod sent it, and as the node sends it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SentOn {
    /// IP protocol.
    pub protocol: IpProtocol,
    /// The pod's address and port.
    pub from: SocketAddr,
    /// Where it sends to.
    pub to: SocketAddr,
    /// How the node sends it on.
    pub on: Translated,
}

/// The flows of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Name of the node.
    pub node: String,
    /// When this was so, in seconds since the epoch.
    pub as_of: u64,
    /// By pod.
    pub flows: Vec<Flow>,
    /// Flows beyond the limit, by pod.
    pub left_out: Vec<PodFlows>,
    /// Why flows are not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// How many flows a pod has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFlows {
    /// The pod.
    pub pod: Key,
    /// Their number.
    pub flows: u64,
}

/// A flow as its pod sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Flow {
    /// The pod.
    pub pod: Key,
    /// Directions that began it: policy allowed packets of these, and what goes the other way are answers.
    pub began: Vec<Direction>,
    /// Its ingress is from the node itself, which no policy denies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_node: bool,
    /// IP protocol.
    pub protocol: IpProtocol,
    /// The pod's address of this family; its first if it has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpAddr>,
    /// The pod's port; of an ICMP echo, its identifier.
    pub local_port: u16,
    /// The other side, before the node translates what the pod sends: of a Service its address.
    pub remote: IpAddr,
    /// The other side's port; 0 where the protocol has none.
    pub remote_port: u16,
    /// The other side's name: `namespace/pod` or `svc/namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_name: Option<String>,
    /// How the node sends it on, if it is known to translate what the pod sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translated: Option<Translated>,
    /// The other side is the node itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub to_own_node: bool,
    /// How far it has come.
    pub state: FlowState,
    /// Milliseconds since its last packet, to the second while there are any: entries are refreshed once a
    /// second. Not known of the kernel's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// How policy judged its packets last; none: nothing is cached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<Cached>,
    /// From the kernel's conntrack: no policy isolates the pod.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kernel: bool,
}

/// The two ends of what the node makes of a flow, by the kernel's conntrack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Translated {
    /// From where: the pod's own address and port, or one of the node's (masquerade).
    pub from: SocketAddr,
    /// To where: the Service's backend.
    pub to: SocketAddr,
}

/// How far a flow has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowState {
    /// One side has sent.
    Opening,
    /// Both sides have sent.
    Open,
    /// One side of a connection has ended it.
    Closing,
    /// The connection is over.
    Closed,
}

/// A verdict that the flow's entry remembers. Only verdicts to pass are.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cached {
    /// It was found under a former policy: the next packet is judged again.
    pub stale: bool,
    /// Why packets into the pod pass, as `netpold_ebpf::reason::Reason::as_str`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<String>,
    /// Why packets out of the pod pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<String>,
}

impl Flow {
    /// The destination port of packets of a direction; 0 where the protocol has none.
    #[must_use]
    pub fn port(&self, direction: Direction) -> u16 {
        match (direction, self.protocol.has_ports()) {
            (_, false) => 0,
            (Direction::Ingress, true) => self.local_port,
            (Direction::Egress, true) => self.remote_port,
        }
    }
}

/// The answers of nodes, by the nodes' names.
#[must_use]
pub fn merge(answers: Vec<(String, Answer)>) -> Vec<Answer> {
    let mut all: Vec<Answer> =
        answers.into_iter().map(|(node, answer)| Answer { node, ..answer }).collect();
    all.sort_by(|a, b| a.node.cmp(&b.node));
    all
}
