//! Conformance cases in process: compares the expected verdicts with the oracle, explain and the compiled tables.
//! `wire.rs` runs the same cases with real sockets under running agents.

mod audited;
mod case;
mod node;
mod wire;

use std::collections::BTreeSet;

use anyhow::{Context, Result, anyhow, bail};
use netpold_core::explain::{Explainer, Verdict};
use netpold_core::model::Change;
use netpold_core::probe::{Party, Probe};
use netpold_kube::convert::{self, Manifest};
use netpold_kube::document;
use netpold_testkit::oracle::Oracle;

use case::{Case, Check, Side, Step};
use node::CompiledNode;

/// Name prefix of cases with policies that netpold rejects in part.
const INVALID: &str = "invalid-";

fn convert(step: &Step) -> Result<(Vec<Change>, usize)> {
    let mut changes = Vec::new();
    let mut problems = 0;
    for object in &step.objects {
        let nodes = document::parse(&object.to_string()).map_err(|error| anyhow!("{error}"))?;
        for node in nodes {
            match convert::manifest(&node).map_err(|error| anyhow!("{error}"))? {
                Manifest::Object(converted) => {
                    problems += converted.problems.len();
                    changes.push(converted.change);
                }
                other @ Manifest::Other(..) => bail!("not an object netpold reads: {other:?}"),
            }
        }
    }
    Ok((changes, problems))
}

fn probe(check: &Check) -> Probe {
    let (from, to) = (Party::Address(check.from.address), Party::Address(check.to.address));
    Probe { from, to, protocol: check.protocol, port: check.port }
}

/// Returns whether the tables of all nodes allow a flow. For a flow to a Service or node port, the tables must allow
/// the packet before translation, and the packet to at least one backend.
fn tables_allow<'n>(
    nodes: impl IntoIterator<Item = &'n CompiledNode> + Clone,
    state: &Oracle,
    check: &Check,
) -> bool {
    let all = |check: &Check| nodes.clone().into_iter().all(|node| node.allows(check));
    if !state.is_frontend(check.to.address, check.protocol.0, check.port) {
        return all(check);
    }
    let backends = state.backends(check.to.address, check.protocol.0, check.port, true);
    let mut backends = backends.into_iter().map(|(address, port)| {
        let to = Side { name: check.to.name.clone(), address };
        Check { to, port, ..check.clone() }
    });
    all(check) && backends.any(|check| all(&check))
}

/// Returns one report per failed check of a step.
fn failures(
    case: &Case,
    number: usize,
    step: &Step,
    nodes: &mut [CompiledNode],
) -> Result<Vec<String>> {
    let (changes, problems) = convert(step)?;
    if (problems > 0) != case.name.starts_with(INVALID) {
        bail!("{problems} problems in step {number}");
    }
    for node in &mut *nodes {
        node.become_state(&changes)?;
    }
    let state: Oracle = changes.iter().cloned().collect();
    let cluster = changes.into_iter().collect();
    let explainer = Explainer::new(&cluster);
    let mut wrong = Vec::new();
    for check in &step.checks {
        let probe = probe(check);
        let explained = explainer.explain(&probe);
        let oracle = state.verdict(&probe).allowed();
        if oracle != Some(check.allow) {
            wrong.push(format!("step {number}: {check}: oracle {oracle:?}\n{explained}"));
        } else if (explained.verdict == Verdict::Allow) != check.allow {
            wrong.push(format!("step {number}: {check}: explain\n{explained}"));
        } else if tables_allow(&*nodes, &state, check) != check.allow {
            wrong.push(format!("step {number}: {check}: compiled tables\n{explained}"));
        }
    }
    Ok(wrong)
}

#[test]
fn cases_hold_in_process() -> Result<()> {
    let cases = case::load_all()?;
    let (allowed, denied, early) = hold(&cases)?;
    assert!(cases.len() >= 170 && allowed > 50_000 && denied > 5_000);
    assert!(early.iter().all(|dropped| *dropped > 1_000), "XDP dropped {early:?}");
    Ok(())
}

#[test]
fn service_cases_hold_in_process() -> Result<()> {
    let cases = case::load_services()?;
    let (allowed, denied, _) = hold(&cases)?;
    assert!(cases.len() >= 8 && allowed > 1_000 && denied > 100);
    Ok(())
}

/// Asserts that every check of the cases holds. Returns the numbers of allowed flows, of denied flows, and of packets
/// that XDP dropped ([`CompiledNode::dropped_early`]).
fn hold(cases: &[Case]) -> Result<(usize, usize, [u64; 3])> {
    let mut wrong = Vec::new();
    let (mut allowed, mut denied, mut early) = (0, 0, [0; 3]);
    for case in cases {
        let mut nodes = ["n1", "n2"].map(CompiledNode::new);
        for (number, step) in (1..).zip(&case.steps) {
            let failed =
                failures(case, number, step, &mut nodes).with_context(|| case.name.clone())?;
            wrong.extend(
                failed.first().map(|f| format!("{} ({} wrong) {f}", case.name, failed.len())),
            );
            let allow = step.checks.iter().filter(|check| check.allow).count();
            allowed += allow;
            denied += step.checks.len() - allow;
        }
        for node in &nodes {
            early.iter_mut().zip(node.dropped_early()).for_each(|(sum, dropped)| *sum += dropped);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    Ok((allowed, denied, early))
}

/// Parts of the names of cases with policies that deny nothing.
const ALLOW_ALL: [&str; 4] = ["-allow-all", "-empty-peers", "-empty-ports", "-allow-addresses"];

#[test]
fn every_case_can_fail_and_titles_are_unique() -> Result<()> {
    let mut titles = BTreeSet::new();
    for case in case::load_all()?.into_iter().chain(case::load_services()?) {
        assert!(titles.insert(case.title.clone()), "two cases are titled {:?}", case.title);
        assert!(!case.source.is_empty(), "{} has no source", case.name);
        let denies = case.steps.iter().any(|step| step.checks.iter().any(|check| !check.allow));
        let allows_all = ALLOW_ALL.iter().any(|name| case.name.contains(name));
        assert!(denies || allows_all, "{} passes where nothing is enforced", case.name);
    }
    Ok(())
}
