//! Answers about one edge or one party of the map, and texts to begin with.

use anyhow::{Result, anyhow};
use netpold_api::learn::{LearnAnswer, merge};
use netpold_client::arguments::check_namespace;
use netpold_client::live;
use netpold_core::cluster::is_subject;
use netpold_core::explain::ResolvedWithin;
use netpold_core::model::{Direction, DomainName, Enforcement, Key, Pod};
use netpold_core::probe::{IpProtocol, Party, Probe};
use netpold_review::diff::{DiffParty, NamedPair};
use netpold_review::explain;
use serde_json::{Value, json};

use super::snapshot::{ObjectSnapshot, ObjectSource};
use crate::learn::{LearnOptions, generate, yaml};

/// Most pods named of a workload.
const PODS: usize = 50;
/// Port of a question about a pair that no rule names.
const USUAL: (IpProtocol, u16) = (IpProtocol::TCP, 80);

/// Explains the verdict on a pair, at the port asked for or at one that the rules distinguish.
///
/// # Errors
/// There is no such party, or it has no pod or address.
pub(super) fn explain_pair(
    world: &ObjectSnapshot,
    (from, to): (usize, usize),
    asked: Option<(IpProtocol, u16)>,
) -> Result<Value> {
    let pair = world.named.pairs.iter().find(|pair| (pair.from, pair.to) == (from, to));
    let kind = asked.or(pair.map(|pair| pair.asked)).unwrap_or(USUAL);
    let sender = side(world, from, 0)?;
    let explanation = match party(world, to)? {
        DiffParty::Name(name) => by_name(world, &sender, name, kind)?,
        DiffParty::Workload(_)
        | DiffParty::OwnNode
        | DiffParty::Nodes { .. }
        | DiffParty::Outside { .. }
        | DiffParty::Service(_) => {
            let receiver = side(world, to, usize::from(from == to))?;
            let probe = Probe::new(sender, receiver, kind.0, Some(kind.1))?;
            explain::document(&world.judge, &probe)?
        }
    };
    let ports = |of: fn(&NamedPair) -> String| pair.map(of);
    Ok(json!({
        "explanation": explanation,
        "protocol": kind.0,
        "port": kind.1,
        "allowed": ports(|pair| pair.allowed.to_string()),
        "on_trial": ports(|pair| pair.on_trial.to_string()),
        "some": pair.is_some_and(|pair| pair.some),
    }))
}

fn party(world: &ObjectSnapshot, index: usize) -> Result<&DiffParty> {
    world.named.parties.get(index).ok_or_else(|| anyhow!("no such party"))
}

/// Returns the representative of a party with this number, or its last one.
fn side(world: &ObjectSnapshot, index: usize, number: usize) -> Result<Party> {
    let all = world.named.representatives.get(index).map_or(&[][..], Vec::as_slice);
    let found = all.get(number).or(all.last()).cloned();
    found.ok_or_else(|| match party(world, index) {
        Ok(party) => anyhow!("{party} has no pod or address to ask about"),
        Err(error) => error,
    })
}

fn by_name(
    world: &ObjectSnapshot,
    sender: &Party,
    name: &DomainName,
    kind: (IpProtocol, u16),
) -> Result<Value> {
    let Party::Pod(pod) = sender else { return Err(anyhow!("{sender} is not a pod")) };
    let explainer = world.judge.explainer();
    let answer = explainer.by_name(pod, name, &ResolvedWithin::public(), kind);
    let answer = answer.map_err(|error| anyhow!("{pod} to {name}: {error}"))?;
    let pod = world.cluster().pods().get(pod).ok_or_else(|| anyhow!("pod {pod} not found"))?;
    let judged =
        answer.parts.first().map(|it| explainer.explain_named(pod, name, it.address, kind));
    let mut lines =
        vec![format!("{}: {} to {name}, {} {}", answer.verdict, pod.key, kind.0, kind.1)];
    lines.extend(judged.iter().flat_map(netpold_core::explain::Judgement::lines));
    let verdict = answer.verdict.to_string();
    Ok(json!({ "verdict": verdict, "egress": judged, "lines": lines }))
}

/// Describes a party: its pods, and the policies about them.
///
/// # Errors
/// There is no such party.
pub(super) fn describe_party(world: &ObjectSnapshot, index: usize) -> Result<Value> {
    let party = party(world, index)?;
    let keys: &[Key] =
        if let DiffParty::Workload(workload) = party { &workload.pods[1] } else { &[] };
    let pods = keys.iter().filter_map(|key| world.cluster().pods().get(key));
    let named = pods.clone().take(PODS).map(|pod| {
        let template = pod.template().is_some();
        json!({ "pod": pod.key.to_string(), "node": &*pod.node, "addresses": pod.addresses, "template": template })
    });
    let named: Vec<Value> = named.collect();
    let first = pods.clone().next();
    let policies =
        |direction| first.map_or_else(Vec::new, |pod| policies_about(world, pod, direction));
    Ok(json!({
        "title": party.to_string(),
        "pods": named,
        "count": keys.len(),
        "labels": first.map(|pod| &pod.labels),
        "host_network": first.is_some_and(|pod| pod.host_network),
        "ingress": policies(Direction::Ingress),
        "egress": policies(Direction::Egress),
    }))
}

/// Returns the policies about a pod in a direction, ClusterNetworkPolicies first.
fn policies_about(world: &ObjectSnapshot, pod: &Pod, direction: Direction) -> Vec<Value> {
    if !is_subject(pod) {
        return Vec::new();
    }
    let cluster = world.cluster();
    let entry = |kind: &str, name: String, enforcement: Enforcement, rules: usize| json!({ "kind": kind, "policy": name, "enforcement": enforcement, "rules": rules });
    let labels = cluster.namespace_labels(&pod.key.namespace);
    let tiers = cluster.cluster_policies().filter(|policy| {
        policy.subject.namespaces.matches(&labels)
            && policy.subject.pods.matches(&pod.labels)
            && !policy.rules(direction).is_empty()
    });
    let tiers = tiers.map(|policy| {
        let rules = policy.rules(direction).len();
        entry("ClusterNetworkPolicy", policy.name.clone(), policy.enforcement, rules)
    });
    let policies = cluster.policies_in(&pod.key.namespace).filter_map(|policy| {
        let rules = policy.rules(direction)?;
        let name = policy.key.to_string();
        let selects = policy.pod_selector.matches(&pod.labels);
        selects.then(|| entry("NetworkPolicy", name, policy.enforcement, rules.len()))
    });
    tiers.chain(policies).collect()
}

/// Returns the policies that `learn` proposes for a namespace, as YAML. Blocks.
///
/// # Errors
/// No agent answers, or there are no flows.
pub(super) fn learn_policies(source: &ObjectSource, namespace: &str) -> Result<Value> {
    check_namespace(namespace)?;
    let arguments = ["learn", "-o", "json", "-n", namespace];
    let all = live::request_all::<LearnAnswer>(&source.cluster, &arguments)?;
    let unanswered = all.unanswered();
    let mut answer = merge(all.answers);
    answer.select(Some(namespace), 0);
    let objects = live::block_on(live::objects(&source.cluster, Some(namespace)))?;
    let namespace = namespace.to_owned();
    let options = LearnOptions { namespace, block_prefix: [32, 128], other_protocols: false };
    let learned = generate(objects, &answer, &options);
    let denied: Vec<String> = learned.denied.iter().map(ToString::to_string).collect();
    let unwatched: Vec<String> = learned.unwatched.iter().map(ToString::to_string).collect();
    Ok(json!({
        "yaml": yaml(&learned, &answer),
        "denied": denied,
        "unwatched": unwatched,
        "unanswered": unanswered,
    }))
}

/// Returns the report of `doctor`. Blocks.
///
/// # Errors
/// The objects cannot be read.
pub(super) fn doctor_report(source: &ObjectSource, world: &ObjectSnapshot) -> Result<Value> {
    let report = match source.is_live() {
        true => netpold_doctor::examine_cluster(&source.cluster, source.namespace.as_deref())?,
        false => {
            let objects = netpold_client::offline::stand_in(world.objects.objects.clone());
            netpold_doctor::examine(objects, world.judge.details())
        }
    };
    Ok(serde_json::to_value(&report)?)
}
