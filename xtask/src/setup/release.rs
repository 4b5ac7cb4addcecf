//! Packages of a Debian release other than the machine's: fetched and unpacked into a separate folder, never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::packages;
use crate::step;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A folder for apt's lists, packages and sources; removed when dropped.
pub(super) struct ReleaseFolder(tempfile::TempDir);

impl ReleaseFolder {
    /// Whether this machine has apt and Debian's archive keys.
    pub(super) fn possible() -> bool {
        packages::have_apt() && Path::new(KEYRING).exists()
    }

    /// Fetches the package lists of a release.
    pub(super) fn new(suite: &str) -> Result<Self> {
        let release = Self(tempfile::tempdir().context("no temporary folder")?);
        for folder in ["lists/partial", "cache/archives/partial", "files", "root"] {
            fs::create_dir_all(release.path(folder))?;
        }
        let signed = format!("[signed-by={KEYRING}] {} {suite} main", mirror());
        fs::write(release.path("sources.list"), format!("deb {signed}\ndeb-src {signed}\n"))?;
        fs::write(release.path("status"), "")?;
        step::quiet(release.apt().arg("update"))
            .with_context(|| format!("the package lists of {suite} cannot be fetched"))?;
        Ok(release)
    }

    /// Path in the folder: `files` contains downloads, `root` the unpacked packages.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the apt command with only the release's sources, independent of the machine's sources and packages.
    pub(super) fn apt(&self) -> Command {
        let mut apt = Command::new("apt-get");
        apt.current_dir(self.path("files")).arg("-qq");
        for (key, value) in [
            ("Dir::Etc::sourcelist", self.path("sources.list")),
            ("Dir::Etc::sourceparts", "/dev/null".into()),
            ("Dir::State::lists", self.path("lists")),
            ("Dir::State::status", self.path("status")),
            ("Dir::Cache", self.path("cache")),
            ("APT::Sandbox::User", "root".into()),
        ] {
            apt.arg("-o").arg(format!("{key}={}", value.display()));
        }
        apt
    }

    /// Fetches packages and unpacks them.
    pub(super) fn unpack(&self, names: &[&str]) -> Result<()> {
        step::quiet(self.apt().arg("download").args(names))?;
        for package in self.files(".deb")? {
            let mut unpack = Command::new("dpkg");
            step::quiet(unpack.arg("-x").arg(package).arg(self.path("root")))?;
        }
        Ok(())
    }

    /// Fetched files with a suffix.
    pub(super) fn files(&self, suffix: &str) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(self.path("files"))?.flatten().map(|entry| entry.path());
        Ok(entries.filter(|path| path.to_string_lossy().ends_with(suffix)).collect())
    }
}

/// Returns the machine's mirror if it is a Debian mirror, else the default one.
fn mirror() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let newer = read("/etc/apt/sources.list.d/debian.sources");
    let newer = newer.lines().find_map(|line| line.strip_prefix("URIs:")).map(str::trim);
    let older = read("/etc/apt/sources.list");
    let older = older
        .lines()
        .filter_map(|line| line.strip_prefix("deb "))
        .flat_map(str::split_whitespace)
        .find(|word| word.contains("://"));
    let found = newer.and_then(|all| all.split_whitespace().next()).or(older);
    found.filter(|uri| uri.contains("debian")).unwrap_or("http://deb.debian.org/debian").to_owned()
}
