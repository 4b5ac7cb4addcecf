//! Answers about objects that may be incomplete, as those of charts and of exports are.
//!
//! The explainer of the agent takes its objects as complete and fails closed. Here an answer that depends on a missing
//! property is "cannot tell", with the property: an object that cannot be decoded, labels of an absent Namespace, labels
//! that controllers set on pods, addresses of nodes, the chosen backend of a Service, and the address with which a
//! client's packets arrive. The same holds for a document that cannot be read: it may hold any policy, pod or Service.

mod absent;
mod ends;
mod host_port;
mod hypotheses;
mod local_backends;
mod loopback;
mod masquerade;
mod own_node;
mod refused;
mod services;
mod unanswered;
mod undecoded;
mod unread;

use std::net::IpAddr;
use std::sync::{Mutex, OnceLock};

use ipnet::IpNet;
use netpold_api::source::SourceProblem;
use netpold_client::details::Details;
use netpold_client::details::complete::slices;
use netpold_client::offline;
use netpold_core::cluster::Cluster;
use netpold_core::explain::{Explainer, Explanation, JudgedTemplate, Verdict};
use netpold_core::model::{Change, Key};
use netpold_core::probe::{Party, Probe};
use netpold_kube::manifests::Undecoded;

pub(crate) use self::absent::is_absent;
pub(crate) use self::hypotheses::{Hypotheses, are_possible};
pub(crate) use self::own_node::{is_link_local, lacks_own_node};
pub(crate) use self::refused::{RefusedPolicy, RefusedReading, all_read_as, all_refused, problem};
use self::services::ServiceBackends;
pub(crate) use self::services::service_named;
use netpold_core::first_names::first_names;
use netpold_core::lock::lock;

/// Objects, and the properties of them that enforcement does not read.
pub struct Judge {
    cluster: Cluster,
    ranges: Vec<IpNet>,
    details: Details,
    services: ServiceBackends,
    /// Objects that cannot be decoded.
    undecoded: Vec<Undecoded>,
    /// Documents that cannot be read, and may hold any object.
    unread: Vec<SourceProblem>,
    /// The same objects, for changes by hypotheses; built when the first one matters.
    scratch: Mutex<Option<Cluster>>,
    /// Objects of the scratch; empty if no hypothesis is possible and no policy is refused.
    objects: Vec<Change>,
    is_partial: bool,
    /// Policies that API servers refuse or change.
    refused: Vec<RefusedPolicy>,
    /// The same objects with these policies closed, and open; built when the first one matters.
    readings: OnceLock<Box<[Self; 2]>>,
}

/// Verdict of a probe.
pub enum ProbeVerdict {
    /// Whether the traffic is allowed.
    Known(bool),
    /// The verdict depends on a property that the objects lack, given as text.
    Depends(String),
    /// Nothing can be judged, for the reason given as text.
    Unknown(String),
}

impl ProbeVerdict {
    /// Returns the verdict, and the reason for which it is unknown.
    #[must_use]
    pub fn with_reason(self) -> (Verdict, Option<String>) {
        match self {
            Self::Known(true) => (Verdict::Allow, None),
            Self::Known(false) => (Verdict::Deny, None),
            Self::Depends(reason) | Self::Unknown(reason) => (Verdict::Unknown, Some(reason)),
        }
    }
}

impl Judge {
    /// Takes the objects and their details. `is_partial`: the objects are those of files; a cluster's are complete, and
    /// have the EndpointSlices of each Service. `pod_cidrs`: see [`offline::ranges`].
    #[must_use]
    pub fn new(
        mut objects: Vec<Change>,
        details: Details,
        pod_cidrs: &[IpNet],
        is_partial: bool,
    ) -> Self {
        let services = add_slices(&mut objects, &details, is_partial);
        if is_partial {
            let absent = absent::stand_ins(&objects, &details);
            objects.extend(absent);
        }
        Self::complete(objects, (details, services), pod_cidrs, is_partial)
    }

    /// Takes the objects like [`Self::new`], without pods that only EndpointSlices name.
    #[must_use]
    pub fn of_present(
        mut objects: Vec<Change>,
        details: Details,
        pod_cidrs: &[IpNet],
        is_partial: bool,
    ) -> Self {
        let services = add_slices(&mut objects, &details, is_partial);
        Self::complete(objects, (details, services), pod_cidrs, is_partial)
    }

    /// Takes the objects with the EndpointSlices of all Services.
    fn complete(
        objects: Vec<Change>,
        (details, services): (Details, ServiceBackends),
        pod_cidrs: &[IpNet],
        is_partial: bool,
    ) -> Self {
        let refused = all_refused(&objects, is_partial);
        let are_needed = !refused.is_empty() || are_possible(&objects);
        let copied = if are_needed { objects.clone() } else { Vec::new() };
        let cluster = cluster(objects, &details);
        let ranges = offline::ranges(pod_cidrs, &[&cluster]);
        Self {
            is_partial,
            refused,
            ..Self::from_parts(cluster, copied, (details, services), ranges)
        }
    }

    /// Takes a cluster with its objects, of which no policy is refused.
    fn from_parts(
        cluster: Cluster,
        objects: Vec<Change>,
        (details, services): (Details, ServiceBackends),
        ranges: Vec<IpNet>,
    ) -> Self {
        Self {
            cluster,
            ranges,
            details,
            services,
            undecoded: Vec::new(),
            unread: Vec::new(),
            scratch: Mutex::new(None),
            objects,
            is_partial: false,
            refused: Vec::new(),
            readings: OnceLock::new(),
        }
    }

    /// Returns the judges of the same objects with the refused policies closed, and open; `None` if there are none.
    pub(crate) fn readings(&self) -> Option<&[Self; 2]> {
        let read_as = |reading| {
            let objects = all_read_as(self.objects.clone(), self.is_partial, reading);
            let cluster = cluster(objects.clone(), &self.details);
            let known = (self.details.clone(), self.services.clone());
            Self::from_parts(cluster, objects, known, self.ranges.clone())
        };
        let both = || Box::new([RefusedReading::Closed, RefusedReading::Open].map(read_as));
        (!self.refused.is_empty()).then(|| &**self.readings.get_or_init(both))
    }

    /// Takes the objects that cannot be decoded, and the documents that cannot be read, too: an answer that may depend on
    /// one of them is "cannot tell".
    #[must_use]
    pub fn with_unread(self, undecoded: Vec<Undecoded>, unread: Vec<SourceProblem>) -> Self {
        Self { undecoded, unread, ..self }
    }

    /// The objects.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Ranges of addresses of pods without one.
    pub fn ranges(&self) -> &[IpNet] {
        &self.ranges
    }

    /// Fields that enforcement does not read.
    pub fn details(&self) -> &Details {
        &self.details
    }

    /// The explainer that takes the objects as complete.
    pub fn explainer(&self) -> Explainer<'_> {
        let explainer = Explainer::new(&self.cluster).with_ranges(&self.ranges);
        explainer.with_tunnels(&self.details.tunnels)
    }

    /// Answers a probe with reasons.
    pub fn explain(&self, probe: &Probe) -> Explanation {
        self.judge(probe).0
    }

    /// Answers a probe.
    pub fn verdict(&self, probe: &Probe) -> ProbeVerdict {
        let (verdict, reason, depends) = match self.verdict_of_pods(probe) {
            Some((verdict, reason)) => (verdict, reason, false),
            None => {
                let (answer, depends) = self.judge(probe);
                (answer.verdict, answer.reason, depends)
            }
        };
        let reason = reason.unwrap_or_default();
        match verdict {
            Verdict::Allow => ProbeVerdict::Known(true),
            Verdict::Deny => ProbeVerdict::Known(false),
            Verdict::Unknown if depends => ProbeVerdict::Depends(reason),
            Verdict::Unknown => ProbeVerdict::Unknown(reason),
        }
    }

    /// Judges pods of which all is known, quickly; `None` for other parties.
    fn verdict_of_pods(&self, probe: &Probe) -> Option<(Verdict, Option<String>)> {
        let (Party::Pod(from), Party::Pod(to)) = (&probe.from, &probe.to) else { return None };
        let is_refused = self
            .refused
            .iter()
            .any(|policy| [from, to].into_iter().any(|pod| policy.may_concern(&pod.namespace)));
        if !self.unread.is_empty() || is_refused {
            return None;
        }
        let is_known = [from, to].into_iter().all(|key: &Key| {
            let pod = self.cluster.pods().get(key);
            self.cluster.namespaces().contains_key(&key.namespace)
                && pod.is_some_and(|pod| pod.template().is_none())
        });
        is_known.then(|| self.explainer().verdict(probe))
    }

    /// Answers a probe, and returns whether an unknown verdict is one of objects that are incomplete.
    fn judge(&self, probe: &Probe) -> (Explanation, bool) {
        let (answer, depends) = self.judge_readable(probe);
        let answer = self.with_stand_ins(answer);
        let (answer, depends) = match self.refused_reason(&answer) {
            Some(reason) => {
                let reason = Some(reason);
                (Explanation { verdict: Verdict::Unknown, reason, ..answer }, true)
            }
            None => (answer, depends),
        };
        match unread::reason_unknown(&self.cluster, &self.unread, &answer) {
            Some(reason) => {
                let reason = Some(reason);
                (Explanation { verdict: Verdict::Unknown, reason, ..answer }, true)
            }
            None => (answer, depends),
        }
    }

    /// Names the templates of backends, and the stand-ins of absent pods, which have none.
    fn with_stand_ins(&self, mut answer: Explanation) -> Explanation {
        let ends = [&answer.probe.from, &answer.probe.to].into_iter().filter_map(|end| match end {
            Party::Pod(key) => Some(key),
            Party::Address(address) => self.cluster.owner(*address).map(|pod| &pod.key),
            Party::Service(_) => None,
        });
        let keys = ends.chain(answer.backends.iter().filter_map(|it| it.pod.as_ref()));
        let pods = keys.filter_map(|key| self.cluster.pods().get(key));
        let absent = pods.filter(|pod| is_absent(pod)).map(|pod| (pod.title(), &pod.key));
        let absent: Vec<(String, &Key)> = absent.collect();
        let templates = answer.backends.iter().filter_map(|it| it.pod.as_ref());
        let templates = templates.filter_map(|key| self.cluster.pods().get(key));
        let templates = templates.filter(|pod| pod.template().is_some() && !is_absent(pod));
        let templates = templates
            .map(|pod| JudgedTemplate { pod: pod.key.to_string(), title: pod.title() })
            .filter(|it| answer.templates.iter().all(|known| known.title != it.title));
        let mut templates: Vec<JudgedTemplate> = templates.collect();
        templates.dedup_by(|a, b| a.title == b.title);
        answer.templates.extend(templates);
        if absent.is_empty() {
            return answer;
        }
        answer.templates.retain(|it| absent.iter().all(|(title, _)| it.title != *title));
        let named = first_names(absent.iter().map(|(_, key)| key), 1);
        let text = format!(
            "endpoint {named}: the pod is not among the objects, judged by its Service's selector"
        );
        let notes = answer.note.into_iter().chain([text]);
        Explanation { note: Some(notes.collect::<Vec<_>>().join("; ")), ..answer }
    }

    /// Returns the reason for which an answer depends on a policy that API servers refuse or change.
    fn refused_reason(&self, answer: &Explanation) -> Option<String> {
        let verdict = answer.verdict;
        let policy = refused::about(&self.cluster, &self.refused, answer)?;
        let mut readings = self.readings()?.iter();
        let is_equal = |judge: &Self| judge.judge_readable(&answer.probe).0.verdict == verdict;
        let is_known = verdict == Verdict::Unknown || readings.all(is_equal);
        (!is_known).then(|| refused::reason_unknown(&self.cluster, policy))
    }

    /// Describes the first policy that API servers refuse or change, and that may select a pod.
    pub(crate) fn refused_by(&self, pod: &Key) -> Option<String> {
        let pod = self.cluster.pods().get(pod)?;
        let policy = refused::selecting(&self.cluster, &self.refused, pod)?;
        Some(refused::reason_unknown(&self.cluster, policy))
    }

    /// Answers a probe by the documents that can be read, like [`Self::judge`].
    fn judge_readable(&self, probe: &Probe) -> (Explanation, bool) {
        if let Some(answer) = loopback::explain_loopback(probe) {
            return (answer, false);
        }
        if let Some(reason) = undecoded::reason_unknown(&self.cluster, &self.undecoded, probe) {
            return (Explanation::unknown(probe, reason), true);
        }
        let (answer, depends) = self.judge_within(&self.cluster, probe);
        if answer.verdict == Verdict::Unknown && !depends {
            return (answer, false);
        }
        let hypotheses = Hypotheses::of_answer(&self.cluster, &self.details, &answer);
        if hypotheses.is_empty() {
            return (answer, depends);
        }
        if hypotheses.are_too_many() {
            let reason = Some(hypotheses.excess());
            return (Explanation { verdict: Verdict::Unknown, reason, ..answer }, true);
        }
        let mut scratch = lock(&self.scratch);
        let scratch = scratch.get_or_insert_with(|| cluster(self.objects.clone(), &self.details));
        let mut answers: Vec<(Explanation, bool)> = Vec::new();
        for changes in hypotheses.worlds(&self.cluster) {
            scratch.extend(changes);
            answers.push(self.judge_within(scratch, probe));
        }
        scratch.extend(hypotheses.undone(&self.cluster));
        let verdicts: Vec<Verdict> = answers.iter().map(|(answer, _)| answer.verdict).collect();
        if let Some(reason) = hypotheses.deciding(&self.cluster, &verdicts) {
            let reason = Some(reason);
            return (Explanation { verdict: Verdict::Unknown, reason, ..answer }, true);
        }
        match answers.into_iter().next() {
            Some(first) if hypotheses.have_pods() => first,
            Some(_) | None => (answer, depends),
        }
    }

    /// Answers a probe with all labels taken as known.
    fn judge_within(&self, cluster: &Cluster, probe: &Probe) -> (Explanation, bool) {
        let explainer = Explainer::new(cluster).with_ranges(&self.ranges);
        let explainer = explainer.with_tunnels(&self.details.tunnels);
        let by_backends = self.services.explain(cluster, explainer, &self.details, probe);
        let answer = by_backends.unwrap_or_else(|| explainer.explain(probe));
        let answer = local_backends::restricted(cluster, explainer, &self.details, answer);
        let answer = unanswered::judge_possible_backends(cluster, explainer, &self.details, answer);
        if answer.unanswered && answer.verdict == Verdict::Unknown {
            return (answer, true);
        }
        let reason = services::reason_unknown(cluster, &answer)
            .or_else(|| masquerade::reason_unknown(cluster, explainer, &self.details, &answer))
            .or_else(|| host_port::reason_unknown(cluster, explainer, &self.details, &answer))
            .or_else(|| own_node::reason_unknown(cluster, &answer));
        match reason {
            Some(reason) => {
                let reason = Some(reason);
                (Explanation { verdict: Verdict::Unknown, reason, ..answer }, true)
            }
            None => (answer, false),
        }
    }
}

/// Returns the Services with EndpointSlices; adds the ones that controllers make for the others to objects of files.
fn add_slices(objects: &mut Vec<Change>, details: &Details, is_partial: bool) -> ServiceBackends {
    let services = ServiceBackends::new(objects, is_partial);
    if is_partial {
        let made = slices(objects, details);
        objects.extend(made.into_iter().map(Change::EndpointSlice));
    }
    services
}

/// Builds the cluster of objects, with the addresses of nodes in their details.
fn cluster(objects: Vec<Change>, details: &Details) -> Cluster {
    let mut cluster: Cluster = objects.into_iter().collect();
    for (node, addresses) in &details.nodes {
        let addresses = addresses.iter().map(|it| it.address);
        let is_free = |address: &IpAddr| {
            cluster.owner(*address).is_none() && cluster.service_at(*address).is_none()
        };
        let addresses: Vec<IpAddr> = addresses.filter(is_free).collect();
        cluster.add_node_addresses(node, &addresses);
    }
    cluster
}
