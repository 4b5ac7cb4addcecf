//! Independent tools from Debian's packages that check `deploy/` and the image, and run parts of them.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{packages, toolchain};
use crate::step;

/// Programs and their packages.
const TOOLS: [(&str, &str); 5] = [
    ("skopeo", "skopeo"),
    ("shellcheck", "shellcheck"),
    ("ruby", "ruby"),
    ("runc", "runc"),
    ("lua5.4", "lua5.4"),
];
const PROMTOOL: &str = "usr/bin/promtool";

/// Installs missing tools.
///
/// # Errors
/// When a tool cannot be installed.
pub(super) fn install() -> Result<()> {
    packages::install_programs(&TOOLS)?;
    if needs_promtool() { fetch_promtool() } else { Ok(()) }
}

/// [`install`] for the tools of the image alone.
///
/// # Errors
/// When a tool cannot be installed.
pub(super) fn install_for_image() -> Result<()> {
    packages::install_programs(&TOOLS[..1])
}

fn needs_promtool() -> bool {
    let cached = toolchain::cache()
        .is_some_and(|cache| cache.join("netpold/promtool").join(PROMTOOL).is_file());
    !cached && toolchain::on_path("promtool").is_none()
}

/// Extracts promtool from its package: an installation would start a Prometheus on this machine.
fn fetch_promtool() -> Result<()> {
    let cache = toolchain::cache().context("neither XDG_CACHE_HOME nor HOME is set")?;
    ensure!(packages::have_apt(), "looking at deploy/ needs promtool on the PATH");
    packages::update();
    let work = tempfile::tempdir().context("no temporary directory")?;
    step::quiet(Command::new("apt-get").args(["download", "-q", "prometheus"]).current_dir(&work))?;
    let package = fs::read_dir(&work)?.filter_map(Result::ok).map(|entry| entry.path()).next();
    let package = package.context("apt-get download left no package")?;
    step::quiet(Command::new("dpkg-deb").arg("-x").arg(package).arg(work.path().join("files")))?;
    let target = cache.join("netpold/promtool").join(PROMTOOL);
    fs::create_dir_all(target.parent().unwrap_or(&cache))?;
    fs::copy(work.path().join("files").join(PROMTOOL), &target).context("promtool is not there")?;
    Ok(())
}
