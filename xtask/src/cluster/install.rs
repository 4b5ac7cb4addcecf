//! Installation of netpold from `deploy/`, with the image of this tree.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::images::{NETPOLD, TAG};
use super::kubectl::Kubectl;
use super::state::{NODES, State};
use super::wait;
use crate::step;

/// Startup taint of new nodes until netpold enforces there (deploy/status.md).
pub(super) const TAINT: &str = "netpold.io/agent-not-ready";
const PATIENCE: Duration = Duration::from_mins(4);

/// Applies the base and the overlays that this version of Kubernetes supports, and waits until netpold is ready on
/// every node.
///
/// # Errors
/// An object is rejected, or netpold does not become ready.
pub(super) fn run(state: &State, kubectl: &Kubectl, minor: u32) -> Result<()> {
    step::title("netpold from deploy/");
    kubectl.apply(&rendered(state, kubectl)?)?;
    for overlay in overlays(minor) {
        let folder = crate::root().join("deploy/overlays").join(overlay);
        wait(overlay, Duration::from_mins(1), || {
            kubectl.run(&["apply", "-k", &folder.display().to_string()])
        })?;
        step::note(&format!("overlays/{overlay}"));
    }
    for workload in ["daemonset/netpold", "deployment/netpold-controller"] {
        let arguments = ["-n", "netpold-system", "rollout", "status", workload, "--timeout=2s"];
        wait(workload, PATIENCE, || kubectl.run(&arguments))?;
        step::note(&format!("{workload} is ready"));
    }
    for node in NODES {
        wait("the startup taint", PATIENCE, || {
            let taints =
                kubectl.run(&["get", "node", node, "-o", "jsonpath={.spec.taints[*].key}"])?;
            ensure!(!taints.contains(TAINT), "node {node} still has the taint {TAINT}");
            Ok(())
        })?;
    }
    step::note("netpold has taken the startup taint off both nodes");
    Ok(())
}

/// Returns the overlays for a minor version of Kubernetes.
fn overlays(minor: u32) -> Vec<&'static str> {
    let mut overlays = vec!["quotas"];
    if minor >= 29 {
        overlays.push("api-protection");
    }
    if minor >= 30 {
        overlays.push("least-privilege");
    }
    overlays.push(if minor >= 36 { "readiness-gate" } else { "readiness-gate-webhook" });
    overlays
}

/// Renders `deploy/base` with the image on the nodes.
fn rendered(state: &State, kubectl: &Kubectl) -> Result<String> {
    let folder = state.path("deploy");
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../../../deploy/base"],
        "images": [{ "name": "netpold", "newName": NETPOLD, "newTag": TAG }],
    });
    let kustomization = serde_json::to_string_pretty(&kustomization)?;
    super::write(&folder.join("kustomization.yaml"), kustomization)?;
    kubectl.run(&["kustomize", &folder.display().to_string()])
}

#[cfg(test)]
mod tests {
    use super::overlays;

    #[test]
    fn every_overlay_exists_and_each_version_gets_one_readiness_gate() {
        for minor in 25..40 {
            let overlays = overlays(minor);
            let gates = overlays.iter().filter(|name| name.starts_with("readiness-gate")).count();
            assert_eq!(gates, 1, "1.{minor}");
            for overlay in overlays {
                let file = format!("deploy/overlays/{overlay}/kustomization.yaml");
                assert!(crate::root().join(&file).is_file(), "{file}");
            }
        }
    }
}
