//! A question about traffic, from a user or a program: may one party reach another?

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::model::{Key, Protocol};

/// One side of a [`Probe`]: written `namespace/pod`, `svc/namespace/name` or as an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Party {
    /// A pod by name.
    Pod(Key),
    /// A Service by name: its addresses.
    Service(Key),
    /// An address; a pod's address means that pod.
    Address(IpAddr),
}

/// An IP protocol by number: written `TCP`, `UDP`, `SCTP`, `ICMP`, `ICMPv6` or as the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "SpelledProtocol", into = "String")]
pub struct IpProtocol(pub u8);

/// May `from` open a flow of this kind to `to`?
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawProbe")]
pub struct Probe {
    /// The sender.
    pub from: Party,
    /// The receiver.
    pub to: Party,
    /// IP protocol.
    pub protocol: IpProtocol,
    /// Destination port; 0 where the protocol has none.
    pub port: u16,
}

/// Reason why a [`Probe`] or a part of it is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// Neither `namespace/pod` nor `svc/namespace/name` nor an address.
    #[error("{0:?} is neither namespace/pod nor an address, nor svc/namespace/name")]
    Party(String),
    /// Not a protocol name or number.
    #[error("{0:?} is not a protocol: use TCP, UDP, SCTP, ICMP, ICMPv6 or a number from 0 to 255")]
    Protocol(String),
    /// The port of a protocol with ports is missing.
    #[error("{0} needs a port")]
    PortMissing(IpProtocol),
}

impl Probe {
    /// A probe; `port` may be absent where the protocol has no ports.
    ///
    /// # Errors
    /// [`ProbeError::PortMissing`].
    pub fn new(
        from: Party,
        to: Party,
        protocol: IpProtocol,
        port: Option<u16>,
    ) -> Result<Self, ProbeError> {
        match port {
            None if protocol.has_ports() => Err(ProbeError::PortMissing(protocol)),
            _ => {
                let port = if protocol.has_ports() { port.unwrap_or(0) } else { 0 };
                Ok(Self { from, to, protocol, port })
            }
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}, {}", self.from, self.to, self.protocol)?;
        if self.protocol.has_ports() { write!(f, " {}", self.port) } else { Ok(()) }
    }
}

impl IpProtocol {
    /// TCP
    pub const TCP: Self = Self(6);
    /// UDP
    pub const UDP: Self = Self(17);
    /// SCTP
    pub const SCTP: Self = Self(132);
    /// ICMP for IPv4; also means ICMPv6, because policy treats both alike.
    pub const ICMP: Self = Self(1);

    /// Whether NetworkPolicy supports ports of this protocol.
    #[must_use]
    pub const fn has_ports(self) -> bool {
        matches!(self.0, 6 | 17 | 132)
    }

    /// Returns the protocol of policies and Services; `None` for a protocol without ports.
    #[must_use]
    pub fn transport(self) -> Option<Protocol> {
        let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        all.into_iter().find(|protocol| protocol.number() == self.0)
    }
}

impl fmt::Display for IpProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            6 => f.write_str("TCP"),
            17 => f.write_str("UDP"),
            132 => f.write_str("SCTP"),
            1 => f.write_str("ICMP"),
            58 => f.write_str("ICMPv6"),
            number => write!(f, "{number}"),
        }
    }
}

impl FromStr for IpProtocol {
    type Err = ProbeError;

    fn from_str(text: &str) -> Result<Self, ProbeError> {
        match text.to_ascii_uppercase().as_str() {
            "TCP" => Ok(Self::TCP),
            "UDP" => Ok(Self::UDP),
            "SCTP" => Ok(Self::SCTP),
            "ICMP" => Ok(Self::ICMP),
            "ICMPV6" => Ok(Self(58)),
            number => number.parse().map(Self).map_err(|_| ProbeError::Protocol(text.to_owned())),
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(key) => key.fmt(f),
            Self::Service(key) => write!(f, "svc/{key}"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl FromStr for Party {
    type Err = ProbeError;

    fn from_str(text: &str) -> Result<Self, ProbeError> {
        if let Ok(address) = text.parse::<IpAddr>() {
            // Sockets write IPv4 addresses in this form, but send IPv4 packets.
            return Ok(Self::Address(address.to_canonical()));
        }
        let parts: Vec<&str> = text.split('/').collect();
        match parts[..] {
            _ if parts.iter().any(|part| part.is_empty()) || text.parse::<IpNet>().is_ok() => {}
            [namespace, name] => return Ok(Self::Pod(Key::new(namespace, name))),
            ["svc" | "service", namespace, name] => {
                return Ok(Self::Service(Key::new(namespace, name)));
            }
            _ => {}
        }
        Err(ProbeError::Party(text.to_owned()))
    }
}

impl TryFrom<String> for Party {
    type Error = ProbeError;
    fn try_from(text: String) -> Result<Self, ProbeError> {
        text.parse()
    }
}

impl From<Party> for String {
    fn from(party: Party) -> Self {
        party.to_string()
    }
}

impl From<IpProtocol> for String {
    fn from(protocol: IpProtocol) -> Self {
        protocol.to_string()
    }
}

/// A protocol in a file: `"TCP"` or `6`.
#[derive(Deserialize)]
#[serde(untagged)]
enum SpelledProtocol {
    Number(u8),
    Name(String),
}

impl TryFrom<SpelledProtocol> for IpProtocol {
    type Error = ProbeError;
    fn try_from(spelled: SpelledProtocol) -> Result<Self, ProbeError> {
        match spelled {
            SpelledProtocol::Number(number) => Ok(Self(number)),
            SpelledProtocol::Name(name) => name.parse(),
        }
    }
}

/// A probe in a file; the protocol defaults to TCP, as in the API.
#[derive(Deserialize)]
struct RawProbe {
    from: Party,
    to: Party,
    #[serde(default)]
    protocol: Option<IpProtocol>,
    #[serde(default)]
    port: Option<u16>,
}

impl TryFrom<RawProbe> for Probe {
    type Error = ProbeError;
    fn try_from(raw: RawProbe) -> Result<Self, ProbeError> {
        Self::new(raw.from, raw.to, raw.protocol.unwrap_or(IpProtocol::TCP), raw.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_json_lines() {
        let line = r#"{"from":"x/a","to":"10.0.0.1","port":80,"protocol":"udp","note":1}"#;
        let probe: Probe = serde_json::from_str(line).unwrap();
        assert_eq!(probe.to_string(), "x/a to 10.0.0.1, UDP 80");
        let probe: Probe =
            serde_json::from_str(r#"{"from":"::1","to":"x/a","protocol":1}"#).unwrap();
        assert_eq!(probe.to_string(), "::1 to x/a, ICMP");
        let error = serde_json::from_str::<Probe>(r#"{"from":"x/a","to":"x/b"}"#).unwrap_err();
        assert!(error.to_string().contains("TCP needs a port"), "{error}");
        assert_eq!("svc/x/a".parse(), Ok(Party::Service(Key::new("x", "a"))));
        assert_eq!("::ffff:10.0.0.1".parse(), "10.0.0.1".parse::<Party>());
        for party in ["a", "x/", "/a", "x/a/b", "svc//a", "svc/x/a/b", "", "10.0.0.0/8", "::/0"] {
            assert!(party.parse::<Party>().is_err(), "{party}");
        }
        assert!("TCPX".parse::<IpProtocol>().is_err() && "256".parse::<IpProtocol>().is_err());
    }
}
