//! Why something is allowed or denied, for people and for programs.
//!
//! An [`Explainer`] holds the cluster indexed, so that many probes are answered quickly; for each it
//! walks the policies as the API describes them and keeps what it met: who isolates the pod, which
//! rule allows, or which came nearest and what it lacked. Tests hold its verdicts against the
//! oracle's and against the compiled tables'.

mod answer;
mod rule;
mod services;
mod text;

pub use answer::{Backend, Cause, Explanation, Judgement, Nearest, Problem, RuleRef, Verdict};

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::budget::Weight;
use crate::model::{Change, Direction, Key, Labels, Namespace, Pod, Policy};
use crate::probe::{IpProtocol, Party, Probe};
use rule::Traffic;
use services::Services;

/// The cluster, indexed for questions.
#[derive(Clone, Debug, Default)]
pub struct Explainer {
    namespaces: BTreeMap<String, Namespace>,
    pods: BTreeMap<Key, Pod>,
    /// By namespace, then by name.
    policies: BTreeMap<String, BTreeMap<String, Policy>>,
    /// What policies ask for beyond their budget: these isolate and grant nothing.
    excess: BTreeMap<Key, String>,
    /// The pod that an address belongs to.
    owners: BTreeMap<IpAddr, Key>,
    /// Addresses of each node, those of its hostNetwork pods included.
    nodes: BTreeMap<String, BTreeSet<IpAddr>>,
    services: Services,
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
struct Side<'a> {
    pod: Option<&'a Pod>,
    addresses: Vec<IpAddr>,
}

impl Explainer {
    /// Index a cluster, given as one change for each object (of several for one object the last
    /// counts).
    #[must_use]
    pub fn new(changes: impl IntoIterator<Item = Change>) -> Self {
        let mut all = Self::default();
        let mut nodes = BTreeMap::new();
        let (mut services, mut slices) = (BTreeMap::new(), BTreeMap::new());
        for change in changes {
            match change {
                Change::Namespace(new) => drop(all.namespaces.insert(new.name.clone(), new)),
                Change::NamespaceGone(name) => drop(all.namespaces.remove(&name)),
                Change::Node(new) => drop(nodes.insert(new.name, new.addresses)),
                Change::NodeGone(name) => drop(nodes.remove(&name)),
                Change::Pod(new) => drop(all.pods.insert(new.key.clone(), new)),
                Change::PodGone(key) => drop(all.pods.remove(&key)),
                Change::Policy(new) => {
                    let namespace = all.policies.entry(new.key.namespace.clone()).or_default();
                    namespace.insert(new.key.name.clone(), new);
                }
                Change::PolicyGone(key) => {
                    let namespace = all.policies.entry(key.namespace).or_default();
                    namespace.remove(&key.name);
                }
                Change::Service(new) => drop(services.insert(new.key.clone(), new)),
                Change::ServiceGone(key) => drop(services.remove(&key)),
                Change::EndpointSlice(new) => drop(slices.insert(new.key.clone(), new)),
                Change::EndpointSliceGone(key) => drop(slices.remove(&key)),
                Change::Interface(_) | Change::InterfaceGone(_) | Change::OwnAddresses(_) => {}
            }
        }
        let node_addresses = nodes.values().flatten().copied().collect();
        all.services = Services::new(services, slices.into_values(), node_addresses);
        for (name, addresses) in nodes {
            all.nodes.entry(name).or_default().extend(addresses);
        }
        all.index_pods();
        let policies = all.policies.values().flat_map(BTreeMap::values);
        let excess = policies.filter_map(|p| Some((p.key.clone(), Weight::of(p).excess?)));
        all.excess = excess.collect();
        all
    }

    fn index_pods(&mut self) {
        let mut claims: BTreeMap<IpAddr, &Pod> = BTreeMap::new();
        for pod in self.pods.values().filter(|pod| !pod.finished) {
            if pod.host_network {
                let node = self.nodes.entry(pod.node.clone()).or_default();
                node.extend(&pod.addresses);
                continue;
            }
            for &address in &pod.addresses {
                let claim = claims.entry(address).or_insert(pod);
                if precedence(pod) > precedence(claim) {
                    *claim = pod;
                }
            }
        }
        self.owners = claims.into_iter().map(|(ip, pod)| (ip, pod.key.clone())).collect();
    }

    /// The pod that an address belongs to.
    fn owner(&self, address: IpAddr) -> Option<&Pod> {
        self.owners.get(&address).and_then(|key| self.pods.get(key))
    }

    fn is_own_node(&self, pod: &Pod, address: IpAddr) -> bool {
        !pod.node.is_empty()
            && self.nodes.get(&pod.node).is_some_and(|addresses| addresses.contains(&address))
    }

    /// Labels of a namespace; one that is not known has the label that the API server gives to all.
    fn namespace_labels(&self, name: &str) -> Cow<'_, Labels> {
        match self.namespaces.get(name) {
            Some(namespace) => Cow::Borrowed(&namespace.labels),
            None => {
                let label = ("kubernetes.io/metadata.name".to_owned(), name.to_owned());
                Cow::Owned(Labels::from_iter([label]))
            }
        }
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

    fn sides(&self, probe: &Probe) -> Result<(Side<'_>, Side<'_>), String> {
        let (from, to) = (self.side(&probe.from)?, self.side(&probe.to)?);
        let leads_to_pod = || to.addresses.iter().any(|a| self.leads_to_pod(*a, probe));
        if from.pod.is_none() && to.pod.is_none() && !leads_to_pod() {
            return Err(format!("neither {} nor {} is a pod's address", probe.from, probe.to));
        }
        Ok((from, to))
    }

    fn side(&self, party: &Party) -> Result<Side<'_>, String> {
        let key = match party {
            Party::Address(address) => {
                return Ok(Side { pod: self.owner(*address), addresses: vec![*address] });
            }
            Party::Service(key) => {
                let service = self.services.get(key);
                let service = service.ok_or_else(|| format!("there is no Service {key}"))?;
                if service.unserved {
                    return Err(format!(
                        "Service {key} is left to another proxy (label \
                         service.kubernetes.io/service-proxy-name or service.kubernetes.io/headless): \
                         nothing is translated at its addresses; ask its pods"
                    ));
                }
                if service.addresses.is_empty() {
                    return Err(format!(
                        "Service {key} is headless: it has no address; ask its pods"
                    ));
                }
                return Ok(Side { pod: None, addresses: service.addresses.clone() });
            }
            Party::Pod(key) => key,
        };
        let pod = self.pods.get(key).ok_or_else(|| format!("there is no pod {key}"))?;
        if pod.finished {
            return Err(format!("pod {key} is finished (Succeeded or Failed): it has no traffic"));
        }
        if pod.addresses.is_empty() {
            return Err(format!("pod {key} has no address (yet)"));
        }
        Ok(Side { pod: Some(pod), addresses: pod.addresses.clone() })
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
        let pod = self.pods.get(pod)?;
        Some(self.judge_at_veth(pod, direction, remote, (protocol, port), Detail::Reasons))
    }

    fn traffic<'a>(
        &'a self,
        pod: &'a Pod,
        direction: Direction,
        remote: IpAddr,
        protocol: IpProtocol,
        port: u16,
    ) -> Traffic<'a> {
        let remote_pod = self.owner(remote);
        let out_of_sight = false;
        let explainer = self;
        Traffic { explainer, pod, direction, remote, remote_pod, protocol, port, out_of_sight }
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
                let within = policies.into_iter().filter(|p| !self.excess.contains_key(&p.key));
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
    fn problems<'a>(&'a self, policy: &'a Policy) -> impl Iterator<Item = Problem> + 'a {
        let problem = |problem: &String, over_budget| Problem {
            policy: policy.key.clone(),
            problem: problem.clone(),
            over_budget,
        };
        let excess = self.excess.get(&policy.key).map(move |excess| problem(excess, true));
        policy.problems.iter().map(move |text| problem(text, false)).chain(excess)
    }

    fn isolating(&self, pod: &Pod, direction: Direction) -> Vec<&Policy> {
        if pod.host_network || pod.finished {
            return Vec::new();
        }
        let policies = self.policies.get(&pod.key.namespace).into_iter().flat_map(BTreeMap::values);
        policies
            .filter(|policy| policy.rules(direction).is_some())
            .filter(|policy| rule::unmet(&policy.pod_selector, &pod.labels).is_none())
            .collect()
    }
}

/// Who of several pods has an address that they all claim: the greatest.
fn precedence(pod: &Pod) -> (bool, i64, &Key) {
    (!pod.terminating, pod.created, &pod.key)
}
