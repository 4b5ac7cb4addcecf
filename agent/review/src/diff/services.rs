//! Connections to Services with ports, a selector or endpoints that change. A change of policies alone shows at the pods
//! behind a Service; ports that lead to no pod before the change are those of `new_services`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use ipnet::IpNet;
use netpold_client::details::{Details, EndpointsPort, WrittenService, is_selected};
use netpold_core::cluster::Cluster;
use netpold_core::explain::{Blocks, Verdict};
use netpold_core::model::{Change, EndpointSlice, Key, Labels, NamedPort, Pod, Protocol, Service};
use netpold_core::probe::{IpProtocol, Party, Probe};

use super::compare::{PairChanges, changed, check_not_ended};
use super::difference::Difference;
use super::party::DiffParty;
use super::ports::PROTOCOLS;
use super::ports::PortRanges;
use super::rules::PolicyCriteria;
use crate::judge::Judge;

/// Most questions about Services, before and after the change together.
const QUESTIONS: usize = 20_000;

/// Objects that determine the backends of a Service.
#[derive(PartialEq)]
struct ServiceDefinition<'a> {
    service: &'a Service,
    written: Option<&'a WrittenService>,
    slices: Vec<&'a EndpointSlice>,
    endpoints: Option<&'a Vec<EndpointsPort>>,
    /// Names of the selected pods, with their named ports.
    pods: BTreeMap<&'a str, &'a [NamedPort]>,
    /// Clients connect to the pods themselves, or to no pod: headless, or with an external name.
    is_direct: bool,
}

impl ServiceDefinition<'_> {
    /// Returns the properties from which controllers make the endpoints; `None` if they make none.
    fn made_from(&self) -> Option<impl PartialEq> {
        let written = self.written.filter(|it| !it.selector.is_empty())?;
        Some((&written.selector, &written.ports, &self.pods))
    }

    fn is_external(&self) -> bool {
        self.written.is_some_and(|it| it.is_external)
    }
}

/// Definitions on both sides.
type DefinitionPair<'a> = [Option<ServiceDefinition<'a>>; 2];

/// Service that differs.
pub(super) struct DifferingService {
    pub(super) key: Key,
    /// Whether clients outside of the cluster reach it, before or after the change.
    pub(super) is_external: bool,
}

/// Answer about a port of a Service.
pub(super) enum PortAnswer {
    Judged(bool),
    /// No backend is ready.
    Nobody,
    Unknown(String),
}

/// Returns the Services that differ or are new, apart from those without clients of their own: headless ones, and those
/// with an external name.
pub(super) fn differing(
    objects: &[Vec<Change>; 2],
    details: &[Details; 2],
) -> Vec<DifferingService> {
    let differ = |(key, [before, after]): (&Key, DefinitionPair<'_>)| {
        let first = before.as_ref().or(after.as_ref());
        let is_one = first.is_some_and(|it| !it.is_direct) && before != after;
        let is_external = [before, after].iter().flatten().any(ServiceDefinition::is_external);
        is_one.then(|| DifferingService { key: key.clone(), is_external })
    };
    sides(objects, details).into_iter().filter_map(differ).collect()
}

/// Returns whether details about Services are the same on both sides.
pub(super) fn are_same([before, after]: &[Details; 2]) -> bool {
    before.services == after.services
        && before.external_names == after.external_names
        && before.endpoints == after.endpoints
}

/// Returns the judges of Services before and after the change. Endpoints of before the change that no longer follow from
/// the Service and its pods are replaced by those that controllers make.
pub(super) fn judges(
    mut objects: [Vec<Change>; 2],
    mut details: [Details; 2],
    ranges: &[IpNet],
    is_partial: bool,
) -> [Judge; 2] {
    let [slices, endpoints] = outdated(&objects, &details);
    let has_new = sides(&objects, &details).values().any(|[before, _]| before.is_none());
    // Controllers have not made the endpoints of these Services yet.
    let is_outdated = has_new || !slices.is_empty() || !endpoints.is_empty();
    objects[1].retain(|object| {
        let Change::EndpointSlice(slice) = object else { return true };
        !slices.contains(&of_slice(slice))
    });
    details[1].endpoints.retain(|key, _| !endpoints.contains(key));
    let ([before, after], [of_before, of_after]) = (objects, details);
    [
        Judge::new(before, of_before, ranges, is_partial),
        Judge::new(after, of_after, ranges, is_partial || is_outdated),
    ]
}

/// Returns the Services with EndpointSlices, and with Endpoints, after the change that are those of before it, although a
/// controller makes others.
fn outdated(objects: &[Vec<Change>; 2], details: &[Details; 2]) -> [BTreeSet<Key>; 2] {
    let mut outdated = [BTreeSet::new(), BTreeSet::new()];
    for (key, definitions) in sides(objects, details) {
        let [Some(before), Some(after)] = definitions else { continue };
        let made_from = after.made_from();
        if made_from.is_none() || made_from == before.made_from() {
            continue;
        }
        if before.slices == after.slices && !after.slices.is_empty() {
            outdated[0].insert(key.clone());
        }
        if before.endpoints == after.endpoints && after.endpoints.is_some() {
            outdated[1].insert(key.clone());
        }
    }
    outdated
}

fn sides<'a>(
    objects: &'a [Vec<Change>; 2],
    details: &'a [Details; 2],
) -> BTreeMap<&'a Key, DefinitionPair<'a>> {
    let mut all: BTreeMap<&Key, DefinitionPair<'_>> = BTreeMap::new();
    for (side, (objects, details)) in objects.iter().zip(details).enumerate() {
        for (key, definition) in definitions(objects, details) {
            all.entry(key).or_insert_with(|| [None, None])[side] = Some(definition);
        }
    }
    all
}

/// Returns the key of a slice's Service.
fn of_slice(slice: &EndpointSlice) -> Key {
    Key::new(slice.key.namespace.clone(), slice.service.clone())
}

fn definitions<'a>(
    objects: &'a [Change],
    details: &'a Details,
) -> BTreeMap<&'a Key, ServiceDefinition<'a>> {
    let mut all = BTreeMap::new();
    for object in objects {
        let Change::Service(service) = object else { continue };
        let written = details.services.get(&service.key);
        let is_direct = written.is_some_and(|it| it.is_headless)
            || details.external_names.contains_key(&service.key);
        let (endpoints, slices) = (details.endpoints.get(&service.key), Vec::new());
        let pods = BTreeMap::new();
        let definition = ServiceDefinition { service, written, slices, endpoints, pods, is_direct };
        all.insert(&service.key, definition);
    }
    let mut by_namespace: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for object in objects {
        if let Change::EndpointSlice(slice) = object {
            if let Some(definition) = all.get_mut(&of_slice(slice)) {
                definition.slices.push(slice);
            }
        } else if let Change::Pod(pod) = object
            && !pod.finished
        {
            by_namespace.entry(&pod.key.namespace).or_default().push(pod);
        }
    }
    for (key, definition) in &mut all {
        definition.slices.sort_by_key(|slice| &slice.key);
        let Some(written) = definition.written else { continue };
        let pods = by_namespace.get(key.namespace.as_str()).into_iter().flatten();
        let pods = pods.filter(|pod| is_selected(&pod.labels, &written.selector));
        definition.pods = pods.map(|pod| (pod.key.name.as_str(), &pod.ports[..])).collect();
    }
    all
}

/// Compares the connections of all workloads to these Services, and adds the changes to the difference.
///
/// # Errors
/// `ended` was set.
pub(super) fn compare(
    judges: [&Judge; 2],
    services: &[DifferingService],
    difference: &mut Difference,
    ended: &AtomicBool,
) -> Result<()> {
    let senders = senders(judges.map(Judge::cluster), &difference.parties);
    let pairs: usize = senders.iter().map(|(_, pairs)| pairs.len()).sum();
    let mut parties = Vec::new();
    let (mut left, mut untried) = (QUESTIONS, 0);
    let mut unknown = BTreeSet::new();
    for DifferingService { key, is_external } in services {
        let [before, after] = judges.map(|judge| judge.cluster().services().get(key));
        let Some(before) = before else { continue };
        if *is_external {
            unknown.insert(format!(
                "connections to Service {key} from outside of the cluster and at node ports"
            ));
        }
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
        let mut both = ports(before);
        both.retain(|port| has(after, *port));
        let Some(rest) = left.checked_sub(2 * both.len() * pairs) else {
            untried += 1;
            continue;
        };
        left = rest;
        let (to, before) = (difference.parties.len() + parties.len(), difference.changes.len());
        for (from, pairs) in &senders {
            check_not_ended(ended)?;
            let pair = of_pairs(judges, pairs, (key, &both), &mut unknown);
            difference.changes.extend(pair.change((*from, to)));
        }
        if difference.changes.len() > before {
            parties.push(DiffParty::Service(key.clone()));
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
    Ok(())
}

/// Returns the ports of a Service, in order.
pub(super) fn ports(service: &Service) -> Vec<(Protocol, u16)> {
    let ports = service.ports.iter().map(|port| (port.protocol, port.port));
    let mut ports: Vec<(Protocol, u16)> = ports.collect();
    ports.sort_by_key(|(protocol, port)| (PROTOCOLS.iter().position(|it| it == protocol), *port));
    ports
}

pub(super) fn has(service: &Service, (protocol, number): (Protocol, u16)) -> bool {
    service.ports.iter().any(|port| (port.protocol, port.port) == (protocol, number))
}

/// Labels, node, and the blocks of policies around the addresses.
type SenderTraits<'c> = (&'c Labels, &'c str, Vec<IpNet>);

fn traits<'c>(pod: &'c Pod, blocks: &Blocks) -> SenderTraits<'c> {
    let around = pod.addresses.iter().map(|address| blocks.around(*address));
    (&pod.labels, &pod.node, around.collect())
}

/// Returns the workloads, each with one pair of pods before and after of those that neither policies nor Services
/// distinguish as senders.
pub(super) fn senders<'d>(
    clusters: [&Cluster; 2],
    parties: &'d [DiffParty],
) -> Vec<(usize, Vec<[&'d Key; 2]>)> {
    let mut named = PolicyCriteria::default();
    clusters.iter().for_each(|cluster| named.add(cluster));
    let blocks = Blocks::new(named.blocks);
    let of_workload = |(index, party): (usize, &'d DiffParty)| {
        let DiffParty::Workload(workload) = party else { return None };
        let mut known = BTreeMap::new();
        for (before, after) in workload.counterparts() {
            let keys = [before, after];
            let [Some(before), Some(after)] =
                [0, 1].map(|i| clusters[i].pods().get(keys[i]).map(|pod| &**pod))
            else {
                continue;
            };
            if !before.host_network && !after.host_network {
                known.entry([before, after].map(|pod| traits(pod, &blocks))).or_insert(keys);
            }
        }
        (!known.is_empty()).then(|| (index, known.into_values().collect()))
    };
    parties.iter().enumerate().filter_map(of_workload).collect()
}

/// Compares the connections of pairs of pods to the ports of a Service.
fn of_pairs(
    judges: [&Judge; 2],
    pairs: &[[&Key; 2]],
    (service, ports): (&Key, &[(Protocol, u16)]),
    unknown: &mut BTreeSet<String>,
) -> PairChanges {
    let mut all = PairChanges::default();
    for pair in pairs {
        let [mut loses, mut gains] = [const { PortRanges::NONE }; 2];
        for &(protocol, port) in ports {
            let answers =
                [0, 1].map(|i| judge_port(judges[i], (pair[i], service), (protocol, port)));
            let at = || format!("connections to Service {service} at {protocol} {port}");
            match answers {
                // Nothing else was reached before.
                [PortAnswer::Nobody, _] => {}
                // Equal reasons do not show equal verdicts.
                [_, PortAnswer::Unknown(reason)]
                | [PortAnswer::Unknown(reason), PortAnswer::Judged(_)] => {
                    unknown.insert(format!("{}: {reason}", at()));
                }
                [PortAnswer::Judged(true), PortAnswer::Judged(false)] => {
                    loses.push(protocol, (port, port));
                }
                [PortAnswer::Judged(false), PortAnswer::Judged(true)] => {
                    gains.push(protocol, (port, port));
                }
                [PortAnswer::Judged(_), PortAnswer::Judged(_)]
                | [PortAnswer::Judged(false), PortAnswer::Nobody] => {}
                [PortAnswer::Judged(true) | PortAnswer::Unknown(_), PortAnswer::Nobody] => {
                    unknown.insert(format!("{}: no pod is behind it any more", at()));
                }
            }
        }
        all.add(changed([loses, gains]));
    }
    all
}

pub(super) fn judge_port(
    judge: &Judge,
    (from, to): (&Key, &Key),
    (protocol, port): (Protocol, u16),
) -> PortAnswer {
    let (from, to) = (Party::Pod(from.clone()), Party::Service(to.clone()));
    let probe = Probe { from, to, protocol: IpProtocol(protocol.number()), port };
    let answer = judge.explain(&probe);
    match answer.verdict {
        _ if answer.unanswered => PortAnswer::Nobody,
        Verdict::Allow => PortAnswer::Judged(true),
        Verdict::Deny => PortAnswer::Judged(false),
        Verdict::Unknown => PortAnswer::Unknown(answer.reason.unwrap_or_default()),
    }
}
