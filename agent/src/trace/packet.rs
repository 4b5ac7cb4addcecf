//! What a client is sent.

use std::net::IpAddr;

use netpold_core::cluster::Whose;
use netpold_core::model::{Direction, Key};
use netpold_core::probe::IpProtocol;
use serde::{Deserialize, Serialize};

use crate::events::Outcome;
use crate::observe::Attribution;

/// A line of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Line {
    /// The traced programs judge from now on.
    Started {
        /// Name of the node.
        node: String,
        /// The pod.
        pod: Key,
        /// The host's sides of its veths.
        interfaces: Vec<String>,
        /// For how long, in seconds.
        seconds: u64,
    },
    /// A packet was judged.
    Packet(Box<Packet>),
    /// Packets were judged that nothing is told of.
    Lost {
        /// Name of the node.
        node: String,
        /// How many, since the last such line.
        packets: u64,
    },
    /// The ordinary programs judge again.
    Ended {
        /// Name of the node.
        node: String,
        /// Why.
        reason: String,
    },
    /// There is no trace.
    Refused {
        /// Why.
        error: String,
    },
}

/// A packet and its judgement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// When the agent read it, in RFC 3339 with milliseconds, UTC.
    pub time: String,
    /// Name of the node.
    pub node: String,
    /// The pod at whose interface it was judged.
    pub pod: Key,
    /// As the pod sees it.
    pub direction: Direction,
    /// IP protocol; none if it is not IP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<IpProtocol>,
    /// The pod's address in the packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpAddr>,
    /// The pod's port; 0 where the protocol has none.
    pub local_port: u16,
    /// Whose the other side's address is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Whose>,
    /// The other side's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<IpAddr>,
    /// The other side's port; 0 where the protocol has none.
    pub remote_port: u16,
    /// Length in bytes.
    pub length: u32,
    /// Whether it passed.
    pub verdict: Outcome,
    /// Why, as in the metrics.
    pub reason: String,
    /// What the judgement did, in order.
    pub steps: Vec<Shown>,
    /// Which policy and rule, as `explain` says of the side that began.
    #[serde(flatten)]
    pub attribution: Attribution,
}

/// A step of a judgement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Shown {
    /// The headers were copied to be read: fragments, options, tags, ICMP errors.
    SlowPath,
    /// The endpoint was found by its interface.
    Endpoint {
        /// Its number.
        id: u32,
        /// Number of the policy that is in force.
        revision: u32,
        /// Row of pod ingress; 0: not isolated.
        ingress_row: u32,
        /// Row of pod egress; 0: not isolated.
        egress_row: u32,
    },
    /// The flow's entry remembers the verdict that this policy gave the packet before.
    Cached {
        /// Why that passed.
        reason: String,
        /// The entry.
        flow: Entry,
    },
    /// The other side's address was looked up.
    Class {
        /// Number of the set of peers that it belongs to; 0: none.
        class: u32,
        /// Packets to it may be translated, as those to a Service.
        translated: bool,
        /// It is a Service's cluster address.
        service: bool,
    },
    /// A row was asked what it allows the class.
    Row {
        /// Of which direction.
        direction: Direction,
        /// Number of the row.
        row: u32,
        /// The class.
        class: u32,
        /// Protocol that was asked for.
        protocol: IpProtocol,
        /// Destination port that was asked for.
        port: u16,
        /// The ports that it allows of the protocol: `none`, `all`, a number, or `set N`, the number of a bitmap.
        ports: String,
        /// Whether that is allowed.
        allows: bool,
    },
    /// The flow table was searched.
    Flow {
        /// The entry; none: there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        flow: Option<Entry>,
        /// It was idle for too long, and counts as none.
        expired: bool,
    },
    /// The flow is recorded.
    NewFlow,
    /// What the node may have translated was judged for its sender first.
    Sender {
        /// The reason of that verdict.
        reason: String,
    },
    /// A step of a newer program.
    Unknown {
        /// Its number.
        number: u64,
    },
}

/// An entry of the flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Policy allowed it into the pod: what the pod sends answers it.
    pub ingress: bool,
    /// Policy allowed it out of the pod: what the pod gets answers it.
    pub egress: bool,
    /// The node began it.
    pub node: bool,
    /// Both sides have sent.
    pub replied: bool,
    /// A FIN or RST was seen.
    pub closing: bool,
}
