//! What policies say of traffic at one pod, read literally: nothing is translated here.

use std::net::IpAddr;

use crate::cluster::Cluster;
use crate::explain::answer::{Cause, Detail, Judgement, Problem, Verdict};
use crate::explain::rule::{self, Traffic};
use crate::model::{Direction, Pod, Policy};
use crate::probe::IpProtocol;

/// Judges traffic by the rules of policies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Literal<'c> {
    pub(super) cluster: &'c Cluster,
}

impl<'c> Literal<'c> {
    /// The pod that an address belongs to.
    pub(super) fn owner(&self, address: IpAddr) -> Option<&'c Pod> {
        self.cluster.owner(address).map(|pod| &**pod)
    }

    pub(super) fn is_own_node(&self, pod: &Pod, address: IpAddr) -> bool {
        !pod.node.is_empty() && self.cluster.is_of_node(&pod.node, address)
    }

    /// Egress of the sender and ingress of the receiver, as far as they are pods.
    pub(super) fn judge_pair(
        &self,
        from: Option<&Pod>,
        source: IpAddr,
        to: Option<&Pod>,
        destination: IpAddr,
        (protocol, port): (IpProtocol, u16),
        detail: Detail,
    ) -> (Option<Judgement>, Option<Judgement>) {
        let itself = from.map(|pod| &pod.key) == to.map(|pod| &pod.key);
        let from_host = from.is_none_or(|pod| pod.host_network);
        let egress = from.map(|pod| {
            let always = itself.then_some(Cause::Itself);
            let traffic = self.traffic(pod, Direction::Egress, destination, protocol, port);
            self.judge_traffic(&traffic, always, detail)
        });
        let ingress = to.map(|pod| {
            let from_node = from_host && self.is_own_node(pod, source);
            let always = from_node.then_some(Cause::OwnNode);
            let always = itself.then_some(Cause::Itself).or(always);
            let traffic = self.traffic(pod, Direction::Ingress, source, protocol, port);
            self.judge_traffic(&traffic, always, detail)
        });
        (egress, ingress)
    }

    pub(super) fn traffic<'a>(
        &self,
        pod: &'a Pod,
        direction: Direction,
        remote: IpAddr,
        protocol: IpProtocol,
        port: u16,
    ) -> Traffic<'a>
    where
        'c: 'a,
    {
        let remote_pod = self.owner(remote);
        let out_of_sight = false;
        let cluster = self.cluster;
        Traffic { cluster, pod, direction, remote, remote_pod, protocol, port, out_of_sight }
    }

    /// `always`: the reason why this passes whatever policies say, if there is one that depends on
    /// more than addresses.
    pub(super) fn judge_traffic(
        &self,
        traffic: &Traffic<'_>,
        always: Option<Cause>,
        detail: Detail,
    ) -> Judgement {
        let policies = self.isolating(traffic.pod, traffic.direction);
        let mut judgement = Judgement {
            pod: traffic.pod.key.clone(),
            direction: traffic.direction,
            remote: traffic.remote,
            remote_pod: traffic.remote_pod.map(|pod| pod.key.clone()),
            verdict: Verdict::Allow,
            cause: Cause::NotIsolated,
            isolated_by: Vec::new(),
            allowed_by: None,
            nearest: None,
            problems: Vec::new(),
        };
        if detail == Detail::Reasons {
            judgement.isolated_by = policies.iter().map(|policy| policy.key.clone()).collect();
            judgement.problems = policies.iter().flat_map(|policy| self.problems(policy)).collect();
        }
        match always.or_else(|| self.special(traffic)) {
            Some(cause) => judgement.cause = cause,
            None if policies.is_empty() => {}
            None => {
                let within = policies.into_iter().filter(|p| self.cluster.excess(&p.key).is_none());
                traffic.judge_rules(&within.collect::<Vec<_>>(), &mut judgement, detail);
            }
        }
        judgement
    }

    /// What passes whatever policies say.
    fn special(&self, traffic: &Traffic<'_>) -> Option<Cause> {
        let (pod, remote) = (traffic.pod, traffic.remote);
        if pod.host_network {
            Some(Cause::HostNetwork)
        } else if !traffic.out_of_sight && pod.addresses.contains(&remote) {
            Some(Cause::Itself)
        } else if traffic.direction == Direction::Egress && self.is_own_node(pod, remote) {
            Some(Cause::OwnNode)
        } else {
            None
        }
    }

    /// Why parts of a policy, or all of it, grant nothing.
    fn problems<'p>(&self, policy: &'p Policy) -> impl Iterator<Item = Problem> + use<'p, 'c> {
        let problem = |problem: &str, over_budget| Problem {
            policy: policy.key.clone(),
            problem: problem.to_owned(),
            over_budget,
        };
        let excess = self.cluster.excess(&policy.key).map(|excess| problem(excess, true));
        policy.problems.iter().map(move |text| problem(text, false)).chain(excess)
    }

    fn isolating(&self, pod: &Pod, direction: Direction) -> Vec<&'c Policy> {
        if pod.host_network || pod.finished {
            return Vec::new();
        }
        let policies = self.cluster.policies_in(&pod.key.namespace).map(|policy| &**policy);
        policies
            .filter(|policy| policy.rules(direction).is_some())
            .filter(|policy| rule::unmet(&policy.pod_selector, &pod.labels).is_none())
            .collect()
    }
}
