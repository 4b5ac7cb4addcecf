//! Kubernetes' own NetworkPolicy tests, of the cluster's version.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::binaries::Binaries;
use super::state::{NODES, State};
use super::{control, images};
use crate::step;

/// Runs them by the script that a kind cluster is tested with.
///
/// # Errors
/// There are none, an image that they need is missing, or one fails.
pub(super) fn run(state: &State, binaries: &Binaries) -> Result<()> {
    let folder = binaries.folder();
    ensure!(binaries.e2e().is_some(), "no e2e.test in {}", folder.display());
    for node in NODES {
        let there = images::listed(state, binaries, node)?;
        for name in images::wanted(binaries)? {
            ensure!(
                there.contains(&name),
                "node {node} has no image {name}, which the tests run: put it into {} as an archive \
                 (`skopeo copy docker://{name} docker-archive:agnhost.tar:{name}`), or the static \
                 program agnhost into {}, and start the cluster anew",
                folder.join("images").display(),
                folder.display()
            );
        }
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path =
        std::env::join_paths([folder.to_owned()].into_iter().chain(std::env::split_paths(&path)))
            .context("PATH")?;
    let init = state.init(NODES[0])?;
    let script = crate::root().join("deploy/kind/conformance.sh");
    step::show(
        Command::new("nsenter")
            .args([&format!("--target={init}"), "--net", "--", "sh"])
            .arg(script)
            .env("PATH", path)
            .env("KUBECONFIG", control::admin(state)),
    )
}
