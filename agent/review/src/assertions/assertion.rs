//! An assertion and its two sides.

use std::fmt;

use ipnet::IpNet;
use netpold_core::model::{DomainName, Requirement, Selector};
use netpold_core::probe::{IpProtocol, Party};

/// Expected verdict for each connection from one side to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Assertion {
    /// Position: `file:line`.
    pub(super) place: String,
    /// `name`; empty if absent.
    pub(super) name: String,
    pub(super) from: SideSelection,
    pub(super) to: SideSelection,
    pub(super) protocol: IpProtocol,
    /// Destination port; 0 where the protocol has none.
    pub(super) port: u16,
    pub(super) allow: bool,
}

/// Side of an assertion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SideSelection {
    /// Pod, Service or address.
    One(Party),
    /// Pods by namespace and labels, except hostNetwork and finished pods.
    Pods { namespaces: NamespaceChoice, labels: Selector },
    /// Addresses that the sender resolved a domain name to; a receiver only.
    Name { name: DomainName, at: AssumedAddresses },
}

/// Addresses to which a domain name is assumed to resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AssumedAddresses {
    /// Every address.
    Any,
    /// Addresses of the internet.
    Public,
    /// These blocks.
    Blocks(Vec<IpNet>),
}

/// Namespaces of selected pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NamespaceChoice {
    Named(String),
    All,
}

impl Assertion {
    /// Returns the assertion's name, or else a description.
    pub(super) fn title(&self) -> String {
        if !self.name.is_empty() {
            return self.name.clone();
        }
        let verdict = if self.allow { "allow" } else { "deny" };
        let port =
            if self.protocol.has_ports() { format!(" {}", self.port) } else { String::new() };
        format!("{verdict} {} to {}, {}{port}", self.from, self.to, self.protocol)
    }
}

impl fmt::Display for SideSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (namespaces, labels) = match self {
            Self::One(party) => return party.fmt(f),
            Self::Pods { namespaces, labels } => (namespaces, labels),
            Self::Name { name, at } => return write!(f, "{name}{at}"),
        };
        match namespaces {
            NamespaceChoice::Named(name) => write!(f, "pods of {name}")?,
            NamespaceChoice::All => f.write_str("pods of every namespace")?,
        }
        for (index, requirement) in labels.requirements.iter().enumerate() {
            let word = if index == 0 { " with " } else { ", " };
            write!(f, "{word}{}", label(requirement))?;
        }
        Ok(())
    }
}

impl fmt::Display for AssumedAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => Ok(()),
            Self::Public => f.write_str(" at public addresses"),
            Self::Blocks(blocks) => {
                let blocks: Vec<String> = blocks.iter().map(ToString::to_string).collect();
                write!(f, " at {}", blocks.join(" and "))
            }
        }
    }
}

/// Formats a required label of an assertion.
fn label(requirement: &Requirement) -> String {
    match requirement {
        Requirement::In(key, values) => format!("{key}={}", values.join("|")),
        Requirement::NotIn(key, values) => format!("{key}!={}", values.join("|")),
        Requirement::Exists(key) => key.clone(),
        Requirement::DoesNotExist(key) => format!("!{key}"),
    }
}
