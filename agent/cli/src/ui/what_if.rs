//! What if these objects were applied, or deleted: the connections that they cut and open.

use std::sync::atomic::AtomicBool;

use anyhow::{Result, anyhow};
use netpold_api::flows::{Filter, merge};
use netpold_kube::manifests::{is_absence, review_text};
use serde::Deserialize;
use serde_json::{Value, json};

use super::world::{Source, World};
use crate::diff::{self, Sources, compare_objects, live as cuts};
use crate::doctor::Details;
use crate::{flows, unenforced};

/// Name of the text in its problems.
const NAME: &str = "text";
/// Most changes in an answer; the others are counted.
const CHANGES: usize = 500;

/// A change to judge.
#[derive(Deserialize)]
pub(super) struct WhatIf {
    /// Objects, as YAML or JSON.
    yaml: String,
    /// Whether the objects are deleted instead of applied.
    #[serde(default)]
    delete: bool,
    /// Whether the agents are asked for open connections.
    #[serde(default)]
    live: bool,
    /// Page that asks: its newer changes replace its older ones.
    #[serde(default)]
    pub(super) page: String,
}

/// Compares the cluster before and after a change. Blocks, until the answer or until `ended` is set.
///
/// # Errors
/// The text is not YAML or JSON of Kubernetes objects, the agents do not answer, or `ended` was set.
pub(super) fn answer(
    source: &Source,
    world: &World,
    change: &WhatIf,
    ended: &AtomicBool,
) -> Result<Value> {
    let read = review_text(NAME, change.yaml.as_bytes(), &world.namespace);
    let (named, problems) =
        read.map_err(|error| anyhow!("line {}: {}", error.line, error.reason))?;
    let absent = problems.iter().filter(|problem| is_absence(problem));
    let absent: Vec<String> = absent.map(ToString::to_string).collect();
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let objects = named.len();
    let mut sources = Sources::of_change(world.objects.clone(), &named, change.delete);
    sources.gaps.splice(0..0, absent);
    let add = |details: &mut Details| details.add_text(NAME, change.yaml.as_bytes());
    let mut details = Details::default();
    add(&mut details);
    let (foreign, present) =
        (unenforced::names(&details), unenforced::names(world.judge.details()));
    sources.is_partial = !source.is_live();
    let known = world.judge.details().clone();
    sources.set_details(known, &named, change.delete, |details| {
        add(details);
        Ok(())
    })?;
    sources.gaps.extend(unenforced::note(&foreign));
    sources.notes.extend(unenforced::note(&present.difference(&foreign).cloned().collect()));
    let ([before, after], mut difference) = compare_objects(sources, &source.pod_cidrs, ended)?;
    let (cut, opened) = diff::counts(&difference);
    let lines = diff::line_documents(&difference, CHANGES);
    let left_out = difference.changes.len().saturating_sub(CHANGES);
    difference.changes.truncate(CHANGES);
    let mut document = diff::document(&difference);
    document["cut"] = cut.into();
    document["opened"] = opened.into();
    document["lines"] = lines.into();
    document["left_out"] = left_out.into();
    document["objects"] = objects.into();
    document["problems"] = problems.into();
    if change.live && source.is_live() {
        let all = flows::client::ask_cluster(&source.cluster, &Filter::default(), None)?;
        let unanswered = all.unanswered();
        let mut cuts = cuts::cuts(&before, &after, &merge(all.answers));
        let silent =
            unanswered.into_keys().map(|node| format!("node {node}: its agent does not answer"));
        cuts.problems.extend(silent);
        document["live"] = serde_json::to_value(cuts)?;
    }
    document["revision"] = json!(world.revision);
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::read_text;

    #[test]
    fn a_comparison_ends_when_nobody_waits() {
        let text = "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: []}, \
                    status: {phase: Running, podIP: 10.0.0.1}}";
        let objects = read_text(NAME, text.as_bytes(), "shop").unwrap();
        let compare = |ended| {
            let sources = Sources::of_change(objects.clone(), &[], false);
            compare_objects(sources, &[], &AtomicBool::new(ended))
        };
        assert!(compare(false).is_ok());
        assert!(compare(true).unwrap_err().to_string().contains("nobody waits"));
    }
}
