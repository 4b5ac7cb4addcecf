//! Addresses that the objects do not assign: a pod's own node, and clients behind a masquerade.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use netpold_client::details::{Details, is_selected};
use netpold_core::cluster::{Cluster, PRIVATE_RANGES, is_unaddressed};
use netpold_core::model::Pod;

use super::difference::{ConnectivityChange, Difference};
use super::party::{DiffParty, list_names};
use super::ports::PortRanges;
use super::workloads::ComparedWorkload;
use crate::judge::{is_link_local, lacks_own_node};

/// Notes on changes that include or omit addresses of nodes, or of pods that have none yet and get one of `ranges`.
/// `details` and `cluster` are of the objects after the change.
pub(super) fn notes(
    details: &Details,
    cluster: &Cluster,
    ranges: &[IpNet],
    difference: &Difference,
) -> Vec<String> {
    own_nodes(cluster, difference)
        .into_iter()
        .chain(masqueraded(details, cluster, difference))
        .chain(single_addresses(cluster, ranges, difference))
        .collect()
}

/// Returns a note on changes at single addresses that pods without an address may get.
fn single_addresses(
    cluster: &Cluster,
    ranges: &[IpNet],
    difference: &Difference,
) -> Option<String> {
    let parties = difference.changes.iter().flat_map(|change| [change.from, change.to]);
    let singles = parties.filter_map(|party| {
        let DiffParty::Outside { block, .. } = &difference.parties[party] else { return None };
        let is_single = block.prefix_len() == block.max_prefix_len();
        let is_possible = ranges.iter().any(|range| range.contains(block) && range != block);
        (is_single && is_possible).then(|| block.to_string())
    });
    let singles: BTreeSet<String> = singles.collect();
    let singles: Vec<String> = singles.into_iter().collect();
    let lack_one = cluster.pods().values().any(|pod| is_unaddressed(pod));
    (lack_one && !singles.is_empty()).then(|| {
        format!(
            "pods that have no address yet are taken to be at other addresses than {}",
            list_names(&singles)
        )
    })
}

/// Returns the workload and the other party of a change, if one side is a workload.
fn sides<'d>(
    difference: &'d Difference,
    change: &ConnectivityChange,
) -> impl Iterator<Item = (&'d ComparedWorkload, &'d DiffParty)> {
    let (from, to) = (&difference.parties[change.from], &difference.parties[change.to]);
    let of = |one: &'d DiffParty, other: &'d DiffParty| as_workload(one).map(|it| (it, other));
    [of(from, to), of(to, from)].into_iter().flatten()
}

fn pods<'c>(cluster: &'c Cluster, workload: &ComparedWorkload) -> Vec<&'c Pod> {
    workload.pods[1].iter().filter_map(|key| cluster.pods().get(key).map(|pod| &**pod)).collect()
}

/// Returns notes on changes at blocks that may contain the address of a pod's own node, which always passes.
fn own_nodes(cluster: &Cluster, difference: &Difference) -> Vec<String> {
    let (mut nodes, mut blocks) = (BTreeSet::new(), BTreeSet::new());
    for change in &difference.changes {
        for (workload, other) in sides(difference, change) {
            let DiffParty::Outside { block, .. } = other else { continue };
            if PRIVATE_RANGES.iter().any(|range| overlap(range, block)) {
                let unknown = pods(cluster, workload).into_iter();
                nodes.extend(
                    unknown.filter(|pod| lacks_own_node(cluster, pod)).map(|pod| &pod.node),
                );
            }
            if is_link_local(block.addr()) {
                blocks.insert(block.to_string());
            }
        }
    }
    let nodes: Vec<String> = nodes.into_iter().map(ToString::to_string).collect();
    let blocks: Vec<String> = blocks.into_iter().collect();
    let be = |names: &[String]| if names.len() == 1 { "is" } else { "are" };
    let always = "a pod and its own node always reach each other";
    let nodes = (!nodes.is_empty()).then(|| {
        let (named, verb) = (list_names(&nodes), be(&nodes));
        format!("Node {named} {verb} not among the objects: {always}, also where connections to blocks change")
    });
    let blocks = (!blocks.is_empty()).then(|| {
        format!("{} {} link-local, maybe of nodes: {always}", list_names(&blocks), be(&blocks))
    });
    nodes.into_iter().chain(blocks).collect()
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// Returns a note on Services through which clients outside of the cluster may arrive with the address of a node, if that
/// makes a difference.
fn masqueraded(details: &Details, cluster: &Cluster, difference: &Difference) -> Option<String> {
    let mut services = BTreeSet::new();
    for workload in depending_on_client(difference) {
        let pods = pods(cluster, workload);
        let found = details.services.iter().filter(|(key, service)| {
            service.is_external
                && !service.keeps_client
                && pods.iter().any(|pod| {
                    pod.key.namespace == key.namespace
                        && is_selected(&pod.labels, &service.selector)
                })
        });
        services.extend(found.map(|(key, _)| key.to_string()));
    }
    let services: Vec<String> = services.into_iter().collect();
    let verb = if services.len() == 1 { "is" } else { "are" };
    (!services.is_empty()).then(|| {
        format!(
            "externalTrafficPolicy of Service {} {verb} Cluster: a node may replace the address of a client by its own, so \
             changes from nodes may be the client's",
            list_names(&services)
        )
    })
}

fn as_workload(party: &DiffParty) -> Option<&ComparedWorkload> {
    if let DiffParty::Workload(workload) = party { Some(workload) } else { None }
}

/// Returns the workloads to which connections change for some client addresses only.
fn depending_on_client(difference: &Difference) -> Vec<&ComparedWorkload> {
    let is_client =
        |party: &DiffParty| matches!(party, DiffParty::Outside { .. } | DiffParty::Nodes { .. });
    let clients: Vec<bool> = difference.parties.iter().map(is_client).collect();
    let mut from_clients: BTreeMap<usize, Vec<(&PortRanges, &PortRanges, bool)>> = BTreeMap::new();
    for change in difference.changes.iter().filter(|change| clients[change.from]) {
        let kind = (change.loses(), change.gains(), change.some);
        from_clients.entry(change.to).or_default().push(kind);
    }
    let clients = clients.into_iter().filter(|is_client| *is_client).count();
    let depends = |(to, kinds): (usize, Vec<(&PortRanges, &PortRanges, bool)>)| {
        let workload = as_workload(&difference.parties[to])?;
        let some = kinds.len() < clients || kinds.iter().any(|kind| *kind != kinds[0]);
        some.then_some(workload)
    };
    from_clients.into_iter().filter_map(depends).collect()
}
