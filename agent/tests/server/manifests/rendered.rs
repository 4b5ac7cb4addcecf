//! Kustomizations, rendered by kubectl, and options of the chart, rendered by helm.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use netpold_testbed::apiserver::KubectlBinary;
use serde_json::Value;

use netpold_testbed::skip;

/// All kustomizations, the base first.
const KUSTOMIZATIONS: [&str; 3] = ["base", "overlays/full", "overlays/kind"];

/// Options of the chart: name, values, and files in `templates/options`.
const OPTIONS: [(&str, &str, &str); 16] = [
    (
        "admission",
        "admission.mistakes.enabled=true,admission.hints.enabled=true,admission.limits.enabled=true",
        "admission-*",
    ),
    ("api-protection", "apiProtection.enabled=true", "api-protection-*"),
    ("enforcement-default", "enforcementDefault.enabled=true", "enforcement-default"),
    ("guard-rails", "guardRails.enabled=true", "guard-rails-*"),
    ("least-privilege", "leastPrivilege.enabled=true", "least-privilege-*"),
    (
        "monitoring",
        "monitoring.podMonitor.enabled=true,monitoring.rules.enabled=true,monitoring.dashboard.enabled=true",
        "monitoring-*",
    ),
    ("peer-slices", "controller.peerSlices=true", "peer-slices"),
    ("quotas", "quotas.enabled=true", "quotas"),
    ("readiness-gate", "readinessGate.mode=auto", "readiness-gate-*"),
    (
        "readiness-gate-v1beta1",
        "readinessGate.mode=policy,mutatingAdmissionPolicy.version=v1beta1",
        "readiness-gate-*",
    ),
    ("readiness-gate-webhook", "readinessGate.mode=webhook", "readiness-gate-*"),
    (
        "readiness-gate-old",
        "readinessGate.mode=auto,mutatingAdmissionPolicy.version=none",
        "readiness-gate-*",
    ),
    ("startup-taint", "startupTaint.mode=auto", "startup-taint"),
    (
        "startup-taint-v1beta1",
        "startupTaint.mode=on,mutatingAdmissionPolicy.version=v1beta1",
        "startup-taint",
    ),
    ("tenant-quota", "tenantQuota.namespaces={tenant}", "tenant-quota"),
    ("webhook-callers", "webhookCallers.enabled=true", "webhook-callers"),
];

pub(crate) fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// Returns a kubectl that can render.
fn kubectl() -> Option<&'static KubectlBinary> {
    static FOUND: LazyLock<Option<KubectlBinary>> =
        LazyLock::new(|| KubectlBinary::find().filter(KubectlBinary::renders));
    FOUND.as_ref()
}

/// Returns a tool: on the path, or as `cargo xtask setup` caches it at `cached`.
pub(crate) fn tool(name: &str, cached: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join(name));
    on_path.chain(netpold_testbed::cached(cached)).find(|path| path.is_file())
}

fn helm() -> Option<&'static Path> {
    static FOUND: LazyLock<Option<PathBuf>> = LazyLock::new(|| tool("helm", "netpold/helm/helm"));
    FOUND.as_deref()
}

/// Returns whether kubectl and helm can render; otherwise skips the test.
pub(crate) fn can_render(test: &str) -> bool {
    let there = kubectl().is_some() && helm().is_some();
    if !there {
        skip(test, "needs helm, and a kubectl of 1.21 or later (`cargo xtask setup`)");
    }
    there
}

/// Runs helm in the root of the sources; returns whether it succeeded, with its output.
pub(crate) fn run_helm(arguments: &[&str]) -> (bool, String) {
    let mut helm = Command::new(helm().unwrap());
    let output = helm.args(arguments).current_dir(deploy().join("..")).output().unwrap();
    let text = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// Renders the chart for Kubernetes 1.36; `more` are further arguments.
fn template(values: &str, more: &[&str]) -> Vec<Value> {
    let cluster = [
        "--namespace=netpold-system",
        "--kube-version=1.36.0",
        "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
    ];
    let arguments = ["template", "netpold", "deploy/chart", "--set", values];
    let (rendered, text) = run_helm(&[&arguments[..], &cluster, more].concat());
    assert!(rendered, "{values}: {text}");
    parse(&text)
}

/// Returns the objects of an option of the chart.
pub(crate) fn option(name: &str) -> Vec<Value> {
    let (_, values, files) = OPTIONS.iter().find(|(option, ..)| *option == name).unwrap();
    template(values, &[&format!("--show-only=templates/options/{files}.yaml")])
}

/// Returns all objects of the chart with the values, without those for `helm test`.
pub(crate) fn chart(values: &str) -> Vec<Value> {
    template(values, &["--skip-tests"])
}

/// Returns the values of every option.
pub(crate) fn switches() -> impl Iterator<Item = &'static str> {
    OPTIONS.into_iter().map(|(_, values, _)| values)
}

/// Returns the objects of every kustomization and option, by name.
pub(crate) fn everything() -> impl Iterator<Item = (&'static str, Vec<Value>)> {
    let kustomizations = KUSTOMIZATIONS.into_iter().map(|name| (name, render(name)));
    kustomizations.chain(OPTIONS.into_iter().map(|(name, ..)| (name, option(name))))
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
