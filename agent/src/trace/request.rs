//! Selection of traced packets.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use netpold_core::model::Key;
use netpold_core::probe::{IpProtocol, Party};
use netpold_ebpf::packet::family::V6;
use netpold_ebpf::trace::Clause;
use serde::{Deserialize, Serialize};

use crate::arguments::block;

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Pod to trace.
    pub pod: Party,
    /// Initiator of traced connections to the pod; replies are traced too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Peer>,
    /// Responder of traced connections from the pod; replies are traced too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Peer>,
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
pub enum Peer {
    /// Address or CIDR.
    Block(IpNet),
    /// Pod or Service by name.
    Party(Party),
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(block) = block(text) {
            return Ok(Self::Block(block.trunc()));
        }
        let party = text.parse().map(Self::Party);
        party.map_err(|error| format!("{error}, nor a block of addresses"))
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
            Peer::Party(party) => party.to_string(),
        }
    }
}

impl Request {
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

    /// Returns the filter clauses for the kernel. `resolve` returns a peer's addresses.
    ///
    /// # Errors
    /// `resolve` fails.
    pub fn clauses(
        &self,
        resolve: impl Fn(&Party) -> Result<Vec<IpAddr>, String>,
    ) -> Result<Vec<Clause>, String> {
        let protocol = self.protocol.map_or(0, |protocol| protocol.0);
        let port = self.port.unwrap_or(0);
        let any = Clause { protocol, ..Clause::default() };
        let sides = [
            (&self.from, Clause { local_port: port, ..any }),
            (&self.to, Clause { remote_port: port, ..any }),
        ];
        if self.from.is_none() && self.to.is_none() {
            return Ok(vec![Clause { port, ..any }]);
        }
        let mut clauses = Vec::new();
        for (peer, clause) in sides.into_iter().filter_map(|(peer, it)| Some((peer.as_ref()?, it)))
        {
            let blocks: Vec<IpNet> = match peer {
                Peer::Block(block) => vec![*block],
                Peer::Party(party) => resolve(party)?.into_iter().map(IpNet::from).collect(),
            };
            clauses.extend(blocks.into_iter().map(|block| with(clause, block)));
        }
        Ok(clauses)
    }
}

/// Restricts a clause to remote addresses of a block.
fn with(clause: Clause, block: IpNet) -> Clause {
    let words = |address: IpAddr| {
        let mut octets = [0; 16];
        match address {
            IpAddr::V4(address) => octets[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => octets = address.octets(),
        }
        V6::words(&octets)
    };
    let family = if block.addr().is_ipv4() { 4 } else { 6 };
    Clause { remote: words(block.network()), mask: words(block.netmask()), family, ..clause }
}

#[cfg(test)]
mod tests {
    use netpold_ebpf::layout::DropEvent;

    use super::*;

    fn request(from: Option<&str>, to: Option<&str>, port: Option<u16>) -> Request {
        let peer = |text: &str| text.parse().unwrap();
        let (from, to) = (from.map(peer), to.map(peer));
        let (pod, protocol) = ("shop/web".parse().unwrap(), None);
        Request { pod, from, to, port, protocol, seconds: 60 }
    }

    fn admits(request: &Request, remote: [u8; 4], local_port: u16, remote_port: u16) -> bool {
        let known = |party: &Party| match party.to_string().as_str() {
            "shop/client" => Ok(vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()]),
            other => Err(format!("no pod {other}")),
        };
        let mut octets = [0; 16];
        octets[..4].copy_from_slice(&remote);
        let event = DropEvent {
            family: 4,
            protocol: 6,
            local_port,
            remote_port,
            remote: octets,
            ..DropEvent::default()
        };
        let clauses = request.clauses(known).unwrap();
        clauses.iter().any(|clause| clause.admits(&event, V6::words(&event.remote)))
    }

    #[test]
    fn a_port_is_that_of_the_side_that_is_connected_to() {
        let from = request(Some("shop/client"), None, Some(80));
        assert!(admits(&from, [10, 0, 0, 7], 80, 4000));
        assert!(!admits(&from, [10, 0, 0, 7], 4000, 80));
        assert!(!admits(&from, [10, 0, 0, 8], 80, 4000));
        let to = request(None, Some("10.0.0.0/29"), Some(80));
        assert!(admits(&to, [10, 0, 0, 7], 4000, 80));
        assert!(!admits(&to, [10, 0, 0, 7], 80, 4000));
        assert!(!admits(&to, [10, 0, 0, 8], 4000, 80));
        let any = request(None, None, Some(80));
        assert!(admits(&any, [10, 0, 0, 8], 4000, 80) && admits(&any, [1, 2, 3, 4], 80, 4000));
        assert!(!admits(&any, [10, 0, 0, 8], 4000, 81));
        let unknown = request(Some("shop/nobody"), None, None);
        let failed = unknown.clauses(|party| Err(format!("no pod {party}")));
        assert_eq!(failed.unwrap_err(), "no pod shop/nobody");
    }
}
