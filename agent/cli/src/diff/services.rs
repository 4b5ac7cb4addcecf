//! Connections to Services with ports, a selector or endpoints that change. A change of policies alone shows at the pods
//! behind a Service.

use std::collections::{BTreeMap, BTreeSet};

use netpold_core::explain::Verdict;
use netpold_core::model::{Change as Object, EndpointSlice, Key, Pod, Protocol, Service};
use netpold_core::probe::{IpProtocol, Party as Side, Probe};

use super::ports::PROTOCOLS;
use super::{Change, Difference, Party, Ports};
use crate::doctor::details::{Backend, Service as Written};
use crate::doctor::{Details, is_selected};
use crate::judge::Judge;

/// Most questions about Services, before and after the change together.
const QUESTIONS: usize = 20_000;

/// Objects that determine the backends of a Service.
#[derive(PartialEq)]
struct Definition<'a> {
    service: &'a Service,
    written: Option<&'a Written>,
    slices: Vec<&'a EndpointSlice>,
    endpoints: Option<&'a Vec<Backend>>,
    /// Names of the selected pods.
    pods: BTreeSet<&'a str>,
}

/// Definitions on both sides.
type Sides<'a> = [Option<Definition<'a>>; 2];

/// Answer about a port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Judged(bool),
    /// No backend is ready.
    Nobody,
    Unknown(String),
}

/// Returns the Services that differ; headless ones, and those with an external name, are left out: their clients connect
/// to the pods themselves, or to no pod.
pub(super) fn differing(objects: &[Vec<Object>; 2], details: &[Details; 2]) -> Vec<Key> {
    let mut all: BTreeMap<&Key, Sides<'_>> = BTreeMap::new();
    for (side, (objects, details)) in objects.iter().zip(details).enumerate() {
        for (key, definition) in definitions(objects, details) {
            all.entry(key).or_insert_with(|| [None, None])[side] = Some(definition);
        }
    }
    let differ = |(_, [before, after]): &(&Key, Sides<'_>)| before.is_some() && before != after;
    all.into_iter().filter(differ).map(|(key, _)| key.clone()).collect()
}

fn definitions<'a>(
    objects: &'a [Object],
    details: &'a Details,
) -> BTreeMap<&'a Key, Definition<'a>> {
    let mut all = BTreeMap::new();
    for object in objects {
        let Object::Service(service) = object else { continue };
        let written = details.services.get(&service.key);
        if written.is_some_and(|it| it.is_headless)
            || details.external_names.contains_key(&service.key)
        {
            continue;
        }
        let (endpoints, slices) = (details.endpoints.get(&service.key), Vec::new());
        let pods = BTreeSet::new();
        all.insert(&service.key, Definition { service, written, slices, endpoints, pods });
    }
    let mut by_namespace: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for object in objects {
        if let Object::EndpointSlice(slice) = object {
            let key = Key::new(slice.key.namespace.clone(), slice.service.clone());
            if let Some(definition) = all.get_mut(&key) {
                definition.slices.push(slice);
            }
        } else if let Object::Pod(pod) = object {
            by_namespace.entry(&pod.key.namespace).or_default().push(pod);
        }
    }
    for (key, definition) in &mut all {
        definition.slices.sort_by_key(|slice| &slice.key);
        let Some(written) = definition.written else { continue };
        let pods = by_namespace.get(key.namespace.as_str()).into_iter().flatten();
        let pods = pods.filter(|pod| is_selected(&pod.labels, &written.selector));
        definition.pods = pods.map(|pod| pod.key.name.as_str()).collect();
    }
    all
}

/// Compares the connections of all workloads to these Services, and adds the changes to the difference.
pub(super) fn compare(judges: [&Judge; 2], services: &[Key], difference: &mut Difference) {
    let senders = senders(judges, &difference.parties);
    let mut parties = Vec::new();
    let (mut left, mut untried) = (QUESTIONS, 0);
    let mut unknown = BTreeSet::new();
    for key in services {
        let [before, after] = judges.map(|judge| judge.cluster().services().get(key));
        let (Some(before), after) = (before, after) else { continue };
        let Some(after) = after else {
            unknown.insert(format!("connections to Service {key}: it is gone"));
            continue;
        };
        let gone = before.ports.iter().filter(|port| !has(after, (port.protocol, port.port)));
        unknown.extend(gone.map(|port| {
            format!(
                "connections to Service {key}: it has no port {} {} any more",
                port.protocol, port.port
            )
        }));
        let both = before.ports.iter().map(|port| (port.protocol, port.port));
        let both: Vec<(Protocol, u16)> = both.filter(|port| has(after, *port)).collect();
        let Some(rest) = left.checked_sub(2 * both.len() * senders.len()) else {
            untried += 1;
            continue;
        };
        left = rest;
        let mut to = None;
        for (from, pairs) in &senders {
            let change = of_pairs(judges, pairs, (key, &both), &mut unknown);
            let Some((loses, gains, some)) = change else { continue };
            let to = *to.get_or_insert_with(|| {
                parties.push(Party::Service(key.clone()));
                difference.parties.len() + parties.len() - 1
            });
            difference.changes.push(Change { from: *from, to, loses, gains, some });
        }
    }
    if untried > 0 {
        let word = if untried == 1 { "Service" } else { "Services" };
        unknown.insert(format!(
            "connections to {untried} changed {word}: more than {QUESTIONS} questions"
        ));
    }
    difference.parties.extend(parties);
    difference.isolation.unknown.extend(unknown);
}

fn has(service: &Service, (protocol, number): (Protocol, u16)) -> bool {
    service.ports.iter().any(|port| (port.protocol, port.port) == (protocol, number))
}

/// Returns the workloads, each with one pair of pods before and after of those with equal labels and nodes.
fn senders<'d>(judges: [&Judge; 2], parties: &'d [Party]) -> Vec<(usize, Vec<[&'d Key; 2]>)> {
    let of_workload = |(index, party): (usize, &'d Party)| {
        let Party::Workload(workload) = party else { return None };
        let mut known = BTreeMap::new();
        for (before, after) in workload.counterparts() {
            let keys = [before, after];
            let [Some(before), Some(after)] =
                [0, 1].map(|i| judges[i].cluster().pods().get(keys[i]).map(|pod| &**pod))
            else {
                continue;
            };
            if !before.host_network && !after.host_network {
                let traits = [before, after].map(|pod| (&pod.labels, &pod.node));
                known.entry(format!("{traits:?}")).or_insert(keys);
            }
        }
        (!known.is_empty()).then(|| (index, known.into_values().collect()))
    };
    parties.iter().enumerate().filter_map(of_workload).collect()
}

/// Returns the lost and the gained ports of a Service, and whether only some pods are concerned; `None` without any.
fn of_pairs(
    judges: [&Judge; 2],
    pairs: &[[&Key; 2]],
    (service, ports): (&Key, &[(Protocol, u16)]),
    unknown: &mut BTreeSet<String>,
) -> Option<(Ports, Ports, bool)> {
    let mut all: Vec<[Ports; 2]> = Vec::new();
    for pair in pairs {
        let [mut loses, mut gains] = [const { Ports::NONE }; 2];
        let mut sorted = ports.to_vec();
        sorted.sort_by_key(|(protocol, port)| {
            (PROTOCOLS.iter().position(|it| it == protocol), *port)
        });
        for (protocol, port) in sorted {
            let answers = [0, 1].map(|i| answer(judges[i], (pair[i], service), (protocol, port)));
            let at = || format!("connections to Service {service} at {protocol} {port}");
            match answers {
                [before, after] if before == after => {}
                [Found::Judged(true), Found::Judged(false)] => loses.push(protocol, (port, port)),
                [Found::Judged(false), Found::Judged(true)] => gains.push(protocol, (port, port)),
                [Found::Nobody, _]
                | [Found::Judged(false), Found::Nobody]
                | [Found::Judged(_), Found::Judged(_)] => {}
                [_, Found::Nobody] => {
                    unknown.insert(format!("{}: no pod is behind it any more", at()));
                }
                [_, Found::Unknown(reason)] | [Found::Unknown(reason), _] => {
                    unknown.insert(format!("{}: {reason}", at()));
                }
            }
        }
        all.push([loses, gains]);
    }
    let some = all.iter().any(|change| Some(change) != all.first());
    let [mut loses, mut gains] = [const { Ports::NONE }; 2];
    for [lost, gained] in &all {
        loses.add(lost);
        gains.add(gained);
    }
    (!loses.is_empty() || !gains.is_empty()).then_some((loses, gains, some))
}

fn answer(judge: &Judge, (from, to): (&Key, &Key), (protocol, port): (Protocol, u16)) -> Found {
    let (from, to) = (Side::Pod(from.clone()), Side::Service(to.clone()));
    let probe = Probe { from, to, protocol: IpProtocol(protocol.number()), port };
    let answer = judge.explain(&probe);
    match answer.verdict {
        Verdict::Allow => Found::Judged(true),
        Verdict::Deny if answer.backends.is_empty() => Found::Nobody,
        Verdict::Deny => Found::Judged(false),
        Verdict::Unknown => Found::Unknown(answer.reason.unwrap_or_default()),
    }
}
