//! `netpold test`: expected connections as data, judged by manifests or by a cluster's objects.

mod probe;
mod read;
mod render;

use anyhow::{Result, anyhow};
use netpold_core::cluster::Cluster;
use netpold_core::explain::{Explainer, Verdict};
use netpold_core::model::{Pod, Selector};
use netpold_core::probe::{IpProtocol, Party, Probe};

use self::probe::Probed;
use crate::cli::TestArgs;
use crate::live;
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
    let own = live::namespace(manifests, &args.cluster, namespace);
    let assertions = read::read(&args.file, &own?)?;
    let objects = live::manifests_or_objects(manifests, &args.cluster, namespace)?;
    let cluster: Cluster = objects.into_iter().collect();
    let mut outcomes = judge(&cluster, assertions)?;
    if args.probe {
        live::block_on(probe::probe(&args.cluster, &cluster, &mut outcomes))?;
    }
    let text = render::render(&outcomes, args.output, &args.file.display().to_string());
    print(&text)?;
    Ok(if outcomes.iter().all(Outcome::holds) { PASSED } else { FAILED })
}

fn judge(cluster: &Cluster, assertions: Vec<Assertion>) -> Result<Vec<Outcome>> {
    let explainer = Explainer::new(cluster);
    let outcomes = assertions.into_iter().map(|assertion| {
        let place = assertion.place.clone();
        outcome(cluster, &explainer, assertion).map_err(|error| anyhow!("{place}: {error}"))
    });
    outcomes.collect()
}

/// Who sends and who receives.
///
/// # Errors
/// One of them is nobody.
fn sides(cluster: &Cluster, assertion: &Assertion) -> Result<(Vec<Party>, Vec<Party>)> {
    let [from, to] = [("from", &assertion.from), ("to", &assertion.to)].map(|(side, selected)| {
        let parties = parties(cluster, selected);
        if parties.is_empty() {
            return Err(anyhow!("{side}: no pod with an address matches: {selected}"));
        }
        Ok(parties)
    });
    Ok((from?, to?))
}

/// Who sends to whom. Of selections that overlap, a pod to itself is not meant.
fn pairs<'s>(
    assertion: &Assertion,
    from: &'s [Party],
    to: &'s [Party],
) -> impl Iterator<Item = (&'s Party, &'s Party)> {
    let chosen = [&assertion.from, &assertion.to]
        .into_iter()
        .any(|side| matches!(side, Selected::Pods { .. }));
    let pairs = from.iter().flat_map(move |from| to.iter().map(move |to| (from, to)));
    pairs.filter(move |(from, to)| !chosen || from != to)
}

fn outcome(cluster: &Cluster, explainer: &Explainer<'_>, assertion: Assertion) -> Result<Outcome> {
    let (from, to) = sides(cluster, &assertion)?;
    let (mut asked, mut failed, mut failures) = (0, 0, Vec::new());
    for (from, to) in pairs(&assertion, &from, &to) {
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
    Ok(Outcome { assertion, asked, failures, failed, probed: None })
}

/// Who is selected.
fn parties(cluster: &Cluster, selected: &Selected) -> Vec<Party> {
    let (namespaces, labels) = match selected {
        Selected::One(party) => return vec![party.clone()],
        Selected::Pods { namespaces, labels } => (namespaces, labels),
    };
    let matches = |pod: &&std::sync::Arc<Pod>| {
        let namespace = match namespaces {
            Namespaces::Named(name) => pod.key.namespace == *name,
            Namespaces::All => true,
        };
        let judged = !pod.host_network && !pod.finished && !pod.addresses.is_empty();
        namespace && judged && labels.matches(&pod.labels)
    };
    let pods = cluster.pods().values().filter(matches);
    pods.map(|pod| Party::Pod(pod.key.clone())).collect()
}
