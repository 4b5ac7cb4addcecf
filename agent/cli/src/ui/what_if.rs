//! What if these objects were applied, or deleted: the connections that they cut and open.

use std::sync::atomic::AtomicBool;

use anyhow::{Result, anyhow};
use netpold_api::flows::{FlowFilter, merge};
use netpold_client::offline::{self, Reviewed, review_text};
use netpold_review::diff::{self, Sources, live as cuts};
use serde::Deserialize;
use serde_json::{Value, json};

use super::snapshot::{ObjectSnapshot, ObjectSource};

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
pub(super) fn compare_change(
    source: &ObjectSource,
    world: &ObjectSnapshot,
    change: &WhatIf,
    ended: &AtomicBool,
) -> Result<Value> {
    let read = review_text(NAME, change.yaml.as_bytes(), &world.namespace);
    let Reviewed { objects: named, problems, undecoded, unread, .. } = read;
    if let (Some(problem), true) = (unread.first(), named.is_empty() && undecoded.is_empty()) {
        return Err(anyhow!("line {}: {}", problem.line, problem.text));
    }
    let undecoded = undecoded.iter().map(|it| it.problem.to_string());
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let objects = named.len();
    let complete = |sources: &mut Sources| {
        sources.gaps.splice(0..0, offline::unread(&unread).chain(undecoded));
        sources.is_partial = !source.is_live();
        let known = world.judge.details().clone();
        sources.set_details(known, &named, change.delete, |details| {
            details.add_text(NAME, change.yaml.as_bytes());
            Ok(())
        })
    };
    let change_of = (&named[..], change.delete);
    let baseline = world.baseline(&source.pod_cidrs);
    let ([before, after], mut difference) =
        baseline.compare(&world.objects, change_of, complete, ended)?;
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
        let all =
            netpold_client::flows::ask_cluster(&source.cluster, &FlowFilter::default(), None)?;
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
    use netpold_review::diff::ComparisonBaseline;

    use super::*;

    #[test]
    fn a_comparison_ends_when_nobody_waits() {
        let text = "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: []}, \
                    status: {phase: Running, podIP: 10.0.0.1}}";
        let objects = review_text(NAME, text.as_bytes(), "shop");
        let baseline = ComparisonBaseline::new(&objects, &[]);
        let compare =
            |ended| baseline.compare(&objects, (&[], false), |_| Ok(()), &AtomicBool::new(ended));
        assert!(compare(false).is_ok());
        assert!(compare(true).unwrap_err().to_string().contains("nobody waits"));
    }
}
