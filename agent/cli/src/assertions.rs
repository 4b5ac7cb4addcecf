//! `netpold test`: assertions about connections, checked against manifests or a cluster's objects.

mod by_name;
mod probe;
mod read;
mod render;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use ipnet::IpNet;
use netpold_core::cluster::{Cluster, is_subject};
use netpold_core::explain::{Explainer, Verdict};
use netpold_core::model::{DomainName, Pod, Selector};
use netpold_core::probe::{IpProtocol, Party, Probe};

use self::probe::Probed;
use crate::live::{self, ClusterArgs};
use crate::offline;
use crate::output::print;

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
    /// Comma-separated CIDRs of the addresses of pods without one, such as pod templates
    /// [default: private addresses]
    #[arg(long, value_name = "CIDR", env = "NETPOLD_POD_CIDRS", value_delimiter = ',')]
    pub pod_cidrs: Vec<IpNet>,
    /// Cluster to ask.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Namespace of pods that assertions name without one; also the only namespace to read where RBAC forbids to list
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
/// Exit status: no assertion fails, but the answer to one depends on the address.
const DEPENDS: u8 = 2;
/// Most failures shown per assertion.
const TOLD: usize = 5;

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
    Pods { namespaces: Namespaces, labels: Selector },
    /// Addresses that the sender resolved a domain name to; a receiver only.
    Name { name: DomainName, at: At },
}

/// Addresses to which a domain name is assumed to resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    /// Every address.
    Any,
    /// Addresses of the internet.
    Public,
    /// These blocks.
    Blocks(Vec<IpNet>),
}

/// Namespaces of selected pods.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Namespaces {
    Named(String),
    All,
}

/// Outcome of an assertion.
struct Outcome {
    assertion: Assertion,
    /// Number of judged connections.
    asked: usize,
    /// Explanations of the first connections with an unexpected verdict.
    failures: Vec<String>,
    /// Number of connections with an unexpected verdict.
    failed: usize,
    /// Answers for the first connections whose verdict depends on the address of a domain name.
    depends: Vec<String>,
    /// Number of these connections.
    depending: usize,
    /// Results of opened connections, with `--probe`.
    probed: Option<Probed>,
    /// Pod templates among the assertion's sides, as `Deployment shop/web (template)`.
    templates: BTreeSet<String>,
}

/// Result of an assertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verified {
    /// Every connection is as expected.
    Pass,
    /// Some connection is not.
    Fail,
    /// No connection is known to be otherwise; for some the answer depends on the address of a domain name.
    Depends,
}

impl Outcome {
    fn result(&self) -> Verified {
        let fails = self.failed > 0 || self.probed.as_ref().is_some_and(|probed| probed.wrong > 0);
        match (fails, self.depending) {
            (true, _) => Verified::Fail,
            (false, 0) => Verified::Pass,
            (false, _) => Verified::Depends,
        }
    }
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
            Namespaces::Named(name) => write!(f, "pods of {name}")?,
            Namespaces::All => f.write_str("pods of every namespace")?,
        }
        for (index, requirement) in labels.requirements.iter().enumerate() {
            let word = if index == 0 { " with " } else { ", " };
            write!(f, "{word}{}", read::label(requirement))?;
        }
        Ok(())
    }
}

impl std::fmt::Display for At {
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
/// The assertions, the manifests or the cluster cannot be read, or an assertion matches no connection or gets
/// no verdict.
pub fn run(args: &TestArgs) -> Result<u8> {
    let (manifests, namespace) = (args.manifests.as_deref(), args.namespace.as_deref());
    let own = live::namespace(manifests, &args.cluster, namespace)?;
    let files = read::read(&args.file, &own)?;
    let is_of_cluster = manifests.is_none() && args.cluster.is_meant();
    let objects = match files.objects.is_empty() || manifests.is_some() || is_of_cluster {
        true => live::all_objects(manifests, &args.cluster, namespace)?,
        false => Vec::new(),
    };
    let objects = offline::stand_in(offline::apply(&objects, &files.objects));
    let cluster: Cluster = objects.into_iter().collect();
    let ranges = offline::ranges(&args.pod_cidrs, &[&cluster]);
    let explainer = Explainer::new(&cluster).with_ranges(&ranges);
    let world = World { cluster: &cluster, explainer, own, is_of_cluster };
    let mut outcomes = judge(&world, files.assertions)?;
    if args.probe {
        live::block_on(probe::probe(&args.cluster, &world, &mut outcomes))?;
    }
    let names: Vec<String> = args.file.iter().map(|file| file.display().to_string()).collect();
    print(&render::render(&outcomes, args.output, &names.join(","))?)?;
    let any = |result| outcomes.iter().any(|outcome| outcome.result() == result);
    Ok(match (any(Verified::Fail), any(Verified::Depends)) {
        (true, _) => FAILED,
        (false, true) => DEPENDS,
        (false, false) => PASSED,
    })
}

/// Context of assertions.
struct World<'c> {
    cluster: &'c Cluster,
    explainer: Explainer<'c>,
    /// Namespace of workloads named without one.
    own: String,
    /// Whether the objects are a live cluster's: pods without an address get one soon and are left out.
    is_of_cluster: bool,
}

fn judge(world: &World<'_>, assertions: Vec<Assertion>) -> Result<Vec<Outcome>> {
    let outcomes = assertions.into_iter().map(|assertion| {
        let place = assertion.place.clone();
        outcome(world, assertion).map_err(|error| anyhow!("{place}: {error}"))
    });
    outcomes.collect()
}

/// Returns senders and receivers.
///
/// # Errors
/// One side matches no pod.
fn sides(world: &World<'_>, assertion: &Assertion) -> Result<(Vec<Party>, Vec<Party>)> {
    Ok((side(world, "from", &assertion.from)?, side(world, "to", &assertion.to)?))
}

fn side(world: &World<'_>, side: &str, selected: &Selected) -> Result<Vec<Party>> {
    let parties = world.parties(selected);
    if parties.is_empty() {
        return Err(anyhow!(
            "{side}: no pod with an address and no pod template matches: {selected}"
        ));
    }
    Ok(parties)
}

/// Pairs senders and receivers. Overlapping selections do not pair a pod with itself, except a template: it stands for
/// any two of its pods.
fn pairs<'s>(
    world: &World<'s>,
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
    pod.template().map(|_| pod.title())
}

fn outcome(world: &World<'_>, assertion: Assertion) -> Result<Outcome> {
    if let Selected::Name { name, at } = &assertion.to {
        let within = by_name::within(at);
        let name = name.clone();
        return by_name::outcome(world, assertion, &name, &within);
    }
    let (from, to) = sides(world, &assertion)?;
    let explainer = &world.explainer;
    let templates = from.iter().chain(&to).filter_map(|party| template(world.cluster, party));
    let templates: BTreeSet<String> = templates.collect();
    let (mut asked, mut failed, mut failures) = (0, 0, Vec::new());
    for (from, to) in pairs(world, &assertion, &from, &to) {
        asked += 1;
        let (protocol, port) = (assertion.protocol, assertion.port);
        let probe = Probe { from: from.clone(), to: to.clone(), protocol, port };
        let allowed = match explainer.verdict(&probe) {
            (Verdict::Allow, _) => true,
            (Verdict::Deny, _) => false,
            (Verdict::Unknown, reason) => {
                return Err(anyhow!("{probe}: {}", reason.unwrap_or_default()));
            }
        };
        if allowed != assertion.allow {
            failed += 1;
            if failures.len() < TOLD {
                failures.push(explainer.explain(&probe).lines().join("\n"));
            }
        }
    }
    if asked == 0 {
        return Err(anyhow!("from and to select only the same pod: no connection to evaluate"));
    }
    let (depends, depending, probed) = (Vec::new(), 0, None);
    Ok(Outcome { assertion, asked, failures, failed, depends, depending, probed, templates })
}

impl World<'_> {
    /// Returns the selected parties.
    fn parties(&self, selected: &Selected) -> Vec<Party> {
        let cluster = self.cluster;
        let (namespaces, labels) = match selected {
            Selected::One(party) => return self.named(party),
            Selected::Pods { namespaces, labels } => (namespaces, labels),
            Selected::Name { .. } => return Vec::new(),
        };
        let matches = |pod: &&std::sync::Arc<Pod>| {
            let namespace = match namespaces {
                Namespaces::Named(name) => pod.key.namespace == *name,
                Namespaces::All => true,
            };
            let is_placed =
                !pod.addresses.is_empty() || !self.is_of_cluster || pod.template().is_some();
            namespace && is_placed && is_subject(pod) && labels.matches(&pod.labels)
        };
        let pods = cluster.pods().values().filter(matches);
        pods.map(|pod| Party::Pod(pod.key.clone())).collect()
    }

    /// Resolves a named party: a workload stands for all of its pods.
    fn named(&self, party: &Party) -> Vec<Party> {
        let pods = match party {
            Party::Pod(key) if self.cluster.pods().get(key).is_none() => {
                offline::pods_named(self.cluster, key, &self.own)
            }
            Party::Pod(_) | Party::Service(_) | Party::Address(_) => Vec::new(),
        };
        match pods[..] {
            [] => vec![party.clone()],
            _ => pods.iter().map(|pod| Party::Pod(pod.key.clone())).collect(),
        }
    }
}
