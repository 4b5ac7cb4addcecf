//! Values of flags, and the settings that they stand for.

use clap::ValueEnum;
use netpold_core::{model, options};
use netpold_ebpf::xdp::uplink::Scope;
use netpold_kube::cluster::{FollowedNodes, FollowedPeers, PeerTimes};

/// Events to export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportedLogs {
    /// Denied packets.
    Deny,
    /// Flows that audited policies would deny.
    Audit,
    /// New flows.
    Allow,
    /// No events.
    None,
}

/// Pods under the source check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CheckSource {
    /// None
    Off,
    /// Pods that some policy isolates
    Isolated,
    /// Every pod
    All,
}

impl From<CheckSource> for options::CheckSource {
    fn from(value: CheckSource) -> Self {
        match value {
            CheckSource::Off => Self::Off,
            CheckSource::Isolated => Self::Isolated,
            CheckSource::All => Self::All,
        }
    }
}

/// Secondary interfaces of pods under policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SecondaryInterfaces {
    /// All, except those without known addresses in namespaces with the label netpold.io/second-interfaces: open
    Enforce,
    /// Like enforce, and an interface without known addresses sends nothing
    Strict,
    /// None
    Off,
}

impl From<SecondaryInterfaces> for options::SecondaryInterfaces {
    fn from(value: SecondaryInterfaces) -> Self {
        match value {
            SecondaryInterfaces::Enforce => Self::Enforce,
            SecondaryInterfaces::Strict => Self::Strict,
            SecondaryInterfaces::Off => Self::Off,
        }
    }
}

/// Pods with records of their flows while no policy selects them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ObserveFlows {
    /// None
    None,
    /// Pods of namespaces with the label netpold.io/observe: flows
    Labelled,
    /// Every pod
    All,
}

impl From<ObserveFlows> for options::ObserveFlows {
    fn from(value: ObserveFlows) -> Self {
        match value {
            ObserveFlows::None => Self::None,
            ObserveFlows::Labelled => Self::Labelled,
            ObserveFlows::All => Self::All,
        }
    }
}

/// Treatment of an interface until its pod is identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NewPods {
    /// All its traffic passes
    Allow,
    /// Only traffic with the node passes
    Deny,
}

impl From<NewPods> for options::NewPods {
    fn from(value: NewPods) -> Self {
        match value {
            NewPods::Allow => Self::Allow,
            NewPods::Deny => Self::Deny,
        }
    }
}

/// Transports of answers with names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DnsTransports {
    /// UDP
    Udp,
    /// UDP and TCP
    UdpTcp,
}

/// Treatment of denied packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Denial {
    /// They disappear
    Drop,
    /// They are answered
    Reject,
}

impl From<Denial> for model::Denial {
    fn from(value: Denial) -> Self {
        match value {
            Denial::Drop => Self::Drop,
            Denial::Reject => Self::Reject,
        }
    }
}

/// Node objects to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WatchNodes {
    /// This node, and all nodes once policy on this node depends on their addresses
    Auto,
    /// All nodes
    All,
    /// This node only: node ports of other nodes are denied where a policy restricts egress, and ClusterNetworkPolicies
    /// do not know other nodes
    Own,
}

impl From<WatchNodes> for FollowedNodes {
    fn from(value: WatchNodes) -> Self {
        match value {
            WatchNodes::Auto => Self::Needed,
            WatchNodes::All => Self::All,
            WatchNodes::Own => Self::Own,
        }
    }
}

/// Origin of the pods of other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PeersFrom {
    /// A watch of all pods
    Pods,
    /// Peer slices, which a controller with --peer-slices on writes; all pods while it does not
    Slices,
}

impl From<PeersFrom> for FollowedPeers {
    fn from(value: PeersFrom) -> Self {
        match value {
            PeersFrom::Pods => Self::Pods,
            PeersFrom::Slices => Self::Slices(PeerTimes::default()),
        }
    }
}

/// Whether to write peer slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WritePeerSlices {
    /// Never
    Off,
    /// While this replica leads
    On,
}

/// Whether to follow ClusterNetworkPolicies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClusterNetworkPolicies {
    /// If their CRD is installed, now or later
    Auto,
    /// Never; they are not requested from the API server
    Off,
}

/// Denied packets that XDP drops at an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UplinkDrops {
    /// Packets that begin a TCP connection or an SCTP association
    Openings,
    /// All packets of no known flow: only where the node translates nothing (no kube-proxy)
    All,
}

impl From<UplinkDrops> for Scope {
    fn from(value: UplinkDrops) -> Self {
        match value {
            UplinkDrops::Openings => Self::Openings,
            UplinkDrops::All => Self::All,
        }
    }
}

/// First hook that judges packets of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PodEgressHook {
    /// TC only
    Tc,
    /// XDP drops the packets that TC would drop. The pod's TCP loses segmentation offload
    Xdp,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Human-readable text
    Text,
    /// One JSON object per line
    Json,
}
