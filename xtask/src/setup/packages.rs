//! Packages of Debian and its relatives.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use super::toolchain;
use crate::step;

/// Whether this system has apt.
pub(super) fn have_apt() -> bool {
    Path::new("/usr/bin/apt-get").exists()
}

/// Whether this process may install packages.
fn root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// The packages that dpkg does not report as installed (all, without dpkg).
pub(super) fn not_installed<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let installed = |name: &str| {
        let query = Command::new("dpkg-query")
            .args(["--show", "--showformat=${db:Status-Status}", name])
            .output();
        query.is_ok_and(|output| output.stdout == b"installed")
    };
    names.iter().copied().filter(|name| !installed(name)).collect()
}

/// Installs packages without questions, and returns those that apt does not know.
///
/// # Errors
/// When there is no apt, this process is not root, or apt fails.
pub(super) fn install<'a>(names: &[&'a str]) -> Result<Vec<&'a str>> {
    ensure!(
        have_apt() && root(),
        "{} missing; as root on Debian they are installed, else: apt-get install \
         --no-install-recommends {0}",
        names.join(" ")
    );
    update();
    let (known, unknown): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| available(name));
    if !known.is_empty() {
        let mut install = apt_install();
        if !upgrades(&known) {
            // dpkg waits for the disk after each file: 334 s for the compiler and LLVM on a busy machine, and 74 s
            // without. A crash of the machine may then leave empty files of the new packages, and of no other.
            install.args(["-o", "DPkg::Options::=--force-unsafe-io"]);
        }
        step::quiet(install.args(known).env("DEBIAN_FRONTEND", "noninteractive"))?;
    }
    Ok(unknown)
}

fn apt_install() -> Command {
    let mut install = Command::new("apt-get");
    install.args(["install", "-q", "-y", "--no-install-recommends"]);
    // On a fresh machine, unattended upgrades hold dpkg's lock for minutes.
    install.args(["-o", "DPkg::Lock::Timeout=300"]);
    install
}

/// Whether an installation of the packages would replace an installed one; also if apt cannot simulate it.
fn upgrades(names: &[&str]) -> bool {
    let simulated = apt_install().arg("--simulate").args(names).env("LC_ALL", "C").output();
    let Some(output) = simulated.ok().filter(|output| output.status.success()) else { return true };
    // Inst NAME [INSTALLED] (NEW …), without the second for a new package.
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .filter_map(|line| line.strip_prefix("Inst "))
        .any(|line| line.split_once(' ').is_some_and(|(_, versions)| versions.starts_with('[')))
}

/// Installs the packages of absent programs.
///
/// # Errors
/// As [`install`], and when apt does not know one of them.
pub(super) fn install_programs(programs: &[(&str, &str)]) -> Result<()> {
    let lacking = programs.iter().filter(|(program, _)| toolchain::on_path(program).is_none());
    let wanted: Vec<&str> = lacking.map(|(_, package)| *package).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let unknown = install(&wanted)?;
    ensure!(unknown.is_empty(), "apt has no package {}", unknown.join(", "));
    Ok(())
}

/// Updates the package lists: a new image has none, an old one has outdated ones. An unreachable source may be
/// irrelevant, so errors only give a warning.
pub(super) fn update() {
    if let Err(error) = step::quiet(Command::new("apt-get").args(["update", "-q"])) {
        step::warning(&format!("{error:#}; trying to install all the same"));
    }
}

/// Whether apt has a version to install.
fn available(name: &str) -> bool {
    let shown = Command::new("apt-cache")
        .args(["show", "--no-all-versions", name])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    shown.is_ok_and(|status| status.success())
}
