//! Peers and ports that a policy must allow for an observed flow.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use netpold_api::learn::{LearnedPeer, ObservedFlow};
use netpold_api::workload::Workload;
use netpold_core::cluster::{Cluster, is_subject};
use netpold_core::explain::Explainer;
use netpold_core::model::Key;

use super::policy::{LearnOptions, PeerSpec};
use super::ports::LearnedPorts;

/// Reason why no policy is written for a flow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoPolicyReason {
    /// The pods have no labels.
    NoLabels,
    /// The protocol has no ports.
    NoPorts,
    /// The port is 0, which the API does not allow.
    PortZero,
    /// The address is a pod's, but another pod may have had it at the time of the flow.
    FormerPod(IpAddr),
    /// The Service does not exist any more, or has no such port.
    NoService(Key),
    /// The Service has no backends now.
    NoBackends(Key),
}

impl fmt::Display for NoPolicyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLabels => f.write_str("the pods have no labels for a policy to select"),
            Self::NoPorts => f.write_str(
                "a policy can allow this protocol only together with every port; --other-protocols does that",
            ),
            Self::PortZero => f.write_str("no policy can name port 0"),
            Self::FormerPod(address) => write!(
                f,
                "{address} is a pod's address, and the pod that had it then is unknown: no ipBlock is written for \
                 pods"
            ),
            Self::NoService(key) => write!(f, "Service {key} is not among the objects or has no such port"),
            Self::NoBackends(key) => write!(f, "Service {key} has no backends now"),
        }
    }
}

fn block(address: IpAddr, options: &LearnOptions) -> PeerSpec {
    let length = options.block_prefix[usize::from(address.is_ipv6())];
    let net = IpNet::new(address, length).unwrap_or_else(|_| IpNet::from(address));
    PeerSpec::Block(net.trunc())
}

/// Returns the peers with ports that a flow needs; empty if the flow is always allowed.
///
/// # Errors
/// No policy can allow the flow, or only together with much else.
pub(super) fn grants(
    cluster: &Cluster,
    flow: &ObservedFlow,
    options: &LearnOptions,
) -> Result<Vec<(PeerSpec, LearnedPorts)>, NoPolicyReason> {
    if flow.workload.labels.is_empty() {
        return Err(NoPolicyReason::NoLabels);
    }
    if flow.peer == LearnedPeer::Node {
        return Ok(Vec::new());
    }
    if flow.protocol.transport().is_none() && !options.other_protocols {
        return Err(NoPolicyReason::NoPorts);
    }
    if flow.protocol.transport().is_some() && flow.port == 0 {
        return Err(NoPolicyReason::PortZero);
    }
    let ports = |port| LearnedPorts::single(flow.protocol, port);
    Ok(match &flow.peer {
        LearnedPeer::Node => Vec::new(),
        LearnedPeer::Workload(workload) => {
            vec![(PeerSpec::Pods(workload.clone()), ports(flow.port))]
        }
        LearnedPeer::Address(address) if cluster.is_pod_address(*address) => {
            return Err(NoPolicyReason::FormerPod(*address));
        }
        LearnedPeer::Address(address) => vec![(block(*address, options), ports(flow.port))],
        LearnedPeer::Service(key) => {
            let backends = Explainer::new(cluster).backends_of(key, flow.protocol, flow.port);
            let backends = backends.ok_or_else(|| NoPolicyReason::NoService(key.clone()))?;
            let grant = |(address, port)| {
                let owner = cluster.owner(address).filter(|pod| is_subject(pod));
                let peer = match owner.and_then(|pod| Workload::of_pod(pod)) {
                    Some(workload) => PeerSpec::Pods(workload),
                    // A deleted pod, still listed in an EndpointSlice.
                    None if cluster.is_pod_address(address) => return None,
                    None => PeerSpec::Block(IpNet::from(address)),
                };
                Some((peer, ports(port)))
            };
            let grants: Vec<_> = backends.into_iter().filter_map(grant).collect();
            if grants.is_empty() {
                return Err(NoPolicyReason::NoBackends(key.clone()));
            }
            grants
        }
    })
}
