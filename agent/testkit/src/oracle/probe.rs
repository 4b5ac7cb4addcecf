//! Questions about traffic between two parties.

use std::net::IpAddr;

use netpold_core::model::{Direction, Pod};
use netpold_core::probe::{Party, Probe};

use super::services::{Frontend, Of};
use super::state::Oracle;

/// The answer to a [`Probe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OracleVerdict {
    /// Verdicts of the sender's egress and the receiver's ingress; a side without a pod under policy allows.
    Judged {
        /// The sender's egress.
        egress: bool,
        /// The receiver's ingress.
        ingress: bool,
    },
    /// The traffic is translated; allowed if some backend is allowed in both directions.
    Translated {
        /// Whether some backend is allowed.
        allowed: bool,
    },
    /// The verdict depends on which of the pods' addresses are used.
    DependsOnAddress,
    /// A pod does not exist, is finished or has no address; no side is a pod; or the sides share no address family.
    CannotTell,
}

impl OracleVerdict {
    /// Whether both directions allow; `None` without a single verdict.
    #[must_use]
    pub fn allowed(self) -> Option<bool> {
        match self {
            Self::Judged { egress, ingress } => Some(egress && ingress),
            Self::Translated { allowed } => Some(allowed),
            Self::DependsOnAddress | Self::CannotTell => None,
        }
    }
}

/// A probe and the oracle that answers it.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) oracle: &'a Oracle,
    pub(super) probe: &'a Probe,
}

/// One side of a probe: its pod, if any, and its possible addresses.
struct Side<'a> {
    pod: Option<&'a Pod>,
    addresses: Vec<IpAddr>,
}

/// An address and the pod that uses it, if any.
type End<'a> = (Option<&'a Pod>, IpAddr);

impl<'a> Asked<'a> {
    /// Answer over all pairs of addresses of the two sides.
    pub(super) fn verdict(self) -> OracleVerdict {
        let (Some(from), Some(to)) = (self.side(&self.probe.from), self.side(&self.probe.to))
        else {
            return OracleVerdict::CannotTell;
        };
        let leads_to_pod = to.addresses.iter().any(|address| {
            let (protocol, port) = (self.probe.protocol.0, self.probe.port);
            let backends = self.oracle.backends(*address, protocol, port, true);
            backends.iter().any(|(backend, _)| self.oracle.pod_at(*backend).is_some())
        });
        if from.pod.is_none() && to.pod.is_none() && !leads_to_pod {
            return OracleVerdict::CannotTell;
        }
        let mut answer = OracleVerdict::CannotTell;
        for &source in &from.addresses {
            for &destination in &to.addresses {
                if source.is_ipv4() != destination.is_ipv4() {
                    continue;
                }
                let this = self.judge_pair((from.pod, source), (to.pod, destination));
                if answer != OracleVerdict::CannotTell && answer.allowed() != this.allowed() {
                    return OracleVerdict::DependsOnAddress;
                }
                if answer == OracleVerdict::CannotTell {
                    answer = this;
                }
            }
        }
        answer
    }

    /// Answer for one pair of addresses.
    pub(super) fn judge_pair(
        self,
        (from, source): End<'_>,
        (to, destination): End<'_>,
    ) -> OracleVerdict {
        let (protocol, port) = (self.probe.protocol.0, self.probe.port);
        let frontend = Frontend { oracle: self.oracle, address: destination, protocol, port };
        let itself = from.is_some_and(|a| to.is_some_and(|b| a.key == b.key));
        let of_service = frontend.is_port(Of::Service);
        if !itself && (of_service || frontend.is_port(Of::Node)) {
            let of = if of_service { Of::Service } else { Of::Node };
            let judge =
                |pod| self.oracle.judge(pod, Direction::Egress, destination, protocol, port);
            let sends = from.is_none_or(judge);
            // Another node chooses the backend; the sender's egress was judged for all of them where the packet leaves.
            let elsewhere = |pod| !of_service && !self.oracle.is_own_node(pod, destination);
            let elsewhere = from.is_some_and(elsewhere);
            let reached = frontend.backends(of, true).into_iter().any(|(backend, port)| {
                let to = (self.oracle.pod_at(backend), backend);
                let (egress, ingress) = self.judge_both((from, source), to, port);
                ingress && (egress || elsewhere)
            });
            return OracleVerdict::Translated { allowed: sends && reached };
        }
        let (egress, ingress) = self.judge_both((from, source), (to, destination), port);
        OracleVerdict::Judged { egress, ingress }
    }

    /// Verdicts of the sender's egress and the receiver's ingress.
    fn judge_both(
        self,
        (from, source): End<'_>,
        (to, destination): End<'_>,
        port: u16,
    ) -> (bool, bool) {
        if let (Some(from), Some(to)) = (from, to)
            && from.key == to.key
        {
            return (true, true);
        }
        let (oracle, protocol) = (self.oracle, self.probe.protocol.0);
        let egress = from.is_none_or(|pod| {
            oracle.judge_translated(pod, Direction::Egress, destination, protocol, port)
        });
        let ingress = to.is_none_or(|pod| {
            // A sender that is not an ordinary pod and has an address of the node counts as the node.
            let from_node = from.is_none_or(|p| p.host_network) && oracle.is_own_node(pod, source);
            from_node || oracle.judge_translated(pod, Direction::Ingress, source, protocol, port)
        });
        (egress, ingress)
    }

    fn side(self, party: &Party) -> Option<Side<'a>> {
        match party {
            Party::Address(address) => {
                Some(Side { pod: self.oracle.pod_at(*address), addresses: vec![*address] })
            }
            Party::Service(key) => {
                let service = self.oracle.services.iter().find(|service| service.key == *key)?;
                let addresses = service.addresses.clone();
                (!addresses.is_empty() && !service.unserved)
                    .then_some(Side { pod: None, addresses })
            }
            Party::Pod(key) => {
                let pod = self.oracle.pods.iter().find(|pod| pod.key == *key)?;
                if pod.finished {
                    return None;
                }
                Some(Side { pod: Some(pod), addresses: pod.addresses.clone() })
            }
        }
    }
}
