//! NetworkPolicies and their rules.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::model::denial::Denial;
use crate::model::domain_name::DomainName;
use crate::model::object::Key;
use crate::model::selector::Selector;
use crate::model::traffic::{Direction, Protocol};

/// A NetworkPolicy.
#[cfg_attr(test, derive(Default))]
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Policy {
    /// `metadata.namespace` and `metadata.name`
    pub key: Key,
    /// `spec.podSelector`
    pub pod_selector: Selector,
    /// `Some` if the policy isolates ingress (`policyTypes`, given or defaulted): the granted rules in the order of
    /// `spec.ingress`.
    pub ingress: Option<Vec<Rule>>,
    /// `Some` if the policy isolates egress.
    pub egress: Option<Vec<Rule>>,
    /// Invalid parts, such as `spec.ingress[0].ports[1]: endPort …`; empty if all are valid. Invalid parts grant
    /// nothing; an invalid `podSelector` selects every pod of the namespace.
    pub problems: Vec<String>,
    /// Version of the object.
    #[serde(default)]
    pub version: PolicyVersion,
    /// Annotation `netpold.io/enforcement`.
    #[serde(default, skip_serializing_if = "Enforcement::is_enforce")]
    pub enforcement: Enforcement,
    /// Annotation `netpold.io/deny`; `None` where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denial: Option<Denial>,
}

/// Whether a policy is enforced or only audited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// The policy takes part in verdicts.
    #[default]
    Enforce,
    /// Verdicts ignore the policy; the denials that it would cause are recorded.
    Audit,
}

impl Enforcement {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
    pub(super) fn is_enforce(&self) -> bool {
        *self == Self::Enforce
    }
}

/// Version of a NetworkPolicy, for the report that this version is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PolicyVersion {
    /// `metadata.uid`; empty for a file without one.
    pub uid: String,
    /// `metadata.generation`, which the API server increments with each change of the spec; 0 where absent.
    pub generation: i64,
}

impl Policy {
    /// The rules of a direction, `None` if the policy does not isolate it.
    #[must_use]
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

/// One item of `spec.ingress` or `spec.egress`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rule {
    /// `from` or `to`; `None` (absent or empty in the API): all peers.
    pub peers: Option<Vec<Peer>>,
    /// `ports`; `None` (absent or empty in the API): every protocol and port.
    pub ports: Option<Vec<PortRule>>,
}

impl Rule {
    /// Domain names among the peers.
    pub fn domain_names(&self) -> impl Iterator<Item = &DomainName> {
        self.peers.iter().flatten().filter_map(|peer| match peer {
            Peer::Domain(name) => Some(name),
            Peer::Pods { .. } | Peer::Block(_) | Peer::Nodes(_) => None,
        })
    }
}

/// One item of `from` or `to`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Peer {
    /// `podSelector` and `namespaceSelector`, at least one given.
    Pods {
        /// `namespaceSelector`; `None`: the policy's own namespace.
        namespaces: Option<Selector>,
        /// `podSelector`; absent in the API with a `namespaceSelector`: the empty selector.
        pods: Selector,
    },
    /// `ipBlock`, and each item of a ClusterNetworkPolicy's `networks`.
    Block(IpBlock),
    /// `nodes` of a ClusterNetworkPolicy: the `status.addresses` of the matching Nodes.
    Nodes(Selector),
    /// Each item of a ClusterNetworkPolicy's `domainNames`, in Accept rules of the Admin tier only: the addresses that
    /// a pod resolved the name to.
    Domain(DomainName),
}

/// `ipBlock`
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IpBlock {
    /// `cidr`, host bits masked off.
    pub cidr: IpNet,
    /// `except`, host bits masked off; cuts this block only.
    pub except: Vec<IpNet>,
}

impl IpBlock {
    /// Whether the block contains an address: it is in `cidr` and in no `except`.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.cidr.contains(&address) && !self.except.iter().any(|e| e.contains(&address))
    }
}

/// One item of `ports`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortRule {
    /// `protocol`; absent in the API: TCP
    pub protocol: Protocol,
    /// `port` and `endPort`
    pub port: PortMatch,
}

/// `port` and `endPort`
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PortMatch {
    /// `port` absent: every port of the protocol.
    Any,
    /// A number, or a number with `endPort`: both ends included.
    Range(u16, u16),
    /// A port name: matches every container port with this name and protocol, of the selected pod for ingress, of each
    /// destination pod for egress.
    Named(String),
}
