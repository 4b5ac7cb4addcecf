//! Assertions about domain names, answered from the policies alone.

use anyhow::{Result, anyhow};
use netpold_core::explain::{ResolvedWithin, Verdict};
use netpold_core::model::{DomainName, Key};
use netpold_core::probe::Party;

use super::assertion::{Assertion, AssumedAddresses};
use super::context::AssertionContext;
use super::outcome::{AssertionOutcome, TOLD};
use super::sides::{side, template};

/// Returns the addresses to which a name is assumed to resolve.
pub(super) fn within(at: &AssumedAddresses) -> ResolvedWithin {
    match at {
        AssumedAddresses::Any => ResolvedWithin::default(),
        AssumedAddresses::Public => ResolvedWithin::public(),
        AssumedAddresses::Blocks(blocks) => {
            ResolvedWithin { blocks: blocks.clone(), except: Vec::new() }
        }
    }
}

/// Judges the connections of the senders to the addresses of a name.
///
/// # Errors
/// No pod sends, or a sender gets no answer.
pub(super) fn judge_by_name(
    world: &AssertionContext<'_>,
    outcome: &mut AssertionOutcome,
    name: &DomainName,
    within: &ResolvedWithin,
) -> Result<()> {
    let Assertion { protocol, port, allow, .. } = outcome.assertion;
    let from = side(world, "from", &outcome.assertion.from)?;
    outcome.templates = from.iter().filter_map(|party| template(world.cluster, party)).collect();
    let kind = (protocol, port);
    let port = if protocol.has_ports() { format!(" {port}") } else { String::new() };
    for party in &from {
        let pod = sender(world, party)?;
        let question = format!("{pod} to {name}, {protocol}{port}");
        let answer = world.explainer.by_name(&pod, name, within, kind);
        let answer = answer.map_err(|error| anyhow!("{question}: {error}"))?;
        outcome.asked += 1;
        let readings = world.judge.readings().into_iter().flatten();
        let mut others = readings.map(|judge| judge.explainer().by_name(&pod, name, within, kind));
        let mut differs = || others.any(|it| it.is_ok_and(|it| it.verdict != answer.verdict));
        let reason = if answer.verdict == Verdict::Unknown {
            Some(answer.depends_on())
        } else {
            differs().then(|| world.judge.refused_by(&pod).unwrap_or_default())
        };
        if let Some(reason) = reason {
            outcome.depending += 1;
            if outcome.depends.len() < TOLD {
                outcome.depends.push(format!("{question}: {reason}"));
            }
        } else if (answer.verdict == Verdict::Allow) != allow {
            outcome.failed += 1;
            if let (Some(pod), Some(part), true) = (
                world.cluster.pods().get(&pod),
                answer.parts.first(),
                outcome.failures.len() < TOLD,
            ) {
                let why = world.explainer.explain_named(pod, name, part.address, kind);
                let head = format!("{}: {question}", answer.verdict);
                outcome.failures.push([vec![head], why.lines()].concat());
            }
        }
    }
    Ok(())
}

/// Returns the pod that sends.
fn sender(world: &AssertionContext<'_>, party: &Party) -> Result<Key> {
    match party {
        Party::Pod(key) => Ok(key.clone()),
        Party::Address(address) => {
            let owner = world.cluster.owner(*address).map(|pod| pod.key.clone());
            owner.ok_or_else(|| anyhow!("from: {address} is not a pod's address"))
        }
        Party::Service(key) => Err(anyhow!("from: svc/{key} is not a pod")),
    }
}
