//! `netpold test`: assertions about connections, checked against manifests or a cluster's objects.

mod args;
mod assertion;
mod by_name;
mod context;
mod outcome;
mod probe;
mod probe_results;
mod read;
mod render;
mod sides;

use std::net::IpAddr;

use anyhow::{Result, anyhow};
use netpold_client::details::read_details;
use netpold_client::live;
use netpold_client::offline::{self, Recursive, Reviewed};
use netpold_client::output::print;
use netpold_core::model::Key;
use netpold_core::probe::{Party, Probe};

pub use self::args::{TestArgs, TestOutput};
use self::assertion::{Assertion, SideSelection};
use self::context::{AssertionContext, of_family};
use self::outcome::{AssertionOutcome, TOLD, Verified};
use self::sides::{pairs, sides, template};
use crate::judge::{Judge, ProbeVerdict};
use crate::unenforced;

/// Exit status: every assertion holds.
const PASSED: u8 = 0;
/// Exit status: some assertion fails.
const FAILED: u8 = 1;
/// Exit status: no assertion fails, but one has no answer, cannot be read, or its answer depends on the address; or none
/// applies.
const CANNOT_TELL: u8 = 2;
/// Reason for which a selection leaves out a pod on the host's network.
const ON_HOST: &str = "on the host's network";

/// Prints the outcomes to standard output. Returns the exit status.
///
/// # Errors
/// The assertions, the manifests or the cluster cannot be read.
pub fn run(args: &TestArgs) -> Result<u8> {
    let (manifests, namespace) = (args.manifests.as_deref(), args.namespace.as_deref());
    let cluster_args = if args.probe { args.cluster.clone() } else { args.cluster.if_configured() };
    let own = live::namespace(manifests, &cluster_args, namespace)?;
    if let Some(directory) = manifests {
        offline::refuse_kustomization("test", "--manifests", directory, args.review.depth)?;
    }
    let files = read::read(&args.file, &own)?;
    let is_of_cluster = manifests.is_none() && cluster_args.is_requested();
    if manifests.is_none()
        && args.cluster.is_requested()
        && !is_of_cluster
        && !files.objects.is_empty()
    {
        anstream::eprintln!("netpold: no cluster is configured: judged by the objects of -f alone");
    }
    let objects = match files.objects.is_empty() || manifests.is_some() || is_of_cluster {
        true => live::all_objects(manifests, args.review.depth, &cluster_args, namespace)?,
        false => Reviewed::default(),
    };
    let Reviewed { objects, mut undecoded, mut unread, .. } = objects;
    offline::replace(&mut undecoded, &files.objects);
    undecoded.extend(files.undecoded);
    unread.extend(files.unread);
    let objects = offline::stand_in(offline::apply(&objects, &files.objects));
    let mut details = read_details(manifests, args.review.depth, &cluster_args, &own)?;
    for file in &args.file {
        details.add("--file", file, Recursive::default())?;
    }
    let foreign = unenforced::names(&details);
    let of_all = Judge::new(objects, details, &args.review.pod_cidrs, !is_of_cluster);
    let of_all = of_all.with_unread(undecoded, unread);
    let (cluster, explainer, ranges) = (of_all.cluster(), of_all.explainer(), of_all.ranges());
    let world = AssertionContext { cluster, explainer, judge: &of_all, ranges, own, is_of_cluster };
    let mut outcomes: Vec<AssertionOutcome> =
        files.assertions.into_iter().map(|assertion| judge(&world, assertion)).collect();
    if args.probe {
        live::block_on(probe::probe(&args.cluster, &world, &mut outcomes))?;
    }
    let names: Vec<String> = args.file.iter().map(|file| file.display().to_string()).collect();
    let note = unenforced::list_unenforced(&foreign);
    let notes = render::AnswerNotes { not_enforced: note, unread: files.unread_assertions };
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
    if let Err(error) = judge_connections(world, &mut outcome) {
        outcome.unknown = Some(error.to_string());
    }
    outcome
}

/// Judges the connections of an assertion.
///
/// # Errors
/// The assertion is about no connection.
fn judge_connections(world: &AssertionContext<'_>, outcome: &mut AssertionOutcome) -> Result<()> {
    let assertion = outcome.assertion.clone();
    outcome.leave_out(ON_HOST, world.on_hosts(&assertion.from));
    outcome.leave_out(ON_HOST, world.on_hosts(&assertion.to));
    if let SideSelection::Name { name, at } = &assertion.to {
        return by_name::judge_by_name(world, outcome, name, &by_name::within(at));
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
        SideSelection::One(Party::Address(address)) if address.is_loopback() => Some(*address),
        SideSelection::One(_) | SideSelection::Pods { .. } | SideSelection::Name { .. } => None,
    })
}
