//! Debian's packages, downloaded and unpacked into the cache, not installed.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::arch::Arch;
use crate::step::{self, output};

/// Unpacks a package, with dependencies that are not installed, into a folder.
///
/// # Errors
/// When a package cannot be fetched.
pub(super) fn unpacked(cache: &Path, package: &str) -> Result<PathBuf> {
    let root = cache.join(package);
    if root.join(COMPLETE).exists() {
        return Ok(root);
    }
    let archives = cache.join(format!("{package}.packages"));
    fs::create_dir_all(archives.join("partial"))?;
    let download = || {
        let mut command = apt("apt-get");
        command.arg(option("Dir::Cache::archives", &archives)).args(DOWNLOAD).arg(package);
        command
    };
    if output(&mut download()).is_err() {
        step::quiet(Command::new("apt-get").args(["update", "-q"]))?;
        step::quiet(&mut download())?;
    }
    unpack_all(&archives, &root)?;
    Ok(root)
}

/// Unpacks every package of a folder and removes that folder.
fn unpack_all(archives: &Path, root: &Path) -> Result<()> {
    fs::create_dir_all(root)?;
    let mut found = 0;
    for entry in fs::read_dir(archives)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            output(Command::new("dpkg-deb").arg("-x").args([&path, root]))?;
            found += 1;
        }
    }
    ensure!(found > 0, "apt-get downloaded nothing into {}", archives.display());
    fs::write(root.join(COMPLETE), "")?;
    fs::remove_dir_all(archives)?;
    Ok(())
}

/// File that marks a completely unpacked folder.
pub(super) const COMPLETE: &str = ".complete";
/// Downloads packages with their dependencies.
const DOWNLOAD: [&str; 5] = ["install", "-q", "-y", "--download-only", "--no-install-recommends"];

/// A program of apt, without locks, and without a sandbox user who would need access to the cache.
fn apt(program: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root"]);
    command
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(format!("-o{name}="));
    option.push(path);
    option
}

/// One suite of the machine's own Debian mirror for one processor, with separate lists.
pub(super) struct DebianSuite {
    folder: PathBuf,
    name: String,
    arch: Arch,
}

impl DebianSuite {
    /// Fetches the suite's list of packages.
    ///
    /// # Errors
    /// When the machine has no Debian mirror, or the mirror does not serve the suite.
    pub(super) fn update(cache: &Path, name: &str, arch: Arch) -> Result<Self> {
        let folder = cache.join("suites").join(name);
        fs::create_dir_all(folder.join("lists/partial"))?;
        fs::create_dir_all(folder.join("archives/partial"))?;
        let (mirror, key) = mirror()?;
        fs::write(
            folder.join("sources.list"),
            format!("deb [arch={} signed-by={key}] {mirror} {name} main\n", arch.name()),
        )?;
        let suite = Self { folder, name: name.to_owned(), arch };
        step::quiet(suite.apt("apt-get").args(["update", "-q"]))?;
        Ok(suite)
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = apt(program);
        command
            .arg(option("Dir::State::lists", &self.folder.join("lists")))
            .arg(option("Dir::Cache", &self.folder))
            .arg(option("Dir::Etc::sourcelist", &self.folder.join("sources.list")))
            .args(["-o", "Dir::Etc::sourceparts=/dev/null", "-o", "Acquire::Languages=none"])
            // The machine's installed packages are irrelevant for that suite.
            .args(["-o", "Dir::State::status=/dev/null"]);
        for name in ["Architecture", "Architectures"] {
            command.arg(format!("-oAPT::{name}={}", self.arch.name()));
        }
        command
    }

    /// Dependencies of a package.
    ///
    /// # Errors
    /// When the suite has no such package.
    pub(super) fn depends(&self, package: &str) -> Result<Vec<String>> {
        let text = output(self.apt("apt-cache").args(["depends", "--important", package]))
            .with_context(|| format!("{} has no package {package}", self.name))?;
        let names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(names.map(str::to_owned).collect())
    }

    /// Downloads packages with all their dependencies, and unpacks them.
    ///
    /// # Errors
    /// When a package cannot be fetched.
    pub(super) fn unpack_whole(&self, packages: &[&str], root: &Path) -> Result<()> {
        let archives = self.folder.join("archives");
        fs::create_dir_all(archives.join("partial"))?;
        step::quiet(self.apt("apt-get").args(DOWNLOAD).args(packages))?;
        unpack_all(&archives, root)
    }

    /// Downloads packages and unpacks them.
    ///
    /// # Errors
    /// When a package cannot be fetched.
    pub(super) fn unpack(&self, packages: &[String], root: &Path) -> Result<()> {
        let archives = self.folder.join("archives");
        fs::create_dir_all(&archives)?;
        let mut download = self.apt("apt-get");
        step::quiet(download.args(["download", "-q"]).args(packages).current_dir(&archives))?;
        unpack_all(&archives, root)
    }
}

/// The mirror of the machine's own apt, and the key for its signatures.
fn mirror() -> Result<(String, String)> {
    let format = "$(REPO_URI) $(SIGNED_BY)";
    let targets = output(Command::new("apt-get").args(["indextargets", "--format", format]))?;
    let mirror = targets
        .lines()
        .filter_map(|line| line.split(' ').next())
        .find(|uri| uri.trim_end_matches('/').ends_with("/debian"))
        .context("apt's sources name no Debian mirror, from which the kernels would come")?;
    let key = "/usr/share/keyrings/debian-archive-keyring.gpg";
    ensure!(Path::new(key).exists(), "{key} is missing: install debian-archive-keyring");
    Ok((mirror.to_owned(), key.to_owned()))
}
