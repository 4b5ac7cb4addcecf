//! A kubectl that renders `deploy/`, with kustomize 4 or later as since 1.21. Debian 12 has 1.20, so that of Debian 13
//! is unpacked into the user's cache.

use std::fs;

use anyhow::{Context, Result, ensure};
use netpold_testbed::apiserver::{KUBECTL_CACHED, KubectlBinary};

use super::release::ReleaseFolder;
use super::toolchain;

/// Release with a kubectl that also runs on the release before.
const SUITE: &str = "trixie";

/// Fetches a kubectl if none renders.
///
/// # Errors
/// When no kubectl is available.
pub(super) fn install() -> Result<()> {
    if KubectlBinary::find().is_some_and(|kubectl| kubectl.renders()) {
        return Ok(());
    }
    ensure!(
        ReleaseFolder::possible(),
        "rendering deploy/ needs a kubectl of 1.21 or later on the PATH; on Debian it is fetched"
    );
    let folder = toolchain::cache().context("neither XDG_CACHE_HOME nor HOME is set")?;
    let folder = folder.join(KUBECTL_CACHED);
    let release = ReleaseFolder::new(SUITE)?;
    release.unpack(&["kubectl"]).with_context(|| format!("no kubectl from Debian {SUITE}"))?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let new = folder.join(".kubectl.new");
    fs::copy(release.path("root/usr/bin/kubectl"), &new)
        .and_then(|_| fs::rename(&new, folder.join("kubectl")))
        .with_context(|| format!("cannot put kubectl into {}", folder.display()))?;
    ensure!(
        KubectlBinary::find().is_some_and(|kubectl| kubectl.renders()),
        "the kubectl of Debian {SUITE} does not run here; put one of 1.21 or later on the PATH"
    );
    Ok(())
}
