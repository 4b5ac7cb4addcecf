//! A real API server for the tests: built once from Debian's source package, with Debian's Go, and kept in the user's
//! cache.
//!
//! No package has the binary, and images from a registry are not used; Debian 12 has the sources of version 1.20.2,
//! which serves all objects that the agent reads except EndpointSlices of v1.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use netpold_testbed::apiserver::{CACHED, VERSION};

use super::release::ReleaseFolder;
use super::toolchain;
use crate::step;

/// The release of all packages, so that they fit each other.
const SUITE: &str = "bookworm";
/// Tools of the build, and etcd.
const PACKAGES: [&str; 10] = [
    "golang-1.19-go",
    "golang-1.19-src",
    "etcd-server",
    // The build calls rsync and jq.
    "rsync",
    "libpopt0",
    "libxxhash0",
    "jq",
    "libjq1",
    "libonig5",
    "golang-github-modern-go-reflect2-dev",
];
/// The copy in the source package cannot make maps under this Go: the server crashes at the first custom object.
const REFLECT: &str = "github.com/modern-go/reflect2";
const TOOLS: [&str; 4] = ["dpkg", "tar", "make", "gcc"];

/// Builds the missing binaries, in about five minutes.
///
/// # Errors
/// When a step fails, with its name. The cache then contains no partial results.
pub(super) fn install() -> Result<()> {
    let folder = toolchain::cache().context("neither XDG_CACHE_HOME nor HOME is set")?;
    let folder = folder.join(CACHED);
    possible()?;
    step::title(&format!("kube-apiserver {VERSION} from Debian's source package (5 minutes)"));
    let work = BuildFolder(ReleaseFolder::new(SUITE)?);
    work.fetch()?;
    work.build().context("kube-apiserver could not be built")?;
    work.keep(&folder)
}

fn possible() -> Result<()> {
    if !ReleaseFolder::possible() {
        bail!(
            "kube-apiserver is built here from Debian's packages only: put a kube-apiserver and an \
             etcd into a folder and name it in KUBEBUILDER_ASSETS (setup-envtest fetches them)"
        );
    }
    let missing: Vec<&str> =
        TOOLS.into_iter().filter(|tool| toolchain::on_path(tool).is_none()).collect();
    if !missing.is_empty() {
        bail!("building kube-apiserver needs {}", missing.join(", "));
    }
    Ok(())
}

/// Folder of the build.
struct BuildFolder(ReleaseFolder);

impl BuildFolder {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    fn fetch(&self) -> Result<()> {
        step::quiet(self.0.apt().args(["source", "--download-only", "kubernetes"]))
            .context("the source package kubernetes cannot be fetched")?;
        self.0.unpack(&PACKAGES).context("Debian's Go and etcd cannot be fetched")?;
        let mut sources = self.0.files(".orig.tar.gz")?;
        let source = sources.pop().context("the source package has no .orig.tar.gz")?;
        let into = ["--strip-components=1", "-C"];
        fs::create_dir_all(self.path("src"))?;
        step::quiet(Command::new("tar").arg("xzf").arg(source).args(into).arg(self.path("src")))?;
        self.replace_reflect()
    }

    /// Replaces the source's own version by the packaged one.
    fn replace_reflect(&self) -> Result<()> {
        let old = self.path("src/vendor").join(REFLECT);
        let new = self.path("root/usr/share/gocode/src").join(REFLECT);
        fs::remove_dir_all(&old).with_context(|| format!("no {REFLECT} in the source package"))?;
        fs::create_dir_all(&old)?;
        for file in fs::read_dir(&new).with_context(|| format!("no {REFLECT} in its package"))? {
            let file = file?;
            if file.path().is_file() {
                fs::copy(file.path(), old.join(file.file_name()))?;
            }
        }
        Ok(())
    }

    fn build(&self) -> Result<()> {
        let go = self.path("root/usr/lib/go-1.19");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let own = [go.join("bin"), self.path("root/usr/bin")];
        let path = std::env::join_paths(own.into_iter().chain(std::env::split_paths(&path)))?;
        let version = format!(
            "KUBE_GIT_COMMIT='debian'\nKUBE_GIT_TREE_STATE='clean'\nKUBE_GIT_VERSION='v{VERSION}'\n\
             KUBE_GIT_MAJOR='1'\nKUBE_GIT_MINOR='20'\n"
        );
        fs::write(self.path("version"), version)?;
        let mut make = Command::new("make");
        make.arg("WHAT=cmd/kube-apiserver")
            .current_dir(self.path("src"))
            .env("PATH", path)
            .env("GOROOT", go)
            // The source package contains all dependencies.
            .env("GOPROXY", "off")
            .env("GOSUMDB", "off")
            .env("GOCACHE", self.path("gocache"))
            .env("LD_LIBRARY_PATH", self.libraries())
            .env("KUBE_GIT_VERSION_FILE", self.path("version"));
        step::quiet(&mut make)
    }

    /// Libraries of the unpacked rsync.
    fn libraries(&self) -> std::ffi::OsString {
        let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
        let folders = ["root/usr/lib", "root/lib"].map(|lib| self.path(lib).join(&triplet));
        std::env::join_paths(folders).unwrap_or_default()
    }

    /// Moves the results into the cache, each as a whole.
    fn keep(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let machine = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let built = format!("src/_output/local/bin/linux/{machine}/kube-apiserver");
        for (from, name) in [(built.as_str(), "kube-apiserver"), ("root/usr/bin/etcd", "etcd")] {
            let new = folder.join(format!(".{name}.new"));
            fs::copy(self.path(from), &new)
                .and_then(|_| fs::rename(&new, folder.join(name)))
                .with_context(|| format!("cannot put {name} into {}", folder.display()))?;
        }
        Ok(())
    }
}
