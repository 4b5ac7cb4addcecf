//! `netpold diff`: which connections a change of manifests cuts or opens.

mod args;
mod baseline;
mod class_numbers;
mod clients;
mod compare;
mod difference;
mod ends;
mod isolation;
mod judge;
pub mod live;
mod named_pairs;
mod new_services;
mod nodes;
mod one_way;
mod party;
mod peers;
mod places;
mod ports;
mod refused;
mod render;
mod render_live;
mod rules;
mod runs;
mod second;
mod services;
mod sources;
mod unmatched;
mod workloads;
mod worlds;

use std::sync::atomic::AtomicBool;

use anyhow::Result;
use ipnet::IpNet;
use netpold_api::flows::{FlowFilter, merge};
use netpold_client::flows;
use netpold_client::offline::{ranges, stand_in};
use netpold_client::output::print;
use netpold_core::cluster::Cluster;
use netpold_core::model::Change;

pub use args::{DiffArgs, DiffKind, DiffOutput};
pub use baseline::{ClusterPair, ComparisonBaseline};
pub use compare::compare;
use compare::compare_until;
pub use difference::{ConnectivityChange, Difference};
pub use isolation::{HostNetworkChange, Isolation, IsolationChange, UnmatchedWorkload};
pub use named_pairs::{IsolationState, NamedPair, NamedPairs, PartyIsolation, named_pairs};
pub use party::DiffParty;
pub use ports::PortRanges;
pub use render::{counts, document, line_documents};
pub use sources::Sources;
pub use workloads::ComparedWorkload;

use crate::judge::are_possible;

/// Exit status: no difference of the kind of `--fail-on`.
const SAME: u8 = 0;
/// Exit status: some difference of the kind.
const DIFFERENT: u8 = 1;
/// Exit status: no difference was found, but the comparison is incomplete; or a document cannot be read.
const CANNOT_TELL: u8 = 2;
/// Prints the difference to standard output. Returns the exit status.
///
/// # Errors
/// Manifests cannot be read.
pub fn run(args: &DiffArgs) -> Result<u8> {
    let sources = sources::read(args)?;
    let are_unread = sources.are_unread;
    let ([before, after], difference) =
        compare_objects(sources, &args.pod_cidrs, &AtomicBool::new(false))?;
    let cuts = match args.live {
        true => Some(cuts(args, &before, &after)?),
        false => None,
    };
    print(&render::render(&difference, cuts.as_ref(), args.output)?)?;
    Ok(match (difference.has(args.fail_on), difference.may_have(args.fail_on)) {
        // Without a policy that cannot be read, connections may seem to open or to be cut.
        _ if are_unread => CANNOT_TELL,
        (true, _) => DIFFERENT,
        (false, true) => CANNOT_TELL,
        (false, false) => SAME,
    })
}

/// Compares objects before and after a change, and returns their clusters, too. `pod_cidrs`: see [`ranges`].
///
/// # Errors
/// As [`compare()`], or `ended` was set because nobody waits for the answer.
pub fn compare_objects(
    sources: Sources,
    pod_cidrs: &[IpNet],
    ended: &AtomicBool,
) -> Result<([Cluster; 2], Difference)> {
    let Sources { objects, details, is_partial, gaps, notes, .. } = sources;
    let objects = places::place(objects.map(lasting));
    let refused = refused::refused(&objects, is_partial);
    let objects = match refused {
        Some(_) => refused::in_force(objects, is_partial),
        None => objects,
    };
    let services = services::differing(&objects, &details);
    let judges = (!services.is_empty())
        .then(|| services::judges(objects.clone(), details.clone(), pod_cidrs, is_partial));
    let may_depend = objects.iter().any(|objects| are_possible(objects));
    let [before, after] = objects.map(|objects| objects.into_iter().collect());
    let clusters = [&before, &after];
    let ranges = ranges(pod_cidrs, &clusters);
    let mut difference = compare_until(&before, &after, &ranges, ended)?;
    if let Some(refused) = refused {
        let depending = refused.depending(&difference, &ranges, ended)?;
        difference.isolation.unknown.extend(depending);
    }
    add_gaps(&mut difference, clusters, &ranges, (gaps, may_depend), ended)?;
    if let Some([before, after]) = &judges {
        services::compare([before, after], &services, &mut difference, ended)?;
        let new = new_services::notes([before, after], &services, &difference, ended)?;
        difference.notes.extend(new);
    }
    difference.notes.extend(notes);
    difference.notes.extend(clients::notes(&details[1], &after, &ranges, &difference));
    Ok(([before, after], difference))
}

/// Adds the gaps of the sources, the parts of changed policies without pods and, where labels that the objects lack may
/// decide, the changes that depend on them.
fn add_gaps(
    difference: &mut Difference,
    clusters: [&Cluster; 2],
    ranges: &[IpNet],
    (gaps, may_depend): (Vec<String>, bool),
    ended: &AtomicBool,
) -> Result<()> {
    difference.isolation.unknown.splice(0..0, gaps);
    let unmatched = unmatched::unmatched(clusters);
    match unmatched.is_partial {
        true => difference.isolation.unknown.extend(unmatched.parts),
        false => difference.notes.extend(unmatched.note()),
    }
    if may_depend {
        let depending = worlds::depending(clusters, ranges, ended)?;
        difference.isolation.unknown.extend(depending);
    }
    Ok(())
}

/// Finds the open connections that the change cuts, on this node or in the cluster.
fn cuts(args: &DiffArgs, before: &Cluster, after: &Cluster) -> Result<live::Cuts> {
    let filter = FlowFilter::default();
    if !args.cluster.is_meant() {
        let flows = flows::ask(&args.socket, &filter, None)?;
        return Ok(live::cuts(before, after, &[flows]));
    }
    let all = flows::ask_cluster(&args.cluster, &filter, None)?;
    let unanswered = all.unanswered().into_keys();
    let unknown = unanswered.map(|node| format!("node {node}: its agent does not answer"));
    let unknown: Vec<String> = unknown.collect();
    let mut cuts = live::cuts(before, after, &merge(all.answers));
    cuts.problems.extend(unknown);
    Ok(cuts)
}

/// Adds the pods of pod templates without pods, and lets the pods of runs go on.
#[must_use]
pub fn lasting(objects: Vec<Change>) -> Vec<Change> {
    runs::go_on(stand_in(objects))
}
