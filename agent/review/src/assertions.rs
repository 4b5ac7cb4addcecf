//! `netpold test`: assertions about connections, checked against manifests or a cluster's objects.

mod by_name;
mod context;
mod outcome;
mod probe;
mod read;
mod render;

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use ipnet::IpNet;
use netpold_client::live::{self, ClusterArgs};
use netpold_client::offline::{self, Recursive, Reviewed};
use netpold_client::output::print;
use netpold_core::cluster::Cluster;
use netpold_core::model::{DomainName, Key, Selector};
use netpold_core::probe::{IpProtocol, Party, Probe};

use self::context::{AssertionContext, of_family};
use self::outcome::{AssertionOutcome, Verified};
use crate::doctor;
use crate::first_names::first_names;
use crate::judge::{Judge, ProbeVerdict, is_absent, service_named};
use crate::unenforced;

/// Flags of `netpold test`.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// Files of assertions, comma-separated or each after a -f; `-` is standard input. Kubernetes objects in
    /// them are applied to the objects of --manifests or of the cluster
    #[arg(
        short,
        long,
        value_name = "FILE",
        env = "NETPOLD_FILE",
        value_delimiter = ',',
        required = true
    )]
    pub file: Vec<PathBuf>,
    /// Also open the connections from inside the cluster's pods, with the tools of their images; TCP
    /// only
    #[arg(long, env = "NETPOLD_PROBE", conflicts_with_all = ["manifests", "local"])]
    pub probe: bool,
    /// Directory of Kubernetes objects: *.yaml, *.yml and *.json; `-` is standard input; or a cluster, see below
    #[arg(long, value_name = "DIR", env = "NETPOLD_MANIFESTS")]
    pub manifests: Option<PathBuf>,
    /// Subdirectories of --manifests.
    #[command(flatten)]
    pub depth: Recursive,
    /// Comma-separated CIDRs of the addresses of pods without one, such as pod templates
    /// [default: private addresses]
    #[arg(long, value_name = "CIDR", env = "NETPOLD_POD_CIDRS", value_delimiter = ',')]
    pub pod_cidrs: Vec<IpNet>,
    /// Cluster to ask.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Namespace of pods that assertions name without one, and of manifests without one; also the only namespace to read where RBAC forbids to list
    /// objects in all namespaces [default: the context's; without a cluster: default]
    #[arg(short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Format of the answer
    #[arg(short, long, value_name = "FORMAT", env = "NETPOLD_OUTPUT", default_value = "text")]
    pub output: TestOutput,
}

/// Format of the outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TestOutput {
    /// Human-readable text
    Text,
    /// Test Anything Protocol, version 14
    Tap,
    /// XML for CI servers
    Junit,
    /// JSON for programs
    Json,
}

/// Exit status: every assertion holds.
const PASSED: u8 = 0;
/// Exit status: some assertion fails.
const FAILED: u8 = 1;
/// Exit status: no assertion fails, but one has no answer, cannot be read, or its answer depends on the address; or none
/// applies.
const CANNOT_TELL: u8 = 2;
/// Most failures shown per assertion.
const TOLD: usize = 5;
/// Most pods that an error names.
const NAMED: usize = 5;
/// Reason for which a selection leaves out a pod on the host's network.
const ON_HOST: &str = "on the host's network";

/// Expected verdict for each connection from one side to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Assertion {
    /// Position: `file:line`.
    place: String,
    /// `name`; empty if absent.
    name: String,
    from: Selected,
    to: Selected,
    protocol: IpProtocol,
    /// Destination port; 0 where the protocol has none.
    port: u16,
    allow: bool,
}

/// Side of an assertion.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Selected {
    /// Pod, Service or address.
    One(Party),
    /// Pods by namespace and labels, except hostNetwork and finished pods.
    Pods { namespaces: NamespaceChoice, labels: Selector },
    /// Addresses that the sender resolved a domain name to; a receiver only.
    Name { name: DomainName, at: AssumedAddresses },
}

/// Addresses to which a domain name is assumed to resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AssumedAddresses {
    /// Every address.
    Any,
    /// Addresses of the internet.
    Public,
    /// These blocks.
    Blocks(Vec<IpNet>),
}

/// Namespaces of selected pods.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NamespaceChoice {
    Named(String),
    All,
}

impl Assertion {
    /// Returns the assertion's name, or else a description.
    fn title(&self) -> String {
        if !self.name.is_empty() {
            return self.name.clone();
        }
        let verdict = if self.allow { "allow" } else { "deny" };
        let port =
            if self.protocol.has_ports() { format!(" {}", self.port) } else { String::new() };
        format!("{verdict} {} to {}, {}{port}", self.from, self.to, self.protocol)
    }
}

impl std::fmt::Display for Selected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (namespaces, labels) = match self {
            Self::One(party) => return party.fmt(f),
            Self::Pods { namespaces, labels } => (namespaces, labels),
            Self::Name { name, at } => return write!(f, "{name}{at}"),
        };
        match namespaces {
            NamespaceChoice::Named(name) => write!(f, "pods of {name}")?,
            NamespaceChoice::All => f.write_str("pods of every namespace")?,
        }
        for (index, requirement) in labels.requirements.iter().enumerate() {
            let word = if index == 0 { " with " } else { ", " };
            write!(f, "{word}{}", read::label(requirement))?;
        }
        Ok(())
    }
}

impl std::fmt::Display for AssumedAddresses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Any => Ok(()),
            Self::Public => f.write_str(" at public addresses"),
            Self::Blocks(blocks) => {
                let blocks: Vec<String> = blocks.iter().map(ToString::to_string).collect();
                write!(f, " at {}", blocks.join(" and "))
            }
        }
    }
}

/// Prints the outcomes to standard output. Returns the exit status.
///
/// # Errors
/// The assertions, the manifests or the cluster cannot be read.
pub fn run(args: &TestArgs) -> Result<u8> {
    let (manifests, namespace) = (args.manifests.as_deref(), args.namespace.as_deref());
    let cluster_args = if args.probe { args.cluster.clone() } else { args.cluster.if_configured() };
    let own = live::namespace(manifests, &cluster_args, namespace)?;
    if let Some(directory) = manifests {
        offline::refuse_kustomization("test", "--manifests", directory, args.depth)?;
    }
    let files = read::read(&args.file, &own)?;
    let is_of_cluster = manifests.is_none() && cluster_args.is_meant();
    if manifests.is_none() && args.cluster.is_meant() && !is_of_cluster && !files.objects.is_empty()
    {
        anstream::eprintln!("netpold: no cluster is configured: judged by the objects of -f alone");
    }
    let objects = match files.objects.is_empty() || manifests.is_some() || is_of_cluster {
        true => live::all_objects(manifests, args.depth, &cluster_args, namespace)?,
        false => Reviewed::default(),
    };
    let Reviewed { objects, mut undecoded, mut unread, .. } = objects;
    offline::replace(&mut undecoded, &files.objects);
    undecoded.extend(files.undecoded);
    unread.extend(files.unread);
    let objects = offline::stand_in(offline::apply(&objects, &files.objects));
    let mut details = doctor::read_details(manifests, args.depth, &cluster_args, &own)?;
    for file in &args.file {
        details.add("--file", file, Recursive::default())?;
    }
    let foreign = unenforced::names(&details);
    let of_all = Judge::new(objects, details, &args.pod_cidrs, !is_of_cluster);
    let of_all = of_all.without(undecoded, unread);
    let (cluster, explainer, ranges) = (of_all.cluster(), of_all.explainer(), of_all.ranges());
    let world = AssertionContext { cluster, explainer, judge: &of_all, ranges, own, is_of_cluster };
    let mut outcomes: Vec<AssertionOutcome> =
        files.assertions.into_iter().map(|assertion| judge(&world, assertion)).collect();
    if args.probe {
        live::block_on(probe::probe(&args.cluster, &world, &mut outcomes))?;
    }
    let names: Vec<String> = args.file.iter().map(|file| file.display().to_string()).collect();
    let note = unenforced::note(&foreign);
    let notes = render::Notes { not_enforced: note, unread: files.unread_assertions };
    print(&render::render(&outcomes, &notes, args.output, &names.join(","))?)?;
    let any = |result| outcomes.iter().any(|outcome| outcome.result() == result);
    let is_unknown = !notes.unread.is_empty() || any(Verified::Unknown) || any(Verified::Depends);
    Ok(match (is_unknown, any(Verified::Pass)) {
        _ if any(Verified::Fail) => FAILED,
        (true, _) | (false, false) => CANNOT_TELL,
        (false, true) => PASSED,
    })
}

fn judge(world: &AssertionContext<'_>, assertion: Assertion) -> AssertionOutcome {
    let mut outcome = AssertionOutcome::new(assertion);
    if let Err(error) = answer(world, &mut outcome) {
        outcome.unknown = Some(error.to_string());
    }
    outcome
}

/// Returns senders and receivers.
///
/// # Errors
/// One side matches no pod.
fn sides(world: &AssertionContext<'_>, assertion: &Assertion) -> Result<(Vec<Party>, Vec<Party>)> {
    let to = side(world, "to", &assertion.to)?.into_iter();
    let to = to.map(|party| service_named(world.cluster, party, &world.own)).collect();
    Ok((side(world, "from", &assertion.from)?, to))
}

fn side(world: &AssertionContext<'_>, side: &str, selected: &Selected) -> Result<Vec<Party>> {
    let parties = world.parties(selected);
    if parties.is_empty() {
        let hosts: Vec<String> = world.on_hosts(selected).collect();
        if !hosts.is_empty() {
            let named = first_names(hosts.iter(), NAMED);
            return Err(anyhow!(
                "{side}: only pods on the host's network match ({named}), which no selection contains: name them"
            ));
        }
        return Err(anyhow!(
            "{side}: no pod with an address and no pod template matches: {selected}"
        ));
    }
    Ok(parties)
}

/// Pairs senders and receivers. Overlapping selections do not pair a pod with itself, except a template: it stands for
/// any two of its pods.
fn pairs<'s>(
    world: &AssertionContext<'s>,
    assertion: &Assertion,
    from: &'s [Party],
    to: &'s [Party],
) -> impl Iterator<Item = (&'s Party, &'s Party)> + use<'s> {
    let chosen = [&assertion.from, &assertion.to]
        .into_iter()
        .any(|side| matches!(side, Selected::Pods { .. }));
    let chosen = chosen || from.len() > 1 || to.len() > 1;
    let cluster = world.cluster;
    let pairs = from.iter().flat_map(move |from| to.iter().map(move |to| (from, to)));
    pairs.filter(move |(from, to)| !chosen || from != to || template(cluster, from).is_some())
}

/// Describes the pod template of a party.
fn template(cluster: &Cluster, party: &Party) -> Option<String> {
    let Party::Pod(key) = party else { return None };
    let pod = cluster.pods().get(key)?;
    pod.template().filter(|_| !is_absent(pod)).map(|_| pod.title())
}

/// Judges the connections of an assertion.
///
/// # Errors
/// The assertion is about no connection.
fn answer(world: &AssertionContext<'_>, outcome: &mut AssertionOutcome) -> Result<()> {
    let assertion = outcome.assertion.clone();
    outcome.leave_out(ON_HOST, world.on_hosts(&assertion.from));
    outcome.leave_out(ON_HOST, world.on_hosts(&assertion.to));
    if let Selected::Name { name, at } = &assertion.to {
        return by_name::answer(world, outcome, name, &by_name::within(at));
    }
    if let Some(address) = loopback(&assertion) {
        return Err(anyhow!(
            "{address} is a loopback address: no packet to it leaves its pod or node"
        ));
    }
    let (from, to) = sides(world, &assertion)?;
    let from = of_family(world, outcome, (&assertion.from, from), &assertion.to)?;
    let to = of_family(world, outcome, (&assertion.to, to), &assertion.from)?;
    if outcome.skipped.is_some() {
        return Ok(());
    }
    let judge = world.judge;
    let templates = from.iter().chain(&to).filter_map(|party| template(world.cluster, party));
    outcome.templates = templates.collect();
    for (from, to) in pairs(world, &assertion, &from, &to) {
        outcome.asked += 1;
        let (protocol, port) = (assertion.protocol, assertion.port);
        let probe = Probe { from: from.clone(), to: to.clone(), protocol, port };
        let allowed = match judge.verdict(&probe) {
            ProbeVerdict::Known(allowed) => allowed,
            ProbeVerdict::Depends(reason) => {
                outcome.depending += 1;
                if outcome.depends.len() < TOLD {
                    outcome.depends.push(format!("{probe}: {reason}"));
                }
                continue;
            }
            ProbeVerdict::Unknown(reason) => {
                let hint = service_hint(&probe);
                let text = || format!("{probe}: {reason}{hint}");
                outcome.unknown.get_or_insert_with(text);
                continue;
            }
        };
        if allowed != assertion.allow {
            outcome.failed += 1;
            if outcome.failures.len() < TOLD {
                outcome.failures.push(judge.explain(&probe).lines());
            }
        }
    }
    if outcome.asked == 0 {
        return Err(anyhow!("from and to select only the same pod: no connection to evaluate"));
    }
    Ok(())
}

/// Returns a hint for a receiver that is probably meant as a Service: `svc/web` is the pod `web` of namespace `svc`.
fn service_hint(probe: &Probe) -> &'static str {
    let is_meant = |key: &Key| matches!(&key.namespace[..], "svc" | "service" | "services");
    match &probe.to {
        Party::Pod(key) if is_meant(key) => "; a Service is svc/namespace/name",
        Party::Pod(_) | Party::Service(_) | Party::Address(_) => "",
    }
}

/// Returns the first loopback address among the sides of an assertion.
fn loopback(assertion: &Assertion) -> Option<IpAddr> {
    [&assertion.from, &assertion.to].into_iter().find_map(|side| match side {
        Selected::One(Party::Address(address)) if address.is_loopback() => Some(*address),
        Selected::One(_) | Selected::Pods { .. } | Selected::Name { .. } => None,
    })
}
