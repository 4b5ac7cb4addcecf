//! `netpold test`: expected connections as data, judged by manifests or by a cluster's objects.

mod probe;
mod read;
mod render;

use std::collections::BTreeSet;

use anyhow::{Result, anyhow};
use netpold_core::cluster::{Cluster, is_subject};
use netpold_core::explain::{Explainer, Verdict};
use netpold_core::model::{Pod, Selector};
use netpold_core::probe::{IpProtocol, Party, Probe};

use self::probe::Probed;
use crate::cli::TestArgs;
use crate::live;
use crate::offline;
use crate::output::print;

/// Exit status: every assertion holds.
const PASSED: u8 = 0;
/// Exit status: some does not.
const FAILED: u8 = 1;
/// Most failures of one assertion that are told.
const TOLD: usize = 5;

/// What is expected of some connections: each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Assertion {
    /// Where it is: `file:line`.
    place: String,
    /// `name`; empty where absent.
    name: String,
    from: Selected,
    to: Selected,
    protocol: IpProtocol,
    /// 0 where the protocol has none.
    port: u16,
    allow: bool,
}

/// One side of an assertion.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Selected {
    /// A pod, a Service or an address.
    One(Party),
    /// Pods by namespace and labels; hostNetwork and finished pods are none.
    Pods { namespaces: Namespaces, labels: Selector },
}

/// Whose pods.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Namespaces {
    Named(String),
    All,
}

/// What came of an assertion.
struct Outcome {
    assertion: Assertion,
    /// How many connections were asked.
    asked: usize,
    /// Those that are not as expected, with the reasons; of many, the first.
    failures: Vec<String>,
    /// How many are not as expected.
    failed: usize,
    /// What came of connections that were opened for real, if any were to be.
    probed: Option<Probed>,
    /// Pod templates among its sides, as `Deployment shop/web (template)`.
    templates: BTreeSet<String>,
}

impl Outcome {
    fn holds(&self) -> bool {
        self.failed == 0 && self.probed.as_ref().is_none_or(|probed| probed.wrong == 0)
    }
}

impl Assertion {
    /// Its name, or what it says.
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

/// Answer, on standard output. Returns the exit status.
///
/// # Errors
/// The assertions, the manifests or the cluster cannot be read, or an assertion is about nothing.
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
    print(&render::render(&outcomes, args.output, &names.join(",")))?;
    Ok(if outcomes.iter().all(Outcome::holds) { PASSED } else { FAILED })
}

/// What assertions are about.
struct World<'c> {
    cluster: &'c Cluster,
    explainer: Explainer<'c>,
    /// Namespace of workloads that are named without one.
    own: String,
    /// The objects are those of a live cluster, where pods get their addresses in a moment.
    is_of_cluster: bool,
}

fn judge(world: &World<'_>, assertions: Vec<Assertion>) -> Result<Vec<Outcome>> {
    let outcomes = assertions.into_iter().map(|assertion| {
        let place = assertion.place.clone();
        outcome(world, assertion).map_err(|error| anyhow!("{place}: {error}"))
    });
    outcomes.collect()
}

/// Who sends and who receives.
///
/// # Errors
/// One of them is nobody.
fn sides(world: &World<'_>, assertion: &Assertion) -> Result<(Vec<Party>, Vec<Party>)> {
    let [from, to] = [("from", &assertion.from), ("to", &assertion.to)].map(|(side, selected)| {
        let parties = world.parties(selected);
        if parties.is_empty() {
            return Err(anyhow!(
                "{side}: no pod with an address and no pod template matches: {selected}"
            ));
        }
        Ok(parties)
    });
    Ok((from?, to?))
}

/// Who sends to whom. Of selections that overlap, a pod to itself is not meant; a template stands for any two of its pods.
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

/// The workload whose template a party is, in words.
fn template(cluster: &Cluster, party: &Party) -> Option<String> {
    let Party::Pod(key) = party else { return None };
    let pod = cluster.pods().get(key)?;
    pod.template().map(|_| pod.title())
}

fn outcome(world: &World<'_>, assertion: Assertion) -> Result<Outcome> {
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
        return Err(anyhow!(
            "from and to select the same pod alone: there is no connection to ask"
        ));
    }
    Ok(Outcome { assertion, asked, failures, failed, probed: None, templates })
}

impl World<'_> {
    /// Who is selected.
    fn parties(&self, selected: &Selected) -> Vec<Party> {
        let cluster = self.cluster;
        let (namespaces, labels) = match selected {
            Selected::One(party) => return self.named(party),
            Selected::Pods { namespaces, labels } => (namespaces, labels),
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

    /// A party that is named: a workload is all of its pods.
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
