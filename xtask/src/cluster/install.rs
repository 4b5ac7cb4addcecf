//! Installation of netpold by its chart, with the image of this tree.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::common::wait;
use super::images::{NETPOLD, TAG};
use super::kubectl::Kubectl;
use super::node::TAINT;
use super::state::NODES;
use crate::{setup, step};

const PATIENCE: Duration = Duration::from_mins(4);

/// Applies the chart with the options that this version of Kubernetes supports, and waits until netpold is ready on every
/// node.
///
/// # Errors
/// An object is rejected, or netpold does not become ready.
pub(super) fn run(kubectl: &Kubectl, minor: u32) -> Result<()> {
    step::title("netpold from deploy/chart");
    let objects = rendered(minor)?;
    wait("the objects", Duration::from_mins(1), || kubectl.apply(&objects))?;
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

/// Oldest minor version of Kubernetes that the chart supports.
const OLDEST: u32 = 25;

/// Renders the chart for a minor version of Kubernetes, with the image on the nodes.
fn rendered(minor: u32) -> Result<String> {
    let mut helm = Command::new(setup::helm()?);
    helm.args([
        "template",
        "netpold",
        "deploy/chart",
        "--namespace",
        "netpold-system",
        "--skip-tests",
        "--kube-version",
        &format!("1.{}.0", minor.max(OLDEST)),
    ]);
    for value in values(minor) {
        helm.args(["--set", &value]);
    }
    if minor >= 36 {
        helm.args(["--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"]);
    }
    let output = helm.current_dir(crate::root()).output()?;
    ensure!(output.status.success(), "helm: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the values of the options that a minor version supports.
fn values(minor: u32) -> Vec<String> {
    let since = [
        (0, "readinessGate.mode=auto"),
        (0, "startupTaint.mode=auto"),
        (0, "quotas.enabled=true"),
        (29, "apiProtection.enabled=true"),
        (30, "leastPrivilege.enabled=true"),
    ];
    let options = since.into_iter().filter(|(first, _)| minor >= *first);
    let options = options.map(|(_, option)| option.to_owned());
    let image = [
        format!("image.repository={NETPOLD}"),
        format!("image.tag={TAG}"),
        "image.pullPolicy=Never".to_owned(),
    ];
    options.chain(image).collect()
}
