//! Senders and receivers of compared connections.

use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use netpold_core::first_names::short_list;
use netpold_core::model::{DomainName, Key};

use super::workloads::ComparedWorkload;

/// Most names shown per list in text.
pub(super) const SHOWN: usize = 3;

/// Side of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiffParty {
    /// Pods of a workload.
    Workload(Arc<ComparedWorkload>),
    /// Node of the pod on the other side.
    OwnNode,
    /// Nodes that no policy distinguishes.
    Nodes {
        /// Names of the nodes.
        nodes: Vec<String>,
        /// Whether there are no other nodes.
        only: bool,
    },
    /// Addresses of neither pods nor nodes.
    Outside {
        /// Block named by policies, or all addresses of a family.
        block: IpNet,
        /// Blocks within `block` that are parties themselves.
        without: Vec<IpNet>,
        /// Whether all pods and nodes have addresses of this family only.
        only: bool,
    },
    /// Addresses that the sender resolved a domain name to; of a wildcard, those of the names below it that no other name
    /// of its rules matches.
    Name(DomainName),
    /// Service with ports, a selector or endpoints that change; a receiver only.
    Service(Key),
}

/// Joins the names, or the first of them and the number of the others.
pub(super) fn list_names(names: &[String]) -> String {
    short_list(names.iter(), SHOWN)
}

impl fmt::Display for DiffParty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(workload) => f.write_str(&workload.name),
            Self::OwnNode => f.write_str("own node"),
            Self::Name(name) => name.fmt(f),
            Self::Service(key) => write!(f, "svc/{key}"),
            Self::Nodes { only: true, .. } => f.write_str("other nodes"),
            Self::Nodes { nodes, .. } => match &nodes[..] {
                [node] => write!(f, "node {node}"),
                _ => write!(f, "nodes {}", list_names(nodes)),
            },
            Self::Outside { block, without, only } if block.prefix_len() == 0 => {
                f.write_str(if without.is_empty() { "outside" } else { "anywhere else outside" })?;
                match block {
                    _ if *only => Ok(()),
                    IpNet::V4(_) => f.write_str(" (IPv4)"),
                    IpNet::V6(_) => f.write_str(" (IPv6)"),
                }
            }
            Self::Outside { block, without, .. } => {
                write!(f, "{block}")?;
                let without: Vec<String> = without.iter().map(ToString::to_string).collect();
                if without.is_empty() {
                    Ok(())
                } else {
                    write!(f, " without {}", list_names(&without))
                }
            }
        }
    }
}
