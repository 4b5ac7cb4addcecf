//! Kustomizations, rendered by kubectl.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use netpold_testbed::apiserver::Kubectl;
use serde_json::Value;

use netpold_testbed::skip;

/// All rendered kustomizations, the base first.
pub(crate) const KUSTOMIZATIONS: [&str; 17] = [
    "base",
    "overlays/admission",
    "overlays/api-protection",
    "overlays/enforcement-default",
    "overlays/guard-rails",
    "overlays/kind",
    "overlays/least-privilege",
    "overlays/monitoring",
    "overlays/mount-bpffs",
    "overlays/quotas",
    "overlays/readiness-gate",
    "overlays/readiness-gate-v1beta1",
    "overlays/readiness-gate-webhook",
    "overlays/startup-taint",
    "overlays/startup-taint-v1beta1",
    "overlays/tenant-quota",
    "overlays/webhook-callers",
];

pub(crate) fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// Returns a kubectl that can render.
fn kubectl() -> Option<&'static Kubectl> {
    static FOUND: LazyLock<Option<Kubectl>> =
        LazyLock::new(|| Kubectl::find().filter(Kubectl::renders));
    FOUND.as_ref()
}

/// Returns whether a kubectl can render; otherwise skips the test.
pub(crate) fn can_render(test: &str) -> bool {
    let there = kubectl().is_some();
    if !there {
        skip(test, "needs a kubectl of 1.21 or later (`cargo xtask setup`)");
    }
    there
}

/// Returns the objects of a kustomization.
pub(crate) fn render(name: &str) -> Vec<Value> {
    let mut kubectl = Command::new(kubectl().unwrap().path());
    let output = kubectl.arg("kustomize").arg(deploy().join(name)).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{name}: {said}");
    parse(&String::from_utf8(output.stdout).unwrap())
}

/// Returns the documents of a YAML file.
pub(crate) fn parse(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// Returns the only object of the kind, or of the kind and name.
#[track_caller]
pub(crate) fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let mut found = objects
        .iter()
        .filter(|o| o["kind"] == kind && (name.is_empty() || o["metadata"]["name"] == name));
    let object = found.next();
    assert!(object.is_some() && found.next().is_none(), "one {kind} {name}");
    object.unwrap()
}

/// Checks that the list contains every kustomization, since no test covers an unlisted one.
#[test]
fn every_kustomization_is_listed() {
    let mut found = vec!["base".to_owned()];
    for entry in std::fs::read_dir(deploy().join("overlays")).unwrap() {
        found.push(format!("overlays/{}", entry.unwrap().file_name().to_str().unwrap()));
    }
    found.sort();
    assert_eq!(found, KUSTOMIZATIONS);
}
