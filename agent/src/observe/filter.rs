//! Filter of a watcher.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use netpold_core::cluster::Whose;
use netpold_core::model::{Direction, Key};
use netpold_core::pattern::matches;
use netpold_core::probe::IpProtocol;
use serde::{Deserialize, Serialize};

use crate::arguments::block;
use crate::events::{Outcome, Seen};

/// Most stars in a pattern: each makes the comparison slower.
const STARS: usize = 2;

/// Request of a watcher.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Age in milliseconds of the first kept events to send; absent: only new events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Whether new events follow.
    #[serde(default)]
    pub follow: bool,
    /// Filter of the events.
    #[serde(default)]
    pub filter: Filter,
}

/// Conditions on events; all given ones must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Filter {
    /// Verdicts; empty: all but those of new flows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<Outcome>,
    /// Namespace of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Name>,
    /// Remote side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<Peer>,
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
pub struct Name(String);

/// Remote side: a block of addresses, or a [`Name`]: of a pod, of a Service as `svc/namespace/name`, of a node as
/// `node/name`, or `outside`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Peer {
    /// Block of addresses.
    Block(IpNet),
    /// Name or pattern.
    Name(Name),
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.matches('*').count() {
            _ if text.is_empty() => Err("an empty name".to_owned()),
            0..=STARS => Ok(Self(text.to_owned())),
            _ => Err(format!("{text:?} has more than {STARS} `*`")),
        }
    }
}

impl TryFrom<String> for Name {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        block(text).map_or_else(|| text.parse().map(Self::Name), |block| Ok(Self::Block(block)))
    }
}

impl TryFrom<String> for Peer {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Peer> for String {
    fn from(peer: Peer) -> Self {
        match peer {
            Peer::Block(block) => block.to_string(),
            Peer::Name(name) => name.0,
        }
    }
}

impl Name {
    fn is_of(&self, key: &Key) -> bool {
        match self.0.split_once('/') {
            Some((namespace, name)) => {
                matches(namespace, &key.namespace) && matches(name, &key.name)
            }
            None => matches(&self.0, &key.name),
        }
    }
}

impl Peer {
    fn is_of(&self, remote: Option<IpAddr>, peer: Option<&Whose>) -> bool {
        match (self, peer) {
            (Self::Block(block), _) => remote.is_some_and(|address| block.contains(&address)),
            (Self::Name(_), None) => false,
            (Self::Name(name), Some(Whose::Pod(key))) => name.is_of(key),
            (Self::Name(name), Some(other)) => matches(&name.0, &other.to_string()),
        }
    }
}

/// Names of an event's sides, from the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Pod; `None` if it is deleted.
    pub pod: Option<Key>,
    /// Owner of the remote address.
    pub peer: Option<Whose>,
}

/// Returns the destination port, if the protocol has ports.
#[must_use]
pub fn destination_port(seen: &Seen) -> Option<u16> {
    let [local, remote] = seen.packet.ports()?;
    Some(match seen.packet.direction {
        Direction::Ingress => local,
        Direction::Egress => remote,
    })
}

impl Filter {
    /// Returns whether the filter includes new flows.
    #[must_use]
    pub fn wants_flows(&self) -> bool {
        self.verdicts.contains(&Outcome::Allow)
    }

    /// Returns whether the filter admits an event, apart from conditions on names.
    #[must_use]
    pub fn admits(&self, seen: &Seen) -> bool {
        let packet = &seen.packet;
        let protocol = |wanted: IpProtocol| {
            let same = |number| IpProtocol(number) == wanted || wanted.0 == 1 && number == 58;
            packet.protocol.is_some_and(same)
        };
        let verdict = match &self.verdicts[..] {
            [] => seen.outcome != Outcome::Allow,
            verdicts => verdicts.contains(&seen.outcome),
        };
        verdict
            && self.direction.is_none_or(|direction| direction == packet.direction)
            && self.protocol.is_none_or(protocol)
            && (self.ports.is_empty()
                || destination_port(seen).is_some_and(|it| self.ports.contains(&it)))
            && (self.reasons.is_empty() || self.reasons.iter().any(|it| it == packet.reason))
    }

    /// Returns whether the filter's conditions on names admit an event.
    #[must_use]
    pub fn admits_names(&self, seen: &Seen, Names { pod, peer }: &Names) -> bool {
        let pod = pod.as_ref();
        let in_namespace = |name: &String| pod.is_some_and(|pod| pod.namespace == *name);
        self.namespace.as_ref().is_none_or(in_namespace)
            && self.pod.as_ref().is_none_or(|name| pod.is_some_and(|pod| name.is_of(pod)))
            && self.peer.as_ref().is_none_or(|it| it.is_of(seen.packet.remote, peer.as_ref()))
    }
}
