//! Classes of ends, which policies treat alike.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use netpold_core::model::{DomainName, NamedPort, Pod};

use super::party::DiffParty;
use super::rules::RangeStarts;

/// Most sample addresses per pod without an address.
pub(super) const PLACES: usize = 64;

/// Address in one cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartyEnd<'c> {
    pub(super) pod: Option<&'c Pod>,
    /// Node of the pod, or node that has the address; empty if there is none.
    pub(super) node: &'c str,
    pub(super) address: IpAddr,
}

impl PartyEnd<'_> {
    /// Returns whether the status of the end's pod lists the other end's address: policies treat that address as the pod's
    /// own, even if another pod has it.
    pub(super) fn lists(&self, other: &Self) -> bool {
        self.pod.is_some_and(|pod| pod.addresses.contains(&other.address))
    }
}

/// A pod and an address of its own node, each before and after; a pod that moves has another node after.
#[derive(Debug)]
pub(super) struct OwnNode<'c> {
    pub(super) pod: [PartyEnd<'c>; 2],
    pub(super) node: [PartyEnd<'c>; 2],
    /// Whether nothing relevant to the node changed.
    pub(super) is_as_before: bool,
    /// Whether, moreover, no Service has node ports.
    pub(super) receives_as_before: bool,
}

/// Kind of a class's party.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClassKind {
    Pods,
    Nodes,
    Outside,
}

/// Ends that policies treat alike in both clusters.
#[derive(Debug)]
pub(super) struct Class<'c> {
    /// Index of the party.
    pub(super) party: usize,
    pub(super) kind: ClassKind,
    /// Members, each before and after.
    pub(super) members: Vec<[PartyEnd<'c>; 2]>,
    /// Whether the address is a Service's, or shared by several nodes: only the explainer resolves these.
    pub(super) special: bool,
    /// Whether another object has an address of some member's pod: traffic to that object may count as the pod's own.
    pub(super) is_contested: bool,
    /// Whether another pod has an address of some member's status, see [`Class::is_by_address`].
    pub(super) lacks_address: bool,
    /// Whether nothing relevant to the class as a sender changed.
    pub(super) sends_as_before: bool,
    /// Whether nothing relevant to the class as a receiver changed.
    pub(super) receives_as_before: bool,
    /// Ports at which the class's egress may change.
    pub(super) sends: RangeStarts,
    /// Ports at which the class's ingress, or a named port's number, may change.
    pub(super) receives: RangeStarts,
    /// Domain names in the rules of the class's egress, before or after.
    pub(super) names: BTreeSet<DomainName>,
    /// Addresses of no object to which the names are assumed to resolve, one of each set that these rules distinguish.
    pub(super) resolved: Vec<IpAddr>,
    /// Addresses of the members' own nodes, one of each set that policies distinguish.
    pub(super) own_nodes: Vec<OwnNode<'c>>,
}

impl Class<'_> {
    pub(super) fn is_ipv6(&self) -> bool {
        self.members[0][0].address.is_ipv6()
    }

    /// Returns whether the verdict on connections to another class may depend on the nodes of pods: if Services translate
    /// them, perhaps to a pod's own node.
    pub(super) fn is_by_node(&self, to: &Self, node_ports: bool) -> bool {
        self.special || to.special || node_ports && [self.kind, to.kind].contains(&ClassKind::Nodes)
    }

    /// Returns whether the verdict on connections to another class may depend on the members' addresses, see
    /// [`PartyEnd::lists`].
    pub(super) fn is_by_address(&self, to: &Self) -> bool {
        self.lacks_address || to.lacks_address
    }
}

/// Properties by which policies distinguish ends of one cluster.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct EndTraits<'c> {
    pub(super) labels: Vec<(&'c str, &'c str)>,
    pub(super) ports: &'c [NamedPort],
    pub(super) block: IpNet,
    pub(super) special: Option<IpAddr>,
    /// Node that has the address. The nodes of pods are no trait: [`Class::is_by_node`] judges by nodes where they matter.
    pub(super) node: Option<&'c str>,
}

/// Parties and their classes.
pub(super) struct PartyEnds<'c> {
    pub(super) parties: Vec<DiffParty>,
    pub(super) classes: Vec<Class<'c>>,
    /// Ports of Services and node ports: relevant at special addresses and at nodes.
    pub(super) translated: RangeStarts,
    /// Whether a Service has node ports.
    pub(super) node_ports: bool,
    /// Index of [`DiffParty::OwnNode`].
    pub(super) own_node: usize,
    /// Index of the party of each domain name.
    pub(super) names: BTreeMap<DomainName, usize>,
    /// Number of blocks beyond [`PLACES`], at which pods without an address are not judged.
    pub(super) left_out: usize,
    /// Workloads compared in part or not at all, each with the reason.
    pub(super) not_compared: Vec<String>,
    /// Pods with an address on a secondary network that begins or ceases to count.
    pub(super) recounted: BTreeSet<String>,
}

impl<'c> PartyEnds<'c> {
    /// Returns whether more than policies and addresses may decide about connections from one class to another: a Service
    /// that translates them, or an address of several owners.
    pub(super) fn may_translate(&self, from: &Class<'c>, to: &Class<'c>) -> bool {
        let special = from.special || to.special || from.is_contested || to.is_contested;
        special || self.node_ports && to.kind == ClassKind::Nodes
    }
}
