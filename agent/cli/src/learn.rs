//! `netpold learn`: least-privilege NetworkPolicies from observed flows.
//!
//! Agents record each workload's peers and ports. The records of all nodes ([`merge`]) and the cluster's
//! objects yield policies ([`generate`](generate()), a pure function). The policies are checked against the records and
//! written with the annotation for audit mode.

mod generate;
mod grants;
mod names;
mod policy;
mod ports;
mod proof;
mod text;
mod unseen;
mod yaml;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use netpold_api::learn::{LEARN_REQUEST, LearnAnswer, merge};
use netpold_api::socket::DEFAULT_SOCKET;
use netpold_api::unix_time::unix_time;
use netpold_client::live::{self, ClusterArgs};
use netpold_client::offline::{self, Recursive};
use netpold_client::output::{Output, print};
use netpold_client::socket;
use netpold_core::cluster::is_subject;
use netpold_core::first_names::first_names;
use netpold_core::model::Change;
use netpold_core::printable::printable;
use netpold_kube::convert::DEFAULT_NAMESPACE;

pub use generate::{Learned, generate};
pub use grants::NoPolicyReason;
pub use policy::{LearnOptions, LearnedPolicy, LearnedRule, PeerSpec};
pub use ports::LearnedPorts;
pub use proof::DeniedFlow;
pub use text::text;
pub use unseen::{UnseenPeer, UnseenTraffic};
pub use yaml::{audit_everything, json, yaml};

/// Number of pods or nodes that a message names.
const SHOWN: usize = 5;
/// Exit status: the observed flows stay allowed.
const PROVED: u8 = 0;
/// Exit status: some observed flows would be denied.
const DENIED: u8 = 1;
/// Exit status: the records of some agents are missing.
const UNKNOWN: u8 = 2;

/// Flags of `netpold learn`.
#[derive(Debug, Args)]
pub struct LearnArgs {
    /// Use only flows of workloads in this namespace
    #[arg(short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Use only flows with a packet within this time, as in 7d, 24h, 30m or 60s
    #[arg(long, value_name = "TIME", env = "NETPOLD_SINCE", value_parser = time)]
    pub since: Option<Duration>,
    /// Print the policy to apply first: flows of a pod are recorded only while some policy selects it
    #[arg(long, env = "NETPOLD_PREPARE", requires = "namespace",
        conflicts_with_all = ["manifests", "records"])]
    pub prepare: bool,
    /// Show the recorded flows and write no policies; the default on a node without --manifests
    #[arg(long, env = "NETPOLD_RECORDED")]
    pub recorded: bool,
    /// Directory of the cluster's objects, needed for policies, or `-`; or a cluster, see below
    #[arg(long, value_name = "DIR", env = "NETPOLD_MANIFESTS", requires = "namespace")]
    pub manifests: Option<PathBuf>,
    /// Subdirectories of --manifests.
    #[command(flatten)]
    pub depth: Recursive,
    /// Files with answers of several nodes' agents (`netpold learn -o json`), instead of --socket; `-` is standard
    /// input
    #[arg(long, value_name = "FILE", env = "NETPOLD_RECORDS", value_delimiter = ',')]
    pub records: Vec<PathBuf>,
    /// Prefix length of the blocks that contain outside IPv4 addresses
    #[arg(long, value_name = "LENGTH", env = "NETPOLD_BLOCK_PREFIX", default_value = "32",
        value_parser = clap::value_parser!(u8).range(0..=32))]
    pub block_prefix: u8,
    /// Prefix length of the blocks that contain outside IPv6 addresses
    #[arg(long, value_name = "LENGTH", env = "NETPOLD_BLOCK_PREFIX6", default_value = "128",
        value_parser = clap::value_parser!(u8).range(0..=128))]
    pub block_prefix6: u8,
    /// Also allow ICMP and other protocols without ports; a policy can do so only by allowing the peer
    /// every port
    #[arg(long, env = "NETPOLD_OTHER_PROTOCOLS")]
    pub other_protocols: bool,
    /// Control socket of the agent
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Cluster to ask.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Format of the answer: policies as YAML, or one JSON document with policies and remarks
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: Output,
}

/// Parses a duration with its unit.
fn time(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
    let seconds = units.into_iter().find_map(|(unit, seconds)| {
        text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(seconds)
    });
    let seconds = seconds.map(Duration::from_secs);
    seconds.ok_or_else(|| "give a number and a unit, as in 7d, 24h, 30m or 60s".to_owned())
}

impl LearnArgs {
    /// Returns the options for policies; `None` without a namespace.
    #[must_use]
    pub fn options(&self) -> Option<LearnOptions> {
        Some(LearnOptions {
            namespace: self.namespace.clone()?,
            block_prefix: [self.block_prefix, self.block_prefix6],
            other_protocols: self.other_protocols,
        })
    }

    /// Drops the flows that the flags exclude.
    pub fn select(&self, answer: &mut LearnAnswer) {
        let since = self.since.map_or(0, |time| unix_time().saturating_sub(time).as_secs());
        answer.select(self.namespace.as_deref(), since);
    }

    /// Returns the records of this node's agent, of a cluster's agents, or of the files of answers, and whether no
    /// agent's answer is missing.
    fn read_records(&self) -> Result<(LearnAnswer, bool)> {
        let (mut answer, complete) = if !self.records.is_empty() {
            let answers = self.records.iter().map(|file| {
                let answer = read_answer(file)?;
                Ok((answer.node.clone(), answer))
            });
            (merge(answers.collect::<Result<_>>()?), true)
        } else if self.cluster.is_requested() {
            let mut arguments = vec!["learn", "-o", "json"];
            arguments.extend(self.namespace.iter().flat_map(|name| ["-n", name.as_str()]));
            let all = live::request_all::<LearnAnswer>(&self.cluster, &arguments)?;
            (merge(all.answers), all.failures.is_empty())
        } else {
            (socket::request(&self.socket, LEARN_REQUEST, &())?, true)
        };
        self.select(&mut answer);
        Ok((answer, complete))
    }

    /// Returns the cluster's objects, if policies are to be written, and whether every document of theirs can be read.
    fn objects(&self) -> Result<Option<(Vec<Change>, bool)>> {
        match (&self.manifests, &self.namespace) {
            _ if self.recorded => Ok(None),
            (Some(directory), namespace) => {
                offline::refuse_kustomization("learn", "--manifests", directory, self.depth)?;
                let namespace = namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
                let reviewed = offline::review("--manifests", directory, namespace, self.depth)?;
                let reviewed = reviewed.reported_with_subdirectories();
                let are_read = reviewed.unread.is_empty();
                let objects = reviewed.objects.into_iter();
                // A workload without pods sends nothing.
                let objects = objects.filter(|it| !offline::is_template(it)).collect();
                Ok(Some((objects, are_read)))
            }
            (None, Some(namespace)) if self.cluster.is_requested() => {
                let objects = live::block_on(live::objects(&self.cluster, Some(namespace)))?;
                Ok(Some((objects, true)))
            }
            (None, _) => Ok(None),
        }
    }
}

fn read_answer(file: &Path) -> Result<LearnAnswer> {
    let shown = file.display();
    let bytes = match offline::is_standard_input(file) {
        true => offline::standard_input("--records")?,
        false => std::fs::read(file).with_context(|| format!("cannot read {shown}"))?,
    };
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{shown} is not the output of `netpold learn -o json`"))
}

/// Prints the records or the policies. Returns the exit status.
///
/// # Errors
/// No agent answers, or files cannot be read.
pub fn run(args: &LearnArgs) -> Result<u8> {
    if let (true, Some(namespace)) = (args.prepare, &args.namespace) {
        print(&audit_everything(namespace))?;
        return Ok(PROVED);
    }
    let (answer, mut complete) = args.read_records()?;
    let status = match (args.objects()?, args.options()) {
        (Some((objects, are_read)), Some(options)) => {
            complete &= are_read;
            write_policies(objects, &answer, &options, args.output)?
        }
        (None, _) | (_, None) => {
            print(&match args.output {
                Output::Json => format!("{:#}\n", serde_json::to_value(&answer)?),
                Output::Text => text(&answer)?,
            })?;
            PROVED
        }
    };
    Ok(if complete { status } else { UNKNOWN })
}

/// Writes policies from records and the cluster's objects. Returns the exit status.
///
/// # Errors
/// There are no pods and no flows in the namespace.
pub fn write_policies(
    objects: Vec<Change>,
    answer: &LearnAnswer,
    options: &LearnOptions,
    output: Output,
) -> Result<u8> {
    let namespace = printable(&options.namespace).into_owned();
    let silent = unrecorded_nodes(&objects, answer, &options.namespace);
    let learned = generate(objects, answer, options);
    if !silent.is_empty() {
        let nodes = first_names(silent.iter(), SHOWN);
        print_note(&format!(
            "pods of namespace {namespace} run on nodes without records, so flows may be missing: {nodes}"
        ));
    }
    if learned.policies.is_empty() && learned.unwatched.is_empty() {
        bail!("no pods in namespace {namespace}, and no recorded flows of its pods");
    }
    if !learned.unwatched.is_empty() {
        let pods = first_names(learned.unwatched.iter(), SHOWN);
        print_note(&format!(
            "no policy selects these pods, so their flows are not recorded: {pods}; run `netpold learn --prepare -n \
             {namespace} | kubectl apply -f -` and wait until they have had all their usual traffic"
        ));
    }
    if !learned.unlabelled.is_empty() {
        let pods = first_names(learned.unlabelled.iter(), SHOWN);
        print_note(&format!("no policy can select these pods, which have no labels: {pods}"));
    }
    if let Some(flows) = answer.left_out.get(&options.namespace) {
        print_note(&format!("{flows} flows of namespace {namespace} were not recorded: no room"));
    }
    if answer.missed_flows > 0 {
        let missed = answer.missed_flows;
        print_note(&format!("{missed} flows on these nodes ended before they were recorded"));
    }
    let denied: BTreeSet<String> = learned.denied.iter().map(ToString::to_string).collect();
    denied.iter().for_each(|denied| print_note(&format!("would be denied: {denied}")));
    print(&match output {
        Output::Json => format!("{:#}\n", json(&learned)),
        Output::Text => yaml(&learned, answer),
    })?;
    Ok(match (learned.denied.is_empty(), silent.is_empty()) {
        (false, _) => DENIED,
        (true, false) => UNKNOWN,
        (true, true) => PROVED,
    })
}

/// Returns the nodes of a namespace's pods that no record is of.
fn unrecorded_nodes(objects: &[Change], answer: &LearnAnswer, namespace: &str) -> BTreeSet<String> {
    let recorded: BTreeSet<&str> = answer.node.split(',').map(str::trim).collect();
    let node = |object: &Change| {
        let Change::Pod(pod) = object else { return None };
        let is_recorded = pod.key.namespace == namespace && is_subject(pod);
        is_recorded.then(|| pod.node.as_str().to_owned())
    };
    let nodes = objects.iter().filter_map(node);
    nodes.filter(|node| !node.is_empty() && !recorded.contains(node.as_str())).collect()
}

fn print_note(text: &str) {
    anstream::eprintln!("netpold: {}", printable(text));
}
