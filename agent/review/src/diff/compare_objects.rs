//! Comparison of objects: the policies in force, Services, gaps and notes.

use std::sync::atomic::AtomicBool;

use anyhow::Result;
use ipnet::IpNet;
use netpold_client::offline::{ranges, stand_in};
use netpold_core::cluster::Cluster;
use netpold_core::model::Change;

use super::compare::compare_until;
use super::difference::Difference;
use super::sources::Sources;
use super::{clients, new_services, places, refused, runs, services, unmatched, worlds};
use crate::judge::are_possible;

/// Compares objects before and after a change, and returns their clusters, too. `pod_cidrs`: see [`ranges`].
///
/// # Errors
/// As [`super::compare()`], or `ended` was set because nobody waits for the answer.
pub fn compare_objects(
    sources: Sources,
    pod_cidrs: &[IpNet],
    ended: &AtomicBool,
) -> Result<([Cluster; 2], Difference)> {
    let Sources { objects, details, is_partial, gaps, notes, .. } = sources;
    let objects = places::place(objects.map(lasting));
    let refused = refused::refused(&objects, is_partial);
    let objects = match refused {
        Some(_) => refused::in_force(objects, is_partial),
        None => objects,
    };
    let services = services::differing(&objects, &details);
    let judges = (!services.is_empty())
        .then(|| services::judges(objects.clone(), details.clone(), pod_cidrs, is_partial));
    let may_depend = objects.iter().any(|objects| are_possible(objects));
    let [before, after] = objects.map(|objects| objects.into_iter().collect());
    let clusters = [&before, &after];
    let ranges = ranges(pod_cidrs, &clusters);
    let mut difference = compare_until(&before, &after, &ranges, ended)?;
    if let Some(refused) = refused {
        let depending = refused.depending(&difference, &ranges, ended)?;
        difference.isolation.unknown.extend(depending);
    }
    add_gaps(&mut difference, clusters, &ranges, (gaps, may_depend), ended)?;
    if let Some([before, after]) = &judges {
        services::compare([before, after], &services, &mut difference, ended)?;
        let new = new_services::notes([before, after], &services, &difference, ended)?;
        difference.notes.extend(new);
    }
    difference.notes.extend(notes);
    difference.notes.extend(clients::notes(&details[1], &after, &ranges, &difference));
    Ok(([before, after], difference))
}

/// Adds the gaps of the sources, the parts of changed policies without pods and, where labels that the objects lack may
/// decide, the changes that depend on them.
pub(super) fn add_gaps(
    difference: &mut Difference,
    clusters: [&Cluster; 2],
    ranges: &[IpNet],
    (gaps, may_depend): (Vec<String>, bool),
    ended: &AtomicBool,
) -> Result<()> {
    difference.isolation.unknown.splice(0..0, gaps);
    let unmatched = unmatched::unmatched(clusters);
    match unmatched.is_partial {
        true => difference.isolation.unknown.extend(unmatched.parts),
        false => difference.notes.extend(unmatched.note()),
    }
    if may_depend {
        let depending = worlds::depending(clusters, ranges, ended)?;
        difference.isolation.unknown.extend(depending);
    }
    Ok(())
}

/// Adds the pods of pod templates without pods, and lets the pods of runs go on.
#[must_use]
pub fn lasting(objects: Vec<Change>) -> Vec<Change> {
    runs::unfinish_latest_runs(stand_in(objects))
}
