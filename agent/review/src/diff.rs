//! `netpold diff`: which connections a change of manifests cuts or opens.

mod args;
mod class_numbers;
mod clients;
mod compare;
mod ends;
mod isolation;
mod judge;
pub mod live;
mod named_pairs;
mod new_services;
mod nodes;
mod one_way;
mod peers;
mod places;
mod ports;
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

use std::fmt;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use ipnet::IpNet;
use netpold_api::flows::{FlowFilter, merge};
use netpold_client::flows;
use netpold_client::offline::{ranges, stand_in};
use netpold_client::output::print;
use netpold_core::cluster::Cluster;
use netpold_core::model::{Change, DomainName, Key};

pub use args::{DiffArgs, DiffKind, DiffOutput};
pub use compare::compare;
use compare::compare_until;
pub use isolation::{HostNetworkChange, Isolation, IsolationChange, UnmatchedWorkload};
pub use named_pairs::{IsolationState, NamedPair, NamedPairs, PartyIsolation, named_pairs};
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
/// Most names shown per list in text.
const SHOWN: usize = 3;

/// Difference of connectivity between two clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Senders and receivers.
    pub parties: Vec<DiffParty>,
    /// Pairs of parties with a change, in the order of the parties.
    pub changes: Vec<ConnectivityChange>,
    /// Changes of isolation per workload, and the gaps of the comparison.
    pub isolation: Isolation,
    /// Further facts about the change, a sentence each.
    pub notes: Vec<String>,
}

impl Difference {
    /// Returns whether there is a change of the given kind.
    fn has(&self, kind: DiffKind) -> bool {
        let cut = || self.changes.iter().any(|change| !change.loses.is_empty());
        let opened = || self.changes.iter().any(|change| !change.gains.is_empty());
        let Isolation { open, isolated, .. } = &self.isolation;
        match kind {
            DiffKind::Cut => cut() || !isolated.is_empty(),
            DiffKind::Open => opened() || !open.is_empty(),
            DiffKind::Any => !self.changes.is_empty() || !isolated.is_empty() || !open.is_empty(),
        }
    }

    /// Returns whether a change of the given kind may be among the objects that were not compared.
    fn may_have(&self, kind: DiffKind) -> bool {
        let Isolation { alone, unknown, compared, .. } = &self.isolation;
        let regards = |it: &UnmatchedWorkload| match kind {
            DiffKind::Cut => !it.is_new,
            DiffKind::Open => it.is_new,
            DiffKind::Any => true,
        };
        *compared == 0 || !unknown.is_empty() || alone.iter().any(regards)
    }
}

/// Side of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiffParty {
    /// Pods of a workload.
    Workload(ComparedWorkload),
    /// Node of the pod on the other side.
    OwnNode,
    /// Nodes that no policy distinguishes.
    Nodes {
        /// Names of the nodes.
        nodes: Vec<String>,
        /// Whether there are no other nodes.
        only: bool,
    },
    /// Addresses of neither pods nor nodes.
    Outside {
        /// Block named by policies, or all addresses of a family.
        block: IpNet,
        /// Blocks within `block` that are parties themselves.
        without: Vec<IpNet>,
        /// Whether all pods and nodes have addresses of this family only.
        only: bool,
    },
    /// Addresses that the sender resolved a domain name to; of a wildcard, those of the names below it that no other name
    /// of its rules matches.
    Name(DomainName),
    /// Service with ports, a selector or endpoints that change; a receiver only.
    Service(Key),
}

/// Change of the connections from one party to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectivityChange {
    /// Index of the sender among the parties.
    pub from: usize,
    /// Index of the receiver among the parties.
    pub to: usize,
    /// Ports allowed before and denied after.
    pub loses: PortRanges,
    /// Ports denied before and allowed after.
    pub gains: PortRanges,
    /// Whether some pairs of pods or addresses of the two parties change otherwise, or not at all.
    pub some: bool,
}

/// Joins the names, or the first of them and the number of the others.
fn few(names: &[String]) -> String {
    if names.len() <= SHOWN + 1 {
        return names.join(", ");
    }
    format!("{} and {} more", names[..SHOWN].join(", "), names.len() - SHOWN)
}

impl fmt::Display for DiffParty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(workload) => f.write_str(&workload.name),
            Self::OwnNode => f.write_str("own node"),
            Self::Name(name) => name.fmt(f),
            Self::Service(key) => write!(f, "svc/{key}"),
            Self::Nodes { only: true, .. } => f.write_str("other nodes"),
            Self::Nodes { nodes, .. } => match &nodes[..] {
                [node] => write!(f, "node {node}"),
                _ => write!(f, "nodes {}", few(nodes)),
            },
            Self::Outside { block, without, only } if block.prefix_len() == 0 => {
                f.write_str(if without.is_empty() { "outside" } else { "anywhere else outside" })?;
                match block {
                    _ if *only => Ok(()),
                    IpNet::V4(_) => f.write_str(" (IPv4)"),
                    IpNet::V6(_) => f.write_str(" (IPv6)"),
                }
            }
            Self::Outside { block, without, .. } => {
                write!(f, "{block}")?;
                let without: Vec<String> = without.iter().map(ToString::to_string).collect();
                if without.is_empty() { Ok(()) } else { write!(f, " without {}", few(&without)) }
            }
        }
    }
}

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
    let services = services::differing(&objects, &details);
    let judges = (!services.is_empty())
        .then(|| services::judges(objects.clone(), details.clone(), pod_cidrs, is_partial));
    let may_depend = objects.iter().any(|objects| are_possible(objects));
    let copied = if may_depend { Some(objects.clone()) } else { None };
    let [before, after] = objects.map(|objects| objects.into_iter().collect());
    let ranges = ranges(pod_cidrs, &[&before, &after]);
    let mut difference = compare_until(&before, &after, &ranges, ended)?;
    difference.isolation.unknown.splice(0..0, gaps);
    let unmatched = unmatched::unmatched([&before, &after]);
    match unmatched.is_partial {
        true => difference.isolation.unknown.extend(unmatched.parts),
        false => difference.notes.extend(unmatched.note()),
    }
    if let Some(objects) = copied {
        let depending = worlds::depending([&before, &after], objects, &ranges, ended)?;
        difference.isolation.unknown.extend(depending);
    }
    if let Some([before, after]) = &judges {
        services::compare([before, after], &services, &mut difference, ended)?;
        let new = new_services::notes([before, after], &services, &difference, ended)?;
        difference.notes.extend(new);
    }
    difference.notes.extend(notes);
    difference.notes.extend(clients::notes(&details[1], &after, &ranges, &difference));
    Ok(([before, after], difference))
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
