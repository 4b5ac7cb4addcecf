//! Packet traces: the request, and lines of the stream to a client.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use netpold_core::cluster::AddressOwner;
use netpold_core::model::{Direction, Key};
use netpold_core::pattern::block;
use netpold_core::probe::{IpProtocol, Party};
use serde::{Deserialize, Serialize};

use crate::events::TrafficVerdict;
use crate::observe::Attribution;

/// Path of a [`TraceRequest`] for a trace.
pub const TRACE_REQUEST: &str = "/trace";

/// Longest trace, in seconds.
pub const LONGEST: u64 = 600;

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceRequest {
    /// Pod to trace.
    pub pod: Party,
    /// Initiator of traced connections to the pod; replies are traced too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<TracePeer>,
    /// Responder of traced connections from the pod; replies are traced too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<TracePeer>,
    /// Destination port of the initiator's packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// IP protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<IpProtocol>,
    /// Duration in seconds.
    pub seconds: u64,
}

/// Peer: a pod, a Service, an address or a CIDR.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TracePeer {
    /// Address or CIDR.
    Block(IpNet),
    /// Pod or Service by name.
    Party(Party),
}

impl FromStr for TracePeer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(block) = block(text) {
            return Ok(Self::Block(block.trunc()));
        }
        let party = text.parse().map(Self::Party);
        party.map_err(|error| format!("{error}, nor a block of addresses"))
    }
}

impl TryFrom<String> for TracePeer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<TracePeer> for String {
    fn from(peer: TracePeer) -> Self {
        match peer {
            TracePeer::Block(block) => block.to_string(),
            TracePeer::Party(party) => party.to_string(),
        }
    }
}

impl TraceRequest {
    /// Returns the pod's name.
    ///
    /// # Errors
    /// The pod is not given by name.
    pub fn pod(&self) -> Result<&Key, String> {
        match &self.pod {
            Party::Pod(key) => Ok(key),
            other @ (Party::Service(_) | Party::Address(_)) => {
                Err(format!("{other} is not a pod: give namespace/name"))
            }
        }
    }
}

/// Line of the trace stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum TraceLine {
    /// The tracing programs are attached and judge packets from now on.
    Started {
        /// Name of the node.
        node: String,
        /// Name of the pod.
        pod: Key,
        /// Host sides of the pod's veths.
        interfaces: Vec<String>,
        /// Duration in seconds.
        seconds: u64,
    },
    /// Judged packet.
    Packet(Box<TracedPacket>),
    /// Judged packets that were not reported.
    Lost {
        /// Name of the node.
        node: String,
        /// Number of these packets since the last such line.
        packets: u64,
    },
    /// The programs without tracing are attached again.
    Ended {
        /// Name of the node.
        node: String,
        /// Reason of the end.
        reason: String,
    },
}

/// Packet and its judgement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedPacket {
    /// Time at which the agent read the packet, in RFC 3339 with milliseconds, UTC.
    pub time: String,
    /// Name of the node.
    pub node: String,
    /// Pod of the interface at which the packet was judged.
    pub pod: Key,
    /// Direction from the pod's view.
    pub direction: Direction,
    /// IP protocol; `None` if the packet is not IP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<IpProtocol>,
    /// Address of the pod in the packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpAddr>,
    /// Port of the pod; 0 where the protocol has none.
    pub local_port: u16,
    /// Owner of the remote address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<AddressOwner>,
    /// Remote address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<IpAddr>,
    /// Remote port; 0 where the protocol has none.
    pub remote_port: u16,
    /// Length in bytes.
    pub length: u32,
    /// Whether the packet passed.
    pub verdict: TrafficVerdict,
    /// Reason, as in the metrics.
    pub reason: String,
    /// Steps of the judgement, in order.
    pub steps: Vec<TraceStep>,
    /// Policy and rule of the verdict, as `netpold explain` names them for the flow's opening direction.
    #[serde(flatten)]
    pub attribution: Attribution,
}

/// Step of a judgement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum TraceStep {
    /// The headers were copied before parsing: fragments, options, tags, ICMP errors.
    SlowPath,
    /// The endpoint was found by its interface.
    Endpoint {
        /// Number of the endpoint.
        id: u32,
        /// Revision of the policy in force.
        revision: u32,
        /// Row of pod ingress; 0: not isolated.
        ingress_row: u32,
        /// Row of pod egress; 0: not isolated.
        egress_row: u32,
    },
    /// The conntrack entry had a cached verdict of the current policy.
    Cached {
        /// Reason of the cached verdict.
        reason: String,
        /// Conntrack entry.
        flow: TracedFlowEntry,
    },
    /// The remote address was looked up.
    Class {
        /// Number of the address's class; 0: the address is in no peer set.
        class: u32,
        /// Whether packets to the address may be translated, like those to a Service.
        translated: bool,
        /// Whether the address is a Service's cluster address.
        service: bool,
    },
    /// The class was looked up in a row.
    Row {
        /// Direction of the row.
        direction: Direction,
        /// Number of the row.
        row: u32,
        /// Class of the remote address.
        class: u32,
        /// Protocol of the lookup.
        protocol: IpProtocol,
        /// Destination port of the lookup.
        port: u16,
        /// Allowed ports of the protocol: `none`, `all`, a number, or `set N`, the number of a bitmap.
        ports: String,
        /// Whether the row allows the packet.
        allows: bool,
    },
    /// The flow table was searched.
    Flow {
        /// The entry; `None` if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        flow: Option<TracedFlowEntry>,
        /// Whether the entry has expired, and counts as missing.
        expired: bool,
    },
    /// A conntrack entry was created.
    NewFlow,
    /// The sender's egress policy judged the packet first, because the node may have translated the packet.
    Sender {
        /// Reason of this verdict.
        reason: String,
    },
    /// A step of a newer program, unknown to this agent.
    Unknown {
        /// Number of the step.
        number: u64,
    },
}

/// Entry of the flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedFlowEntry {
    /// Whether policy allowed the flow into the pod: packets of the pod are replies.
    pub ingress: bool,
    /// Whether policy allowed the flow out of the pod: packets to the pod are replies.
    pub egress: bool,
    /// Whether the node began the flow.
    pub node: bool,
    /// Whether both sides have sent.
    pub replied: bool,
    /// Whether a FIN or RST was seen.
    pub closing: bool,
}
