//! Paths of the programs: from the given folder, else from this machine, else from Debian packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{setup, vm};

/// Required files of the folder.
const NEEDED: [&str; 6] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
];
/// Oldest supported minor version: the first with CRI v1, the protocol between kubelet and containerd, and with the API
/// versions in `deploy/`.
const OLDEST: u32 = 25;

/// Programs of a cluster.
pub(super) struct ClusterBinaries {
    folder: PathBuf,
    version: String,
    minor: u32,
    pub(super) etcd: PathBuf,
    pub(super) containerd: PathBuf,
    pub(super) ctr: PathBuf,
    pub(super) runc: PathBuf,
    pub(super) busybox: PathBuf,
    /// Folder with the CNI plugins.
    pub(super) plugins: PathBuf,
}

impl ClusterBinaries {
    /// Returns the required files that a folder lacks.
    pub(super) fn missing(folder: &Path) -> Vec<&'static str> {
        NEEDED.into_iter().filter(|name| !folder.join(name).is_file()).collect()
    }

    /// Finds all programs. Missing ones are unpacked from packages into the user's cache; packages are not installed,
    /// since installation would start services.
    ///
    /// # Errors
    /// A program is missing; the error names it.
    pub(super) fn find(folder: &Path) -> Result<Self> {
        let folder = std::path::absolute(folder)?;
        let missing = Self::missing(&folder);
        ensure!(missing.is_empty(), "{} has no {}", folder.display(), missing.join(", "));
        for hidden in ["/run", "/var/lib", "/var/log"] {
            ensure!(
                !folder.starts_with(hidden) && !crate::root().starts_with(hidden),
                "nodes have a {hidden} of their own: neither DIR nor the sources can be below it"
            );
        }
        for tool in ["unshare", "nsenter", "setsid", "ip"] {
            ensure!(setup::on_path(tool).is_some(), "{tool} is missing (util-linux, iproute2)");
        }
        let version = version(&folder.join("kubelet"))?;
        let minor = minor(&version)?;
        ensure!(minor >= OLDEST, "Kubernetes {version} is older than 1.{OLDEST}");
        let containerd = program(&folder, "containerd", "containerd")?;
        let ctr = containerd.with_file_name("ctr");
        for name in ["ctr", "containerd-shim-runc-v2"] {
            let path = containerd.with_file_name(name);
            ensure!(path.is_file(), "no {name} beside {}", containerd.display());
        }
        Ok(Self {
            version,
            minor,
            etcd: program(&folder, "etcd", "etcd-server")?,
            containerd,
            ctr,
            runc: program(&folder, "runc", "runc")?,
            busybox: program(&folder, "busybox", "busybox-static")?,
            plugins: plugins(&folder)?,
            folder,
        })
    }

    /// Returns the given folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a required file.
    pub(super) fn kubernetes(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the kubelet's version, such as `v1.36.2`.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Returns the minor version, as 36.
    pub(super) fn minor(&self) -> u32 {
        self.minor
    }

    /// Returns the path of Kubernetes' own tests, if present.
    pub(super) fn e2e(&self) -> Option<PathBuf> {
        Some(self.folder.join("e2e.test")).filter(|path| path.is_file())
    }

    /// Returns the `PATH` of all programs of a node: containerd finds its shim there, the kubelet mount, kube-proxy
    /// nft.
    pub(super) fn path(&self) -> String {
        let own = [&self.containerd, &self.runc].map(|p| p.parent().unwrap_or(p).to_owned());
        let system =
            ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        let all = own.into_iter().chain(system.map(PathBuf::from));
        all.map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(":")
    }
}

fn program(folder: &Path, name: &str, package: &str) -> Result<PathBuf> {
    let given = folder.join(name);
    if given.is_file() {
        return Ok(given);
    }
    // The machine's busybox may be dynamically linked.
    if let Some(found) = setup::on_path(name).filter(|_| name != "busybox") {
        return Ok(found);
    }
    let root = vm::unpacked(package)
        .with_context(|| format!("no {name}: put one into {}", folder.display()))?;
    let places = ["usr/bin", "usr/sbin", "bin", "sbin"].map(|place| root.join(place).join(name));
    let found = places.into_iter().find(|path| path.is_file());
    found.with_context(|| format!("the package {package} has no {name}"))
}

fn plugins(folder: &Path) -> Result<PathBuf> {
    let usual = ["/opt/cni/bin", "/usr/lib/cni"].map(PathBuf::from);
    let given = [folder.join("cni"), folder.join("cni-plugins"), folder.to_owned()];
    let complete = |path: &PathBuf| {
        ["ptp", "bridge", "host-local", "portmap", "loopback"]
            .iter()
            .all(|p| path.join(p).is_file())
    };
    if let Some(found) = given.into_iter().chain(usual).find(complete) {
        return Ok(found);
    }
    let root = vm::unpacked("containernetworking-plugins").context("no CNI plugins")?;
    Ok(root.join("usr/lib/cni"))
}

fn version(kubelet: &Path) -> Result<String> {
    let told = Command::new(kubelet).arg("--version").output();
    let told = told.with_context(|| format!("cannot run {}", kubelet.display()))?;
    let told = String::from_utf8_lossy(&told.stdout);
    let version = told.trim().strip_prefix("Kubernetes ").context("kubelet tells no version")?;
    Ok(version.to_owned())
}

fn minor(version: &str) -> Result<u32> {
    let number = version.strip_prefix("v1.").and_then(|rest| rest.split('.').next());
    let number = number.and_then(|number| number.parse().ok());
    number.with_context(|| format!("`{version}` is no version of Kubernetes 1"))
}

#[cfg(test)]
mod tests {
    use super::minor;

    #[test]
    fn the_minor_version_is_read() {
        assert_eq!(minor("v1.36.2").ok(), Some(36));
        assert_eq!(minor("v1.37.0-alpha.1+abc").ok(), Some(37));
        assert!(minor("v2.0.0").is_err());
        assert!(minor("1.36.2").is_err());
    }
}
