//! Assertions about domain names, answered from the policies alone.

use std::collections::BTreeSet;

use anyhow::{Result, anyhow};
use netpold_core::explain::{Verdict, Within};
use netpold_core::model::{DomainName, Key};
use netpold_core::probe::Party;

use super::{Assertion, At, Outcome, TOLD, World, side, template};

/// Returns the addresses to which a name is assumed to resolve.
pub(super) fn within(at: &At) -> Within {
    match at {
        At::Any => Within::default(),
        At::Public => Within::public(),
        At::Blocks(blocks) => Within { blocks: blocks.clone(), except: Vec::new() },
    }
}

/// Judges the connections of the senders to the addresses of a name.
///
/// # Errors
/// No pod sends, or a sender gets no answer.
pub(super) fn outcome(
    world: &World<'_>,
    assertion: Assertion,
    name: &DomainName,
    within: &Within,
) -> Result<Outcome> {
    let from = side(world, "from", &assertion.from)?;
    let templates: BTreeSet<String> =
        from.iter().filter_map(|party| template(world.cluster, party)).collect();
    let kind = (assertion.protocol, assertion.port);
    let port = if kind.0.has_ports() { format!(" {}", kind.1) } else { String::new() };
    let (mut failures, mut failed, mut depends, mut depending) = (Vec::new(), 0, Vec::new(), 0);
    for party in &from {
        let pod = sender(world, party)?;
        let question = format!("{pod} to {name}, {}{port}", kind.0);
        let answer = world.explainer.by_name(&pod, name, within, kind);
        let answer = answer.map_err(|error| anyhow!("{question}: {error}"))?;
        if answer.verdict == Verdict::Unknown {
            depending += 1;
            if depends.len() < TOLD {
                depends.push(format!("{question}: {}", answer.depends_on()));
            }
        } else if (answer.verdict == Verdict::Allow) != assertion.allow {
            failed += 1;
            if let (Some(pod), Some(part), true) =
                (world.cluster.pods().get(&pod), answer.parts.first(), failures.len() < TOLD)
            {
                let why = world.explainer.explain_named(pod, name, part.address, kind);
                let head = format!("{}: {question}", answer.verdict);
                failures.push([vec![head], why.lines()].concat().join("\n"));
            }
        }
    }
    let (asked, probed) = (from.len(), None);
    Ok(Outcome { assertion, asked, failures, failed, depends, depending, probed, templates })
}

/// Returns the pod that sends.
fn sender(world: &World<'_>, party: &Party) -> Result<Key> {
    match party {
        Party::Pod(key) => Ok(key.clone()),
        Party::Address(address) => {
            let owner = world.cluster.owner(*address).map(|pod| pod.key.clone());
            owner.ok_or_else(|| anyhow!("from: {address} is not a pod's address"))
        }
        Party::Service(key) => Err(anyhow!("from: svc/{key} is not a pod")),
    }
}
