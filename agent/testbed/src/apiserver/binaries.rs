//! Locations of `kube-apiserver`, `etcd` and `kubectl`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cached;

/// The version that `cargo xtask setup` builds.
pub const VERSION: &str = "1.20.2";
/// Folder of those binaries, below the user's cache folder.
pub const CACHED: &str = "netpold/kube-1.20.2-custom-objects";

/// Environment variable with a folder of the binaries of any release, which is searched first (CONTRIBUTING.md).
const VARIABLE: &str = "NETPOLD_KUBERNETES_DIR";

/// Folder where `cargo xtask setup` puts a kubectl, below the user's cache folder.
pub const KUBECTL_CACHED: &str = "netpold/kubectl";

/// A kubectl.
#[derive(Clone, Debug)]
pub struct KubectlBinary(PathBuf);

impl KubectlBinary {
    /// The first kubectl that renders, in the order of [`KubeBinaries::find`]; else the first of all.
    #[must_use]
    pub fn find() -> Option<Self> {
        let mut all = folders().into_iter().map(|folder| Self(folder.join("kubectl")));
        let mut all = all.by_ref().filter(|kubectl| kubectl.0.is_file());
        let first = all.next()?;
        if first.renders() {
            return Some(first);
        }
        Some(all.find(Self::renders).unwrap_or(first))
    }

    /// Path of the binary.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Whether this kubectl contains kustomize 4 or later: since 1.21, which also began to report it with `version`.
    #[must_use]
    pub fn renders(&self) -> bool {
        let told = Command::new(&self.0).args(["version", "--client", "-o", "json"]).output();
        told.is_ok_and(|told| String::from_utf8_lossy(&told.stdout).contains("kustomizeVersion"))
    }
}

/// Binaries of a control plane.
#[derive(Clone, Debug)]
pub struct KubeBinaries {
    /// `kube-apiserver`
    pub apiserver: PathBuf,
    /// `etcd`
    pub etcd: PathBuf,
    /// `kubectl`
    pub kubectl: PathBuf,
}

impl KubeBinaries {
    /// Looks in `NETPOLD_KUBERNETES_DIR`, `KUBEBUILDER_ASSETS`, on the `PATH` and where `cargo xtask setup` puts
    /// them.
    ///
    /// # Errors
    /// When a binary is missing, with its name and the remedy.
    pub fn find() -> Result<Self> {
        let needed = |name: &'static str| {
            find(name).with_context(|| {
                format!(
                    "no {name} in {VARIABLE}, in KUBEBUILDER_ASSETS, on the PATH or in {}: run `cargo xtask setup`",
                    cached(CACHED).map_or_else(|| "the cache".into(), |c| c.display().to_string())
                )
            })
        };
        Ok(Self {
            apiserver: needed("kube-apiserver")?,
            etcd: needed("etcd")?,
            kubectl: KubectlBinary::find()
                .map_or_else(|| needed("kubectl"), |found| Ok(found.0))?,
        })
    }

    /// Whether `kube-apiserver` or `etcd` is missing.
    #[must_use]
    pub fn without_server() -> bool {
        find("kube-apiserver").is_none() || find("etcd").is_none()
    }
}

fn find(name: &str) -> Option<PathBuf> {
    folders().into_iter().map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn folders() -> Vec<PathBuf> {
    let named = [VARIABLE, "KUBEBUILDER_ASSETS"].into_iter().filter_map(env::var_os);
    let named = named.filter(|path| !path.is_empty()).map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let chosen = named.chain(env::split_paths(&path));
    chosen.chain(cached(CACHED)).chain(cached(KUBECTL_CACHED)).collect()
}

/// Whether a test against a real API server may run: true if its binaries exist. Otherwise the test is skipped, see
/// [`crate::skip`].
#[must_use]
pub fn require_apiserver(test: &str) -> bool {
    KubeBinaries::find().map_err(|error| crate::skip(test, error)).is_ok()
}
