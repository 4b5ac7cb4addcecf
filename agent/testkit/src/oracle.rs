//! A literal reading of policy: the reference for all other implementations.
//!
//! Written from the comments of the API types (`k8s.io/api/networking/v1`, `LabelSelector` of `k8s.io/apimachinery`,
//! `policy.networking.k8s.io/v1alpha2`) and from netpold's decisions where these leave room. As naive as possible, and
//! without code of the compiler, not even for matching selectors and blocks, so that one misunderstanding cannot hide
//! in both. Never used to judge a real packet.

mod denial;
mod matching;
mod probe;
mod seen;
mod services;
mod state;

pub use denial::DeniedFrame;
pub use probe::OracleVerdict;
pub use seen::{Decision, Seen};
pub use state::Oracle;

use std::net::IpAddr;

use netpold_core::model::{Direction, Pod};
use netpold_core::probe::Probe;
use probe::Asked;
use services::{Frontend, Of};

impl Oracle {
    /// Expected verdict at the pod's veth: whether policy allows this traffic of `pod` with `remote` in one direction.
    /// `port` is the destination port: the pod's own for ingress, the remote's for egress. Egress to a Service passes
    /// if some backend is allowed, unless a tier denies all backends, or denies the pod to reach itself where it is a
    /// backend of a Service of its namespace. Addresses of this node are judged without their node ports.
    #[must_use]
    pub fn judge(
        &self,
        pod: &Pod,
        direction: Direction,
        remote: IpAddr,
        protocol: u8,
        port: u16,
    ) -> bool {
        if direction == Direction::Ingress {
            return self.judge_translated(pod, direction, remote, protocol, port);
        }
        let untranslated = self.untranslated(pod, remote, protocol, port);
        if self.is_own_node(pod, remote) {
            return untranslated.allowed;
        }
        let mut backends = Vec::new();
        let frontend = Frontend { oracle: self, address: remote, protocol, port };
        let own = frontend.backends_of(Some(&pod.key.namespace), Of::Service, false);
        for (remote, port) in frontend.backends(Of::Service, false) {
            let itself = pod.addresses.contains(&remote) && own.contains(&(remote, port));
            let oracle = self;
            let seen = Seen { oracle, pod, direction, remote, protocol, port, itself };
            let decide = |direction| Seen { direction, ..seen }.decide();
            if itself && Direction::BOTH.into_iter().any(|way| decide(way).denied_by_tier()) {
                return false;
            }
            backends.push(decide(direction));
        }
        let denied = !backends.is_empty() && backends.iter().all(Decision::denied_by_tier);
        let some = backends.iter().any(Decision::allowed);
        !denied && !untranslated.denied && (untranslated.allowed || some)
    }

    /// Whether policy allows traffic of `pod` with `remote` in one direction, where `remote` is the final address of a
    /// packet that was already translated.
    ///
    /// Ingress from this node is not decided here: it depends on the origin of the packet, not on its address; see
    /// [`Self::verdict`].
    #[must_use]
    pub fn judge_translated(
        &self,
        pod: &Pod,
        direction: Direction,
        remote: IpAddr,
        protocol: u8,
        port: u16,
    ) -> bool {
        let (oracle, itself) = (self, false);
        pod.addresses.contains(&remote)
            || Seen { oracle, pod, direction, remote, protocol, port, itself }.decide().allowed()
    }

    /// Answer to a probe, over all pairs of addresses of the two sides.
    #[must_use]
    pub fn verdict(&self, probe: &Probe) -> OracleVerdict {
        Asked { oracle: self, probe }.verdict()
    }

    /// Answer to a probe between ends at given addresses, each with its pod, also where the address does not count for
    /// this pod. The probe's own sides are not read.
    #[must_use]
    pub fn verdict_at(
        &self,
        probe: &Probe,
        [from, to]: [(Option<&Pod>, IpAddr); 2],
    ) -> OracleVerdict {
        Asked { oracle: self, probe }.judge_pair(from, to)
    }
}
