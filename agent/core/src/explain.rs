//! Why something is allowed or denied, for people and for programs.
//!
//! An [`Explainer`] reads the same cluster state that is compiled. For each probe it walks the policies as
//! the API describes them and keeps what it met: who isolates the pod, which rule allows, or which came
//! nearest and what it lacked. Tests hold its verdicts against the oracle's and against the compiled
//! tables'.

mod answer;
mod rule;
mod services;
mod text;

pub use answer::{Backend, Cause, Explanation, Judgement, Nearest, Problem, RuleRef, Verdict};

use std::net::IpAddr;

use crate::cluster::Cluster;
use crate::model::{Direction, Key, Pod, Policy};
use crate::probe::{IpProtocol, Party, Probe};
use rule::Traffic;

/// Answers questions about a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Explainer<'c> {
    cluster: &'c Cluster,
}

/// How much is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detail {
    /// What decided; no rules.
    Verdict,
    /// Everything.
    Reasons,
}

/// One side of a probe.
struct Side<'c> {
    pod: Option<&'c Pod>,
    addresses: Vec<IpAddr>,
}

impl<'c> Explainer<'c> {
    /// An explainer of this cluster.
    #[must_use]
    pub fn new(cluster: &'c Cluster) -> Self {
        Self { cluster }
    }

    /// The pod that an address belongs to.
    fn owner(&self, address: IpAddr) -> Option<&'c Pod> {
        self.cluster.owner(address).map(|pod| &**pod)
    }

    fn is_own_node(&self, pod: &Pod, address: IpAddr) -> bool {
        !pod.node.is_empty() && self.cluster.is_of_node(&pod.node, address)
    }

    /// Answer a probe.
    #[must_use]
    pub fn explain(&self, probe: &Probe) -> Explanation {
        self.answer(probe, Detail::Reasons)
    }

    /// Answer a probe quickly: the verdict, and why it cannot be told.
    #[must_use]
    pub fn verdict(&self, probe: &Probe) -> (Verdict, Option<String>) {
        let answer = self.answer(probe, Detail::Verdict);
        (answer.verdict, answer.reason)
    }

    fn answer(&self, probe: &Probe, detail: Detail) -> Explanation {
        match self.sides(probe) {
            Ok((from, to)) => self.explain_sides(probe, &from, &to, detail),
            Err(reason) => Explanation::unknown(probe, reason),
        }
    }

    fn sides(&self, probe: &Probe) -> Result<(Side<'c>, Side<'c>), String> {
        let (from, to) = (self.side(&probe.from)?, self.side(&probe.to)?);
        let leads_to_pod = || to.addresses.iter().any(|a| self.leads_to_pod(*a, probe));
        if from.pod.is_none() && to.pod.is_none() && !leads_to_pod() {
            return Err(format!("neither {} nor {} is a pod's address", probe.from, probe.to));
        }
        Ok((from, to))
    }

    fn side(&self, party: &Party) -> Result<Side<'c>, String> {
        let key = match party {
            Party::Address(address) => {
                return Ok(Side { pod: self.owner(*address), addresses: vec![*address] });
            }
            Party::Service(key) => {
                let translation = self.cluster.translation();
                if translation.is_unserved(key) {
                    return Err(format!(
                        "Service {key} is left to another proxy (label \
                         service.kubernetes.io/service-proxy-name or service.kubernetes.io/headless): \
                         nothing is translated at its addresses; ask its pods"
                    ));
                }
                let service = translation.services().get(key);
                let service = service.ok_or_else(|| format!("there is no Service {key}"))?;
                if service.addresses.is_empty() {
                    return Err(format!(
                        "Service {key} is headless: it has no address; ask its pods"
                    ));
                }
                return Ok(Side { pod: None, addresses: service.addresses.clone() });
            }
            Party::Pod(key) => key,
        };
        let pod = self.cluster.pods().get(key).ok_or_else(|| format!("there is no pod {key}"))?;
        if pod.finished {
            return Err(format!("pod {key} is finished (Succeeded or Failed): it has no traffic"));
        }
        if pod.addresses.is_empty() {
            return Err(format!("pod {key} has no address (yet)"));
        }
        Ok(Side { pod: Some(&**pod), addresses: pod.addresses.clone() })
    }

    /// Every pair of addresses of one family is judged; if they disagree, it cannot be told.
    fn explain_sides(
        &self,
        probe: &Probe,
        from: &Side<'_>,
        to: &Side<'_>,
        detail: Detail,
    ) -> Explanation {
        let pairs = from.addresses.iter().flat_map(|&source| {
            let same_family = move |to: &&IpAddr| to.is_ipv4() == source.is_ipv4();
            to.addresses.iter().filter(same_family).map(move |&to| (source, to))
        });
        let mut first: Option<(Explanation, (IpAddr, IpAddr))> = None;
        for pair in pairs {
            let this = self.explain_pair(probe, from, to, pair, detail);
            let Some((first, other)) = &first else {
                first = Some((this, pair));
                continue;
            };
            if this.verdict != first.verdict {
                let reason =
                    text::depends_on_address((first.verdict, *other), (this.verdict, pair));
                let denied = if this.verdict == Verdict::Deny { this } else { first.clone() };
                let (verdict, reason) = (Verdict::Unknown, Some(reason));
                return Explanation { verdict, reason, ..denied };
            }
        }
        first.map_or_else(
            || {
                let reason = "the two sides have no address family in common".to_owned();
                Explanation::unknown(probe, reason)
            },
            |(first, _)| first,
        )
    }

    fn explain_pair(
        &self,
        probe: &Probe,
        from: &Side<'_>,
        to: &Side<'_>,
        (source, destination): (IpAddr, IpAddr),
        detail: Detail,
    ) -> Explanation {
        let itself = from.pod.is_some_and(|a| to.pod.is_some_and(|b| a.key == b.key));
        let pair = (source, destination);
        if !itself && let Some(answer) = self.explain_translated(probe, from, pair, detail) {
            return answer;
        }
        let kind = (probe.protocol, probe.port);
        let (egress, ingress) = self.judge_pair(from, source, to.pod, destination, kind, detail);
        let verdict = Verdict::of([&egress, &ingress]);
        Explanation::judged(probe, verdict, None, egress, ingress)
    }

    /// Egress of the sender and ingress of the receiver, as far as they are pods.
    fn judge_pair(
        &self,
        from: &Side<'_>,
        source: IpAddr,
        to: Option<&Pod>,
        destination: IpAddr,
        (protocol, port): (IpProtocol, u16),
        detail: Detail,
    ) -> (Option<Judgement>, Option<Judgement>) {
        let itself = from.pod.map(|pod| &pod.key) == to.map(|pod| &pod.key);
        let from_host = from.pod.is_none_or(|pod| pod.host_network);
        let egress = from.pod.map(|pod| {
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

    /// Judge one direction at one pod, as the dataplane would by its tables; `None` if there is no
    /// such pod. `port` is the destination port.
    #[must_use]
    pub fn judge(
        &self,
        pod: &Key,
        direction: Direction,
        remote: IpAddr,
        protocol: IpProtocol,
        port: u16,
    ) -> Option<Judgement> {
        let pod = self.cluster.pods().get(pod)?;
        Some(self.judge_at_veth(pod, direction, remote, (protocol, port), Detail::Reasons))
    }

    fn traffic<'a>(
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
    fn judge_traffic(
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
