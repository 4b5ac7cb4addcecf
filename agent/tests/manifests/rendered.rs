//! Kustomizations as kubectl renders them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::skip;

/// Everything that is rendered, the base first.
pub(crate) const KUSTOMIZATIONS: [&str; 8] = [
    "base",
    "overlays/admission",
    "overlays/api-protection",
    "overlays/kind",
    "overlays/monitoring",
    "overlays/mount-bpffs",
    "overlays/quotas",
    "overlays/tenant-quota",
];

pub(crate) fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// Whether kubectl can render: kustomize 4 or later in it (kubectl 1.21).
pub(crate) fn can_render(test: &str) -> bool {
    let told = Command::new("kubectl").args(["version", "--client", "-o", "json"]).output();
    let told = told.map(|output| serde_json::from_slice::<Value>(&output.stdout));
    let version = |value: Value| value["kustomizeVersion"].as_str().map(str::to_owned);
    let version = told.ok().and_then(Result::ok).and_then(version);
    if version.is_some() {
        return true;
    }
    skip(test, "a kubectl of 1.21 or later");
    false
}

/// The objects of a kustomization.
pub(crate) fn render(name: &str) -> Vec<Value> {
    let output =
        Command::new("kubectl").arg("kustomize").arg(deploy().join(name)).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{name}: {said}");
    parse(&String::from_utf8(output.stdout).unwrap())
}

/// The documents of a YAML file.
pub(crate) fn parse(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// The only object of that kind, or of that kind and name.
#[track_caller]
pub(crate) fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let mut found = objects
        .iter()
        .filter(|o| o["kind"] == kind && (name.is_empty() || o["metadata"]["name"] == name));
    let object = found.next();
    assert!(object.is_some() && found.next().is_none(), "one {kind} {name}");
    object.unwrap()
}

/// A folder with a kustomization that is in no list would be tested by nothing.
#[test]
fn every_kustomization_is_listed() {
    let mut found = vec!["base".to_owned()];
    for entry in std::fs::read_dir(deploy().join("overlays")).unwrap() {
        found.push(format!("overlays/{}", entry.unwrap().file_name().to_str().unwrap()));
    }
    found.sort();
    assert_eq!(found, KUSTOMIZATIONS);
}
