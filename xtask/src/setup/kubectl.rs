//! A kubectl that renders `deploy/`: kustomize 4 or later is in it since 1.21. What Debian 12 has is
//! 1.20, so Debian 13's is taken out of its package, into the user's cache.

use std::fs;

use anyhow::{Context, Result, ensure};
use netpold_testbed::apiserver::{KUBECTL_CACHED, Kubectl};

use super::release::Release;
use super::toolchain;

/// The release whose kubectl runs on it and the one before.
const SUITE: &str = "trixie";

/// Fetches it where there is none.
///
/// # Errors
/// Naming what could not be had.
pub(super) fn install() -> Result<()> {
    if Kubectl::find().is_some_and(|kubectl| kubectl.renders()) {
        return Ok(());
    }
    ensure!(
        Release::possible(),
        "rendering deploy/ needs a kubectl of 1.21 or later on the PATH; on Debian it is fetched"
    );
    let folder = toolchain::cache().context("neither XDG_CACHE_HOME nor HOME is set")?;
    let folder = folder.join(KUBECTL_CACHED);
    let release = Release::new(SUITE)?;
    release.unpack(&["kubectl"]).with_context(|| format!("no kubectl from Debian {SUITE}"))?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let new = folder.join(".kubectl.new");
    fs::copy(release.path("root/usr/bin/kubectl"), &new)
        .and_then(|_| fs::rename(&new, folder.join("kubectl")))
        .with_context(|| format!("cannot put kubectl into {}", folder.display()))?;
    ensure!(
        Kubectl::find().is_some_and(|kubectl| kubectl.renders()),
        "the kubectl of Debian {SUITE} does not run here; put one of 1.21 or later on the PATH"
    );
    Ok(())
}
