//! Parties on both sides of an assertion, and their pairs.

use anyhow::{Result, anyhow};
use netpold_core::cluster::Cluster;
use netpold_core::probe::Party;

use super::assertion::{Assertion, SideSelection};
use super::context::AssertionContext;
use super::outcome::NAMED;
use crate::judge::{is_absent, service_named};
use netpold_core::first_names::first_names;

/// Returns senders and receivers.
///
/// # Errors
/// One side matches no pod.
pub(super) fn sides(
    world: &AssertionContext<'_>,
    assertion: &Assertion,
) -> Result<(Vec<Party>, Vec<Party>)> {
    let to = side(world, "to", &assertion.to)?.into_iter();
    let to = to.map(|party| service_named(world.cluster, party, &world.own)).collect();
    Ok((side(world, "from", &assertion.from)?, to))
}

pub(super) fn side(
    world: &AssertionContext<'_>,
    side: &str,
    selected: &SideSelection,
) -> Result<Vec<Party>> {
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
pub(super) fn pairs<'s>(
    world: &AssertionContext<'s>,
    assertion: &Assertion,
    from: &'s [Party],
    to: &'s [Party],
) -> impl Iterator<Item = (&'s Party, &'s Party)> + use<'s> {
    let chosen = [&assertion.from, &assertion.to]
        .into_iter()
        .any(|side| matches!(side, SideSelection::Pods { .. }));
    let chosen = chosen || from.len() > 1 || to.len() > 1;
    let cluster = world.cluster;
    let pairs = from.iter().flat_map(move |from| to.iter().map(move |to| (from, to)));
    pairs.filter(move |(from, to)| !chosen || from != to || template(cluster, from).is_some())
}

/// Describes the pod template of a party.
pub(super) fn template(cluster: &Cluster, party: &Party) -> Option<String> {
    let Party::Pod(key) = party else { return None };
    let pod = cluster.pods().get(key)?;
    pod.template().filter(|_| !is_absent(pod)).map(|_| pod.title())
}
