//! `netpold diff`: which connections a change of manifests cuts or opens.

mod args;
mod baseline;
mod class;
mod class_numbers;
mod clients;
mod compare;
mod compare_objects;
mod difference;
mod ends;
mod ends_builder;
mod escape;
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
mod secondary;
mod services;
mod sources;
mod unmatched;
mod workloads;
mod worlds;

use std::sync::atomic::AtomicBool;

use anyhow::Result;
use netpold_api::flows::{FlowFilter, merge};
use netpold_client::flows;
use netpold_client::output::print;
use netpold_core::cluster::Cluster;

pub use args::{DiffArgs, DiffKind, DiffOutput};
pub use baseline::{ClusterPair, ComparisonBaseline};
pub use compare::compare;
pub use compare_objects::{compare_objects, lasting};
pub use difference::{ConnectivityChange, Difference};
pub use isolation::{HostNetworkChange, Isolation, IsolationChange, UnmatchedWorkload};
pub use named_pairs::{IsolationState, NamedPair, NamedPairs, PartyIsolation, named_pairs};
pub use party::DiffParty;
pub use ports::PortRanges;
pub use render::{counts, document, line_documents};
pub use sources::Sources;
pub use workloads::ComparedWorkload;

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
        compare_objects(sources, &args.review.pod_cidrs, &AtomicBool::new(false))?;
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

/// Finds the open connections that the change cuts, on this node or in the cluster.
fn cuts(args: &DiffArgs, before: &Cluster, after: &Cluster) -> Result<live::ConnectionEffects> {
    let filter = FlowFilter::default();
    if !args.cluster.is_requested() {
        let flows = flows::request_flows(&args.socket, &filter, None)?;
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
