//! Filter of a watcher.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use netpold_core::cluster::AddressOwner;
use netpold_core::model::{Direction, Key};
use netpold_core::pattern::{block, matches};
use netpold_core::probe::IpProtocol;
use serde::{Deserialize, Serialize};

use crate::events::TrafficVerdict;

/// Maximum number of stars in a pattern: each makes the comparison slower.
const STARS: usize = 2;

/// Request of a watcher.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObserveRequest {
    /// Age in milliseconds of the first kept events to send; absent: only new events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Whether new events follow.
    #[serde(default)]
    pub follow: bool,
    /// Filter of the events.
    #[serde(default)]
    pub filter: EventFilter,
}

/// Conditions on events; all given ones must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventFilter {
    /// Verdicts; empty: all but those of new flows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<TrafficVerdict>,
    /// Namespace of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<NamePattern>,
    /// Remote side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerPattern>,
    /// Direction from the pod's view.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// Destination ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// IP protocol; ICMP includes ICMPv6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<IpProtocol>,
    /// Reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// Name, or pattern in which `*` stands for any characters: `name` or `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NamePattern(String);

/// Remote side: a block of addresses, or a [`NamePattern`]: of a pod, of a Service as `svc/namespace/name`, of a node as
/// `node/name`, or `outside`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PeerPattern {
    /// Block of addresses.
    Block(IpNet),
    /// Name or pattern.
    Name(NamePattern),
}

impl EventFilter {
    /// Returns whether the filter includes new flows.
    #[must_use]
    pub fn wants_flows(&self) -> bool {
        self.verdicts.contains(&TrafficVerdict::Allow)
    }
}

impl FromStr for NamePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.matches('*').count() {
            _ if text.is_empty() => Err("an empty name".to_owned()),
            0..=STARS => Ok(Self(text.to_owned())),
            _ => Err(format!("{text:?} has more than {STARS} `*`")),
        }
    }
}

impl TryFrom<String> for NamePattern {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<NamePattern> for String {
    fn from(name: NamePattern) -> Self {
        name.0
    }
}

impl FromStr for PeerPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        block(text).map_or_else(|| text.parse().map(Self::Name), |block| Ok(Self::Block(block)))
    }
}

impl TryFrom<String> for PeerPattern {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<PeerPattern> for String {
    fn from(peer: PeerPattern) -> Self {
        match peer {
            PeerPattern::Block(block) => block.to_string(),
            PeerPattern::Name(name) => name.0,
        }
    }
}

impl NamePattern {
    /// Returns whether the name or pattern is of an object.
    #[must_use]
    pub fn is_of(&self, key: &Key) -> bool {
        match self.0.split_once('/') {
            Some((namespace, name)) => {
                matches(namespace, &key.namespace) && matches(name, &key.name)
            }
            None => matches(&self.0, &key.name),
        }
    }
}

impl PeerPattern {
    /// Returns whether the remote side is this one.
    #[must_use]
    pub fn is_of(&self, remote: Option<IpAddr>, peer: Option<&AddressOwner>) -> bool {
        match (self, peer) {
            (Self::Block(block), _) => remote.is_some_and(|address| block.contains(&address)),
            (Self::Name(_), None) => false,
            (Self::Name(name), Some(AddressOwner::Pod(key))) => name.is_of(key),
            (Self::Name(name), Some(other)) => matches(&name.0, &other.to_string()),
        }
    }
}
